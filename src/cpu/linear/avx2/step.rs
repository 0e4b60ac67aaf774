//! One group of elements of eight weight rows times one row of activations.

use std::arch::x86_64::*;

/// What multiplies one row and adds to the sums of eight outputs.
pub(super) trait Step {
    /// # Safety
    /// AVX2 and FMA exist; `x` points at the activations that the group meets.
    unsafe fn step(&self, x: *const u8, sum: __m256) -> __m256;
}

/// Where groups go: the rows of activations and their sums.
pub(super) trait Sink {
    /// Runs a step for each row, `x_at` bytes after its start.
    ///
    /// # Safety
    /// As for [`Step::step`].
    unsafe fn take<S: Step>(&mut self, x_at: usize, step: &S);

    /// The same for a step that meets only `len < 8` floats at the end of the rows: the others read as zero.
    ///
    /// # Safety
    /// As for [`Step::step`], with `len` floats to read.
    unsafe fn take_rest<S: Step>(&mut self, x_at: usize, len: usize, step: &S);
}

/// A single row.
pub(super) struct One {
    pub(super) x: *const u8,
    pub(super) sum: __m256,
}

/// At most as many rows as there are sums.
pub(super) struct Many<'a> {
    pub(super) x: &'a [*const u8],
    pub(super) sums: &'a mut [__m256],
}

/// # Safety
/// `x` points at `len < 8` floats.
unsafe fn padded(x: *const u8, len: usize) -> [f32; 8] {
    let mut values = [0.0; 8];
    for (i, v) in values.iter_mut().enumerate().take(len) {
        // SAFETY: `i < len`.
        *v = unsafe { x.cast::<f32>().add(i).read_unaligned() };
    }
    values
}

impl Sink for One {
    #[inline(always)]
    unsafe fn take<S: Step>(&mut self, x_at: usize, step: &S) {
        // SAFETY: the caller's obligations are those of the step.
        self.sum = unsafe { step.step(self.x.add(x_at), self.sum) };
    }

    #[inline(always)]
    unsafe fn take_rest<S: Step>(&mut self, x_at: usize, len: usize, step: &S) {
        // SAFETY: the caller vouches for `len` floats; the copy has eight.
        unsafe {
            let x = padded(self.x.add(x_at), len);
            self.sum = step.step(x.as_ptr().cast(), self.sum);
        }
    }
}

impl Sink for Many<'_> {
    #[inline(always)]
    unsafe fn take<S: Step>(&mut self, x_at: usize, step: &S) {
        for (x, sum) in self.x.iter().zip(self.sums.iter_mut()) {
            // SAFETY: the caller's obligations are those of the step.
            *sum = unsafe { step.step(x.add(x_at), *sum) };
        }
    }

    #[inline(always)]
    unsafe fn take_rest<S: Step>(&mut self, x_at: usize, len: usize, step: &S) {
        for (x, sum) in self.x.iter().zip(self.sums.iter_mut()) {
            // SAFETY: the caller vouches for `len` floats; the copy has eight.
            unsafe {
                let x = padded(x.add(x_at), len);
                *sum = step.step(x.as_ptr().cast(), *sum);
            }
        }
    }
}

/// # Safety
/// AVX2 exists; four bytes are readable.
#[inline(always)]
unsafe fn broadcast(x: *const u8, at: usize) -> __m256i {
    // SAFETY: the caller vouches for the bytes.
    unsafe { _mm256_set1_epi32(x.add(at).cast::<i32>().read_unaligned()) }
}

/// # Safety
/// AVX2 exists; four bytes are readable.
#[inline(always)]
unsafe fn broadcast_f32(x: *const u8, at: usize) -> __m256 {
    // SAFETY: the caller vouches for the bytes.
    unsafe { _mm256_set1_ps(x.add(at).cast::<f32>().read_unaligned()) }
}

/// `sum + (d * dot + m * total) * scale`, as `scalar.rs` rounds it.
///
/// # Safety
/// AVX2 and FMA exist; `x` points at a block of bytes; `total` is the offset of one of its sums.
#[inline(always)]
unsafe fn add_scaled(x: *const u8, total: usize, dot: __m256i, d: __m256, m: __m256, sum: __m256) -> __m256 {
    // SAFETY: the offsets are inside the block.
    unsafe {
        let offset = _mm256_mul_ps(m, broadcast_f32(x, total));
        let group = _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(dot), offset);
        _mm256_fmadd_ps(group, broadcast_f32(x, 32), sum)
    }
}

