//! The running engine: rig, stages, prompt and decode passes.

pub mod sampler;
