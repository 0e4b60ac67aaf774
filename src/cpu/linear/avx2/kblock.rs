//! The K formats: blocks of 256 with a scale, and mostly an offset, for each 16 or 32.

use std::arch::x86_64::*;

use super::block::{Block, Rows, columns, columns8, dwords, half_pairs, halves};
use super::step::{Sink, Unsigned, UnsignedHalves};
use crate::cpu::linear::activation::BYTES_BLOCK;

pub(super) struct Q2K;
pub(super) struct Q3K;
pub(super) struct Q4K;
pub(super) struct Q5K;
pub(super) struct Q6K;

impl Block for Q2K {
    const LEN: usize = 256;
    const BYTES: usize = 84;

    #[inline(always)]
    unsafe fn feed<S: Sink>(rows: &Rows, x_at: usize, sink: &mut S) {
        // SAFETY: offsets are inside the block; the caller vouches for the rest.
        unsafe {
            let (d, dmin) = half_pairs(dwords(rows, 80));
            let minus_dmin = _mm256_xor_ps(dmin, _mm256_set1_ps(-0.0));
            let packed = columns(rows, 0);
            for half in 0..2 {
                let q = columns8(rows, 16 + 32 * half);
                for quarter in 0..4 {
                    let shift = _mm_cvtsi32_si128(2 * quarter as i32);
                    let mut w = q;
                    for w in &mut w {
                        *w = _mm256_and_si256(_mm256_srl_epi16(*w, shift), _mm256_set1_epi8(3));
                    }
                    let packed = packed[2 * half + quarter / 2];
                    let field = |bit: usize, factor: __m256| {
                        let right = _mm_cvtsi32_si128(16 * (quarter % 2) as i32 + bit as i32);
                        let four = _mm256_and_si256(_mm256_srl_epi32(packed, right), _mm256_set1_epi32(15));
                        _mm256_mul_ps(factor, _mm256_cvtepi32_ps(four))
                    };
                    let (d, m) = ([field(0, d), field(8, d)], [field(4, minus_dmin), field(12, minus_dmin)]);
                    sink.take(x_at + (4 * half + quarter) * BYTES_BLOCK, &UnsignedHalves { w, d, m });
                }
            }
        }
    }
}

impl Block for Q3K {
    const LEN: usize = 256;
    const BYTES: usize = 110;

    #[inline(always)]
    unsafe fn feed<S: Sink>(rows: &Rows, x_at: usize, sink: &mut S) {
        // SAFETY: offsets are inside the block; the caller vouches for the rest.
        unsafe {
            let d = halves(rows, 108);
            // The first of these columns is the end of the quants.
            let [_, a, b, c] = columns(rows, 92);
            let four = _mm256_set1_epi8(15);
            let two = _mm256_set1_epi8(0x30);
            let six =
                |low: __m256i, high: __m256i| _mm256_or_si256(_mm256_and_si256(low, four), _mm256_and_si256(high, two));
            let packed = [
                six(a, _mm256_slli_epi16::<4>(c)),
                six(b, _mm256_slli_epi16::<2>(c)),
                six(_mm256_srli_epi16::<4>(a), c),
                six(_mm256_srli_epi16::<4>(b), _mm256_srli_epi16::<2>(c)),
            ];
            let high = columns8(rows, 0);
            for half in 0..2 {
                let q = columns8(rows, 32 + 32 * half);
                for quarter in 0..4 {
                    let group = 4 * half + quarter;
                    let shift = _mm_cvtsi32_si128(2 * quarter as i32);
                    let bit = _mm_cvtsi32_si128(group as i32);
                    let mut w = q;
                    for (w, high) in w.iter_mut().zip(&high) {
                        let low = _mm256_and_si256(_mm256_srl_epi16(*w, shift), _mm256_set1_epi8(3));
                        let third = _mm256_and_si256(_mm256_srl_epi16(*high, bit), _mm256_set1_epi8(1));
                        *w = _mm256_or_si256(low, _mm256_slli_epi16::<2>(third));
                    }
                    let packed = packed[2 * half + quarter / 2];
                    let scale = |side: usize| {
                        let right = _mm_cvtsi32_si128(8 * (quarter % 2 * 2 + side) as i32);
                        let value = _mm256_and_si256(_mm256_srl_epi32(packed, right), _mm256_set1_epi32(255));
                        let value = _mm256_sub_epi32(value, _mm256_set1_epi32(32));
                        _mm256_mul_ps(d, _mm256_cvtepi32_ps(value))
                    };
                    let d = [scale(0), scale(1)];
                    let offset = _mm256_set1_ps(-4.0);
                    let m = [_mm256_mul_ps(d[0], offset), _mm256_mul_ps(d[1], offset)];
                    sink.take(x_at + group * BYTES_BLOCK, &UnsignedHalves { w, d, m });
                }
            }
        }
    }
}

/// The 6-bit scales and minima of a Q4_K or Q5_K block: two registers each, sub-block `j` in byte `j % 4` of register
/// `j / 4`; and the block's own two factors, the minimum's negated.
struct KScales {
    scales: [__m256i; 2],
    mins: [__m256i; 2],
    d: __m256,
    minus_dmin: __m256,
}

