//! What layers need of a card, layer by layer, so that a range of layers is a cheap sum.

use super::cost;
use super::kv::KvPlan;
use super::memory::{self, ALIGN, Buffer, Use, attention_rows, head_block, row_block, rows};
use super::request::{CardBudget, Request};
use crate::card::CardKind;
use crate::card::command::{Attend, Linear, Phase, RunExperts};
use crate::model::{AttentionSpec, DenseSpec, ExpertsSpec, Ffn, LayerSpec, Mixer};
use crate::ops::{ATTENTION_TILE, CellLayout};
use crate::units::Bytes;

/// What a run of layers needs of its card.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Needs {
    bytes: [usize; Use::ALL.len()],
    /// Experts of the layers.
    pub experts: usize,
    /// Bytes of their blobs.
    pub expert_bytes: usize,
    /// Bytes of a slot that holds any of them.
    pub slot_bytes: usize,
    /// Bytes of the staging pool, which lends slots of the expert pool.
    pub staging: usize,
    /// Multiplications and additions of a wave.
    pub operations: f64,
}

/// Whether every layer has its own, or all share the largest.
const fn adds_up(of: Use) -> bool {
    matches!(of, Use::Weights | Use::Head | Use::Kv | Use::Pool)
}

/// Sizes that all layers of a request share.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    kind: CardKind,
    sequences: usize,
    rows: usize,
    block: usize,
    attention: usize,
    shared: usize,
    kv: KvPlan,
}

impl Needs {
    /// Room for `bytes` of one use, rounded as cards round what they hand out.
    fn want(&mut self, of: Use, bytes: usize) {
        let bytes = bytes.next_multiple_of(ALIGN);
        if let Some(place) = self.bytes.get_mut(of as usize) {
            *place = if adds_up(of) { *place + bytes } else { bytes.max(*place) };
        }
    }

    /// These layers and others.
    pub fn and(mut self, other: &Self) -> Self {
        // Both are rounded already.
        for ((place, bytes), of) in self.bytes.iter_mut().zip(other.bytes).zip(Use::ALL) {
            *place = if adds_up(of) { *place + bytes } else { bytes.max(*place) };
        }
        self.operations += other.operations;
        self.experts += other.experts;
        self.expert_bytes += other.expert_bytes;
        self.slot_bytes = self.slot_bytes.max(other.slot_bytes);
        self.staging = self.staging.max(other.staging);
        self
    }

    /// A stage's sum: without an expert pool the staging pool is a buffer of its own.
    pub fn stage(mut self) -> Self {
        if self.experts == 0 {
            self.want(Use::Staging, self.staging);
        }
        self
    }

    /// All bytes but the pool's.
    pub fn total(&self) -> usize {
        self.bytes.iter().sum()
    }

    /// Bytes that grow with the wave: all but weights and cells.
    pub fn work(&self) -> usize {
        let kept = Use::ALL.into_iter().zip(self.bytes).filter(|(of, _)| adds_up(*of));
        self.total() - kept.map(|(_, bytes)| bytes).sum::<usize>()
    }

    /// As a list of buffers.
    pub fn buffers(&self) -> Vec<Buffer> {
        let all = Use::ALL.into_iter().zip(self.bytes).filter(|(_, bytes)| *bytes > 0);
        all.map(|(of, bytes)| Buffer { of, bytes: Bytes(bytes as u64) }).collect()
    }

    /// What a stage needs whatever its layers are.
    pub fn of_stage(request: &Request<'_>, card: &CardBudget, wave: usize, stages: usize) -> Self {
        let (spec, scale) = (request.spec, Scale::new(request, card, wave));
        let hidden = scale.rows * spec.width * 4;
        let mut needs = Self::default();
        needs.want(Use::Hidden, memory::hidden_buffers(stages) * hidden);
        needs.want(Use::Normed, hidden);
        // Products name it also where they need none of it, as those of few columns do.
        needs.want(Use::Scratch, 1);
        needs.want(Use::Scratch, Linear::scratch_bytes(card.kind, scale.rows, spec.width));
        needs
    }

