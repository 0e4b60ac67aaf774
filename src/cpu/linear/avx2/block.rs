//! Blocks of eight rows as registers whose lanes are the rows; the formats with blocks of 32.

use std::arch::x86_64::*;

use super::step::{Signed, Sink, Unsigned};
use crate::cpu::linear::scalar::MXFP4_OFFSET;
use crate::quant::codebook::{IQ4_VALUES, MXFP4_VALUES};

/// The same place in eight weight rows.
pub(super) type Rows = [*const u8; 8];

/// A format.
pub(super) trait Block {
    /// Elements of a block.
    const LEN: usize;
    /// Its bytes.
    const BYTES: usize;

    /// Hands the block's groups to the sink in ascending order. `x_at`: where the activations of the block begin in
    /// their row, in bytes.
    ///
    /// # Safety
    /// AVX2, FMA and F16C exist; each of `rows` points at a block, and the sink's rows have activations for it.
    unsafe fn feed<S: Sink>(rows: &Rows, x_at: usize, sink: &mut S);
}

/// Four columns of 32 bits: register `c` has bytes `at + 4 c .. at + 4 c + 4` of each row.
///
/// # Safety
/// AVX2 exists; 16 bytes are readable at `at` of each row.
#[inline(always)]
pub(super) unsafe fn columns(rows: &Rows, at: usize) -> [__m256i; 4] {
    // SAFETY: the caller vouches for the bytes.
    unsafe {
        let load = |i: usize| -> __m256i {
            let low = _mm_loadu_si128(rows[i].add(at).cast());
            let high = _mm_loadu_si128(rows[i + 4].add(at).cast());
            _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high)
        };
        let (r0, r1, r2, r3) = (load(0), load(1), load(2), load(3));
        let (a, b) = (_mm256_unpacklo_epi32(r0, r1), _mm256_unpackhi_epi32(r0, r1));
        let (c, d) = (_mm256_unpacklo_epi32(r2, r3), _mm256_unpackhi_epi32(r2, r3));
        [
            _mm256_unpacklo_epi64(a, c),
            _mm256_unpackhi_epi64(a, c),
            _mm256_unpacklo_epi64(b, d),
            _mm256_unpackhi_epi64(b, d),
        ]
    }
}

/// Eight columns: 32 bytes of each row.
///
/// # Safety
/// As for [`columns`], with 32 bytes.
#[inline(always)]
pub(super) unsafe fn columns8(rows: &Rows, at: usize) -> [__m256i; 8] {
    // SAFETY: the caller vouches for the bytes.
    unsafe {
        let ([a, b, c, d], [e, f, g, h]) = (columns(rows, at), columns(rows, at + 16));
        [a, b, c, d, e, f, g, h]
    }
}

/// The 32 bits at `at` of each row.
///
/// # Safety
/// AVX2 exists; four bytes are readable.
#[inline(always)]
pub(super) unsafe fn dwords(rows: &Rows, at: usize) -> __m256i {
    // SAFETY: the caller vouches for the bytes.
    unsafe {
        let v = |i: usize| rows[i].add(at).cast::<i32>().read_unaligned();
        _mm256_setr_epi32(v(0), v(1), v(2), v(3), v(4), v(5), v(6), v(7))
    }
}

/// The halves in the low and in the high 16 bits of each lane.
///
/// # Safety
/// AVX2 and F16C exist.
#[inline(always)]
pub(super) unsafe fn half_pairs(pairs: __m256i) -> (__m256, __m256) {
    // SAFETY: only registers.
    unsafe {
        let low = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff));
        let high = _mm256_srli_epi32::<16>(pairs);
        let both = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high));
        (_mm256_cvtph_ps(_mm256_castsi256_si128(both)), _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(both)))
    }
}

/// The half at `at` of each row.
///
/// # Safety
/// AVX2 and F16C exist; two bytes are readable.
#[inline(always)]
pub(super) unsafe fn halves(rows: &Rows, at: usize) -> __m256 {
    // SAFETY: the caller vouches for the bytes.
    unsafe {
        let v = |i: usize| rows[i].add(at).cast::<i16>().read_unaligned();
        _mm256_cvtph_ps(_mm_setr_epi16(v(0), v(1), v(2), v(3), v(4), v(5), v(6), v(7)))
    }
}

