//! Formats that are multiplied as floats: F32, F16, BF16, and all that is dequantised first.

use std::arch::x86_64::*;

use super::block::{Block, Rows, columns};
use super::step::{Floats, Sink};
use crate::quant::{QuantType, dequantize};

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct BF16;
/// Any format with blocks of 256, through its exact values.
pub(super) struct Dequantised(pub(super) QuantType);

/// # Safety
/// AVX2 and FMA exist; each row points at eight floats.
#[inline(always)]
unsafe fn feed_floats<S: Sink>(rows: &Rows, x_at: usize, sink: &mut S) {
    // SAFETY: the caller vouches for the 32 bytes.
    unsafe {
        let ([a, b, c, d], [e, f, g, h]) = (columns(rows, 0), columns(rows, 16));
        let w = [a, b, c, d, e, f, g, h].map(|v| _mm256_castsi256_ps(v));
        sink.take(x_at, &Floats { w });
    }
}

impl Block for F32 {
    const LEN: usize = 8;
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn feed<S: Sink>(&self, rows: &Rows, x_at: usize, sink: &mut S) {
        // SAFETY: a block is eight floats.
        unsafe { feed_floats(rows, x_at, sink) }
    }
}

impl Block for F16 {
    const LEN: usize = 8;
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn feed<S: Sink>(&self, rows: &Rows, x_at: usize, sink: &mut S) {
        // SAFETY: a block is eight halves, 16 bytes.
        unsafe {
            let pairs = columns(rows, 0).map(|v| {
                let low = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
                let high = _mm256_srli_epi32::<16>(v);
                let both = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high));
                (_mm256_cvtph_ps(_mm256_castsi256_si128(both)), _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(both)))
            });
            let [(a, b), (c, d), (e, f), (g, h)] = pairs;
            sink.take(x_at, &Floats { w: [a, b, c, d, e, f, g, h] });
        }
    }
}

impl Block for BF16 {
    const LEN: usize = 8;
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn feed<S: Sink>(&self, rows: &Rows, x_at: usize, sink: &mut S) {
        // SAFETY: a block is eight 16-bit floats.
        unsafe {
            let pairs = columns(rows, 0).map(|v| {
                let high = _mm256_and_si256(v, _mm256_set1_epi32(0xffff_0000_u32 as i32));
                (_mm256_castsi256_ps(_mm256_slli_epi32::<16>(v)), _mm256_castsi256_ps(high))
            });
            let [(a, b), (c, d), (e, f), (g, h)] = pairs;
            sink.take(x_at, &Floats { w: [a, b, c, d, e, f, g, h] });
        }
    }
}

impl Block for Dequantised {
    const LEN: usize = 256;
    const BYTES: usize = 0;

    fn bytes(&self) -> usize {
        self.0.block_bytes()
    }

    #[inline(always)]
    unsafe fn feed<S: Sink>(&self, rows: &Rows, x_at: usize, sink: &mut S) {
        let mut values = [[0.0_f32; 256]; 8];
        // SAFETY: each row points at a block of this format; the copies have 256 floats each.
        unsafe {
            for (row, values) in rows.iter().zip(&mut values) {
                let fits = dequantize(self.0, std::slice::from_raw_parts(*row, self.0.block_bytes()), values);
                debug_assert!(fits.is_ok());
            }
            for k in (0..256).step_by(8) {
                let rows = std::array::from_fn(|i| values[i].as_ptr().add(k).cast());
                feed_floats(&rows, x_at + 4 * k, sink);
            }
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
        let w = [a, b, c, d, e, f, g, h].map(|v| _mm256_castsi256_ps(v));
        sink.take_rest(x_at, rest, &Floats { w });
    }
}
