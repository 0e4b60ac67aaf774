//! Every buffer the engine will allocate, by card and on the host.

use std::ops::Range;

use serde::Serialize;

use super::kv::KvPlan;
use super::request::{CardBudget, Request};
use super::waves::rows_below;
use crate::card::{CardKind, REGION_ALIGN};
use crate::model::{LayerSpec, TensorRef};
use crate::ops::{ATTENTION_TILE, CellLayout, ExpertSet};
use crate::topology::RunSettings;
use crate::units::Bytes;

/// What a buffer of a card is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Use {
    /// Dense weights, norms and routers of the stage's layers.
    Weights,
    /// Final norm and output head.
    Head,
    /// Resident KV cells of every sequence.
    Kv,
    /// Streamed cells of one layer, for a stage without an expert pool to lend slots of.
    Staging,
    /// New cells of a wave on their way to the host: `[wave + attention tile]` of the largest.
    Tail,
    /// Slots of the expert pool.
    Pool,
    /// Hidden states of the waves in flight: f32 `[buffers, wave, width]`.
    Hidden,
    /// Normalised hidden states: f32 `[wave, width]`.
    Normed,
    /// Queries: f32 `[attention rows, heads * head_dim]`.
    Queries,
    /// Keys: f32 `[attention rows, kv_heads * head_dim]`.
    Keys,
    /// Values: f32 `[attention rows, kv_heads * value_dim]`.
    Values,
    /// Attention results: f32 `[attention rows, heads * value_dim]`.
    Attended,
    /// Running attention state: f32 `[attention rows, heads, 2 + value_dim]`.
    AttentionState,
    /// Gate products of dense FFNs: f32 `[row block, hidden]`.
    Gate,
    /// Up products of dense FFNs: f32 `[row block, hidden]`.
    Up,
    /// Router logits: f32 `[wave, experts]`.
    RouterLogits,
    /// Chosen experts: u32 `[wave, top_k]`.
    RoutedIds,
    /// Their weights: f32 `[wave, top_k]`.
    RoutedWeights,
    /// Entries by expert: u32 `[experts + 1 + wave * top_k]`.
    RoutedGroups,
    /// Results of the card's experts beside the host pool: f32 `[shared rows * top_k, width]`.
    Slots,
    /// Results of the host pool: f32 `[shared rows * top_k, width]`.
    HostSlots,
    /// Work memory of kernels.
    Scratch,
    /// Logits of one block of rows: f32 `[head block, vocabulary]`.
    Logits,
}

impl Use {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 23] = [
        Self::Weights,
        Self::Head,
        Self::Kv,
        Self::Staging,
        Self::Tail,
        Self::Pool,
        Self::Hidden,
        Self::Normed,
        Self::Queries,
        Self::Keys,
        Self::Values,
        Self::Attended,
        Self::AttentionState,
        Self::Gate,
        Self::Up,
        Self::RouterLogits,
        Self::RoutedIds,
        Self::RoutedWeights,
        Self::RoutedGroups,
        Self::Slots,
        Self::HostSlots,
        Self::Scratch,
        Self::Logits,
    ];

    /// The name used in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Head => "output head",
            Self::Kv => "KV cells",
            Self::Staging => "staging pool",
            Self::Tail => "new KV cells",
            Self::Pool => "expert pool",
            Self::Hidden => "hidden states",
            Self::Normed => "normalised hidden states",
            Self::Queries => "queries",
            Self::Keys => "keys",
            Self::Values => "values",
            Self::Attended => "attention results",
            Self::AttentionState => "attention state",
            Self::Gate => "gate products",
            Self::Up => "up products",
            Self::RouterLogits => "router logits",
            Self::RoutedIds => "routed ids",
            Self::RoutedWeights => "routed weights",
            Self::RoutedGroups => "routed groups",
            Self::Slots => "expert results",
            Self::HostSlots => "host pool results",
            Self::Scratch => "kernel work memory",
            Self::Logits => "logits",
        }
    }
}

/// One buffer of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Buffer {
    /// What it is for.
    #[serde(rename = "use")]
    pub of: Use,
    /// Its size.
    pub bytes: Bytes,
}

/// Alignment of each buffer, tensor and blob in card memory.
pub const ALIGN: usize = REGION_ALIGN;

/// Most rows that attention and dense FFNs take at a time: enough for all cores, or to fill a GPU with tiles.
const ROW_BLOCK: usize = 512;
const GPU_ROW_BLOCK: usize = 2048;

/// Rows of logits that are computed at a time.
const HEAD_BLOCK: usize = 32;

/// Rows that go through a layer together: a wave's, or a step's one of each sequence.
pub fn rows(wave: usize, sequences: usize) -> usize {
    wave.max(sequences)
}

/// Rows of a wave that attention takes at a time: where cells are streamed the whole wave, so that they pass once.
pub fn attention_rows(cards: &[CardBudget], kv: &KvPlan, wave: usize) -> usize {
    if kv.streams() { wave } else { row_block(cards, wave) }
}

