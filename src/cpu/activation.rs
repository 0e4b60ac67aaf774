//! The gate function of an FFN.
#![allow(unsafe_code)]

use super::simd::{Kernel, LANES, Lanes, exp};
use super::{Isa, Team};
use crate::ops::Activation;

/// `out = activation(gate) * up`, elementwise.
///
/// # Panics
/// When the three differ in length.
pub fn gated_activation(team: &Team, activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert_eq!(
        (gate.len(), up.len()),
        (out.len(), out.len()),
        "gated activation: gate, up and output differ in length"
    );
    let chunk = chunk(team, out.len());
    team.for_chunks(out.len() * OPERATIONS, out, chunk, |index, out| {
        let (gate, up) = (&gate[index * chunk..][..out.len()], &up[index * chunk..][..out.len()]);
        Isa::best().run(Gated { activation, gate: Some(gate), up, out });
    });
}

/// [`gated_activation`] with `gate` replaced by the result.
///
/// # Panics
/// When the two differ in length.
pub fn gated_activation_in_place(team: &Team, activation: Activation, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gated activation: gate and up differ in length");
    let chunk = chunk(team, gate.len());
    team.for_chunks(gate.len() * OPERATIONS, gate, chunk, |index, gate| {
        let up = &up[index * chunk..][..gate.len()];
        Isa::best().run(Gated { activation, gate: None, up, out: gate });
    });
}

/// Work of one element.
const OPERATIONS: usize = 16;

fn chunk(team: &Team, elements: usize) -> usize {
    team.share(elements, 4).next_multiple_of(LANES).max(2048)
}

/// `gate` and `up` have as many elements as `out`. Without `gate`, `out` holds it.
struct Gated<'a> {
    activation: Activation,
    gate: Option<&'a [f32]>,
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Gated<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { activation: Activation::Silu, gate, up, out } = self;
        let length = out.len();
        assert!(up.len() == length && gate.is_none_or(|gate| gate.len() == length));
        let out = out.as_mut_ptr();
        let gate = gate.map_or(out.cast_const(), <[f32]>::as_ptr);
        let whole = length / LANES * LANES;
        for at in (0..whole).step_by(LANES) {
            // SAFETY: the chunk lies within all three; it is read before it is written, should `out` be `gate`.
            unsafe { silu(L::load(gate.add(at))).mul(L::load(up.as_ptr().add(at))).store(out.add(at)) };
        }
        if whole < length {
            let mut tail = [0.0; LANES];
            for (lane, tail) in tail[..length - whole].iter_mut().enumerate() {
                // SAFETY: the element lies within `gate`.
                *tail = unsafe { *gate.add(whole + lane) };
            }
            // SAFETY: the array holds eight f32.
            let tail = silu(unsafe { L::load(tail.as_ptr()) }).to_array();
            for (lane, tail) in tail[..length - whole].iter().enumerate() {
                // SAFETY: the element lies within `out`.
                unsafe { *out.add(whole + lane) = *tail * up[whole + lane] };
            }
        }
    }
}

/// `x / (1 + e^-x)`.
#[inline(always)]
fn silu<L: Lanes>(x: L) -> L {
    x.div(L::splat(1.0).add(exp(L::splat(0.0).sub(x))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::sample;

    #[test]
    fn silu_is_within_two_ulps() {
        let team = Team::new(2).unwrap();
        let gate: Vec<f32> = (0..300_000).map(|i| i as f32 * 6e-4 - 80.0).collect();
        let up = vec![1.0; gate.len()];
        let mut out = vec![0.0; gate.len()];
        gated_activation(&team, Activation::Silu, &gate, &up, &mut out);
        let mut worst = 0.0f64;
        for (x, found) in gate.iter().zip(&out) {
            let x = f64::from(*x);
            let wanted = x / (1.0 + (-x).exp());
            let ulp = f64::from((wanted.abs() as f32).next_up()) - f64::from(wanted.abs() as f32);
            worst = worst.max((f64::from(*found) - wanted).abs() / ulp);
        }
        println!("worst error of SiLU: {worst} units in the last place");
        assert!(worst < 2.5);
    }

    #[test]
    fn pieces_and_workers_change_nothing() {
        for length in [0, 1, 7, 8, 1000, 10_003, 40_000] {
            let (gate, up) = (sample::floats(1, length), sample::floats(2, length));
            let mut wanted = vec![0.0; length];
            for at in 0..length {
                let alone = &mut wanted[at..=at];
                Isa::best().run(Gated {
                    activation: Activation::Silu,
                    gate: Some(&gate[at..=at]),
                    up: &up[at..=at],
                    out: alone,
                });
            }
            for workers in [1, 2, 3] {
                let team = Team::new(workers).unwrap();
                let mut out = vec![0.0; length];
                gated_activation(&team, Activation::Silu, &gate, &up, &mut out);
                sample::assert_same(&out, &wanted);
                out.copy_from_slice(&gate);
                gated_activation_in_place(&team, Activation::Silu, &mut out, &up);
                sample::assert_same(&out, &wanted);
            }
        }
    }

    #[test]
    fn both_builds_give_the_same_bits() {
        sample::both_builds(|isa, seed| {
            let length = 1 + seed as usize % 50;
            let gate: Vec<f32> = sample::floats(seed, length).iter().map(|x| x * 100.0).collect();
            let (up, mut out) = (sample::floats(seed + 1, length), vec![0.0; length]);
            isa.run(Gated { activation: Activation::Silu, gate: Some(&gate), up: &up, out: &mut out });
            out
        });
    }
}
