//! Rotary position embedding.
#![allow(unsafe_code)]

use super::simd::{Kernel, LANES, Lanes, sin_cos};
use super::{Isa, Team};
use crate::ops::{Rope, RopeKind};

/// Rotates the heads of each row of `x` (f32 `[rows, heads * head_dim]`) in place; row `r` is at position `first + r`.
///
/// Pair `(a, b)` with cosine `c` and sine `s`, both times the rope's magnitude, becomes `(fma(a, c, -(b * s)), fma(b,
/// c, a * s))`.
///
/// # Panics
/// When `x` is no whole number of rows, or the rope does not fit the heads.
pub fn rope(team: &Team, x: &mut [f32], heads: usize, head_dim: usize, first: usize, rope: &Rope) {
    let row = heads * head_dim;
    assert!(row > 0 && x.len().is_multiple_of(row), "rope: {} elements in rows of {row}", x.len());
    assert!(
        rope.rotated <= head_dim && rope.rotated == 2 * rope.frequencies.len(),
        "rope: {} elements rotate, of heads of {head_dim}, by {} frequencies",
        rope.rotated,
        rope.frequencies.len()
    );
    let rows = team.share(x.len() / row, 4);
    team.for_chunks(x.len() * 4, x, rows * row, |index, x| {
        Isa::best().run(Rows { x, row, head_dim, first: first + index * rows, rope });
    });
}

/// Consecutive rows.
struct Rows<'a> {
    x: &'a mut [f32],
    row: usize,
    head_dim: usize,
    first: usize,
    rope: &'a Rope,
}

