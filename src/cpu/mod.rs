//! The model's kernels on the CPU, and the one worker team that runs them.
#![allow(clippy::indexing_slicing)] // Every function checks its sizes once at its head; inner loops index what was checked.

mod disjoint;
pub mod linear;
mod team;

pub use disjoint::Disjoint;
pub use team::{Team, TeamError};
