//! Rows in the form that tensor-core products read.

use super::super::kernels::{Grid, arguments, int};
use super::super::module::Module;
use super::Launch;

impl Launch<'_> {
    /// Queues the conversion of f32 rows to f16 rows of `stride` with a power of two each.
    pub(super) fn rows_to_halves(
        &self,
        x: u64,
        [rows, cols, stride]: [usize; 3],
        halves: u64,
        restore: u64,
    ) -> Result<(), String> {
        let grid = Grid::row(rows, 256);
        let (cols, stride) = (int(cols)?, int(stride)?);
        // SAFETY: (const float*, int, int, u16*, float*).
        unsafe { self.launch(Module::Base, "rows_to_halves", grid, arguments![x, cols, stride, halves, restore]) }
    }
}
