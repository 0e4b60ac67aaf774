//! Writing GGUF: synthetic models for benches, and the sample mixture of experts.
