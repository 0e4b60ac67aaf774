//! Products with weights.

use super::cost::count;
use super::sizes::{WORD, at_least, exactly, no_whole_blocks};
use super::{Access, Cost, Epilogue, Operation, Phase};
use crate::card::{CardKind, Span};
use crate::cpu::linear::{Formats, scratch_bytes as quantised_rows};
use crate::quant::QuantType;

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

/// One product of a [`Linear`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearPart {
    /// The weight; all parts of a command have the same inputs.
    pub weight: Weight,
    /// f32 `[weight.rows]` added to each row.
    pub bias: Option<Span>,
    /// f32 `[rows, weight.rows]`.
    pub out: Span,
}

/// Products of several weights with the same rows.
#[derive(Clone, Debug)]
pub struct Linear {
    /// f32 `[rows, cols]`.
    pub x: Span,
    /// Rows of `x`.
    pub rows: usize,
    /// The products.
    pub parts: Vec<LinearPart>,
    /// Whether outputs are overwritten or added to.
    pub epilogue: Epilogue,
    /// Prompt or decode.
    pub phase: Phase,
    /// Work memory, at least [`Linear::scratch_bytes`].
    pub scratch: Span,
}

impl Linear {
    /// Bytes of work memory over `rows` rows of at most `cols` inputs.
    pub fn scratch_bytes(kind: CardKind, rows: usize, cols: usize) -> usize {
        match kind {
            CardKind::Virtual => quantised_rows(Formats::of(QuantType::ALL), rows, cols),
            CardKind::Cuda => halves(rows, cols),
        }
    }
}

/// Alignment of the parts of a CUDA card's work memory.
pub(super) const SCRATCH_PART: usize = 256;

/// Bytes of `rows` rows in f16, each padded to whole steps of the tensor-core products, and their f32 scales.
pub(in crate::card) fn halves(rows: usize, cols: usize) -> usize {
    (rows * cols.next_multiple_of(64) * 2).next_multiple_of(SCRATCH_PART) + (rows * 4).next_multiple_of(SCRATCH_PART)
}

impl Operation for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn accesses(&self) -> Vec<Access> {
        let mut all = vec![Access::Read(self.x), Access::Write(self.scratch)];
        for part in &self.parts {
            all.push(Access::Read(part.weight.at));
            all.extend(part.bias.map(Access::Read));
            all.push(Access::Write(part.out));
        }
        all
    }

    fn check(&self, kind: CardKind) -> Result<(), String> {
        let Self { x, rows, parts, scratch, .. } = self;
        let Some(first) = parts.first() else { return Err("there is no weight".to_owned()) };
        let cols = first.weight.cols;
        exactly("x", x.bytes, &[*rows, cols, WORD])?;
        for (i, part) in parts.iter().enumerate() {
            let weight = &part.weight;
            if weight.cols != cols {
                return Err(format!("weight {i} has {} inputs, weight 0 has {cols}", weight.cols));
            }
            if weight.rows == 0 || cols == 0 {
                return Err(format!("weight {i} has {} outputs and {cols} inputs", weight.rows));
            }
            let row = weight.ty.row_bytes(cols).ok_or_else(|| no_whole_blocks(weight.ty.name(), cols))?;
            exactly("a weight", weight.at.bytes, &[weight.rows, row])?;
            if let Some(bias) = part.bias {
                exactly("a bias", bias.bytes, &[weight.rows, WORD])?;
            }
            exactly("an output", part.out.bytes, &[*rows, weight.rows, WORD])?;
        }
        at_least("the scratch", scratch.bytes, Self::scratch_bytes(kind, *rows, cols))
    }

    fn cost(&self) -> Cost {
        let own = Cost { card_read: self.x.bytes as u64, ..Cost::default() };
        let part = |part: &LinearPart| {
            let out = part.out.bytes as u64;
            let added = u64::from(self.epilogue == Epilogue::Add);
            let biased = u64::from(part.bias.is_some());
            let bias = part.bias.map_or(0, |bias| bias.bytes as u64);
            Cost {
                card_read: part.weight.at.bytes as u64 + bias + out * added,
                card_written: out,
                tensor: count(&[self.rows, part.weight.rows, part.weight.cols, 2]),
                float: count(&[self.rows, part.weight.rows]).saturating_mul(added + biased),
                ..Cost::default()
            }
        };
        self.parts.iter().map(part).fold(own, |all, part| all + part)
    }
}
