//! Exponential, sine and cosine.

use std::f32::consts::LOG2_E;
use std::f64::consts::FRAC_2_PI;

use super::{Lanes, ROUND};

/// `e^x` in each lane, within one unit in the last place; zero below -104, infinity above 88.73.
#[inline(always)]
pub(crate) fn exp<L: Lanes>(x: L) -> L {
    // The variable stands second, so that NaN passes.
    let x = L::splat(-104.0).max(L::splat(89.0).min(x));
    let t = x.fma(L::splat(LOG2_E), L::splat(ROUND));
    let n = t.sub(L::splat(ROUND));
    // ln 2 in two parts: the first has few bits, so that its product with n is exact.
    let r = n.fma(L::splat(-0.693_359_4), x);
    let r = n.fma(L::splat(2.121_944_4e-4), r);
    // Taylor: with |r| <= 0.347, the first term left out is below 2^-27 of the result.
    let mut p = L::splat(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p.fma(r, L::splat(c));
    }
    let (a, b) = t.two_to();
    p.mul(a).mul(b)
}

/// Added to an f64 of at most 2^50, it leaves the nearest whole number in the low bits.
const ROUND_F64: f64 = 6_755_399_441_055_744.0;
/// Half of pi in two parts: the first is the f64 below it.
const HALF_PI: [f64; 2] = [std::f64::consts::FRAC_PI_2, 6.123_233_995_736_766e-17];

/// Sine and cosine of `angle`, computed in f64 and rounded once, for angles below 2^40. Free of branches, so that a
/// loop of it becomes vector code.
#[inline(always)]
pub(crate) fn sin_cos(angle: f32) -> (f32, f32) {
    let x = f64::from(angle);
    let t = x.mul_add(FRAC_2_PI, ROUND_F64);
    let (quarter, n) = (t.to_bits(), t - ROUND_F64);
    let r = n.mul_add(-HALF_PI[1], n.mul_add(-HALF_PI[0], x));
    let square = r * r;
    let mut s = -1.0 / 39_916_800.0;
    for c in [1.0 / 362_880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0] {
        s = square.mul_add(s, c);
    }
    let s = (square * r).mul_add(s, r);
    let mut c = 1.0 / 479_001_600.0;
    for k in [-1.0 / 3_628_800.0, 1.0 / 40_320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5, 1.0] {
        c = square.mul_add(c, k);
    }
    let (s, c) = (s.to_bits(), c.to_bits());
    let odd = (quarter & 1).wrapping_neg();
    let sin = ((s & !odd) | (c & odd)) ^ (quarter & 2) << 62;
    let cos = ((c & !odd) | (s & odd)) ^ (quarter.wrapping_add(1) & 2) << 62;
    (f64::from_bits(sin) as f32, f64::from_bits(cos) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Isa;
    use crate::cpu::simd::{Kernel, LANES};

    struct Exp([f32; LANES]);

    impl Kernel for Exp {
        type Out = [f32; LANES];

        #[inline(always)]
        fn run<L: Lanes>(self) -> Self::Out {
            // SAFETY: the array holds eight f32.
            exp(unsafe { L::load(self.0.as_ptr()) }).to_array()
        }
    }

    #[test]
    fn exp_is_within_an_ulp_and_the_same_in_both_builds() {
        let mut worst = 0.0f64;
        for step in 0..400_000 {
            let x: [f32; LANES] = std::array::from_fn(|lane| (step * 8 + lane) as f32 * 6.2e-5 - 110.0);
            let fast = Isa::best().run(Exp(x));
            assert_eq!(fast.map(f32::to_bits), Isa::SCALAR.run(Exp(x)).map(f32::to_bits), "{x:?}");
            for (x, found) in x.into_iter().zip(fast) {
                let wanted = f64::from(x).exp();
                if wanted > f64::from(f32::MAX) {
                    assert_eq!(found, f32::INFINITY, "{x}");
                } else if wanted > f64::from(f32::MIN_POSITIVE) {
                    let ulp = f64::from((wanted as f32).next_up()) - f64::from(wanted as f32);
                    worst = worst.max((f64::from(found) - wanted).abs() / ulp);
                } else {
                    assert!((f64::from(found) - wanted).abs() < 3e-45, "{x} gives {found}, not {wanted}");
                }
            }
        }
        println!("worst error of exp: {worst} units in the last place");
        assert!(worst < 1.0);
        let edges = Isa::best().run(Exp([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e30, -1e30, 1e-40]));
        assert!(edges[0].is_nan());
        assert_eq!(edges[1..], [f32::INFINITY, 0.0, 1.0, 1.0, f32::INFINITY, 0.0, 1.0]);
    }

    #[test]
    fn sine_and_cosine_are_rounded_from_exact_values() {
        let mut angles: Vec<f32> = (0..200_000).map(|i| i as f32 * 0.013_7).collect();
        angles.extend((0..100_000).map(|i| 1.5e6 - i as f32 * 7.77));
        for angle in angles {
            let (sin, cos) = sin_cos(angle);
            let (true_sin, true_cos) = f64::from(angle).sin_cos();
            assert!((f64::from(sin) - true_sin).abs() < 6e-8, "sin {angle}: {sin}, not {true_sin}");
            assert!((f64::from(cos) - true_cos).abs() < 6e-8, "cos {angle}: {cos}, not {true_cos}");
        }
        assert!(sin_cos(f32::INFINITY).0.is_nan() && sin_cos(f32::NAN).1.is_nan());
    }
}
