//! The running state of attention, and how a tile's partial is merged into it.
#![allow(unsafe_code)]

use crate::cpu::simd::{LANES, Lanes, exp};

/// Floats before the values in a state or partial: maximum and sum.
pub(super) const HEAD: usize = 2;

/// A state that has seen nothing.
pub(super) fn set_up(state: &mut [f32]) {
    state.fill(0.0);
    state[0] = f32::NEG_INFINITY;
}

/// Merges a later tile's maximum, sum and values (at least as many as the state has) into a state.
///
/// With `m` the larger maximum, `a = e^(old max - m)` and `b = e^(tile max - m)`, sum and values become
/// `fma(old, a, tile * b)`.
#[inline(always)]
pub(super) fn merge<L: Lanes>(state: &mut [f32], tile_max: f32, tile_sum: f32, tile: &[f32]) {
    let (head, values) = state.split_at_mut(HEAD);
    let dim = values.len();
    assert!(tile.len() >= dim);
    let max = if tile_max > head[0] { tile_max } else { head[0] };
    let mut factors = [0.0; LANES];
    (factors[0], factors[1]) = (head[0] - max, tile_max - max);
    // SAFETY: the array holds eight f32.
    let factors = exp(unsafe { L::load(factors.as_ptr()) }).to_array();
    let (a, b) = (factors[0], factors[1]);
    head[0] = max;
    head[1] = head[1].mul_add(a, tile_sum * b);
    let whole = dim / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: eight elements from `at` on lie within both.
        unsafe {
            let old = L::load(values.as_ptr().add(at));
            let new = L::load(tile.as_ptr().add(at));
            old.fma(L::splat(a), new.mul(L::splat(b))).store(values.as_mut_ptr().add(at));
        }
    }
    for at in whole..dim {
        values[at] = values[at].mul_add(a, tile[at] * b);
    }
}

/// Writes the result of a state: values by sum.
#[inline(always)]
pub(super) fn finish<L: Lanes>(state: &[f32], out: &mut [f32]) {
    let (sum, values) = (state[1], &state[HEAD..]);
    let dim = out.len();
    assert_eq!(values.len(), dim);
    let whole = dim / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: eight elements from `at` on lie within both.
        unsafe { L::load(values.as_ptr().add(at)).div(L::splat(sum)).store(out.as_mut_ptr().add(at)) };
    }
    for at in whole..dim {
        out[at] = values[at] / sum;
    }
}
