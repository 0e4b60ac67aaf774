//! The small matrix products of a tile.
#![allow(unsafe_code)]

use std::ops::Range;

use super::cells::PANEL;
use crate::cpu::simd::{LANES, Lanes};

/// Rows whose sums fill the vector registers, two vectors each.
const BLOCK: usize = 6;

/// `c[m][n] (+)= sum over k in steps of rows[m][k] * b[k][n]`, k ascending; from zero when the steps begin at zero.
#[derive(Clone)]
pub(super) struct Product<'a> {
    pub rows: &'a [*const f32],
    pub steps: Range<usize>,
    /// Panels of [`PANEL`] columns: `[panel, k, PANEL]`.
    pub b: *const f32,
    /// Floats from one panel to the next.
    pub b_panel: usize,
    /// Columns, whole panels.
    pub columns: usize,
    pub c: *mut f32,
    /// Floats from one row of `c` to the next.
    pub c_stride: usize,
}

impl Product<'_> {
    /// Runs the product.
    ///
    /// # Safety
    /// Each row has `steps.end` elements, `b` has `columns / PANEL` panels of `steps.end` rows, `c` has `rows.len()`
    /// rows of `columns`.
    #[inline(always)]
    pub unsafe fn run<L: Lanes>(&self) {
        let panels = self.columns / PANEL;
        let whole = self.rows.len() / BLOCK * BLOCK;
        // A panel stays in the first-level cache while the rows pass.
        for panel in 0..panels {
            for first in (0..whole).step_by(BLOCK) {
                // SAFETY: these rows and this panel exist.
                unsafe { self.block::<L, BLOCK, 2>(first, panel) };
            }
        }
        // Fewer rows take more panels at a time: each sum waits for its last addition, so there must be many.
        // SAFETY: these are the rows that are left, each once.
        unsafe {
            match self.rows.len() - whole {
                0 => {}
                1 => self.panels::<L, 1, 8>(whole, panels),
                2 => self.panels::<L, 2, 4>(whole, panels),
                3 => self.panels::<L, 3, 4>(whole, panels),
                4 => self.panels::<L, 4, 2>(whole, panels),
                _ => {
                    self.panels::<L, 3, 4>(whole, panels);
                    self.panels::<L, 2, 4>(whole + 3, panels);
                }
            }
        }
    }

    /// `M` rows over all panels, `N` vectors at a time as long as there are so many.
    #[inline(always)]
    unsafe fn panels<L: Lanes, const M: usize, const N: usize>(&self, first: usize, panels: usize) {
        let each = N / 2;
        let whole = panels / each * each;
        for panel in (0..whole).step_by(each) {
            // SAFETY: the caller's rows, and panels that exist.
            unsafe { self.block::<L, M, N>(first, panel) };
        }
        for panel in whole..panels {
            // SAFETY: as above.
            unsafe { self.block::<L, M, 2>(first, panel) };
        }
    }

    /// Rows `first..first + M`, panels `panel..panel + N / 2`.
    #[inline(always)]
    unsafe fn block<L: Lanes, const M: usize, const N: usize>(&self, first: usize, panel: usize) {
        let mut rows = [self.rows[first]; M];
        rows.copy_from_slice(&self.rows[first..first + M]);
        // SAFETY: the caller's panels and rows exist, here and below.
        let b = unsafe { self.b.add(panel * self.b_panel) };
        // SAFETY: as above.
        let c = unsafe { self.c.add(first * self.c_stride + panel * PANEL) };
        let (b_panel, c_stride) = (self.b_panel, self.c_stride);
        let mut sums = [[L::splat(0.0); N]; M];
        if self.steps.start > 0 {
            for (m, sums) in sums.iter_mut().enumerate() {
                for (n, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: row `m`, vector `n` of `c`.
                    *sum = unsafe { L::load(c.add(m * c_stride + n * LANES)) };
                }
            }
        }
        for k in self.steps.clone() {
            let mut columns = [L::splat(0.0); N];
            for (n, column) in columns.iter_mut().enumerate() {
                // SAFETY: step `k` of the panel that holds vector `n`.
                *column = unsafe { L::load(b.add(n / 2 * b_panel + k * PANEL + n % 2 * LANES)) };
            }
            for (row, sums) in rows.iter().zip(&mut sums) {
                // SAFETY: each row has an element for each step.
                let factor = L::splat(unsafe { *row.add(k) });
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum = factor.fma(column, *sum);
                }
            }
        }
        for (m, sums) in sums.into_iter().enumerate() {
            for (n, sum) in sums.into_iter().enumerate() {
                // SAFETY: row `m`, vector `n` of `c`.
                unsafe { sum.store(c.add(m * c_stride + n * LANES)) };
            }
        }
    }
}

const _: () = assert!(PANEL == 2 * LANES);