    /// What the final norm and the head add.
    pub fn of_head(request: &Request<'_>, card: &CardBudget, wave: usize) -> Self {
        let (spec, scale) = (request.spec, Scale::new(request, card, wave));
        let mut needs = Self::default();
        let tensors = [&spec.output_norm, &spec.head].map(|tensor| memory::tensor_bytes(card.kind, tensor));
        needs.want(Use::Head, tensors.iter().sum());
        needs.want(Use::Logits, head_block(wave).max(scale.sequences) * spec.vocab * 4);
        needs
    }

    /// What each layer adds.
    pub fn of_layers(request: &Request<'_>, card: &CardBudget, wave: usize) -> Vec<Self> {
        let scale = Scale::new(request, card, wave);
        request.spec.layers.iter().map(|layer| Self::of_layer(request, layer, scale)).collect()
    }

    fn of_layer(request: &Request<'_>, layer: &LayerSpec, scale: Scale) -> Self {
        let mut needs = Self::default();
        let weights = layer.dense_tensors().into_iter().map(|tensor| memory::tensor_bytes(scale.kind, tensor)).sum();
        needs.want(Use::Weights, weights);
        needs.operations = cost::operations(layer, scale.rows, 0);
        let Mixer::Attention(attention) = &layer.mixer;
        needs.attention(attention, scale);
        match &layer.ffn {
            Ffn::Dense(dense) => needs.dense(dense, scale),
            Ffn::Experts(experts) => needs.experts(request.spec.width, experts, scale),
        }
        needs
    }

    fn attention(&mut self, attention: &AttentionSpec, scale: Scale) {
        let shape = &attention.shape;
        let cell = CellLayout::new(scale.kv.kind, shape).cell_bytes();
        self.want(Use::Kv, cell * scale.kv.resident * scale.sequences);
        if scale.kv.streams() {
            self.want(Use::Tail, cell * (scale.rows + ATTENTION_TILE));
            self.staging = cell * scale.kv.staging;
        }
        let row = |elements: usize| scale.attention * elements * 4;
        self.want(Use::Queries, row(shape.heads * shape.head_dim));
        self.want(Use::Keys, row(shape.kv_heads * shape.head_dim));
        self.want(Use::Values, row(shape.kv_heads * shape.value_dim));
        self.want(Use::Attended, row(shape.heads * shape.value_dim));
        self.want(Use::AttentionState, row(shape.heads * (2 + shape.value_dim)));
        self.want(Use::Scratch, Linear::scratch_bytes(scale.kind, scale.attention, attention.output.weight.cols));
        self.want(Use::Scratch, Attend::scratch_bytes(scale.kind, Phase::Prompt, scale.attention, shape));
        self.want(Use::Scratch, Attend::scratch_bytes(scale.kind, Phase::Decode, scale.sequences, shape));
    }

    fn dense(&mut self, dense: &DenseSpec, scale: Scale) {
        self.want(Use::Gate, scale.block * dense.width * 4);
        self.want(Use::Up, scale.block * dense.width * 4);
        self.want(Use::Scratch, Linear::scratch_bytes(scale.kind, scale.block, dense.width));
    }

    fn experts(&mut self, width: usize, experts: &ExpertsSpec, scale: Scale) {
        let (blob, top_k) = (experts.blob(), experts.rule.top_k);
        self.experts = experts.experts;
        self.expert_bytes = experts.experts * blob.bytes;
        self.slot_bytes = blob.bytes.next_multiple_of(ALIGN);
        self.want(Use::RouterLogits, scale.rows * experts.experts * 4);
        self.want(Use::RoutedIds, scale.rows * top_k * 4);
        self.want(Use::RoutedWeights, scale.rows * top_k * 4);
        self.want(Use::RoutedGroups, (experts.experts + 1 + scale.rows * top_k) * 4);
        self.want(Use::Slots, scale.shared * top_k * width * 4);
        self.want(Use::HostSlots, scale.shared * top_k * width * 4);
        self.want(Use::Scratch, RunExperts::scratch_bytes(scale.kind, scale.rows, top_k, &blob));
    }
}

impl Scale {
    fn new(request: &Request<'_>, card: &CardBudget, wave: usize) -> Self {
        let sequences = request.settings.sequences as usize;
        let kv = KvPlan::choose(request);
        let block = row_block(&request.cards, wave).max(sequences);
        let attention = attention_rows(&request.cards, &kv, wave).max(sequences);
        let shared = memory::shared_rows(request.settings, wave);
        Self { kind: card.kind, sequences, rows: rows(wave, sequences), block, attention, shared, kv }
    }
}
