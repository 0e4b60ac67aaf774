//! [`Lanes`] in AVX2, FMA and F16C.

use std::arch::x86_64::*;

use super::{Kernel, LANES, Lanes, ROUND};

/// Eight f32 in a register. Only [`run`] instantiates kernels with it, so its methods run only where the CPU has the
/// instructions.
#[derive(Clone, Copy)]
pub(crate) struct Avx(__m256);

#[cfg(test)]
thread_local! {
    /// Kernels that ran here in this build, for tests that would else compare plain code with itself.
    pub static RUNS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Runs a kernel compiled for these instructions.
///
/// # Safety
/// The CPU must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Out {
    #[cfg(test)]
    RUNS.set(RUNS.get() + 1);
    kernel.run::<Avx>()
}

impl Lanes for Avx {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        // SAFETY: the CPU has AVX (see the type).
        Self(unsafe { _mm256_set1_ps(x) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the CPU has AVX; the caller gives eight readable f32.
        Self(unsafe { _mm256_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: the CPU has F16C; the caller gives sixteen readable bytes.
        Self(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) })
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self {
        // SAFETY: the CPU has AVX2; the caller gives eight readable bytes.
        Self(unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the CPU has AVX; the caller gives room for eight f32.
        unsafe { _mm256_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u8) {
        // SAFETY: the CPU has F16C; the caller gives room for sixteen bytes.
        unsafe { _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(self.0)) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: the CPU has AVX (see the type).
        Self(unsafe { _mm256_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: the CPU has AVX (see the type).
        Self(unsafe { _mm256_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: the CPU has AVX (see the type).
        Self(unsafe { _mm256_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: the CPU has AVX (see the type).
        Self(unsafe { _mm256_div_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn fma(self, factor: Self, term: Self) -> Self {
        // SAFETY: the CPU has FMA (see the type).
        Self(unsafe { _mm256_fmadd_ps(self.0, factor.0, term.0) })
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: the CPU has AVX (see the type).
        Self(unsafe { _mm256_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: the CPU has AVX (see the type).
        Self(unsafe { _mm256_min_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn abs(self) -> Self {
        // SAFETY: the CPU has AVX (see the type).
        Self(unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), self.0) })
    }

    #[inline(always)]
    fn swap_pairs(self) -> Self {
        // SAFETY: the CPU has AVX (see the type).
        Self(unsafe { _mm256_permute_ps::<0b10_11_00_01>(self.0) })
    }

    #[inline(always)]
    fn two_to(self) -> (Self, Self) {
        // SAFETY: the CPU has AVX2 (see the type).
        unsafe {
            let n = _mm256_sub_epi32(_mm256_castps_si256(self.0), _mm256_castps_si256(_mm256_set1_ps(ROUND)));
            let low = _mm256_srai_epi32::<1>(n);
            let power = |n| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))));
            (Self(power(low)), Self(power(_mm256_sub_epi32(n, low))))
        }
    }

    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        // SAFETY: the CPU has AVX (see the type).
        unsafe {
            let pairs =
                |a: usize| (_mm256_unpacklo_ps(rows[a].0, rows[a + 1].0), _mm256_unpackhi_ps(rows[a].0, rows[a + 1].0));
            let ((a0, a1), (b0, b1), (c0, c1), (d0, d1)) = (pairs(0), pairs(2), pairs(4), pairs(6));
            let fours = |a: __m256, b: __m256| {
                (_mm256_shuffle_ps::<0b01_00_01_00>(a, b), _mm256_shuffle_ps::<0b11_10_11_10>(a, b))
            };
            let ((e0, e1), (e2, e3)) = (fours(a0, b0), fours(a1, b1));
            let ((f0, f1), (f2, f3)) = (fours(c0, d0), fours(c1, d1));
            let low = |a, b| Self(_mm256_permute2f128_ps::<0x20>(a, b));
            let high = |a, b| Self(_mm256_permute2f128_ps::<0x31>(a, b));
            [low(e0, f0), low(e1, f1), low(e2, f2), low(e3, f3), high(e0, f0), high(e1, f1), high(e2, f2), high(e3, f3)]
        }
    }

    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        // SAFETY: both are eight f32 without padding.
        unsafe { std::mem::transmute(self.0) }
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: the CPU has AVX (see the type).
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        // SAFETY: the CPU has AVX (see the type).
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }
}
