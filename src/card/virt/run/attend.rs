//! Attention over cells.

use super::Bound;
use crate::card::command::{Attend, AttentionEnd, Cells};
use crate::cpu::{self, CellSlice, Queries};

pub(super) fn run(of: &Attend, at: &Bound<'_>) -> Result<(), String> {
    let Attend { rows, first, shape, layout, state, resume, .. } = of;
    let queries = Queries { q: at.read(&of.q)?, rows: *rows, first: *first, shape: *shape, layout: *layout };
    let slice = |cells: &Cells| Ok(CellSlice { bytes: at.read(&cells.at)?, first: cells.first, count: cells.count });
    let mut cells = of.cells.iter().map(slice).collect::<Result<Vec<_>, String>>()?;
    cells.extend(of.host_cells.iter().map(|cells| CellSlice {
        bytes: at.host_read(&cells.at),
        first: cells.first,
        count: cells.count,
    }));
    let out = match &of.end {
        AttentionEnd::Keep => None,
        AttentionEnd::Finish(out) => Some(at.write(out)?),
    };
    cpu::attend(at.team(), &queries, &cells, at.write(state)?, *resume, out);
    Ok(())
}
