//! The commands a card runs: copies and the model's kernels, each with what it reads and writes.
//!
//! All activations are f32, row-major, without padding. Ids and positions are u32. A command's [`Command::accesses`] are all
//! it may touch: virtual cards give a kernel only those bytes, and the ledger orders by them.

use std::sync::Arc;

use super::{HostSpan, Span, Wire};
use crate::ops::{Activation, AttentionShape, CellLayout, Rope, RouterRule};
pub use crate::ops::{BlobLayout, ExpertSet};
use crate::quant::QuantType;
use crate::units::ExpertId;

/// A weight matrix in card memory, in the file's block format: `rows` output rows of `cols` inputs, `y = W x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Block format.
    pub ty: QuantType,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// The bytes, `rows * ty.row_bytes(cols)`.
    pub at: Span,
}

/// One product of a [`Command::Linear`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearPart {
    /// The weight; all parts of a command have the same inputs.
    pub weight: Weight,
    /// f32 `[weight.rows]` added to each row.
    pub bias: Option<Span>,
    /// f32 `[rows, weight.rows]`.
    pub out: Span,
}

/// What a command is part of. A card may choose its kernels by it, never by the number of rows, so that a prompt's values do
/// not depend on how the prompt was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Many tokens of a sequence at once.
    Prompt,
    /// One token of each of a few sequences.
    Decode,
}

/// Whether a product replaces what stands in its output or is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Into {
    /// `out = W x`.
    Store,
    /// `out = out + W x`, the product rounded to f32 first.
    Add,
}

/// Consecutive KV cells of one sequence and layer: in card memory, or in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cells<At = Span> {
    /// `count` cells of the layout's size.
    pub at: At,
    /// Absolute number of the first.
    pub first: usize,
    /// How many.
    pub count: usize,
}

/// How a [`Command::Attention`] ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionEnd {
    /// The running state stays in its span for the next cells.
    Keep,
    /// The result is written: f32 `[rows, heads * value_dim]`.
    Finish(Span),
}

/// An expert whose blob is in card memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldExpert {
    /// Its id in the layer.
    pub id: ExpertId,
    /// Its blob.
    pub blob: Span,
}

/// What a [`Command::Route`] found out, in card memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routing {
    /// Tokens.
    pub rows: usize,
    /// Experts of the layer.
    pub experts: usize,
    /// Experts a token uses.
    pub top_k: usize,
    /// u32 `[rows, top_k]`: the chosen experts, best first.
    pub ids: Span,
    /// f32 `[rows, top_k]`: their weights.
    pub weights: Span,
    /// u32 `[experts + 1]` offsets, then u32 `[rows * top_k]` entries `row * top_k + slot`, ascending inside each expert: which
    /// entries belong to which expert.
    pub groups: Span,
}

/// Where [`Command::Experts`] puts its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertsInto {
    /// Prompt: `out[row] = fma(weight, ffn(x[row]), out[row])` for each expert in the listed (ascending) order; f32 `[rows, width]`.
    Accumulate(Span),
    /// Decode: `slots[row * top_k + slot] = ffn(x[row])`, unweighted, for the listed experts; f32 `[rows * top_k, width]`.
    Slots(Span),
}

