//! The model's kernels on the CPU, and the one worker team that runs them.
// Every function checks its sizes once at its head; inner loops index what was checked.
#![allow(clippy::indexing_slicing)]

mod activation;
pub mod attention;
mod disjoint;
mod experts;
pub mod linear;
mod norm;
mod rope;
mod router;
#[cfg(test)]
mod sample;
mod simd;
mod table;
mod team;

pub use activation::{gated_activation, gated_activation_in_place};
pub use attention::{CellSlice, Queries, attend, store_kv};
pub use disjoint::Disjoint;
pub use experts::{ExpertBlob, ExpertsOut, combine, experts_scratch, run_experts};
pub use linear::Isa;
pub use norm::{rms_norm, rms_norm_in_place};
pub use rope::rope;
pub use router::{RouteInto, Routing, route};
pub use table::{add, add_bias, embed};
pub use team::{Team, TeamError};
