//! Aqueduct runs mixture-of-experts language models that are larger than a card's memory, on one or more GPUs without
//! peer access plus host RAM.
//!
//! The way of the data: [`topology`] (YAML) and [`gguf`] + [`model`] feed [`plan`]; the [`engine`] carries the plan out
//! on [`card`]s; [`text`] turns tokens into words. `docs/architecture.md` is the map.

pub mod bench;
pub mod card;
pub mod cli;
pub mod cpu;
pub mod engine;
pub mod files;
pub mod generate;
pub mod gguf;
pub mod model;
pub mod ops;
pub mod plan;
pub mod quant;
pub mod sampler;
pub mod synth;
pub mod text;
pub mod topology;
pub mod units;
