//! Quantising activations.

use std::arch::x86_64::*;

use crate::cpu::linear::activation::{BLOCK, BYTES_BLOCK, TINY, WORDS_BLOCK};

/// A block's elements times its inverse scale, rounded; and its scale.
///
/// # Safety
/// AVX2 exists; `x` points at 32 floats.
#[inline(always)]
unsafe fn rounded(x: *const f32, steps: f32) -> ([__m256i; 4], f32) {
    // SAFETY: the caller vouches for the floats.
    unsafe {
        let load = |i: usize| _mm256_loadu_ps(x.add(8 * i));
        let x = [load(0), load(1), load(2), load(3)];
        let bits = |v| _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fff_ffff));
        // Bits of magnitudes are ordered as the magnitudes are, with infinity and NaN on top.
        let pair = _mm256_max_epi32(_mm256_max_epi32(bits(x[0]), bits(x[1])), _mm256_max_epi32(bits(x[2]), bits(x[3])));
        let four = _mm_max_epi32(_mm256_castsi256_si128(pair), _mm256_extracti128_si256::<1>(pair));
        let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b00_00_11_10>(four));
        let one = _mm_max_epi32(two, _mm_shuffle_epi32::<0b00_00_00_01>(two));
        let largest = f32::from_bits(_mm_cvtsi128_si32(one) as u32);
        if !largest.is_finite() {
            return ([_mm256_setzero_si256(); 4], f32::NAN);
        }
        if largest < TINY {
            return ([_mm256_setzero_si256(); 4], 0.0);
        }
        let inverse = _mm256_set1_ps(steps / largest);
        let round = |x| _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse));
        ([round(x[0]), round(x[1]), round(x[2]), round(x[3])], largest / steps)
    }
}

/// # Safety
/// AVX2 exists.
#[inline(always)]
unsafe fn total(v: __m256i) -> f32 {
    // SAFETY: only registers.
    unsafe {
        let four = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
        let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b00_00_11_10>(four));
        let one = _mm_add_epi32(two, _mm_shuffle_epi32::<0b00_00_00_01>(two));
        _mm_cvtsi128_si32(one) as f32
    }
}

/// Blocks of bytes; whole blocks of `x` only.
///
/// # Safety
/// AVX2 exists.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::linear) unsafe fn quantise_bytes(x: &[f32], out: &mut [u8]) {
    for (x, out) in x.chunks_exact(BLOCK).zip(out.chunks_exact_mut(BYTES_BLOCK)) {
        // SAFETY: `x` has 32 floats, `out` 48 bytes.
        unsafe {
            let (q, scale) = rounded(x.as_ptr(), 127.0);
            let words = [_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])];
            let bytes = _mm256_packs_epi16(words[0], words[1]);
            let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), bytes);
            let (low, high) = (total(_mm256_add_epi32(q[0], q[1])), total(_mm256_add_epi32(q[2], q[3])));
            out.as_mut_ptr().add(BLOCK).cast::<[f32; 4]>().write_unaligned([scale, low + high, low, high]);
        }
    }
}

/// Blocks of words; whole blocks of `x` only.
///
/// # Safety
/// AVX2 exists.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::linear) unsafe fn quantise_words(x: &[f32], out: &mut [u8]) {
    for (x, out) in x.chunks_exact(BLOCK).zip(out.chunks_exact_mut(WORDS_BLOCK)) {
        // SAFETY: `x` has 32 floats, `out` 68 bytes.
        unsafe {
            let (q, scale) = rounded(x.as_ptr(), 32767.0);
            // The second and third word of each four change places.
            let swap = |v| _mm256_shufflehi_epi16::<0b11_01_10_00>(_mm256_shufflelo_epi16::<0b11_01_10_00>(v));
            for i in 0..2 {
                let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(q[2 * i], q[2 * i + 1]));
                _mm256_storeu_si256(out.as_mut_ptr().add(32 * i).cast(), swap(words));
            }
            out.as_mut_ptr().add(64).cast::<f32>().write_unaligned(scale);
        }
    }
}