/// Low and high 4 bits of every byte of four registers, low ones first.
///
/// # Safety
/// AVX2 exists.
#[inline(always)]
pub(super) unsafe fn nibbles(q: [__m256i; 4]) -> [__m256i; 8] {
    // SAFETY: only registers.
    unsafe {
        let low = |v| _mm256_and_si256(v, _mm256_set1_epi8(15));
        let high = |v| _mm256_and_si256(_mm256_srli_epi16::<4>(v), _mm256_set1_epi8(15));
        [low(q[0]), low(q[1]), low(q[2]), low(q[3]), high(q[0]), high(q[1]), high(q[2]), high(q[3])]
    }
}

/// Sets bit 4 of element `k` of each row where bit `k` of its 32 in `bits` is set.
///
/// # Safety
/// AVX2 exists.
#[inline(always)]
unsafe fn with_fifth(w: &mut [__m256i; 8], bits: __m256i) {
    // SAFETY: only registers.
    unsafe {
        for (i, w) in w.iter_mut().enumerate() {
            // Each lane's byte `i / 2`, four times; then one bit of the four that it holds for this register.
            let byte = (i / 2) as i32 * 0x0101_0101;
            let lane = |n: i32| byte + n * 0x0404_0404;
            let spread = _mm256_setr_epi32(lane(0), lane(1), lane(2), lane(3), lane(0), lane(1), lane(2), lane(3));
            let which = _mm256_set1_epi32(if i % 2 == 0 { 0x0804_0201 } else { 0x8040_2010_u32 as i32 });
            let there = _mm256_and_si256(_mm256_shuffle_epi8(bits, spread), which);
            let fifth = _mm256_and_si256(_mm256_cmpeq_epi8(there, which), _mm256_set1_epi8(16));
            *w = _mm256_or_si256(*w, fifth);
        }
    }
}

/// A table of 16 bytes in both halves of a register.
///
/// # Safety
/// AVX2 exists.
#[inline(always)]
pub(super) unsafe fn table(values: [i8; 16]) -> __m256i {
    // SAFETY: the array has the 16 bytes.
    unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(values.as_ptr().cast())) }
}

pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q5_0;
pub(super) struct Q5_1;
pub(super) struct MXFP4;
pub(super) struct Q8_0;
pub(super) struct IQ4NL;

impl Block for Q4_0 {
    const LEN: usize = 32;
    const BYTES: usize = 18;

    #[inline(always)]
    unsafe fn feed<S: Sink>(rows: &Rows, x_at: usize, sink: &mut S) {
        // SAFETY: offsets are inside the block; the caller vouches for the rest.
        unsafe {
            let d = halves(rows, 0);
            let m = _mm256_mul_ps(d, _mm256_set1_ps(-8.0));
            sink.take(x_at, &Unsigned::<8> { w: nibbles(columns(rows, 2)), d, m });
        }
    }
}

impl Block for Q4_1 {
    const LEN: usize = 32;
    const BYTES: usize = 20;

    #[inline(always)]
    unsafe fn feed<S: Sink>(rows: &Rows, x_at: usize, sink: &mut S) {
        // SAFETY: offsets are inside the block; the caller vouches for the rest.
        unsafe {
            let (d, m) = half_pairs(dwords(rows, 0));
            sink.take(x_at, &Unsigned::<8> { w: nibbles(columns(rows, 4)), d, m });
        }
    }
}

impl Block for Q5_0 {
    const LEN: usize = 32;
    const BYTES: usize = 22;

    #[inline(always)]
    unsafe fn feed<S: Sink>(rows: &Rows, x_at: usize, sink: &mut S) {
        // SAFETY: offsets are inside the block; the caller vouches for the rest.
        unsafe {
            let d = halves(rows, 0);
            let m = _mm256_mul_ps(d, _mm256_set1_ps(-16.0));
            let mut w = nibbles(columns(rows, 6));
            with_fifth(&mut w, dwords(rows, 2));
            sink.take(x_at, &Unsigned::<4> { w, d, m });
        }
    }
}

