//! Where the KV cells of a stage's layers lie in card memory: `[layer][sequence][cell]`.

use crate::card::Span;
use crate::card::command::Cells;
use crate::engine::EngineError;
use crate::engine::weights::Layer;
use crate::ops::CellLayout;

/// A sequence's place in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::engine) struct Slot(pub usize);

/// The cells of a stage.
pub(in crate::engine) struct KvCells {
    all: Span,
    layers: Vec<(usize, CellLayout)>,
    context: usize,
}

impl KvCells {
    /// Lays the cells of `layers` out in `all`, `context` for each of `sequences` sequences.
    pub fn new(all: Span, layers: &[Layer], context: usize, sequences: usize) -> Self {
        let mut offset = 0;
        let mut starts = Vec::with_capacity(layers.len());
        for layer in layers {
            starts.push((offset, layer.attention.cells));
            offset += layer.attention.cells.cell_bytes() * context * sequences;
        }
        Self { all, layers: starts, context }
    }

    /// Layers of the stage.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// `count` cells of a sequence from cell `first`, in the stage's `layer`-th layer.
    ///
    /// # Errors
    /// When they lie outside the sequence's context.
    pub fn get(&self, layer: usize, slot: Slot, first: usize, count: usize) -> Result<Cells, EngineError> {
        let outside = || EngineError::Mismatch(format!("cells {first}..{} lie outside the cache", first + count));
        let (start, layout) = self.layers.get(layer).ok_or_else(outside)?;
        let bytes = layout.cell_bytes();
        let offset = start + (slot.0 * self.context + first) * bytes;
        if first + count > self.context || offset + count * bytes > self.all.bytes {
            return Err(outside());
        }
        Ok(Cells { at: self.all.part(offset, count * bytes), first, count })
    }
}
