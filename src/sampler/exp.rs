//! An exponential that is the same bits everywhere: the one of the platform's library is not.

/// `1 / k!` for k from 13 down to 0.
const SERIES: [f64; 14] = [
    1.0 / 6_227_020_800.0,
    1.0 / 479_001_600.0,
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
    1.0,
    1.0,
];

/// `e^x` for `x` of at most 0, to within 1e-15 of its value; 0 below -700.
pub(super) fn exp(x: f64) -> f64 {
    const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    // Also for -inf. The smallest that is kept is far above the subnormal numbers.
    if x < -700.0 {
        return 0.0;
    }
    // x = n ln 2 + r with |r| at most ln 2 / 2; the high part of ln 2 has zeros at its end, so n times it is exact.
    let n = (x * std::f64::consts::LOG2_E).round();
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    // Taylor's series to r^13, whose next term is below 1e-17.
    let sum = SERIES.iter().fold(0.0, |sum, coefficient| sum * r + coefficient);
    sum * f64::from_bits(((n + 1023.0) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_exponential() {
        let mut worst: f64 = 0.0;
        for step in 0..700_000 {
            let x = -f64::from(step) / 1000.0;
            worst = worst.max((exp(x) / x.exp() - 1.0).abs());
        }
        assert!(worst < 1e-15, "{worst:e}");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
        assert_eq!(exp(-701.0), 0.0);
    }

    #[test]
    fn its_bits_are_fixed() {
        let bits = [-0.1, -1.0, -2.5, -33.3, -699.0].map(|x| exp(x).to_bits());
        let fixed =
            [0x3fecf46d99d52b3a, 0x3fd78b56362cef38, 0x3fb50385c094f425, 0x3cef165bb9b59d94, 0x00e78694fe9f73cc];
        assert_eq!(bits, fixed);
    }
}
