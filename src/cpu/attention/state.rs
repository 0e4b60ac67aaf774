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

/// How a state with maximum `old` takes in a tile with maximum `tile`: the larger of them, then `e^(old - larger)` and
/// `e^(tile - larger)`.
#[derive(Clone, Copy)]
pub(super) struct Factors {
    max: f32,
    old: f32,
    tile: f32,
}

/// The factors of up to eight states at once.
#[inline(always)]
pub(super) fn factors<L: Lanes>(old: [f32; LANES], tile: [f32; LANES]) -> [Factors; LANES] {
    // SAFETY: the arrays hold eight f32.
    let (old, tile) = unsafe { (L::load(old.as_ptr()), L::load(tile.as_ptr())) };
    let max = tile.max(old);
    let (old, tile, max) = (exp(old.sub(max)).to_array(), exp(tile.sub(max)).to_array(), max.to_array());
    std::array::from_fn(|i| Factors { max: max[i], old: old[i], tile: tile[i] })
}

/// Merges a later tile's sum and values (at least as many as the state has) into a state: both become
/// `fma(old, factors.old, tile * factors.tile)`.
#[inline(always)]
pub(super) fn merge<L: Lanes>(state: &mut [f32], factors: Factors, tile_sum: f32, tile: &[f32]) {
    let (head, values) = state.split_at_mut(HEAD);
    let Factors { max, old: a, tile: b } = factors;
    let dim = values.len();
    assert!(tile.len() >= dim);
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
