//! The model's kernels on the CPU, and the one worker team that runs them.

mod team;

pub use team::{Team, TeamError};
