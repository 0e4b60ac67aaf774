//! Every buffer the engine will allocate, by card and on the host.

use std::ops::Range;

use serde::Serialize;

use super::{CardBudget, HostPlan, Request, StagePlan};
use crate::card::command::Phase;
use crate::card::{CardKind, scratch};
use crate::model::{Ffn, LayerSpec, Mixer, TensorRef};
use crate::ops::{CellLayout, ExpertSet};
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
    /// Slots of the expert pool.
    Pool,
    /// Hidden states of the waves in flight: f32 `[buffers, wave, width]`.
    Hidden,
    /// Normalised hidden states: f32 `[wave, width]`.
    Normed,
    /// Queries: f32 `[row block, heads * head_dim]`.
    Queries,
    /// Keys: f32 `[row block, kv_heads * head_dim]`.
    Keys,
    /// Values: f32 `[row block, kv_heads * value_dim]`.
    Values,
    /// Attention results: f32 `[row block, heads * value_dim]`.
    Attended,
    /// Running attention state: f32 `[row block, heads, 2 + value_dim]`.
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
    /// Decode results of the card's experts: f32 `[sequences * top_k, width]`.
    Slots,
    /// Decode results of the host pool: f32 `[sequences * top_k, width]`.
    HostSlots,
    /// Work memory of kernels.
    Scratch,
    /// Logits of one block of rows: f32 `[head block, vocabulary]`.
    Logits,
}

impl Use {
    /// The name used in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Head => "output head",
            Self::Kv => "KV cells",
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

/// Alignment of each tensor and blob in card memory.
pub const ALIGN: usize = 256;

/// Most rows that attention and dense products take at a time.
const ROW_BLOCK: usize = 512;

/// Rows of logits that are computed at a time.
const HEAD_BLOCK: usize = 32;

/// Rows of a wave that attention and dense products take at a time.
pub fn row_block(wave: usize) -> usize {
    wave.min(ROW_BLOCK)
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

/// Buffers of a stage without its expert pool.
pub fn stage(
    request: &Request<'_>,
    card: &CardBudget,
    layers: Range<usize>,
    wave: usize,
    stages: usize,
) -> Vec<Buffer> {
    let spec = request.spec;
    let head = layers.end == spec.layers.len();
    let own = spec.layers.get(layers).unwrap_or_default();
    let rows = row_block(wave);
    let sequences = request.settings.sequences as usize;
    let f32s = |n: usize| n * 4;
    let largest = |of: &dyn Fn(&LayerSpec) -> usize| own.iter().map(of).max().unwrap_or(0);

    let attention = |of: &dyn Fn(&crate::ops::AttentionShape) -> usize| {
        largest(&|layer| match &layer.mixer {
            Mixer::Attention(attention) => of(&attention.shape),
        })
    };
    let dense = |layer: &LayerSpec| match &layer.ffn {
        Ffn::Dense(dense) => dense.width,
        Ffn::Experts(_) => 0,
    };
    let experts = |of: &dyn Fn(&crate::model::ExpertsSpec) -> usize| {
        largest(&|layer| match &layer.ffn {
            Ffn::Dense(_) => 0,
            Ffn::Experts(experts) => of(experts),
        })
    };
    let weights = own.iter().flat_map(LayerSpec::dense_tensors).map(|tensor| tensor_bytes(card.kind, tensor)).sum();
    let cells = request.settings.context as usize * sequences;
    let kv: usize = own.iter().map(|layer| cell_layout(request, layer).cell_bytes() * cells).sum();
    let hidden_buffers = hidden_buffers(stages);
    let picks = experts(&|e| e.rule.top_k);
    let cols = largest(&|layer| widest_input(layer)).max(spec.width);
    let expert_scratch = experts(&|e| scratch::experts(card.kind, wave, e.rule.top_k, &e.blob()));

    let attention_scratch = attention(&|shape| {
        let decode = scratch::attention(card.kind, Phase::Decode, sequences, shape);
        scratch::attention(card.kind, Phase::Prompt, rows, shape).max(decode)
    });

    let mut all = vec![(Use::Weights, weights)];
    if head {
        all.push((Use::Head, tensor_bytes(card.kind, &spec.output_norm) + tensor_bytes(card.kind, &spec.head)));
    }
    all.extend([
        (Use::Kv, kv),
        (Use::Hidden, hidden_buffers * f32s(wave * spec.width)),
        (Use::Normed, f32s(wave * spec.width)),
        (Use::Queries, f32s(rows * attention(&|s| s.heads * s.head_dim))),
        (Use::Keys, f32s(rows * attention(&|s| s.kv_heads * s.head_dim))),
        (Use::Values, f32s(rows * attention(&|s| s.kv_heads * s.value_dim))),
        (Use::Attended, f32s(rows * attention(&|s| s.heads * s.value_dim))),
        (Use::AttentionState, f32s(rows * attention(&|s| s.heads * (2 + s.value_dim)))),
        (Use::Gate, f32s(rows * largest(&dense))),
        (Use::Up, f32s(rows * largest(&dense))),
        (Use::RouterLogits, f32s(wave * experts(&|e| e.experts))),
        (Use::RoutedIds, f32s(wave * picks)),
        (Use::RoutedWeights, f32s(wave * picks)),
        (Use::RoutedGroups, experts(&|e| f32s(e.experts + 1 + wave * e.rule.top_k))),
        (Use::Slots, f32s(sequences * picks * spec.width)),
        (Use::HostSlots, f32s(sequences * picks * spec.width)),
        (Use::Scratch, scratch::linear(card.kind, wave, cols).max(expert_scratch).max(attention_scratch)),
    ]);
    if head {
        all.push((Use::Logits, f32s(head_block(wave).max(sequences) * spec.vocab)));
    }
    all.into_iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(of, bytes)| Buffer { of, bytes: Bytes(bytes as u64) })
        .collect()
}

/// The most inputs that a dense product of the layer has.
fn widest_input(layer: &LayerSpec) -> usize {
    let mixer = match &layer.mixer {
        Mixer::Attention(attention) => attention.output.weight.cols,
    };
    let ffn = match &layer.ffn {
        Ffn::Dense(dense) => dense.width,
        Ffn::Experts(_) => 0,
    };
    mixer.max(ffn)
}

/// Layout of a layer's KV cells.
pub fn cell_layout(request: &Request<'_>, layer: &LayerSpec) -> CellLayout {
    match &layer.mixer {
        Mixer::Attention(attention) => CellLayout::new(request.settings.kv.kind, &attention.shape),
    }
}

/// What a stage needs of the host beside the arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostBuffers {
    /// Hidden states on their way to the stage: embeddings for the first, two hand-off buffers for the others.
    pub arriving: usize,
    /// The routed set of a layer, written by its router.
    pub routed: usize,
    /// Decode: chosen experts of a step, u32 `[sequences, top_k]`.
    pub ids: usize,
    /// Decode: normalised hidden states of a step, f32 `[sequences, width]`.
    pub normed: usize,
    /// Decode: results of the host pool, f32 `[sequences * top_k, width]`.
    pub slots: usize,
    /// Logits of one block of rows.
    pub logits: usize,
}

