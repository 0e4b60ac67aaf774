//! Random numbers by seed: the same seed gives the same file on every machine.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A stream of random numbers.
pub(super) struct Random(ChaCha8Rng);

impl Random {
    /// The stream of `seed` for one purpose; streams of different purposes are independent.
    pub fn new(seed: u64, purpose: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(purpose);
        Self(rng)
    }

    /// A whole number from 0 to `end`, without it.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.0.next_u64()) * end as u128) >> 64) as usize
    }

    /// A number from 0 to 1, without 1.
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A random byte.
    pub fn byte(&mut self) -> u8 {
        self.0.next_u32() as u8
    }

    /// Fills `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        self.0.fill_bytes(out);
    }

    /// `count` values of mean 0 and variance 1, normally distributed.
    pub fn normals(&mut self, count: usize) -> Vec<f32> {
        let mut out = Vec::with_capacity(count + 1);
        while out.len() < count {
            let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
            let (sin, cos) = (std::f64::consts::TAU * self.unit()).sin_cos();
            out.extend([(radius * cos) as f32, (radius * sin) as f32]);
        }
        out.truncate(count);
        out
    }
}

/// A ring of random values that is read from many places, so that gigabytes of numbers cost a few megabytes.
pub(super) struct Ring(Vec<f32>);

/// A prime, so that rows of any length begin at different places.
const RING: usize = 1_048_573;

impl Ring {
    /// Normal values of mean 0 and variance 1.
    pub fn new(random: &mut Random) -> Self {
        Self(random.normals(RING))
    }

    /// The values from place `at` (of any size) on, without an end.
    pub fn from(&self, at: usize) -> impl Iterator<Item = f32> + '_ {
        let start = at % RING;
        let (head, tail) = self.0.split_at(start.min(self.0.len()));
        tail.iter().chain(head).copied().cycle()
    }
}
