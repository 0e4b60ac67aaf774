//! The FFNs of experts.

use std::sync::Arc;

use super::cost::count;
use super::gated_activation::gate_operations;
use super::linear::{SCRATCH_PART, halves};
use super::sizes::{WORD, at_least, exactly, no_whole_blocks, product};
use super::{Access, Cost, Operation, Routing};
use crate::card::{CardKind, Span};
use crate::ops::BlobLayout;
use crate::quant::QuantType;
use crate::units::ExpertId;

/// An expert whose blob is in card memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldExpert {
    /// Its id in the layer.
    pub id: ExpertId,
    /// Its blob.
    pub blob: Span,
}

/// Where [`RunExperts`] puts its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertsInto {
    /// Prompt: `out[row] = fma(weight, ffn(x[row]), out[row])` for each expert in the listed (ascending) order; f32
    /// `[rows, width]`.
    Accumulate(Span),
    /// Decode: `slots[row * top_k + slot] = ffn(x[row])`, unweighted, for the listed experts; f32 `[rows * top_k,
    /// width]`.
    Slots(Span),
}

/// Runs the listed experts for their rows.
#[derive(Clone, Debug)]
pub struct RunExperts {
    /// f32 `[rows, width]`, normalised.
    pub x: Span,
    /// The choice.
    pub routing: Routing,
    /// Shape of the blobs.
    pub layout: Arc<BlobLayout>,
    /// Ascending ids; an expert without rows costs nothing.
    pub experts: Vec<HeldExpert>,
    /// Where results go.
    pub into: ExpertsInto,
    /// Work memory, at least [`RunExperts::scratch_bytes`].
    pub scratch: Span,
}

impl RunExperts {
    /// Bytes of work memory over `rows` rows with `top_k` experts each: enough for every row to use one same expert.
    pub fn scratch_bytes(kind: CardKind, rows: usize, top_k: usize, layout: &BlobLayout) -> usize {
        match kind {
            CardKind::Virtual => crate::cpu::experts_scratch(rows, top_k, layout),
            CardKind::Cuda => cuda_scratch(rows, top_k, layout),
        }
    }

    fn check_blobs(&self) -> Result<(), String> {
        let layout = &*self.layout;
        let sides = [(layout.hidden, layout.width), (layout.hidden, layout.width), (layout.width, layout.hidden)];
        for ((ty, offset), (rows, cols)) in layout.types.iter().zip(layout.offsets).zip(sides) {
            let row = ty.row_bytes(cols).ok_or_else(|| no_whole_blocks(ty.name(), cols))?;
            let end = product(&[rows, row])?.saturating_add(offset);
            at_least("the blob", layout.bytes, end)?;
        }
        let (all, mut next) = (self.routing.experts, 0);
        for expert in &self.experts {
            if expert.id.0 < next || expert.id.0 as usize >= all {
                return Err(format!("expert {} does not ascend or is not below {all}", expert.id.0));
            }
            next = expert.id.0 + 1;
            exactly("a blob", expert.blob.bytes, &[layout.bytes])?;
        }
        Ok(())
    }
}

/// A CUDA card's work memory: the rows in f16, the gated rows, the gate and up products (and later the results), the
/// table of tiles.
pub(in crate::card) fn cuda_scratch(rows: usize, top_k: usize, layout: &BlobLayout) -> usize {
    let entries = rows * top_k;
    halves(rows, layout.width)
        + cuda_inner(entries, layout.hidden, layout.types[2])
        + cuda_products(entries, layout.hidden)
        + cuda_tiles(entries)
}

/// Bytes of the gated rows as the down products of this format read them.
pub(in crate::card) fn cuda_inner(entries: usize, hidden: usize, down: QuantType) -> usize {
    match down {
        QuantType::F32 => (entries * hidden * 4).next_multiple_of(SCRATCH_PART),
        _ => halves(entries, hidden),
    }
}

/// Bytes for the f32 gate and up products of the entries, and after them for blocks of at least 128 columns of the
/// results.
pub(in crate::card) fn cuda_products(entries: usize, hidden: usize) -> usize {
    (entries * (2 * hidden).max(128) * 4).next_multiple_of(SCRATCH_PART)
}

/// Bytes for the table of row tiles of a launch: tiles have at least 16 rows, but for the last of each expert.
fn cuda_tiles(entries: usize) -> usize {
    (entries / 16 + 1024 + 2) * 8 + SCRATCH_PART
}

impl Operation for RunExperts {
    fn name(&self) -> &'static str {
        "experts"
    }

    fn accesses(&self) -> Vec<Access> {
        let Routing { ids, weights, groups, .. } = self.routing;
        let mut all = vec![
            Access::Read(self.x),
            Access::Read(ids),
            Access::Read(weights),
            Access::Read(groups),
            Access::Write(self.scratch),
        ];
        all.extend(self.experts.iter().map(|expert| Access::Read(expert.blob)));
        let (ExpertsInto::Accumulate(out) | ExpertsInto::Slots(out)) = self.into;
        all.push(Access::Write(out));
        all
    }

    fn check(&self, kind: CardKind) -> Result<(), String> {
        let Self { x, routing, layout, into, scratch, .. } = self;
        exactly("x", x.bytes, &[routing.rows, layout.width, WORD])?;
        routing.check()?;
        self.check_blobs()?;
        match into {
            ExpertsInto::Accumulate(out) => exactly("the output", out.bytes, &[routing.rows, layout.width, WORD])?,
            ExpertsInto::Slots(out) => {
                exactly("the slots", out.bytes, &[routing.rows, routing.top_k, layout.width, WORD])?;
            }
        }
        let wanted = Self::scratch_bytes(kind, routing.rows, routing.top_k, layout);
        at_least("the scratch", scratch.bytes, wanted)
    }

    /// As if every row used as many of the listed experts as it can, and as many of these as there are had a row.
    fn cost(&self) -> Cost {
        let Routing { rows, top_k, ids, weights, groups, .. } = self.routing;
        let BlobLayout { width, hidden, activation, .. } = *self.layout;
        let entries = rows * top_k.min(self.experts.len());
        let blobs = count(&[entries.min(self.experts.len()), self.layout.bytes]);
        let choice = ids.bytes as u64 + weights.bytes as u64 + groups.bytes as u64;
        let (added, written, summed) = match self.into {
            ExpertsInto::Accumulate(out) => (out.bytes as u64, out.bytes as u64, count(&[entries, width, 2])),
            ExpertsInto::Slots(_) => (0, count(&[entries, width, WORD]), 0),
        };
        Cost {
            card_read: self.x.bytes as u64 + choice + blobs + added,
            card_written: written,
            tensor: count(&[entries, width, hidden, 3 * 2]),
            float: count(&[entries, hidden, gate_operations(activation)]).saturating_add(summed),
            ..Cost::default()
        }
    }
}