/// A command of a card's stream.
#[derive(Clone, Debug)]
pub enum Command {
    /// Host to card. Both sides have the same length.
    CopyIn {
        /// Source.
        from: HostSpan,
        /// Target.
        to: Span,
    },
    /// Card to host.
    CopyOut {
        /// Source.
        from: Span,
        /// Target.
        to: HostSpan,
    },
    /// Inside the card.
    Copy {
        /// Source.
        from: Span,
        /// Target.
        to: Span,
    },
    /// From another card's memory, which [`super::Card::reach`] opened, to this card's. Both sides have the same length.
    CopyAcross {
        /// Source, on the other card.
        from: Span,
        /// Target.
        to: Span,
    },
    /// Into a wire; it ends when the bytes have left the source.
    Send {
        /// Source.
        from: Span,
        /// The sending end.
        over: Wire,
    },
    /// Out of a wire, what the other end's next [`Command::Send`] gives, which has the same length.
    Receive {
        /// Target.
        to: Span,
        /// The receiving end.
        over: Wire,
    },
    /// `out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight`, for `rows` rows of `cols`. `out` may be `x`.
    RmsNorm {
        /// f32 `[rows, cols]`.
        x: Span,
        /// f32 `[cols]`.
        weight: Span,
        /// Added to the mean square.
        eps: f32,
        /// Rows (tokens, or tokens times heads).
        rows: usize,
        /// Elements normalised together.
        cols: usize,
        /// f32 `[rows, cols]`.
        out: Span,
    },
    /// Products of several weights with the same rows.
    Linear {
        /// f32 `[rows, cols]`.
        x: Span,
        /// Rows of `x`.
        rows: usize,
        /// The products.
        parts: Vec<LinearPart>,
        /// Replace or add.
        into: Into,
        /// Prompt or decode.
        phase: Phase,
        /// Work memory, at least `super::scratch::linear(..)` bytes.
        scratch: Span,
    },
    /// Rotates the heads of each row in place; row `r` is at position `first + r`.
    Rope {
        /// f32 `[rows, heads * head_dim]`.
        x: Span,
        /// Tokens.
        rows: usize,
        /// Heads of a row.
        heads: usize,
        /// Elements of a head.
        head_dim: usize,
        /// Position of row 0.
        first: usize,
        /// Pairs and angles.
        rope: Rope,
    },
    /// Writes `cells.count` rows of K and V into cells, in the cache's type.
    StoreKv {
        /// f32 `[count, kv_heads * head_dim]`.
        k: Span,
        /// f32 `[count, kv_heads * value_dim]`.
        v: Span,
        /// Layout of a cell.
        layout: CellLayout,
        /// The cells written.
        cells: Cells,
    },
    /// Causal attention of `rows` queries at positions `first..first + rows` over consecutive cells, tile by tile
    /// ([`crate::ops::ATTENTION_TILE`]): each tile gives its own maximum, sum and weighted values, which are merged into the running state in
    /// ascending order.
    Attention {
        /// f32 `[rows, heads * head_dim]`.
        q: Span,
        /// Queries.
        rows: usize,
        /// Position of query 0; it sees cells `0..=first`.
        first: usize,
        /// Heads and sizes.
        shape: AttentionShape,
        /// Layout of a cell.
        layout: CellLayout,
        /// Ascending, consecutive; every one but the last of all ends at a tile's edge.
        cells: Vec<Cells>,
        /// In decode, those that follow in host memory, which the card reads over its link.
        beyond: Option<Cells<HostSpan>>,
        /// f32 `[rows, heads, 2 + value_dim]`: maximum, sum, weighted values.
        state: Span,
        /// Whether the state holds earlier cells (else the first cell is cell 0 and the state is set up).
        resume: bool,
        /// What follows.
        end: AttentionEnd,
        /// Prompt or decode.
        phase: Phase,
        /// Work memory, at least `super::scratch::attention(..)` bytes.
        scratch: Span,
    },
    /// `out = activation(gate) * up`, elementwise. `out` may be `gate`.
    GatedActivation {
        /// f32 `[elements]`.
        gate: Span,
        /// f32 `[elements]`.
        up: Span,
        /// Number of elements.
        elements: usize,
        /// The function.
        activation: Activation,
        /// f32 `[elements]`.
        out: Span,
    },
    /// Chooses each row's experts from router logits.
    Route {
        /// f32 `[rows, experts]`.
        logits: Span,
        /// The rule.
        rule: RouterRule,
        /// Where the choice is written.
        routing: Routing,
        /// Mapped host memory for the set of experts that any row uses: a bit an expert, little endian u64 words.
        routed: Option<HostSpan>,
    },
    /// Runs the listed experts for their rows.
    Experts {
        /// f32 `[rows, width]`, normalised.
        x: Span,
        /// The choice.
        routing: Routing,
        /// Shape of the blobs.
        layout: Arc<BlobLayout>,
        /// Ascending ids; an expert without rows costs nothing.
        experts: Vec<HeldExpert>,
        /// Where results go.
        into: ExpertsInto,
        /// Work memory, at least `super::scratch::experts(..)` bytes.
        scratch: Span,
    },
    /// Decode: `out[row] = fma(weight, slot, out[row])` over the row's chosen experts in ascending id, taking each from the card's own slots
    /// where `held` has it and from the host's otherwise.
    Combine {
        /// The choice.
        routing: Routing,
        /// f32 `[rows * top_k, width]` that [`ExpertsInto::Slots`] wrote.
        slots: Span,
        /// f32 `[rows * top_k, width]` that the host pool computed.
        host_slots: Option<Span>,
        /// Experts the card ran.
        held: ExpertSet,
        /// Elements of a row.
        width: usize,
        /// f32 `[rows, width]`.
        out: Span,
    },
}