impl Kernel for Rows<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { x, row, head_dim, first, rope } = self;
        let half = rope.frequencies.len();
        // Cosines, then sines; for adjacent pairs each stands twice, and a pair's first sine is negative.
        let mut table = vec![0.0; 4 * half];
        let (cos, sin) = table.split_at_mut(2 * half);
        for (index, row) in x.chunks_exact_mut(row).enumerate() {
            let position = (first + index) as f32;
            for ((frequency, sin), cos) in rope.frequencies.iter().zip(&mut *sin).zip(&mut *cos) {
                let (s, c) = sin_cos(position * frequency);
                (*sin, *cos) = (s * rope.magnitude, c * rope.magnitude);
            }
            if rope.kind == RopeKind::Normal {
                for pair in (0..half).rev() {
                    let (s, c) = (sin[pair], cos[pair]);
                    (sin[2 * pair], sin[2 * pair + 1]) = (-s, s);
                    (cos[2 * pair], cos[2 * pair + 1]) = (c, c);
                }
            }
            for head in row.chunks_exact_mut(head_dim) {
                match rope.kind {
                    RopeKind::Normal => adjacent::<L>(&mut head[..2 * half], cos, sin),
                    RopeKind::Neox => {
                        let (a, b) = head[..2 * half].split_at_mut(half);
                        halves::<L>(a, b, &cos[..half], &sin[..half]);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn adjacent<L: Lanes>(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let whole = x.len() / LANES * LANES;
    assert!(x.len() <= cos.len() && x.len() <= sin.len());
    for at in (0..whole).step_by(LANES) {
        // SAFETY: eight elements from `at` on lie within all three.
        unsafe {
            let (c, s) = (L::load(cos.as_ptr().add(at)), L::load(sin.as_ptr().add(at)));
            let old = L::load(x.as_ptr().add(at));
            old.fma(c, old.swap_pairs().mul(s)).store(x.as_mut_ptr().add(at));
        }
    }
    for at in (whole..x.len()).step_by(2) {
        let (a, b) = (x[at], x[at + 1]);
        x[at] = a.mul_add(cos[at], b * sin[at]);
        x[at + 1] = b.mul_add(cos[at + 1], a * sin[at + 1]);
    }
}

#[inline(always)]
fn halves<L: Lanes>(a: &mut [f32], b: &mut [f32], cos: &[f32], sin: &[f32]) {
    let whole = a.len() / LANES * LANES;
    assert!(a.len() == b.len() && a.len() == cos.len() && a.len() == sin.len());
    for at in (0..whole).step_by(LANES) {
        // SAFETY: eight elements from `at` on lie within all four.
        unsafe {
            let (c, s) = (L::load(cos.as_ptr().add(at)), L::load(sin.as_ptr().add(at)));
            let (x, y) = (L::load(a.as_ptr().add(at)), L::load(b.as_ptr().add(at)));
            let back = L::splat(0.0).sub(s);
            x.fma(c, y.mul(back)).store(a.as_mut_ptr().add(at));
            y.fma(c, x.mul(s)).store(b.as_mut_ptr().add(at));
        }
    }
    for at in whole..a.len() {
        let (x, y) = (a[at], b[at]);
        a[at] = x.mul_add(cos[at], y * (0.0 - sin[at]));
        b[at] = y.mul_add(cos[at], x * sin[at]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::sample;

    fn some_rope(kind: RopeKind, rotated: usize) -> Rope {
        let frequency = |j: usize| 10_000f64.powf(-2.0 * j as f64 / rotated as f64) as f32;
        let magnitude = if rotated.is_multiple_of(3) { 1.25 } else { 1.0 };
        Rope { kind, rotated, frequencies: (0..rotated / 2).map(frequency).collect(), magnitude }
    }

    #[test]
    fn heads_turn_by_their_angles() {
        for kind in [RopeKind::Normal, RopeKind::Neox] {
            for (heads, head_dim, rotated) in [(9, 64, 64), (2, 128, 128), (3, 20, 12), (1, 8, 2), (4, 256, 64)] {
                let (rows, first, rope) = (19, 100_000, some_rope(kind, rotated));
                let x = sample::floats(7, rows * heads * head_dim);
                let mut wanted = x.clone();
                for (index, head) in wanted.chunks_mut(head_dim).enumerate() {
                    for j in 0..rotated / 2 {
                        let angle = f64::from((first + index / heads) as f32 * rope.frequencies[j]);
                        let (a, b) = if kind == RopeKind::Normal { (2 * j, 2 * j + 1) } else { (j, j + rotated / 2) };
                        let (x, y) = (f64::from(head[a]), f64::from(head[b]));
                        let (sin, cos) =
                            (angle.sin() * f64::from(rope.magnitude), angle.cos() * f64::from(rope.magnitude));
                        head[a] = (x * cos - y * sin) as f32;
                        head[b] = (x * sin + y * cos) as f32;
                    }
                }
                let mut alone = x.clone();
                let one = Team::new(1).unwrap();
                for (row, x) in alone.chunks_mut(heads * head_dim).enumerate() {
                    super::rope(&one, x, heads, head_dim, first + row, &rope);
                }
                for (found, wanted) in alone.iter().zip(&wanted) {
                    assert!((found - wanted).abs() < 1e-6, "{kind:?}: {found}, not {wanted}");
                }
                for workers in [2, 3] {
                    let mut x = x.clone();
                    super::rope(&Team::new(workers).unwrap(), &mut x, heads, head_dim, first, &rope);
                    sample::assert_same(&x, &alone);
                }
            }
        }
    }

    #[test]
    fn both_builds_give_the_same_bits() {
        sample::both_builds(|isa, seed| {
            let kind = if seed % 2 == 0 { RopeKind::Normal } else { RopeKind::Neox };
            let rotated = 2 * (1 + seed as usize % 40);
            let mut x = sample::floats(seed, 3 * (rotated + 1) * 2);
            let rope = some_rope(kind, rotated);
            let row = (rotated + 1) * 2;
            isa.run(Rows { x: &mut x, row, head_dim: rotated + 1, first: seed as usize * 991, rope: &rope });
            x
        });
    }
}
