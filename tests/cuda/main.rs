//! CUDA cards against references in f64: every command, every weight format, odd sizes, and the invariant that a row's
//! bits do not depend on what stands beside it. Without a GPU each test prints why it does nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod across;
mod attention;
mod build;
mod elementwise;
mod experts;
mod linear;
mod protocol;
mod rig;
mod speed;
#[path = "../support/cuda.rs"]
mod support;
