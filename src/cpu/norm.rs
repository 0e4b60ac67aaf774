//! RMS norm.
#![allow(unsafe_code)]

use super::simd::{Kernel, LANES, Lanes};
use super::{Isa, Team};

/// `out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight` for each row of `weight.len()` elements.
///
/// The sum of squares has 32 running sums: element `i` goes to sum `i % 32`, in ascending order, and the sums are added
/// as a tree. So a row's result depends on nothing but the row. A row whose sum is not finite becomes NaN.
///
/// # Panics
/// When `x` is no whole number of rows, or `out` has another length.
pub fn rms_norm(team: &Team, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "RMS norm: input and output differ in length");
    each_row(team, weight, out, |range, out| Isa::best().run(Row { x: Some(&x[range]), weight, eps, out }));
}

/// [`rms_norm`] with its rows replaced by the results.
///
/// # Panics
/// When `x` is no whole number of rows.
pub fn rms_norm_in_place(team: &Team, x: &mut [f32], weight: &[f32], eps: f32) {
    each_row(team, weight, x, |_, x| Isa::best().run(Row { x: None, weight, eps, out: x }));
}

/// Rows that a part takes at least: as many elements as are worth handing out.
const PART_ELEMENTS: usize = 8192;

fn each_row(team: &Team, weight: &[f32], out: &mut [f32], work: impl Fn(std::ops::Range<usize>, &mut [f32]) + Sync) {
    let cols = weight.len();
    assert!(cols > 0 && out.len().is_multiple_of(cols), "RMS norm: {} elements in rows of {cols}", out.len());
    let rows = out.len() / cols;
    let part = team.share(rows, 4).max(PART_ELEMENTS / cols).max(1);
    let elements = out.len();
    team.for_chunks(elements * 2, out, part * cols, |index, rows| {
        for (row, out) in rows.chunks_exact_mut(cols).enumerate() {
            let start = (index * part + row) * cols;
            work(start..start + cols, out);
        }
    });
}

/// One row; `x` has as many elements as `out`. Without it, `out` holds it.
struct Row<'a> {
    x: Option<&'a [f32]>,
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for Row<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { x, weight, eps, out } = self;
        let cols = out.len();
        assert!(weight.len() == cols && x.is_none_or(|x| x.len() == cols));
        let (whole, out) = (cols / LANES, out.as_mut_ptr());
        let x = x.map_or(out.cast_const(), <[f32]>::as_ptr);
        let mut sums = [L::splat(0.0); 4];
        for chunk in 0..whole {
            // SAFETY: the chunk lies within the row's `cols` elements.
            let x = unsafe { L::load(x.add(chunk * LANES)) };
            sums[chunk % 4] = x.fma(x, sums[chunk % 4]);
        }
        if cols % LANES > 0 {
            let mut tail = [0.0; LANES];
            for (lane, tail) in tail[..cols % LANES].iter_mut().enumerate() {
                // SAFETY: the element lies within the row.
                *tail = unsafe { *x.add(whole * LANES + lane) };
            }
            // SAFETY: the array holds eight f32.
            let x = unsafe { L::load(tail.as_ptr()) };
            sums[whole % 4] = x.fma(x, sums[whole % 4]);
        }
        let sum = sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum();
        let mean = sum / cols as f32;
        // Squares that overflow would make the scale zero, and the row look harmless.
        let scale = if mean.is_finite() { 1.0 / (mean + eps).sqrt() } else { f32::NAN };
        for chunk in 0..whole {
            // SAFETY: the chunk lies within row and weight; it is read before it is written, should `out` be `x`.
            unsafe {
                let w = L::load(weight.as_ptr().add(chunk * LANES));
                L::load(x.add(chunk * LANES)).mul(L::splat(scale)).mul(w).store(out.add(chunk * LANES));
            }
        }
        #[allow(clippy::needless_range_loop, reason = "three pointers move together")]
        for at in whole * LANES..cols {
            // SAFETY: the element lies within row and weight; `x` and `out` are only touched through these pointers.
            unsafe { *out.add(at) = *x.add(at) * scale * weight[at] };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::sample;

    #[test]
    fn rows_are_those_of_the_definition() {
        for cols in [1, 7, 8, 33, 64, 100, 576, 2048] {
            for rows in [1, 2, 37] {
                let (x, weight) = (sample::floats(cols as u64, rows * cols), sample::floats(9, cols));
                let mut alone = vec![0.0; rows * cols];
                let one = Team::new(1).unwrap();
                for row in 0..rows {
                    rms_norm(&one, &x[row * cols..][..cols], &weight, 1e-5, &mut alone[row * cols..][..cols]);
                }
                for workers in [1, 2, 3] {
                    let team = Team::new(workers).unwrap();
                    let mut out = vec![0.0; rows * cols];
                    rms_norm(&team, &x, &weight, 1e-5, &mut out);
                    sample::assert_same(&out, &alone);
                    let mut x = x.clone();
                    rms_norm_in_place(&team, &mut x, &weight, 1e-5);
                    sample::assert_same(&x, &alone);
                }
                for (x, out) in x.chunks(cols).zip(alone.chunks(cols)) {
                    let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / cols as f64;
                    for ((x, w), out) in x.iter().zip(&weight).zip(out) {
                        let wanted = f64::from(*x) / (mean + 1e-5).sqrt() * f64::from(*w);
                        assert!((f64::from(*out) - wanted).abs() <= 1e-6 * wanted.abs() + 1e-9, "{out}, not {wanted}");
                    }
                }
            }
        }
    }

    #[test]
    fn both_builds_give_the_same_bits() {
        sample::both_builds(|isa, seed| {
            let cols = 1 + seed as usize % 300;
            let (x, weight) = (sample::floats(seed, cols), sample::floats(seed + 1, cols));
            let mut out = vec![0.0; cols];
            isa.run(Row { x: Some(&x), weight: &weight, eps: 1e-6, out: &mut out });
            out
        });
    }

    #[test]
    fn not_a_number_stays_in_its_row() {
        let mut x = vec![1.0; 4 * 40];
        x[45] = f32::NAN;
        x[90] = f32::INFINITY;
        // Finite, but its square is not.
        x[130] = 1e30;
        rms_norm_in_place(&Team::new(2).unwrap(), &mut x, &[1.0; 40], 1e-5);
        assert!(x[..40].iter().all(|x| (x - 1.0).abs() < 1e-4));
        assert!(x[40..].iter().all(|x| x.is_nan()));
    }
}
