//! The I formats with blocks of 256.

use std::arch::x86_64::*;

use super::block::{Block, Rows, columns, half_pairs, halves, nibbles, table, words};
use super::step::{Signed, Sink};
use crate::cpu::linear::activation::WORDS_BLOCK;
use crate::quant::codebook::IQ4_VALUES;
use crate::quant::iblock::{self, Group};

pub(super) struct IQ4XS;
pub(super) struct IQ2XXS;
pub(super) struct IQ2XS;
pub(super) struct IQ2S;
pub(super) struct IQ3XXS;
pub(super) struct IQ3S;

impl Block for IQ4XS {
    const LEN: usize = 256;
    const BYTES: usize = 136;

    #[inline(always)]
    unsafe fn feed<S: Sink>(rows: &Rows, x_at: usize, sink: &mut S) {
        // SAFETY: offsets are inside the block; the caller vouches for the rest.
        unsafe {
            let [first, low, ..] = columns(rows, 0);
            let (d, _) = half_pairs(first);
            let values = table(IQ4_VALUES);
            for group in 0..8 {
                let low = _mm256_srl_epi32(low, _mm_cvtsi32_si128(4 * group as i32));
                let high = _mm256_srl_epi32(first, _mm_cvtsi32_si128(16 + 2 * group as i32));
                let scale = _mm256_or_si256(
                    _mm256_and_si256(low, _mm256_set1_epi32(15)),
                    _mm256_slli_epi32::<4>(_mm256_and_si256(high, _mm256_set1_epi32(3))),
                );
                let scale = _mm256_sub_epi32(scale, _mm256_set1_epi32(32));
                let d = _mm256_mul_ps(d, _mm256_cvtepi32_ps(scale));
                let mut w = nibbles(columns(rows, 8 + 16 * group));
                for w in &mut w {
                    *w = _mm256_shuffle_epi8(values, *w);
                }
                let x_at = x_at + group * WORDS_BLOCK;
                sink.take(x_at, &Signed::<0> { w: words([w[0], w[1], w[2], w[3]]), d });
                sink.take(x_at, &Signed::<1> { w: words([w[4], w[5], w[6], w[7]]), d });
            }
        }
    }
}

/// Looks the groups of eight rows up one after the other, then turns them as everything else.
///
/// # Safety
/// As for [`Block::feed`], with rows that point at blocks of `bytes`, which `group` reads.
#[inline(always)]
unsafe fn feed_looked_up<S: Sink>(
    group: impl Fn(&[u8], usize) -> Group,
    bytes: usize,
    rows: &Rows,
    x_at: usize,
    sink: &mut S,
) {
    // SAFETY: each of `rows` has `bytes` bytes, each of `at` 32, each array of factors eight floats; the caller vouches
    // for the rest.
    unsafe {
        let d = halves(rows, 0);
        let (mut values, mut factors) = ([_mm256_setzero_si256(); 8], [[0.0_f32; 8]; 2]);
        for g in 0..8 {
            for (i, row) in rows.iter().enumerate() {
                let ([a, b, c, e], pair) = group(std::slice::from_raw_parts(*row, bytes), g);
                // One store of 32 bytes: loads of its halves need not wait for it.
                values[i] = _mm256_setr_epi64x(a as i64, b as i64, c as i64, e as i64);
                (factors[0][i], factors[1][i]) = (pair[0], pair[1]);
            }
            let at: Rows = [0, 1, 2, 3, 4, 5, 6, 7].map(|i: usize| values.as_ptr().add(i).cast());
            let x_at = x_at + g * WORDS_BLOCK;
            let scale = |half: usize| _mm256_mul_ps(d, _mm256_loadu_ps(factors[half].as_ptr()));
            sink.take(x_at, &Signed::<0> { w: words(columns(&at, 0)), d: scale(0) });
            sink.take(x_at, &Signed::<1> { w: words(columns(&at, 16)), d: scale(1) });
        }
    }
}

macro_rules! looked_up {
    ($name:ident, $bytes:literal, $group:path) => {
        impl Block for $name {
            const LEN: usize = 256;
            const BYTES: usize = $bytes;

            #[inline(always)]
            unsafe fn feed<S: Sink>(rows: &Rows, x_at: usize, sink: &mut S) {
                // SAFETY: the caller vouches for blocks of this many bytes.
                unsafe { feed_looked_up($group, $bytes, rows, x_at, sink) }
            }
        }
    };
}

looked_up!(IQ2XXS, 66, iblock::iq2_xxs);
looked_up!(IQ2XS, 74, iblock::iq2_xs);
looked_up!(IQ2S, 82, iblock::iq2_s);
looked_up!(IQ3XXS, 98, iblock::iq3_xxs);
looked_up!(IQ3S, 110, iblock::iq3_s);
