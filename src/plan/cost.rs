//! The one model of time: what cards, links, workers and the disk take for what they move and compute.
//!
//! It is coarse on purpose. Its users ask which of two ways is faster, and by how much; where its figures come from is
//! in `docs/measurements.md`, 'What the planner counts with'.

use super::kv::KvPlan;
use super::request::{CardBudget, HostBudget, Request};
use crate::card::CardKind;
use crate::model::{Ffn, LayerSpec};
use crate::ops::{AttentionShape, CellLayout};
use crate::units::Rate;

/// How fast a GPU reads its memory where the topology does not say: a mid-range one.
const UNDECLARED_RATE: Rate = Rate(400e9);

/// Multiplications and additions a second of a worker that attends.
const ATTENDING: f64 = 11e9;

/// Query heads that would take as long as it takes to widen the cells of their key head.
const WIDENING: usize = 4;

/// What it costs a layer to ask the host and to take its answer, in seconds.
pub(super) const ROUND_TRIP: f64 = 100e-6;

/// What a stage does for a wave, in seconds of the resource that does it.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub(super) struct Seconds {
    /// Arithmetic of the card, or reading its memory where that takes longer.
    pub compute: f64,
    /// Streamed experts on the link.
    pub experts: f64,
    /// Streamed cells on the link.
    pub cells: f64,
    /// Experts that are read from the model's file.
    pub disk: f64,
}

impl Seconds {
    /// A wave whose copies all run beside the arithmetic.
    pub fn ahead(&self) -> f64 {
        self.compute.max(self.experts + self.cells).max(self.disk)
    }

    /// A wave whose cells are copied when their layer needs them, so that nothing else runs meanwhile.
    pub fn cells_first(&self) -> f64 {
        self.cells + self.compute.max(self.experts).max(self.disk)
    }

    /// The same with only this share of the experts streamed.
    pub fn with_experts(self, share: f64) -> Self {
        Self { experts: self.experts * share, disk: self.disk * share, ..self }
    }

    /// Everything one after the other: tells two ways apart whose slowest resource takes as long.
    pub fn apart(&self) -> f64 {
        self.compute + self.experts + self.cells + self.disk
    }
}

/// What a stage's card works through in a wave.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// Multiplications and additions.
    pub operations: f64,
    /// Bytes of its memory that are read once.
    pub read: usize,
    /// Bytes of experts that cross its link.
    pub experts: usize,
    /// Bytes of cells that cross its link.
    pub cells: usize,
    /// Bytes of experts that are read from the model's file.
    pub disk: usize,
}

/// The time a card takes for its part of a wave.
pub(super) fn seconds(card: &CardBudget, host: &HostBudget, work: &Work) -> Seconds {
    let speed = card.compute.map_or(card.rate.0 * operations_a_byte(card.kind), |flops| flops.0);
    Seconds {
        compute: (work.operations / speed).max(work.read as f64 / card.rate.0),
        experts: work.experts as f64 / card.link.0,
        cells: work.cells as f64 / card.link.0,
        disk: work.disk as f64 / host.disk.0,
    }
}

/// Multiplications and additions of a layer over `tokens` tokens after `prefix` cells.
pub(super) fn operations(layer: &LayerSpec, tokens: usize, prefix: usize) -> f64 {
    let weights: usize = layer.dense_tensors().into_iter().map(|tensor| tensor.rows * tensor.cols).sum();
    let experts = match &layer.ffn {
        Ffn::Dense(_) => 0,
        Ffn::Experts(experts) => {
            let parts = [&experts.gate, &experts.up, &experts.down];
            experts.rule.top_k * parts.map(|tensor| tensor.rows * tensor.cols).iter().sum::<usize>()
        }
    };
    let seen = prefix as f64 + tokens as f64 / 2.0;
    let attention =
        layer.attention().map_or(0.0, |of| (of.shape.heads * (of.shape.head_dim + of.shape.value_dim)) as f64 * seen);
    2.0 * tokens as f64 * ((weights + experts) as f64 + attention)
}

/// The share of experts that no token of a text touches: `(1 + t / 1.8)^-0.43` for `t` picks an expert, which goes
/// through what was measured.
pub(super) fn untouched(request: &Request<'_>, tokens: usize) -> f64 {
    let share = |layer: &LayerSpec| {
        let experts = layer.experts()?;
        let picks = (tokens * experts.rule.top_k) as f64 / experts.experts.max(1) as f64;
        Some((1.0 + picks / 1.8).powf(-0.433))
    };
    let all: Vec<f64> = request.spec.layers.iter().filter_map(share).collect();
    if all.is_empty() { 0.0 } else { all.iter().sum::<f64>() / all.len() as f64 }
}

/// Seconds that one streamed cell of a layer takes in a decode step: of the host pool, and of the card's link.
pub(super) fn attending(host: &HostBudget, card: &CardBudget, kv: &KvPlan, shape: &AttentionShape) -> (f64, f64) {
    let bytes = CellLayout::new(kv.kind, shape).cell_bytes() as f64;
    let heads = shape.heads + WIDENING * shape.kv_heads;
    let arithmetic = (heads * (shape.head_dim + shape.value_dim)) as f64 / (ATTENDING * host.workers.max(1) as f64);
    (arithmetic.max(bytes / host.rate.0), bytes / card.link.0)
}

/// How fast a card reads its memory where the topology does not say.
pub(super) fn memory_rate(kind: CardKind, host: Rate) -> Rate {
    match kind {
        CardKind::Virtual => host,
        CardKind::Cuda => UNDECLARED_RATE,
    }
}

/// The rate of what takes one way and then the other.
pub(super) fn one_after_the_other(first: Rate, second: Rate) -> Rate {
    Rate(first.0 * second.0 / (first.0 + second.0))
}

/// What a card of unknown speed does in a prompt while it could read a byte of its memory. Far below what GPUs multiply
/// at their peak: a prompt is no single large product.
fn operations_a_byte(kind: CardKind) -> f64 {
    match kind {
        CardKind::Cuda => 45.0,
        CardKind::Virtual => 8.0,
    }
}
