//! Decode attention over cells in host memory, by the host pool.

use std::sync::Arc;

use crate::card::HostSpan;
use crate::cpu::Team;
use crate::cpu::attention::{self, CellSlice, Queries};
use crate::engine::EngineError;
use crate::engine::layer::F32;
use crate::ops::{ATTENTION_TILE, AttentionShape, CellLayout};

/// One row of a step over the cells of its sequence that the host attends: the newest ones in host memory.
#[derive(Clone)]
pub(in crate::engine) struct HostRow {
    /// Its position: it sees all cells up to itself.
    pub position: usize,
    /// Number of the first cell it attends.
    pub first: usize,
    /// The cells from there to the row's own.
    pub cells: HostSpan,
    /// f32 `[heads * head_dim]`, copied from the card.
    pub q: HostSpan,
    /// f32 `[heads, 2 + value_dim]`: the state after the card's cells, copied from it.
    pub state: HostSpan,
    /// f32 `[tiles, heads, 2 + value_dim]`: work memory.
    pub partials: HostSpan,
    /// f32 `[heads * value_dim]`, to be written.
    pub attended: HostSpan,
}

/// The host's share of attention.
pub(in crate::engine) struct HostAttention(Arc<Team>);

impl HostRow {
    /// Cells it attends.
    pub fn count(&self) -> usize {
        self.position + 1 - self.first
    }

    /// Bytes of the partial results of `cells` cells.
    pub fn partial_bytes(shape: &AttentionShape, cells: usize) -> usize {
        cells.div_ceil(ATTENTION_TILE) * shape.heads * (2 + shape.value_dim) * F32
    }
}

impl HostAttention {
    /// On these workers.
    pub fn new(team: Arc<Team>) -> Self {
        Self(team)
    }

    /// Wakes workers that are parked, for partial results that are about to be asked for.
    pub fn rouse(&self) {
        self.0.rouse();
    }

    /// The partial results of a row's cells in host memory: needs nothing of the card but the query.
    ///
    /// # Errors
    /// When a host access is not ordered.
    pub fn partials(&self, shape: AttentionShape, layout: CellLayout, row: &HostRow) -> Result<(), EngineError> {
        row.q.read(|q| {
            row.cells.read(|bytes| {
                row.partials.write(|out| {
                    let q = bytemuck::cast_slice(q);
                    let queries = Queries { q, rows: 1, first: row.position, shape, layout };
                    let cells = CellSlice { bytes, first: row.first, count: row.count() };
                    attention::partials(&self.0, &queries, &[cells], bytemuck::cast_slice_mut(out));
                })
            })
        })???;
        Ok(())
    }

    /// Merges a row's partial results into its state, in ascending order of cells, and writes the result.
    ///
    /// # Errors
    /// When a host access is not ordered.
    pub fn finish(&self, shape: AttentionShape, layout: CellLayout, row: &HostRow) -> Result<(), EngineError> {
        row.q.read(|q| {
            let queries = Queries { q: bytemuck::cast_slice(q), rows: 1, first: row.position, shape, layout };
            row.state.write(|state| {
                let state: &mut [f32] = bytemuck::cast_slice_mut(state);
                if row.first == 0 {
                    attention::set_up(&queries, state);
                }
                row.partials.read(|partials| {
                    attention::merge(&self.0, &queries, bytemuck::cast_slice(partials), state);
                    row.attended.write(|out| {
                        attention::finish(&self.0, &queries, state, bytemuck::cast_slice_mut(out));
                    })
                })
            })
        })????;
        Ok(())
    }
}
