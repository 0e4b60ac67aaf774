//! Root mean square norm.

use super::super::kernels::{Grid, arguments, int};
use super::super::module::Module;
use super::Launch;
use crate::card::command::RmsNorm;

impl Launch<'_> {
    pub(super) fn rms_norm(&self, of: &RmsNorm) -> Result<(), String> {
        let &RmsNorm { x, weight, eps, rows, cols, out } = of;
        let from = self.words(&x, rows * cols, "x")?;
        let weight = self.words(&weight, cols, "the weight")?;
        let out = self.words(&out, rows * cols, "out")?;
        // Which kernel sums is a matter of the columns alone.
        if cols <= 1024 && cols.is_multiple_of(4) {
            if [from, weight, out].iter().any(|at| at % 16 != 0) {
                return Err("rows of this kind must be aligned to 16 bytes".to_owned());
            }
            let grid = Grid::row(rows.div_ceil(8), 256);
            let (rows, cols) = (int(rows)?, int(cols)?);
            // SAFETY: (const float*, const float*, float, int, int, float*).
            return unsafe {
                self.launch(Module::Base, "rms_norm_short", grid, arguments![from, weight, eps, rows, cols, out])
            };
        }
        let threads = cols.div_ceil(4).next_multiple_of(32).clamp(32, 512);
        let grid = Grid::row(rows, threads as u32);
        let cols = int(cols)?;
        // SAFETY: (const float*, const float*, float, int, float*).
        unsafe { self.launch(Module::Base, "rms_norm", grid, arguments![from, weight, eps, cols, out]) }
    }
}
