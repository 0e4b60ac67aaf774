//! Writing GGUF: synthetic models for benches and tests, and the sample mixture of experts.
//!
//! [`write_model`] writes a [`Shape`] filled with random weights; its [`Topics`] give routing the popularity and the
//! locality of real text, and [`Topics::text`] writes such text. [`write_sample`] turns SmolLM2-135M-Instruct into a
//! mixture of experts. Both write through [`Writer`], tensor by tensor: no file is ever whole in memory.

mod blocks;
mod header;
mod model;
mod random;
mod sample;
mod shape;
mod sidecar;
mod topics;
mod vocabulary;
mod writer;

pub use header::{Header, HeaderError, TensorHead};
pub use model::{SynthError, write_model};
pub use sample::{DENSE_NAME, DENSE_SHA256, SAMPLE_EXPERTS_USED, SampleError, write_sample};
pub use shape::{Architecture, Experts, NAMES, Overrides, Shape, ShapeError};
pub use topics::{Routing, Topics, coverage, even_text};
pub use vocabulary::{LEAST_VOCABULARY, MOST_VOCABULARY};
pub use writer::{Watch, WriteError, Writer, Written};
