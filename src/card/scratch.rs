//! Work memory of kernels, by card kind: what a plan reserves and a command must bring.

use super::CardKind;
use super::command::{BlobLayout, Phase};
use crate::cpu::linear::{Formats, scratch_bytes as quantised_rows};
use crate::ops::{ATTENTION_TILE, AttentionShape};
use crate::quant::QuantType;

/// Alignment of the parts of a scratch span.
const PART: usize = 256;

/// Bytes of work memory of a [`super::Command::Linear`] over `rows` rows of at most `cols` inputs.
pub fn linear(kind: CardKind, rows: usize, cols: usize) -> usize {
    match kind {
        CardKind::Virtual => quantised_rows(Formats::of(QuantType::ALL), rows, cols),
        CardKind::Cuda => halves(rows, cols),
    }
}

/// Bytes of work memory of a [`super::Command::Experts`] over `rows` rows with `top_k` experts each: enough for every row
/// to use one same expert.
pub fn experts(kind: CardKind, rows: usize, top_k: usize, layout: &BlobLayout) -> usize {
    match kind {
        CardKind::Virtual => crate::cpu::experts_scratch(rows, top_k, layout),
        CardKind::Cuda => experts_cuda(rows, top_k, layout),
    }
}

/// Bytes of work memory of a [`super::Command::Attention`] over `rows` rows.
pub fn attention(kind: CardKind, phase: Phase, rows: usize, shape: &AttentionShape) -> usize {
    /// Tiles whose partial results a CUDA card keeps at a time in decode: 16,384 cells.
    const TILES: usize = 16_384 / ATTENTION_TILE;
    match (kind, phase) {
        (CardKind::Virtual, _) | (CardKind::Cuda, Phase::Prompt) => 0,
        (CardKind::Cuda, Phase::Decode) => rows * shape.heads * (2 + shape.value_dim) * 4 * TILES,
    }
}

/// A CUDA card's work memory: the rows in f16, the gated rows, the gate and up products (and later the results), the table of tiles.
pub(super) fn experts_cuda(rows: usize, top_k: usize, layout: &BlobLayout) -> usize {
    let entries = rows * top_k;
    halves(rows, layout.width)
        + expert_inner(entries, layout.hidden, layout.types[2])
        + expert_products(entries, layout.hidden)
        + expert_tiles(entries)
}

/// Bytes of the gated rows as the down products of this format read them.
pub(super) fn expert_inner(entries: usize, hidden: usize, down: QuantType) -> usize {
    match down {
        QuantType::F32 => (entries * hidden * 4).next_multiple_of(PART),
        _ => halves(entries, hidden),
    }
}

/// Bytes of `rows` rows in f16, each padded to whole steps of the tensor-core products, and their f32 scales.
pub(super) fn halves(rows: usize, cols: usize) -> usize {
    (rows * cols.next_multiple_of(64) * 2).next_multiple_of(PART) + (rows * 4).next_multiple_of(PART)
}

/// Bytes for the f32 gate and up products of the entries, and after them for blocks of at least 128 columns of the results.
pub(super) fn expert_products(entries: usize, hidden: usize) -> usize {
    (entries * (2 * hidden).max(128) * 4).next_multiple_of(PART)
}

/// Bytes for the table of row tiles of a launch: tiles have at least 16 rows, but for the last of each expert.
pub(super) fn expert_tiles(entries: usize) -> usize {
    (entries / 16 + 1024 + 2) * 8 + PART
}
