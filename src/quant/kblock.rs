//! The K formats: blocks of 256 with small scales inside. In each, `block` is one block and `y` its 256 elements.

use super::{half_at, scale_min};

pub(super) fn q2_k(block: &[u8], y: &mut [f32]) {
    let (scales, quants) = (&block[..16], &block[16..80]);
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    for (k, y) in y.chunks_exact_mut(16).enumerate() {
        let (scale, min) = (d * f32::from(scales[k] & 15), dmin * f32::from(scales[k] >> 4));
        for (y, q) in y.iter_mut().zip(two_bits(quants, k)) {
            *y = scale * f32::from(q) - min;
        }
    }
}

/// The 16 two-bit values of sub-block `k` (of 16) of Q2_K and Q3_K.
fn two_bits(quants: &[u8], k: usize) -> impl Iterator<Item = u8> {
    let (half, shift, side) = (k / 8, k % 8 / 2 * 2, k % 2);
    let start = 32 * half + 16 * side;
    quants[start..start + 16].iter().map(move |q| q >> shift & 3)
}

/// The 6-bit scale of sub-block `k` (of 16) of Q3_K, from its 12 packed bytes; 32 stands for zero.
pub(crate) fn q3_scale(packed: &[u8], k: usize) -> u8 {
    let low = if k < 8 { packed[k] & 15 } else { packed[k - 8] >> 4 };
    low | (packed[8 + k % 4] >> (2 * (k / 4)) & 3) << 4
}

pub(super) fn q3_k(block: &[u8], y: &mut [f32]) {
    let (mask, quants, packed) = (&block[..32], &block[32..96], &block[96..108]);
    let d = half_at(block, 108);
    for (k, y) in y.chunks_exact_mut(16).enumerate() {
        let scale = d * (f32::from(q3_scale(packed, k)) - 32.0);
        let bit = 4 * (k / 8) + k % 8 / 2;
        let high = &mask[16 * (k % 2)..];
        for ((y, q), high) in y.iter_mut().zip(two_bits(quants, k)).zip(high) {
            let below = if high >> bit & 1 == 1 { 0.0 } else { 4.0 };
            *y = scale * (f32::from(q) - below);
        }
    }
}

pub(super) fn q4_k(block: &[u8], y: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (j, y) in y.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min(&block[4..16], j);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for (y, q) in y.iter_mut().zip(&block[16 + 32 * (j / 2)..]) {
            *y = scale * f32::from(q >> (4 * (j % 2)) & 15) - min;
        }
    }
}

pub(super) fn q5_k(block: &[u8], y: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (j, y) in y.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min(&block[4..16], j);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for ((y, q), high) in y.iter_mut().zip(&block[48 + 32 * (j / 2)..]).zip(&block[16..48]) {
            let v = (q >> (4 * (j % 2)) & 15) | (high >> j & 1) << 4;
            *y = scale * f32::from(v) - min;
        }
    }
}

pub(super) fn q6_k(block: &[u8], y: &mut [f32]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = half_at(block, 208);
    for (k, y) in y.chunks_exact_mut(16).enumerate() {
        let (half, quarter, side) = (k / 8, k % 8 / 2, k % 2);
        let scale = d * f32::from(scales[k] as i8);
        let low = &low[64 * half + 32 * (quarter % 2) + 16 * side..];
        let high = &high[32 * half + 16 * side..];
        for ((y, l), h) in y.iter_mut().zip(low).zip(high) {
            let v = (l >> (4 * (quarter / 2)) & 15) | (h >> (2 * quarter) & 3) << 4;
            *y = scale * (f32::from(v) - 32.0);
        }
    }
}
