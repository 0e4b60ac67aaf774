//! Vector code for whichever instructions [`Isa`] found.
//!
//! A kernel is written once over [`Lanes`], eight f32 side by side, and compiled twice: with AVX2, FMA and F16C, and in
//! plain code that does the same roundings lane by lane. So both give the same bits.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx;
mod math;
mod plain;

#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) use avx::RUNS;
pub(crate) use math::{exp, sin_cos};
use plain::Plain;

use super::linear::isa::{Isa, Kind};

impl Isa {
    /// Runs a kernel.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Out {
        match self.kind() {
            // SAFETY: an `Isa` of this kind exists only where the CPU has AVX2, FMA and F16C.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { avx::run(kernel) },
            Kind::Scalar => kernel.run::<Plain>(),
        }
    }
}

/// Vector code with its arguments. `run` must be `#[inline(always)]`, as must all that it calls on [`Lanes`]: only then
/// is it compiled for the instructions.
pub(crate) trait Kernel {
    /// What it returns.
    type Out;

    /// The code.
    fn run<L: Lanes>(self) -> Self::Out;
}

/// Added to an f32 of at most 2^22, it leaves the nearest whole number in the low bits.
pub(crate) const ROUND: f32 = 12_582_912.0;

/// Lanes of a [`Lanes`].
pub(crate) const LANES: usize = 8;

/// Eight f32 side by side. Each operation rounds once, in each lane alone.
pub(crate) trait Lanes: Copy {
    /// The same value in every lane.
    fn splat(x: f32) -> Self;

    /// Eight values from memory.
    ///
    /// # Safety
    /// `from` must be valid for reading eight f32; it need not be aligned.
    unsafe fn load(from: *const f32) -> Self;

    /// Eight halves from memory, widened.
    ///
    /// # Safety
    /// `from` must be valid for reading sixteen bytes; it need not be aligned.
    unsafe fn load_f16(from: *const u8) -> Self;

    /// Eight signed bytes from memory, widened.
    ///
    /// # Safety
    /// `from` must be valid for reading eight bytes.
    unsafe fn load_i8(from: *const u8) -> Self;

    /// Asks for a cache line that is read soon. The address need not be valid.
    fn fetch(from: *const u8);

    /// Writes eight values to memory.
    ///
    /// # Safety
    /// `to` must be valid for writing eight f32; it need not be aligned.
    unsafe fn store(self, to: *mut f32);

    /// Writes eight halves to memory, rounded to nearest, ties to even.
    ///
    /// # Safety
    /// `to` must be valid for writing sixteen bytes; it need not be aligned.
    unsafe fn store_f16(self, to: *mut u8);

    /// `self + other`.
    fn add(self, other: Self) -> Self;
    /// `self - other`.
    fn sub(self, other: Self) -> Self;
    /// `self * other`.
    fn mul(self, other: Self) -> Self;
    /// `self / other`.
    fn div(self, other: Self) -> Self;
    /// `self * factor + term`, rounded once.
    fn fma(self, factor: Self, term: Self) -> Self;
    /// `self > other ? self : other`, so `other` where one is NaN.
    fn max(self, other: Self) -> Self;
    /// `self < other ? self : other`, so `other` where one is NaN.
    fn min(self, other: Self) -> Self;
    /// The lanes' magnitudes.
    fn abs(self) -> Self;
    /// Lanes 0 and 1, 2 and 3, ... exchanged.
    fn swap_pairs(self) -> Self;
    /// Where the lanes hold `n + ROUND` for whole numbers `n` in -252..=254: two powers of two whose product is `2^n`.
    /// No single f32 reaches all of these.
    fn two_to(self) -> (Self, Self);
    /// Lane `j` of vector `i` becomes lane `i` of vector `j`.
    fn transpose(rows: [Self; LANES]) -> [Self; LANES];
    /// The eight values.
    fn to_array(self) -> [f32; LANES];

    /// The sum of the lanes, as a tree: 0+4, 1+5, ..., then 0+2, 1+3, then 0+1.
    #[inline(always)]
    fn sum(self) -> f32 {
        let x = self.to_array();
        let four = [x[0] + x[4], x[1] + x[5], x[2] + x[6], x[3] + x[7]];
        (four[0] + four[2]) + (four[1] + four[3])
    }

    /// The largest lane.
    #[inline(always)]
    fn largest(self) -> f32 {
        let x = self.to_array();
        let larger = |a: f32, b: f32| if a > b { a } else { b };
        let four = [larger(x[0], x[4]), larger(x[1], x[5]), larger(x[2], x[6]), larger(x[3], x[7])];
        larger(larger(four[0], four[2]), larger(four[1], four[3]))
    }
}
