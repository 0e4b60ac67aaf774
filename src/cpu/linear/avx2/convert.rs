//! Formats that are multiplied as floats: F32, F16, BF16.

use std::arch::x86_64::*;

use super::block::{Block, Rows, columns, half_pairs};
use super::step::{Floats, Sink};
use crate::quant::{QuantType, dequantize};

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct BF16;

/// # Safety
/// AVX2 exists.
#[inline(always)]
unsafe fn as_floats(v: [__m256i; 8]) -> [__m256; 8] {
    // SAFETY: both are 32 bytes of any value.
    unsafe { std::mem::transmute(v) }
}

/// # Safety
/// AVX2 and FMA exist; each row points at eight floats.
#[inline(always)]
unsafe fn feed_floats<S: Sink>(rows: &Rows, x_at: usize, sink: &mut S) {
    // SAFETY: the caller vouches for the 32 bytes.
    unsafe {
        let ([a, b, c, d], [e, f, g, h]) = (columns(rows, 0), columns(rows, 16));
        sink.take(x_at, &Floats { w: as_floats([a, b, c, d, e, f, g, h]) });
    }
}

impl Block for F32 {
    const LEN: usize = 8;
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn feed<S: Sink>(rows: &Rows, x_at: usize, sink: &mut S) {
        // SAFETY: a block is eight floats.
        unsafe { feed_floats(rows, x_at, sink) }
    }
}

impl Block for F16 {
    const LEN: usize = 8;
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn feed<S: Sink>(rows: &Rows, x_at: usize, sink: &mut S) {
        // SAFETY: a block is eight halves, 16 bytes.
        unsafe {
            let mut w = [_mm256_setzero_ps(); 8];
            for (w, pairs) in w.chunks_exact_mut(2).zip(columns(rows, 0)) {
                (w[0], w[1]) = half_pairs(pairs);
            }
            sink.take(x_at, &Floats { w });
        }
    }
}

impl Block for BF16 {
    const LEN: usize = 8;
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn feed<S: Sink>(rows: &Rows, x_at: usize, sink: &mut S) {
        // SAFETY: a block is eight 16-bit floats.
        unsafe {
            let mut w = [_mm256_setzero_ps(); 8];
            for (w, pairs) in w.chunks_exact_mut(2).zip(columns(rows, 0)) {
                w[0] = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs));
                w[1] = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32 as i32)));
            }
            sink.take(x_at, &Floats { w });
        }
    }
}

/// The last `rest < 8` elements of rows of F32, F16 or BF16.
///
/// # Safety
/// AVX2 and FMA exist; each row points at `rest` elements of `ty`.
#[inline(always)]
pub(super) unsafe fn feed_rest<S: Sink>(ty: QuantType, rows: &Rows, rest: usize, x_at: usize, sink: &mut S) {
    let mut values = [[0.0_f32; 8]; 8];
    // SAFETY: the caller vouches for the elements; the copies have eight floats each.
    unsafe {
        for (row, values) in rows.iter().zip(&mut values) {
            let bytes = std::slice::from_raw_parts(*row, rest * ty.block_bytes());
            let fits = dequantize(ty, bytes, &mut values[..rest]);
            debug_assert!(fits.is_ok());
        }
        let rows = std::array::from_fn(|i| values[i].as_ptr().cast());
        let ([a, b, c, d], [e, f, g, h]) = (columns(&rows, 0), columns(&rows, 16));
        sink.take_rest(x_at, rest, &Floats { w: as_floats([a, b, c, d, e, f, g, h]) });
    }
}
