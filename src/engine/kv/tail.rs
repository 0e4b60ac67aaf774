//! A wave's new cells on their way to host memory: one layer at a time, written by compute, copied out on the kv-out
//! stream.

use std::ops::Range;

use crate::card::command::Cells;
use crate::card::{Event, Span};
use crate::engine::EngineError;
use crate::ops::{ATTENTION_TILE, CellLayout};

/// The buffer of one layer's new cells. It begins at an attention tile's edge: where a wave does not, the tile's
/// earlier cells are put in front.
pub(in crate::engine) struct Tail {
    span: Span,
    /// The end of the last copy out of it.
    pub copied: Option<Event>,
}

impl Tail {
    /// A tail in card memory.
    pub fn new(span: Span) -> Self {
        Self { span, copied: None }
    }

    /// Where these cells stand in a tail that begins at the tile of cell `begin`.
    ///
    /// # Errors
    /// When the tail is too small.
    pub fn get(&self, layout: &CellLayout, begin: usize, cells: Range<usize>) -> Result<Cells, EngineError> {
        let bytes = layout.cell_bytes();
        let start = cells.start - tile_start(begin);
        if (start + cells.len()) * bytes > self.span.bytes {
            return Err(EngineError::Internal(format!("cells {cells:?} do not fit into the tail")));
        }
        Ok(Cells { at: self.span.part(start * bytes, cells.len() * bytes), first: cells.start, count: cells.len() })
    }
}

/// The first cell of a cell's attention tile.
pub(in crate::engine) const fn tile_start(cell: usize) -> usize {
    cell / ATTENTION_TILE * ATTENTION_TILE
}