impl Block for Q5_1 {
    const LEN: usize = 32;
    const BYTES: usize = 24;

    #[inline(always)]
    unsafe fn feed<S: Sink>(rows: &Rows, x_at: usize, sink: &mut S) {
        // SAFETY: offsets are inside the block; the caller vouches for the rest.
        unsafe {
            let (d, m) = half_pairs(dwords(rows, 0));
            let mut w = nibbles(columns(rows, 8));
            with_fifth(&mut w, dwords(rows, 4));
            sink.take(x_at, &Unsigned::<4> { w, d, m });
        }
    }
}

impl Block for MXFP4 {
    const LEN: usize = 32;
    const BYTES: usize = 17;

    #[inline(always)]
    unsafe fn feed<S: Sink>(rows: &Rows, x_at: usize, sink: &mut S) {
        const UNSIGNED: [i8; 16] = {
            let mut values = MXFP4_VALUES;
            let mut i = 0;
            while i < 16 {
                values[i] += MXFP4_OFFSET;
                i += 1;
            }
            values
        };
        // SAFETY: offsets are inside the block; the caller vouches for the rest.
        unsafe {
            let v = |i: usize| i32::from(*rows[i]);
            let e = _mm256_setr_epi32(v(0), v(1), v(2), v(3), v(4), v(5), v(6), v(7));
            let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
            let small = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
            let bits = _mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e));
            let d = _mm256_castsi256_ps(bits);
            let m = _mm256_mul_ps(d, _mm256_set1_ps(-f32::from(MXFP4_OFFSET)));
            let values = table(UNSIGNED);
            let mut w = nibbles(columns(rows, 1));
            for w in &mut w {
                *w = _mm256_shuffle_epi8(values, *w);
            }
            sink.take(x_at, &Unsigned::<4> { w, d, m });
        }
    }
}

/// Sixteen signed bytes of each row as words, in the order that [`Signed`] wants.
///
/// # Safety
/// AVX2 exists.
#[inline(always)]
pub(super) unsafe fn words(q: [__m256i; 4]) -> [__m256i; 8] {
    // SAFETY: only registers.
    unsafe {
        let even = |v| _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(v));
        let odd = |v| _mm256_srai_epi16::<8>(v);
        [even(q[0]), odd(q[0]), even(q[1]), odd(q[1]), even(q[2]), odd(q[2]), even(q[3]), odd(q[3])]
    }
}

impl Block for Q8_0 {
    const LEN: usize = 32;
    const BYTES: usize = 34;

    #[inline(always)]
    unsafe fn feed<S: Sink>(rows: &Rows, x_at: usize, sink: &mut S) {
        // SAFETY: offsets are inside the block; the caller vouches for the rest.
        unsafe {
            let d = halves(rows, 0);
            sink.take(x_at, &Signed::<0> { w: words(columns(rows, 2)), d });
            sink.take(x_at, &Signed::<1> { w: words(columns(rows, 18)), d });
        }
    }
}

impl Block for IQ4NL {
    const LEN: usize = 32;
    const BYTES: usize = 18;

    #[inline(always)]
    unsafe fn feed<S: Sink>(rows: &Rows, x_at: usize, sink: &mut S) {
        // SAFETY: offsets are inside the block; the caller vouches for the rest.
        unsafe {
            let d = halves(rows, 0);
            let values = table(IQ4_VALUES);
            let mut w = nibbles(columns(rows, 2));
            for w in &mut w {
                *w = _mm256_shuffle_epi8(values, *w);
            }
            let [a, b, c, e, f, g, h, i] = w;
            sink.take(x_at, &Signed::<0> { w: words([a, b, c, e]), d });
            sink.take(x_at, &Signed::<1> { w: words([f, g, h, i]), d });
        }
    }
}