impl HostBuffers {
    /// All bytes.
    pub fn total(&self) -> usize {
        self.arriving + self.routed + self.ids + self.normed + self.slots + self.logits
    }
}

/// Host buffers of the stage that runs `layers`.
pub fn host_stage(request: &Request<'_>, layers: Range<usize>, wave: usize) -> HostBuffers {
    let spec = request.spec;
    let sequences = request.settings.sequences as usize;
    let hidden = wave.max(sequences) * spec.width * 4;
    let mut all =
        HostBuffers { arriving: if layers.start == 0 { hidden } else { 2 * hidden }, ..HostBuffers::default() };
    if layers.end == spec.layers.len() {
        all.logits = head_block(wave).max(sequences) * spec.vocab * 4;
    }
    for layer in spec.layers.get(layers).unwrap_or_default() {
        if let Ffn::Experts(experts) = &layer.ffn {
            let picks = sequences * experts.rule.top_k;
            all.routed = all.routed.max(ExpertSet::bytes(experts.experts));
            all.ids = all.ids.max(picks * 4);
            all.normed = sequences * spec.width * 4;
            all.slots = all.slots.max(picks * spec.width * 4);
        }
    }
    all
}

/// What the host holds for these stages.
pub fn host(request: &Request<'_>, stages: &[StagePlan], wave: usize) -> HostPlan {
    let buffers = stages.iter().map(|stage| host_stage(request, stage.layers.clone(), wave).total()).sum::<usize>();
    HostPlan { budget: request.host, arena: request.spec.expert_bytes(), buffers: Bytes(buffers as u64) }
}

/// Hidden buffers of each stage: one arrives and one leaves while neighbours compute.
pub fn hidden_buffers(stages: usize) -> usize {
    if stages > 1 { 2 } else { 1 }
}