/// The dot product of registers `from..to` with a block of bytes, in 32 bits. `RUN` products of two neighbours fit into
/// 16 bits: 8 for weights up to 15, 4 up to 31, 2 up to 63.
///
/// # Safety
/// AVX2 exists; `x` points at a block of bytes.
#[inline(always)]
unsafe fn dot_bytes<const RUN: usize>(x: *const u8, w: &[__m256i; 8], from: usize, to: usize) -> __m256i {
    // SAFETY: register `i` meets bytes `4 i .. 4 i + 4` of the block's 32.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        let mut dot = _mm256_setzero_si256();
        let mut first = from;
        while first < to {
            let mut run = _mm256_maddubs_epi16(w[first], broadcast(x, 4 * first));
            let mut i = first + 1;
            while i < first + RUN {
                run = _mm256_add_epi16(run, _mm256_maddubs_epi16(w[i], broadcast(x, 4 * i)));
                i += 1;
            }
            let run = _mm256_madd_epi16(run, ones);
            dot = if first == from { run } else { _mm256_add_epi32(dot, run) };
            first += RUN;
        }
        dot
    }
}

/// 32 unsigned elements with one scale: register `i` has elements `4 i .. 4 i + 4` of each of the eight rows.
pub(super) struct Unsigned<const RUN: usize> {
    pub(super) w: [__m256i; 8],
    pub(super) d: __m256,
    pub(super) m: __m256,
}

impl<const RUN: usize> Step for Unsigned<RUN> {
    #[inline(always)]
    unsafe fn step(&self, x: *const u8, sum: __m256) -> __m256 {
        // SAFETY: `x` points at a block of bytes.
        unsafe { add_scaled(x, 36, dot_bytes::<RUN>(x, &self.w, 0, 8), self.d, self.m, sum) }
    }
}

/// The same with weights up to 63 and a scale for each half.
pub(super) struct UnsignedHalves {
    pub(super) w: [__m256i; 8],
    pub(super) d: [__m256; 2],
    pub(super) m: [__m256; 2],
}

impl Step for UnsignedHalves {
    #[inline(always)]
    unsafe fn step(&self, x: *const u8, sum: __m256) -> __m256 {
        // SAFETY: `x` points at a block of bytes.
        unsafe {
            let sum = add_scaled(x, 40, dot_bytes::<2>(x, &self.w, 0, 4), self.d[0], self.m[0], sum);
            add_scaled(x, 44, dot_bytes::<2>(x, &self.w, 4, 8), self.d[1], self.m[1], sum)
        }
    }
}

/// Half `HALF` of a block of 32 signed elements as 16-bit words: register `2 i` has elements `4 i` and `4 i + 2` of the
/// half, register `2 i + 1` the two after them.
pub(super) struct Signed<const HALF: usize> {
    pub(super) w: [__m256i; 8],
    pub(super) d: __m256,
}

impl<const HALF: usize> Step for Signed<HALF> {
    #[inline(always)]
    unsafe fn step(&self, x: *const u8, sum: __m256) -> __m256 {
        // SAFETY: `x` points at a block of words: 64 bytes and the scale.
        unsafe {
            let at = 32 * HALF;
            let mut even = _mm256_madd_epi16(self.w[0], broadcast(x, at));
            let mut odd = _mm256_madd_epi16(self.w[1], broadcast(x, at + 4));
            let mut i = 2;
            while i < 8 {
                even = _mm256_add_epi32(even, _mm256_madd_epi16(self.w[i], broadcast(x, at + 4 * i)));
                odd = _mm256_add_epi32(odd, _mm256_madd_epi16(self.w[i + 1], broadcast(x, at + 4 * i + 4)));
                i += 2;
            }
            let dot = _mm256_cvtepi32_ps(_mm256_add_epi32(even, odd));
            _mm256_fmadd_ps(_mm256_mul_ps(self.d, dot), broadcast_f32(x, 64), sum)
        }
    }
}

/// Eight float elements, one in each register.
pub(super) struct Floats {
    pub(super) w: [__m256; 8],
}

impl Step for Floats {
    #[inline(always)]
    unsafe fn step(&self, x: *const u8, sum: __m256) -> __m256 {
        // SAFETY: `x` points at eight floats.
        unsafe {
            let mut even = _mm256_setzero_ps();
            let mut odd = _mm256_setzero_ps();
            let mut i = 0;
            while i < 8 {
                even = _mm256_fmadd_ps(self.w[i], broadcast_f32(x, 4 * i), even);
                odd = _mm256_fmadd_ps(self.w[i + 1], broadcast_f32(x, 4 * i + 4), odd);
                i += 2;
            }
            _mm256_add_ps(sum, _mm256_add_ps(even, odd))
        }
    }
}