impl KScales {
    /// # Safety
    /// AVX2 and F16C exist; each row points at a block.
    #[inline(always)]
    unsafe fn read(rows: &Rows) -> Self {
        // SAFETY: the block begins with these 16 bytes.
        unsafe {
            let [pair, a, b, c] = columns(rows, 0);
            let (d, dmin) = half_pairs(pair);
            let six = _mm256_set1_epi8(63);
            let four = _mm256_set1_epi8(15);
            let two = _mm256_set1_epi8(0x30);
            let scales = _mm256_or_si256(_mm256_and_si256(c, four), _mm256_and_si256(_mm256_srli_epi16::<2>(a), two));
            let mins = _mm256_or_si256(
                _mm256_and_si256(_mm256_srli_epi16::<4>(c), four),
                _mm256_and_si256(_mm256_srli_epi16::<2>(b), two),
            );
            Self {
                scales: [_mm256_and_si256(a, six), scales],
                mins: [_mm256_and_si256(b, six), mins],
                d,
                minus_dmin: _mm256_xor_ps(dmin, _mm256_set1_ps(-0.0)),
            }
        }
    }

    /// Scale and minimum of sub-block `j`.
    ///
    /// # Safety
    /// AVX2 exists.
    #[inline(always)]
    unsafe fn get(&self, j: usize) -> (__m256, __m256) {
        // SAFETY: only registers.
        unsafe {
            let shift = _mm_cvtsi32_si128(8 * (j % 4) as i32);
            let byte = |v| _mm256_and_si256(_mm256_srl_epi32(v, shift), _mm256_set1_epi32(255));
            let scale = _mm256_cvtepi32_ps(byte(self.scales[j / 4]));
            let min = _mm256_cvtepi32_ps(byte(self.mins[j / 4]));
            (_mm256_mul_ps(self.d, scale), _mm256_mul_ps(self.minus_dmin, min))
        }
    }
}

impl Block for Q4K {
    const LEN: usize = 256;
    const BYTES: usize = 144;

    #[inline(always)]
    unsafe fn feed<S: Sink>(rows: &Rows, x_at: usize, sink: &mut S) {
        // SAFETY: offsets are inside the block; the caller vouches for the rest.
        unsafe {
            let scales = KScales::read(rows);
            for pair in 0..4 {
                let q = columns8(rows, 16 + 32 * pair);
                let (d, m) = scales.get(2 * pair);
                let mut w = q;
                for w in &mut w {
                    *w = _mm256_and_si256(*w, _mm256_set1_epi8(15));
                }
                sink.take(x_at + 2 * pair * BYTES_BLOCK, &Unsigned::<8> { w, d, m });
                let (d, m) = scales.get(2 * pair + 1);
                let mut w = q;
                for w in &mut w {
                    *w = _mm256_and_si256(_mm256_srli_epi16::<4>(*w), _mm256_set1_epi8(15));
                }
                sink.take(x_at + (2 * pair + 1) * BYTES_BLOCK, &Unsigned::<8> { w, d, m });
            }
        }
    }
}

impl Block for Q5K {
    const LEN: usize = 256;
    const BYTES: usize = 176;

    #[inline(always)]
    unsafe fn feed<S: Sink>(rows: &Rows, x_at: usize, sink: &mut S) {
        // SAFETY: offsets are inside the block; the caller vouches for the rest.
        unsafe {
            let scales = KScales::read(rows);
            let high = columns8(rows, 16);
            for pair in 0..4 {
                let q = columns8(rows, 48 + 32 * pair);
                for side in 0..2 {
                    let j = 2 * pair + side;
                    let (d, m) = scales.get(j);
                    let shift = _mm_cvtsi32_si128(4 * side as i32);
                    let bit = _mm_cvtsi32_si128(j as i32);
                    let mut w = q;
                    for (w, high) in w.iter_mut().zip(&high) {
                        let low = _mm256_and_si256(_mm256_srl_epi16(*w, shift), _mm256_set1_epi8(15));
                        let fifth = _mm256_and_si256(_mm256_srl_epi16(*high, bit), _mm256_set1_epi8(1));
                        *w = _mm256_or_si256(low, _mm256_slli_epi16::<4>(fifth));
                    }
                    sink.take(x_at + j * BYTES_BLOCK, &Unsigned::<4> { w, d, m });
                }
            }
        }
    }
}

impl Block for Q6K {
    const LEN: usize = 256;
    const BYTES: usize = 210;

    #[inline(always)]
    unsafe fn feed<S: Sink>(rows: &Rows, x_at: usize, sink: &mut S) {
        // SAFETY: offsets are inside the block; the caller vouches for the rest.
        unsafe {
            let d = halves(rows, 208);
            let scales = columns(rows, 192);
            for half in 0..2 {
                let high = columns8(rows, 128 + 32 * half);
                let low = [columns8(rows, 64 * half), columns8(rows, 64 * half + 32)];
                for quarter in 0..4 {
                    let shift = _mm_cvtsi32_si128(4 * (quarter / 2) as i32);
                    let top = _mm_cvtsi32_si128(2 * quarter as i32);
                    let mut w = low[quarter % 2];
                    for (w, high) in w.iter_mut().zip(&high) {
                        let low = _mm256_and_si256(_mm256_srl_epi16(*w, shift), _mm256_set1_epi8(15));
                        let high = _mm256_and_si256(_mm256_srl_epi16(*high, top), _mm256_set1_epi8(3));
                        *w = _mm256_or_si256(low, _mm256_slli_epi16::<4>(high));
                    }
                    let packed = scales[2 * half + quarter / 2];
                    let scale = |side: usize| {
                        let left = _mm_cvtsi32_si128(24 - 8 * (quarter % 2 * 2 + side) as i32);
                        let value = _mm256_srai_epi32::<24>(_mm256_sll_epi32(packed, left));
                        _mm256_mul_ps(d, _mm256_cvtepi32_ps(value))
                    };
                    let d = [scale(0), scale(1)];
                    let offset = _mm256_set1_ps(-32.0);
                    let m = [_mm256_mul_ps(d[0], offset), _mm256_mul_ps(d[1], offset)];
                    sink.take(x_at + (4 * half + quarter) * BYTES_BLOCK, &UnsignedHalves { w, d, m });
                }
            }
        }
    }
}
