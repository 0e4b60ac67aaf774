//! One tile's part of attention: maximum, sum and weighted values of some queries.
#![allow(unsafe_code)]

use super::cells::{PANEL, Widened};
use super::product::Product;
use crate::cpu::simd::{LANES, Lanes, exp};
use crate::ops::ATTENTION_TILE;

/// The most queries that take a tile together: their weights and one operand stay in the first-level cache.
pub(super) const MANY: usize = 24;

/// A query.
#[derive(Clone, Copy)]
pub(super) struct Query<'a> {
    /// f32 `[head_dim]`.
    pub q: &'a [f32],
    /// The first so many cells of the tile are seen; at least one.
    pub seen: usize,
}

/// What queries get of one tile.
#[derive(Debug, Default)]
pub(super) struct Partial {
    /// Largest score of each.
    pub max: [f32; MANY],
    /// Sum of `e^(score - max)` of each.
    pub sum: [f32; MANY],
    /// Scores, then weights `e^(score - max)`: `[MANY, ATTENTION_TILE]`.
    weights: Vec<f32>,
    /// Weighted sums of V: `[MANY, value stride]`.
    pub values: Vec<f32>,
}

/// Computes the partial of at most [`MANY`] queries.
///
/// A score is the sum over the head's elements in ascending order, a weighted value the sum over the cells in ascending
/// order, both by fused multiply-adds; the sum of weights has eight running sums, cell `i` in sum `i % 8`. No query's
/// result depends on the others.
#[inline(always)]
pub(super) fn partial<L: Lanes>(queries: &[Query<'_>], scale: f32, tile: &Widened, stride: usize, out: &mut Partial) {
    let count = queries.len();
    assert!(0 < count && count <= MANY);
    out.weights.resize(MANY * ATTENTION_TILE, 0.0);
    out.values.resize(MANY * stride, 0.0);
    let dim = queries[0].q.len();
    let (k, v) = (tile.k(), tile.v());
    assert!(k.len() == dim * ATTENTION_TILE && v.len() == ATTENTION_TILE * stride && stride.is_multiple_of(PANEL));
    assert!(queries.iter().all(|query| query.q.len() == dim && 0 < query.seen && query.seen <= ATTENTION_TILE));
    let most = queries.iter().map(|query| query.seen).max().unwrap_or(0);
    let least = queries.iter().map(|query| query.seen).min().unwrap_or(0);

    let mut rows = [queries[0].q.as_ptr(); MANY];
    for (row, query) in rows.iter_mut().zip(queries) {
        *row = query.q.as_ptr();
    }
    let weights = out.weights.as_mut_ptr();
    let scores = Product {
        rows: &rows[..count],
        steps: 0..dim,
        b: k.as_ptr(),
        b_panel: dim * PANEL,
        columns: most.next_multiple_of(PANEL),
        c: weights,
        c_stride: ATTENTION_TILE,
    };
    // SAFETY: each row has `dim` elements, K is `[panels, dim, PANEL]`, there are TILE scores for each row, and at most
    // TILE columns are asked for.
    unsafe { scores.run::<L>() };

    let seen = |query: &Query<'_>| query.seen.next_multiple_of(LANES);
    for (index, query) in queries.iter().enumerate() {
        let scores = &mut out.weights[index * ATTENTION_TILE..][..seen(query)];
        out.max[index] = scale_scores::<L>(scores, query.seen, scale);
    }
    // A second loop, so that one query's exponentials need not wait for the next one's maximum.
    for (index, query) in queries.iter().enumerate() {
        let scores = &mut out.weights[index * ATTENTION_TILE..][..seen(query)];
        out.sum[index] = weigh::<L>(scores, out.max[index]);
    }

    let weights = out.weights.as_ptr();
    for (index, row) in rows[..count].iter_mut().enumerate() {
        *row = weights.wrapping_add(index * ATTENTION_TILE);
    }
    let values = out.values.as_mut_ptr();
    let b_panel = ATTENTION_TILE * PANEL;
    let together = Product {
        rows: &rows[..count],
        steps: 0..least,
        b: v.as_ptr(),
        b_panel,
        columns: stride,
        c: values,
        c_stride: stride,
    };
    // SAFETY: each row has `least` weights, V is `[panels, TILE, PANEL]`, there are `stride` values for each row.
    unsafe { together.run::<L>() };
    for (index, query) in queries.iter().enumerate().filter(|(_, query)| query.seen > least) {
        // The sums go on where they stopped.
        let c = values.wrapping_add(index * stride);
        let rest = Product { rows: &rows[index..=index], steps: least..query.seen, c, ..together };
        // SAFETY: as above, with `query.seen` weights and row `index` of the values.
        unsafe { rest.run::<L>() };
    }
}

/// Scales `seen` scores and returns their maximum, NaN where one of them is not finite. `scores` is `seen` rounded up
/// to whole vectors; the others become minus infinity.
#[inline(always)]
fn scale_scores<L: Lanes>(scores: &mut [f32], seen: usize, scale: f32) -> f32 {
    let (start, whole) = (scores.as_mut_ptr(), seen / LANES * LANES);
    // The maximum passes over NaN, and a cell whose score is minus infinity (an infinity in K, or an overflow) would
    // weigh nothing: neither would show. The second sum is zero as long as all scores are finite.
    let (mut max, mut finite) = (L::splat(f32::NEG_INFINITY), L::splat(0.0));
    for at in (0..whole).step_by(LANES) {
        // SAFETY: the slice holds this whole vector.
        unsafe {
            let score = L::load(start.add(at)).mul(L::splat(scale));
            score.store(start.add(at));
            max = score.max(max);
            finite = score.fma(L::splat(0.0), finite);
        }
    }
    let mut finite = finite.sum();
    if whole < seen {
        for score in &mut scores[whole..seen] {
            *score *= scale;
            finite = score.mul_add(0.0, finite);
        }
        scores[seen..].fill(f32::NEG_INFINITY);
        // SAFETY: the slice is whole vectors.
        max = unsafe { L::load(scores.as_ptr().add(whole)) }.max(max);
    }
    if finite == 0.0 { max.largest() } else { f32::NAN }
}

/// Replaces scores, whole vectors of them, by weights and returns their sum.
#[inline(always)]
fn weigh<L: Lanes>(scores: &mut [f32], max: f32) -> f32 {
    let start = scores.as_mut_ptr();
    let mut sum = L::splat(0.0);
    for at in (0..scores.len()).step_by(LANES) {
        // SAFETY: the slice is whole vectors.
        unsafe {
            let weight = exp(L::load(start.add(at)).sub(L::splat(max)));
            weight.store(start.add(at));
            sum = sum.add(weight);
        }
    }
    sum.sum()
}
