//! [`Lanes`] in plain code.

use half::f16;

use super::{LANES, Lanes, ROUND};

/// Eight f32, computed one by one.
#[derive(Clone, Copy)]
pub(crate) struct Plain([f32; LANES]);

impl Plain {
    #[inline(always)]
    fn each(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

impl Lanes for Plain {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Self([x; LANES])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller gives eight readable f32; the read needs no alignment.
        Self(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: the caller gives sixteen readable bytes; the read needs no alignment.
        let halves = unsafe { from.cast::<[[u8; 2]; LANES]>().read_unaligned() };
        Self(halves.map(|bytes| f16::from_le_bytes(bytes).to_f32()))
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self {
        // SAFETY: the caller gives eight readable bytes.
        let bytes = unsafe { from.cast::<[i8; LANES]>().read_unaligned() };
        Self(bytes.map(f32::from))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller gives room for eight f32; the write needs no alignment.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u8) {
        let halves = self.0.map(|x| f16::from_f32(x).to_le_bytes());
        // SAFETY: the caller gives room for sixteen bytes; the write needs no alignment.
        unsafe { to.cast::<[[u8; 2]; LANES]>().write_unaligned(halves) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.each(other, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.each(other, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.each(other, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.each(other, |a, b| a / b)
    }

    #[inline(always)]
    fn fma(self, factor: Self, term: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].mul_add(factor.0[i], term.0[i])))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.each(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.each(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Self(self.0.map(f32::abs))
    }

    #[inline(always)]
    fn swap_pairs(self) -> Self {
        Self(std::array::from_fn(|i| self.0[i ^ 1]))
    }

    #[inline(always)]
    fn two_to(self) -> (Self, Self) {
        let power = |n: i32| f32::from_bits(n.wrapping_add(127).wrapping_shl(23).cast_unsigned());
        let n = self.0.map(|x| x.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed());
        (Self(n.map(|n| power(n >> 1))), Self(n.map(|n| power(n.wrapping_sub(n >> 1)))))
    }

    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        std::array::from_fn(|j| Self(std::array::from_fn(|i| rows[i].0[j])))
    }

    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        self.0
    }
}
