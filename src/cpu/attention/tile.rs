//! One tile's part of attention: maximum, sum and weighted values of a few queries.
#![allow(unsafe_code)]

use super::cells::Widened;
use crate::cpu::simd::{LANES, Lanes, exp};
use crate::ops::ATTENTION_TILE;

/// The most queries that [`partial`] takes: their sums fill the vector registers.
pub(super) const BLOCK: usize = 6;

/// Queries that take the tile together out of `left`: sizes that the products are made for.
pub(super) const fn block(left: usize) -> usize {
    match left {
        0..=4 => left,
        5 => 3,
        7 | 8 => 4,
        _ => BLOCK,
    }
}

/// A query of a block.
#[derive(Clone, Copy)]
pub(super) struct Query<'a> {
    /// f32 `[head_dim]`.
    pub q: &'a [f32],
    /// The first so many cells of the tile are seen; at least one.
    pub seen: usize,
}

/// What a block's queries get of one tile.
#[derive(Debug, Default)]
pub(super) struct Partial {
    /// Largest score of each.
    pub max: [f32; BLOCK],
    /// Sum of `e^(score - max)` of each.
    pub sum: [f32; BLOCK],
    /// Scores, then weights `e^(score - max)`: `[BLOCK, ATTENTION_TILE]`.
    weights: Vec<f32>,
    /// Weighted sums of V: `[BLOCK, value stride]`.
    pub values: Vec<f32>,
}

