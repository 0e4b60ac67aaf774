//! Work memory of kernels, by card kind: what a plan reserves and a command must bring.

use super::CardKind;
use super::command::BlobLayout;

/// Bytes of work memory of a [`super::Command::Linear`] over `rows` rows of at most `cols` inputs.
pub fn linear(kind: CardKind, rows: usize, cols: usize) -> usize {
    match kind {
        // One int8 row with its block scales and sums never passes half of the f32 row; odd sizes are rounded up to a block.
        CardKind::Virtual | CardKind::Cuda => rows * cols.next_multiple_of(256) * 2,
    }
}

/// Bytes of work memory of a [`super::Command::Experts`] over `rows` rows with `top_k` experts each: enough for every row
/// to use one same expert.
pub fn experts(kind: CardKind, rows: usize, top_k: usize, layout: &BlobLayout) -> usize {
    let hidden = rows * layout.hidden * 4;
    match kind {
        CardKind::Virtual => linear(kind, rows, layout.width) + hidden * 2 + linear(kind, rows, layout.hidden),
        CardKind::Cuda => (linear(kind, rows, layout.width) + hidden * 2 + linear(kind, rows, layout.hidden)) * top_k,
    }
}
