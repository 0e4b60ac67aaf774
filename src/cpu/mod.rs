//! The model's kernels on the CPU, and the one worker team that runs them.

pub mod linear;
mod team;

pub use team::{Team, TeamError};
