//! The model's kernels on the CPU, and the one worker team that runs them.
#![allow(clippy::indexing_slicing)] // Every function checks its sizes once at its head; inner loops index what was checked.

mod activation;
mod disjoint;
pub mod linear;
mod norm;
mod rope;
#[cfg(test)]
mod sample;
mod simd;
mod team;

pub use activation::{gated_activation, gated_activation_in_place};
pub use disjoint::Disjoint;
pub use norm::{rms_norm, rms_norm_in_place};
pub use rope::rope;
pub use simd::Simd;
pub use team::{Team, TeamError};