/// Computes the partial of at most [`BLOCK`] queries.
///
/// A score is the sum over the head's elements in ascending order, a weighted value the sum over the cells in ascending
/// order, both by fused multiply-adds; the sum of weights has eight running sums, cell `i` in sum `i % 8`. No query's
/// result depends on the others of its block.
#[inline(always)]
pub(super) fn partial<L: Lanes>(queries: &[Query<'_>], scale: f32, tile: &Widened, stride: usize, out: &mut Partial) {
    let count = queries.len();
    assert!(0 < count && block(count) == count, "no product is made for {count} queries");
    out.weights.resize(BLOCK * ATTENTION_TILE, 0.0);
    out.values.resize(BLOCK * stride, 0.0);
    let dim = queries[0].q.len();
    assert!(
        tile.k.len() == dim * ATTENTION_TILE && tile.v.len() == ATTENTION_TILE * stride && stride.is_multiple_of(LANES)
    );
    assert!(queries.iter().all(|query| query.q.len() == dim && 0 < query.seen && query.seen <= ATTENTION_TILE));
    let most = queries.iter().map(|query| query.seen).max().unwrap_or(0);
    let least = queries.iter().map(|query| query.seen).min().unwrap_or(0);

    let mut rows = [queries[0].q.as_ptr(); BLOCK];
    for (row, query) in rows.iter_mut().zip(queries) {
        *row = query.q.as_ptr();
    }
    let scores = Product { rows, depth: dim, start: 0, columns: most.next_multiple_of(LANES) };
    // SAFETY: each row has `dim` elements, K is `[dim, TILE]`, the scores are `[BLOCK, TILE]`, and at most TILE columns are
    // asked for.
    unsafe { scores.run::<L>(count, tile.k.as_ptr(), ATTENTION_TILE, out.weights.as_mut_ptr(), ATTENTION_TILE) };

    for (index, query) in queries.iter().enumerate() {
        let weights = &mut out.weights[index * ATTENTION_TILE..][..ATTENTION_TILE];
        (out.max[index], out.sum[index]) =
            softmax::<L>(&mut weights[..query.seen.next_multiple_of(LANES)], query.seen, scale);
    }

    let weights = out.weights.as_ptr();
    for (index, row) in rows[..count].iter_mut().enumerate() {
        *row = weights.wrapping_add(index * ATTENTION_TILE);
    }
    rows[count..].fill(weights);
    let together = Product { rows, depth: least, start: 0, columns: stride };
    // SAFETY: each row of weights has `least` elements, V is `[TILE, stride]`, the values are `[BLOCK, stride]`.
    unsafe { together.run::<L>(count, tile.v.as_ptr(), stride, out.values.as_mut_ptr(), stride) };
    for (index, query) in queries.iter().enumerate().filter(|(_, query)| query.seen > least) {
        // The sums go on where the block's stopped.
        let rest = Product { rows: [rows[index]; BLOCK], depth: query.seen, start: least, columns: stride };
        // SAFETY: as above, with `query.seen` weights and row `index` of the values.
        unsafe { rest.run::<L>(1, tile.v.as_ptr(), stride, out.values.as_mut_ptr().add(index * stride), stride) };
    }
}

/// Scales `seen` scores, replaces them by weights and returns their maximum and the weights' sum. `scores` is `seen`
/// rounded up to whole vectors; weights past `seen` become zero.
#[inline(always)]
fn softmax<L: Lanes>(scores: &mut [f32], seen: usize, scale: f32) -> (f32, f32) {
    let length = scores.len();
    let start = scores.as_mut_ptr();
    for at in (0..length).step_by(LANES) {
        // SAFETY: the slice is whole vectors.
        unsafe { L::load(start.add(at)).mul(L::splat(scale)).store(start.add(at)) };
    }
    for at in seen..length {
        // SAFETY: the element lies within the slice.
        unsafe { *start.add(at) = f32::NEG_INFINITY };
    }
    let mut max = L::splat(f32::NEG_INFINITY);
    for at in (0..length).step_by(LANES) {
        // SAFETY: the slice is whole vectors.
        max = unsafe { L::load(start.add(at)) }.max(max);
    }
    let max = max.largest();
    let mut sum = L::splat(0.0);
    for at in (0..length).step_by(LANES) {
        // SAFETY: as above.
        unsafe {
            let weight = exp(L::load(start.add(at)).sub(L::splat(max)));
            weight.store(start.add(at));
            sum = sum.add(weight);
        }
    }
    (max, sum.sum())
}

/// `c[m][n] (+)= sum over k in start..depth of rows[m][k] * b[k][n]`, k ascending; from zero when `start` is zero.
struct Product {
    rows: [*const f32; BLOCK],
    start: usize,
    depth: usize,
    /// Columns, whole vectors.
    columns: usize,
}

impl Product {
    /// Runs the first `count` rows.
    ///
    /// # Safety
    /// The rows have `depth` elements, `b` has `depth` rows of `columns` at `b_stride`, `c` has `count` rows of `columns` at
    /// `c_stride`.
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, count: usize, b: *const f32, b_stride: usize, c: *mut f32, c_stride: usize) {
        // SAFETY: passed on; rows and columns of the shapes below stay inside `count` and `columns`.
        unsafe {
            match count {
                1 => self.shape::<L, 1, 8>(b, b_stride, c, c_stride),
                2 => self.shape::<L, 2, 4>(b, b_stride, c, c_stride),
                3 => self.shape::<L, 3, 4>(b, b_stride, c, c_stride),
                4 => self.shape::<L, 4, 2>(b, b_stride, c, c_stride),
                _ => self.shape::<L, BLOCK, 2>(b, b_stride, c, c_stride),
            }
        }
    }

    /// `M` rows, `N` vectors of columns at a time, the rest one by one.
    ///
    /// # Safety
    /// As [`Product::run`] with `M` rows.
    #[inline(always)]
    unsafe fn shape<L: Lanes, const M: usize, const N: usize>(
        &self,
        b: *const f32,
        b_stride: usize,
        c: *mut f32,
        c_stride: usize,
    ) {
        let mut column = 0;
        while column + N * LANES <= self.columns {
            // SAFETY: these columns exist.
            unsafe { self.block::<L, M, N>(b.add(column), b_stride, c.add(column), c_stride) };
            column += N * LANES;
        }
        while column < self.columns {
            // SAFETY: `columns` is whole vectors, so this one exists.
            unsafe { self.block::<L, M, 1>(b.add(column), b_stride, c.add(column), c_stride) };
            column += LANES;
        }
    }

    #[inline(always)]
    unsafe fn block<L: Lanes, const M: usize, const N: usize>(
        &self,
        b: *const f32,
        b_stride: usize,
        c: *mut f32,
        c_stride: usize,
    ) {
        let mut sums = [[L::splat(0.0); N]; M];
        if self.start > 0 {
            for (m, sums) in sums.iter_mut().enumerate() {
                for (n, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: row `m`, vector `n` of `c`.
                    *sum = unsafe { L::load(c.add(m * c_stride + n * LANES)) };
                }
            }
        }
        for k in self.start..self.depth {
            let mut column = [L::splat(0.0); N];
            for (n, column) in column.iter_mut().enumerate() {
                // SAFETY: row `k`, vector `n` of `b`.
                *column = unsafe { L::load(b.add(k * b_stride + n * LANES)) };
            }
            for (m, sums) in sums.iter_mut().enumerate() {
                // SAFETY: each row has `depth` elements.
                let factor = L::splat(unsafe { *self.rows[m].add(k) });
                for (sum, column) in sums.iter_mut().zip(column) {
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
