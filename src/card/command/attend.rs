//! Attention over cells.

use super::cost::count;
use super::sizes::{WORD, at_least, exactly};
use super::{Access, Cost, Operation, Phase};
use crate::card::{CardKind, HostSpan, Span};
use crate::ops::{ATTENTION_TILE, AttentionShape, CellLayout};

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

/// How an [`Attend`] ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionEnd {
    /// The running state stays in its span for the next cells.
    Keep,
    /// The result is written: f32 `[rows, heads * value_dim]`.
    Finish(Span),
}

/// Causal attention of `rows` queries at positions `first..first + rows` over consecutive cells, tile by tile
/// ([`crate::ops::ATTENTION_TILE`]): each tile gives its own maximum, sum and weighted values, which are merged into
/// the running state in ascending order.
#[derive(Clone, Debug)]
pub struct Attend {
    /// f32 `[rows, heads * head_dim]`.
    pub q: Span,
    /// Queries.
    pub rows: usize,
    /// Position of query 0; it sees cells `0..=first`.
    pub first: usize,
    /// Heads and sizes.
    pub shape: AttentionShape,
    /// Layout of a cell.
    pub layout: CellLayout,
    /// Ascending, consecutive; every one but the last of all ends at a tile's edge.
    pub cells: Vec<Cells>,
    /// In decode, those that follow in host memory, which the card reads over its link.
    pub host_cells: Option<Cells<HostSpan>>,
    /// f32 `[rows, heads, 2 + value_dim]`: maximum, sum, weighted values.
    pub state: Span,
    /// Whether the state holds earlier cells (else the first cell is cell 0 and the state is set up).
    pub resume: bool,
    /// What follows.
    pub end: AttentionEnd,
    /// Prompt or decode.
    pub phase: Phase,
    /// Work memory, at least [`Attend::scratch_bytes`].
    pub scratch: Span,
}

impl Attend {
    /// Bytes of work memory over `rows` rows.
    pub fn scratch_bytes(kind: CardKind, phase: Phase, rows: usize, shape: &AttentionShape) -> usize {
        /// Tiles whose partial results a CUDA card keeps at a time in decode: 16,384 cells.
        const TILES: usize = 16_384 / ATTENTION_TILE;
        match (kind, phase) {
            (CardKind::Virtual, _) | (CardKind::Cuda, Phase::Prompt) => 0,
            (CardKind::Cuda, Phase::Decode) => rows * shape.heads * (2 + shape.value_dim) * 4 * TILES,
        }
    }

    fn check_heads(&self) -> Result<(), String> {
        let (shape, layout) = (&self.shape, &self.layout);
        let fits =
            (shape.kv_heads, shape.head_dim, shape.value_dim) == (layout.kv_heads, layout.head_dim, layout.value_dim);
        if fits && shape.heads > 0 && shape.heads.is_multiple_of(shape.kv_heads) {
            return Ok(());
        }
        Err(format!(
            "{} query heads of {} and {} do not fit cells of {} heads of {} and {}",
            shape.heads, shape.head_dim, shape.value_dim, layout.kv_heads, layout.head_dim, layout.value_dim
        ))
    }

    fn check_consecutive(&self) -> Result<(), String> {
        let on_card = self.cells.iter().map(|part| (part.first, part.count, part.at.bytes));
        let on_host = self.host_cells.iter().map(|part| (part.first, part.count, part.at.bytes()));
        let mut next = None;
        for (first, count, bytes) in on_card.chain(on_host) {
            exactly("a range of cells", bytes, &[count, self.layout.cell_bytes()])?;
            let begins = match next {
                Some(next) => first == next,
                None => self.resume || first == 0,
            };
            if !begins || !first.is_multiple_of(ATTENTION_TILE) {
                return Err(format!("cells from {first} do not begin where the earlier ones end, at a tile's edge"));
            }
            next = Some(first.checked_add(count).ok_or("the cells' numbers are too large")?);
        }
        Ok(())
    }

    /// Pairs of a query and a cell that it sees.
    fn pairs(&self) -> u64 {
        let on_card = self.cells.iter().map(|part| (part.first, part.count));
        let on_host = self.host_cells.iter().map(|part| (part.first, part.count));
        let seen = |(first, count): (usize, usize)| {
            // Query r sees the cells up to `self.first + r`: none of the span, then one more each, then all.
            let (rows, at) = (self.rows as u64, self.first as u64);
            let (first, count) = (first as u64, count as u64);
            let below = |limit: u64| {
                // The sum over r of min(at + r + 1, limit).
                let growing = limit.saturating_sub(at + 1).min(rows);
                let sum = growing.saturating_mul(2 * (at + 1) + growing.saturating_sub(1)) / 2;
                sum.saturating_add((rows - growing).saturating_mul(limit))
            };
            below(first + count).saturating_sub(below(first))
        };
        on_card.chain(on_host).map(seen).sum()
    }
}

impl Operation for Attend {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn accesses(&self) -> Vec<Access> {
        let mut all = vec![Access::Read(self.q), Access::Write(self.state), Access::Write(self.scratch)];
        all.extend(self.cells.iter().map(|cells| Access::Read(cells.at)));
        all.extend(self.host_cells.iter().map(|cells| Access::HostRead(cells.at.clone())));
        if let AttentionEnd::Finish(out) = self.end {
            all.push(Access::Write(out));
        }
        all
    }

    fn check(&self, kind: CardKind) -> Result<(), String> {
        let &Self { rows, shape, phase, .. } = self;
        exactly("q", self.q.bytes, &[rows, shape.heads, shape.head_dim, WORD])?;
        exactly("the state", self.state.bytes, &[rows, shape.heads, shape.value_dim + 2, WORD])?;
        if let AttentionEnd::Finish(out) = self.end {
            exactly("the output", out.bytes, &[rows, shape.heads, shape.value_dim, WORD])?;
        }
        at_least("the scratch", self.scratch.bytes, Self::scratch_bytes(kind, phase, rows, &shape))?;
        self.check_heads()?;
        if self.host_cells.is_some() && phase == Phase::Prompt {
            return Err("cells in host memory are attended in decode only; a prompt stages them".to_owned());
        }
        self.check_consecutive()
    }

    fn cost(&self) -> Cost {
        let shape = &self.shape;
        let state = self.state.bytes as u64;
        let out = match self.end {
            AttentionEnd::Keep => 0,
            AttentionEnd::Finish(out) => out.bytes as u64,
        };
        let cells: u64 = self.cells.iter().map(|cells| cells.at.bytes as u64).sum();
        let pairs = self.pairs();
        Cost {
            card_read: self.q.bytes as u64 + cells + if self.resume { state } else { 0 },
            card_written: state + out,
            host_read: self.host_cells.as_ref().map_or(0, |cells| cells.at.bytes() as u64),
            tensor: pairs.saturating_mul(count(&[shape.heads, shape.head_dim + shape.value_dim, 2])),
            // The scale, the maximum, the difference, the exponential and the sum.
            float: pairs.saturating_mul(count(&[shape.heads, 5])),
            ..Cost::default()
        }
    }
}
