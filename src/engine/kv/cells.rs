//! Where the KV cells of a stage's layers lie, in card memory and in host memory: `[layer][sequence][cell]`.

use std::ops::Range;

use crate::card::command::Cells;
use crate::card::{HostBuf, HostSpan, Span};
use crate::engine::EngineError;
use crate::engine::sequence::SequenceId;
use crate::engine::weights::Layer;
use crate::ops::CellLayout;

/// Offsets of cells: for each layer and sequence, the cells `cells` one after the other.
struct Table {
    layers: Vec<(usize, CellLayout)>,
    cells: Range<usize>,
}

impl Table {
    fn new(layers: &[Layer], sequences: usize, cells: Range<usize>) -> Self {
        let mut offset = 0;
        let mut starts = Vec::with_capacity(layers.len());
        for layer in layers {
            starts.push((offset, layer.attention.cells));
            offset += layer.attention.cells.cell_bytes() * cells.len() * sequences;
        }
        Self { layers: starts, cells }
    }

    /// Offset and bytes of `count` cells of a sequence from cell `first`, in the stage's `layer`-th layer.
    fn find(&self, layer: usize, sequence: SequenceId, cells: &Range<usize>) -> Result<(usize, usize), EngineError> {
        let outside = || EngineError::Internal(format!("cells {cells:?} lie outside {:?}", self.cells));
        let (start, layout) = self.layers.get(layer).ok_or_else(outside)?;
        if cells.start < self.cells.start || cells.end > self.cells.end {
            return Err(outside());
        }
        let bytes = layout.cell_bytes();
        let first = sequence.0 * self.cells.len() + cells.start - self.cells.start;
        Ok((start + first * bytes, cells.len() * bytes))
    }
}

/// The resident cells of a stage, in card memory.
pub(in crate::engine) struct KvCells {
    all: Span,
    table: Table,
}

impl KvCells {
    /// Lays the cells of `layers` out in `all`, the first `resident` of each of `sequences` sequences.
    pub fn new(all: Span, layers: &[Layer], resident: usize, sequences: usize) -> Self {
        Self { all, table: Table::new(layers, sequences, 0..resident) }
    }

    /// Layers of the stage.
    pub fn layers(&self) -> usize {
        self.table.layers.len()
    }

    /// How many cells of each sequence there are.
    pub fn resident(&self) -> usize {
        self.table.cells.len()
    }

    /// These cells of a sequence, in the stage's `layer`-th layer.
    ///
    /// # Errors
    /// When they are not resident.
    pub fn get(&self, layer: usize, sequence: SequenceId, cells: Range<usize>) -> Result<Cells, EngineError> {
        let (offset, bytes) = self.table.find(layer, sequence, &cells)?;
        if offset + bytes > self.all.bytes {
            return Err(EngineError::Internal(format!("cells {cells:?} lie outside the cache")));
        }
        Ok(Cells { at: self.all.part(offset, bytes), first: cells.start, count: cells.len() })
    }
}

/// The streamed cells of a stage, in host memory.
pub(in crate::engine) struct HostCells {
    all: HostBuf,
    table: Table,
}

impl HostCells {
    /// Lays the cells of `layers` out in `all`, the cells `cells` of each of `sequences` sequences.
    pub fn new(all: HostBuf, layers: &[Layer], cells: Range<usize>, sequences: usize) -> Self {
        Self { all, table: Table::new(layers, sequences, cells) }
    }

    /// The first cell of a sequence that lives in host memory.
    pub fn first(&self) -> usize {
        self.table.cells.start
    }

    /// Whether cards can read them in place.
    pub fn is_locked(&self) -> bool {
        self.all.is_locked()
    }

    /// These cells of a sequence, in the stage's `layer`-th layer.
    ///
    /// # Errors
    /// When they do not live in host memory.
    pub fn get(&self, layer: usize, sequence: SequenceId, cells: Range<usize>) -> Result<HostSpan, EngineError> {
        let (offset, bytes) = self.table.find(layer, sequence, &cells)?;
        let outside = || EngineError::Internal(format!("cells {cells:?} lie outside the host's cache"));
        self.all.span(offset, bytes).ok_or_else(outside)
    }
}