/// Rows of a wave that dense FFNs take at a time.
pub fn row_block(cards: &[CardBudget], wave: usize) -> usize {
    let gpus = cards.iter().all(|card| card.kind == CardKind::Cuda);
    wave.min(if gpus { GPU_ROW_BLOCK } else { ROW_BLOCK })
}

/// Rows whose experts the host pool shares: a step's, and with `prompt.host_pool` those of a prompt below the floor.
pub fn shared_rows(settings: &RunSettings, wave: usize) -> usize {
    let below = rows_below(settings.prompt.floor as usize, wave);
    let prompt = if settings.prompt.host_pool { below } else { 0 };
    prompt.max(settings.sequences as usize)
}

/// Rows of logits that are computed at a time.
pub fn head_block(wave: usize) -> usize {
    wave.min(HEAD_BLOCK)
}

/// Bytes of a tensor in the memory of a card of this kind: virtual cards use the file in place.
pub fn tensor_bytes(kind: CardKind, tensor: &TensorRef) -> usize {
    match kind {
        CardKind::Virtual => tensor.bytes,
        CardKind::Cuda => tensor.bytes.next_multiple_of(ALIGN),
    }
}

/// Blobs of experts on their way from the model's file to a card, and those that the host pool reads at a time.
pub const FILE_BLOBS: usize = 4;

/// What a stage needs of the host beside the arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostBuffers {
    /// Hidden states on their way to the stage: embeddings for the first, two hand-off buffers for the others.
    pub arriving: usize,
    /// The routed set of a layer, written by its router.
    pub routed: usize,
    /// Shared with the host pool: chosen experts, u32 `[shared rows, top_k]`.
    pub ids: usize,
    /// Normalised hidden states, f32 `[shared rows, width]`.
    pub normed: usize,
    /// Results of the host pool, f32 `[shared rows * top_k, width]`.
    pub slots: usize,
    /// Logits of one block of rows.
    pub logits: usize,
    /// Experts on their way from the model's file: taken and given back.
    pub blobs: usize,
    /// Streamed KV cells of every sequence and layer.
    pub cells: usize,
    /// Decode over streamed cells: queries of a step, f32 `[sequences, heads * head_dim]`.
    pub queries: usize,
    /// The state after the card's cells, f32 `[sequences, heads, 2 + value_dim]`.
    pub state: usize,
    /// Partial results of the host pool, f32 `[sequences, attention tiles, heads, 2 + value_dim]`.
    pub partials: usize,
    /// Attention results, f32 `[sequences, heads * value_dim]`.
    pub attended: usize,
}

impl HostBuffers {
    /// All bytes.
    pub fn total(&self) -> usize {
        let expert = self.routed + self.ids + self.normed + self.slots + self.blobs;
        let attention = self.cells + self.queries + self.state + self.partials + self.attended;
        self.arriving + self.logits + expert + attention
    }
}

/// Host buffers of the stage that runs `layers`.
pub fn host_stage(request: &Request<'_>, layers: Range<usize>, wave: usize) -> HostBuffers {
    let spec = request.spec;
    let sequences = request.settings.sequences as usize;
    let shared = shared_rows(request.settings, wave);
    let hidden = rows(wave, sequences) * spec.width * 4;
    let mut all =
        HostBuffers { arriving: if layers.start == 0 { hidden } else { 2 * hidden }, ..HostBuffers::default() };
    if layers.end == spec.layers.len() {
        all.logits = head_block(wave).max(sequences) * spec.vocab * 4;
    }
    let own = spec.layers.get(layers).unwrap_or_default();
    let kv = KvPlan::choose(request);
    for attention in own.iter().filter_map(LayerSpec::attention).filter(|_| kv.streams()) {
        let shape = &attention.shape;
        let states = sequences * shape.heads * (2 + shape.value_dim) * 4;
        all.cells += sequences * kv.host_cells().len() * CellLayout::new(kv.kind, shape).cell_bytes();
        all.queries = all.queries.max(sequences * shape.heads * shape.head_dim * 4);
        all.state = all.state.max(states);
        all.partials = all.partials.max(kv.streamed.div_ceil(ATTENTION_TILE) * states);
        all.attended = all.attended.max(sequences * shape.heads * shape.value_dim * 4);
    }
    for experts in own.iter().filter_map(LayerSpec::experts) {
        let picks = shared * experts.rule.top_k;
        all.blobs = all.blobs.max(2 * FILE_BLOBS * experts.blob().bytes);
        all.routed = all.routed.max(ExpertSet::bytes(experts.experts));
        all.ids = all.ids.max(picks * 4);
        all.normed = shared * spec.width * 4;
        all.slots = all.slots.max(picks * spec.width * 4);
    }
    all
}

/// Hidden buffers of each stage: one arrives and one leaves while neighbours compute.
pub fn hidden_buffers(stages: usize) -> usize {
    if stages > 1 { 2 } else { 1 }
}
