//! Floats and the formats with blocks of 32. In each, `block` is one block and `y` its elements.

use super::codebook::{IQ4_VALUES, MXFP4_VALUES};
use super::{half_at, mxfp4_scale, u16_at, u32_at};

pub(super) fn f32(block: &[u8], y: &mut [f32]) {
    y[0] = f32::from_bits(u32_at(block, 0));
}

pub(super) fn f16(block: &[u8], y: &mut [f32]) {
    y[0] = half_at(block, 0);
}

pub(super) fn bf16(block: &[u8], y: &mut [f32]) {
    y[0] = f32::from_bits(u32::from(u16_at(block, 0)) << 16);
}

pub(super) fn q8_0(block: &[u8], y: &mut [f32]) {
    let d = half_at(block, 0);
    for (y, &q) in y.iter_mut().zip(&block[2..]) {
        *y = d * f32::from(q as i8);
    }
}

/// Calls `value(nibble)` for 16 bytes: low nibbles are elements 0 to 15, high ones 16 to 31.
fn halves(bytes: &[u8], y: &mut [f32], value: impl Fn(usize, u8) -> f32) {
    for (j, &b) in bytes.iter().enumerate() {
        y[j] = value(j, b & 15);
        y[j + 16] = value(j + 16, b >> 4);
    }
}

pub(super) fn q4_0(block: &[u8], y: &mut [f32]) {
    let d = half_at(block, 0);
    halves(&block[2..], y, |_, n| d * (f32::from(n) - 8.0));
}

pub(super) fn q4_1(block: &[u8], y: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    halves(&block[4..], y, |_, n| d * f32::from(n) + m);
}

fn with_fifth(high: u32, j: usize, n: u8) -> f32 {
    f32::from(n | ((high >> j & 1) << 4) as u8)
}

pub(super) fn q5_0(block: &[u8], y: &mut [f32]) {
    let (d, high) = (half_at(block, 0), u32_at(block, 2));
    halves(&block[6..], y, |j, n| d * (with_fifth(high, j, n) - 16.0));
}

pub(super) fn q5_1(block: &[u8], y: &mut [f32]) {
    let (d, m, high) = (half_at(block, 0), half_at(block, 2), u32_at(block, 4));
    halves(&block[8..], y, |j, n| d * with_fifth(high, j, n) + m);
}

pub(super) fn iq4_nl(block: &[u8], y: &mut [f32]) {
    let d = half_at(block, 0);
    halves(&block[2..], y, |_, n| d * f32::from(IQ4_VALUES[usize::from(n)]));
}

pub(super) fn mxfp4(block: &[u8], y: &mut [f32]) {
    let d = mxfp4_scale(block[0]);
    halves(&block[1..], y, |_, n| d * f32::from(MXFP4_VALUES[usize::from(n)]));
}