/// One access of a command.
#[derive(Clone, Debug)]
pub enum Access {
    /// Card bytes are read.
    Read(Span),
    /// Card bytes are written (and may be read).
    Write(Span),
    /// Host bytes are read.
    HostRead(HostSpan),
    /// Host bytes are written.
    HostWrite(HostSpan),
}

impl Command {
    /// The command's name in messages and traces.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::CopyIn { .. } => "copy in",
            Self::CopyOut { .. } => "copy out",
            Self::Copy { .. } => "copy",
            Self::CopyAcross { .. } => "copy across",
            Self::Send { .. } => "send",
            Self::Receive { .. } => "receive",
            Self::RmsNorm { .. } => "rms norm",
            Self::Linear { .. } => "linear",
            Self::Rope { .. } => "rope",
            Self::StoreKv { .. } => "store kv",
            Self::Attention { .. } => "attention",
            Self::GatedActivation { .. } => "gated activation",
            Self::Route { .. } => "route",
            Self::Experts { .. } => "experts",
            Self::Combine { .. } => "combine",
        }
    }

    /// Every access of the command.
    pub fn accesses(&self) -> Vec<Access> {
        use Access::{HostRead, HostWrite, Read, Write};
        match self {
            Self::CopyIn { from, to } => vec![HostRead(from.clone()), Write(*to)],
            Self::CopyOut { from, to } => vec![Read(*from), HostWrite(to.clone())],
            Self::Copy { from, to } | Self::CopyAcross { from, to } => vec![Read(*from), Write(*to)],
            Self::Send { from, .. } => vec![Read(*from)],
            Self::Receive { to, .. } => vec![Write(*to)],
            Self::RmsNorm { x, weight, out, .. } => vec![Read(*x), Read(*weight), Write(*out)],
            Self::Linear { x, parts, scratch, .. } => {
                let mut all = vec![Read(*x), Write(*scratch)];
                for part in parts {
                    all.push(Read(part.weight.at));
                    all.extend(part.bias.map(Read));
                    all.push(Write(part.out));
                }
                all
            }
            Self::Rope { x, .. } => vec![Write(*x)],
            Self::StoreKv { k, v, cells, .. } => vec![Read(*k), Read(*v), Write(cells.at)],
            Self::Attention { q, cells, beyond, state, end, scratch, .. } => {
                let mut all = vec![Read(*q), Write(*state), Write(*scratch)];
                all.extend(cells.iter().map(|cells| Read(cells.at)));
                all.extend(beyond.iter().map(|cells| HostRead(cells.at.clone())));
                if let AttentionEnd::Finish(out) = end {
                    all.push(Write(*out));
                }
                all
            }
            Self::GatedActivation { gate, up, out, .. } => vec![Read(*gate), Read(*up), Write(*out)],
            Self::Route { logits, routing, routed, .. } => {
                let mut all = vec![Read(*logits), Write(routing.ids), Write(routing.weights), Write(routing.groups)];
                all.extend(routed.clone().map(HostWrite));
                all
            }
            Self::Experts { x, routing, experts, into, scratch, .. } => {
                let mut all =
                    vec![Read(*x), Read(routing.ids), Read(routing.weights), Read(routing.groups), Write(*scratch)];
                all.extend(experts.iter().map(|expert| Read(expert.blob)));
                all.push(Write(match into {
                    ExpertsInto::Accumulate(out) | ExpertsInto::Slots(out) => *out,
                }));
                all
            }
            Self::Combine { routing, slots, host_slots, out, .. } => {
                let mut all = vec![Read(routing.ids), Read(routing.weights), Read(*slots), Write(*out)];
                all.extend(host_slots.map(Read));
                all
            }
        }
    }

    /// Bytes a copy moves over a link, a wire or inside the card; `None` for kernels.
    pub fn copied(&self) -> Option<usize> {
        match self {
            Self::CopyIn { to: span, .. }
            | Self::CopyOut { from: span, .. }
            | Self::Copy { from: span, .. }
            | Self::CopyAcross { to: span, .. }
            | Self::Send { from: span, .. }
            | Self::Receive { to: span, .. } => Some(span.bytes),
            _ => None,
        }
    }

    /// Bytes of host memory that a kernel reads over the link.
    pub fn read_over_link(&self) -> usize {
        match self {
            Self::Attention { beyond: Some(cells), .. } => cells.at.bytes(),
            _ => 0,
        }
    }
}
