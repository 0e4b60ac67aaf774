//! Numbers for tests, and what tests of kernels have in common.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::Isa;

/// Values between -1 and 1, some of them small.
pub(crate) fn floats(seed: u64, count: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count)
        .map(|_| {
            let x = rng.next_u32();
            let value = (x >> 8) as f32 / (1u32 << 23) as f32 - 1.0;
            if x & 31 == 0 { value * 1e-4 } else { value }
        })
        .collect()
}

/// Bit equality; any NaN equals any other.
pub(crate) fn assert_same(found: &[f32], wanted: &[f32]) {
    assert_eq!(found.len(), wanted.len());
    for (at, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let same = found.to_bits() == wanted.to_bits() || (found.is_nan() && wanted.is_nan());
        assert!(same, "element {at}: {found} ({:08x}), not {wanted} ({:08x})", found.to_bits(), wanted.to_bits());
    }
}

/// Runs a kernel in the vector and in the plain build for many seeds and compares the bits. Fails when the CPU has the
/// vector instructions and no kernel ran on them.
pub(crate) fn both_builds(kernel: impl Fn(Isa, u64) -> Vec<f32>) {
    let before = vector_runs();
    for seed in 0..200 {
        assert_same(&kernel(Isa::best(), seed), &kernel(Isa::SCALAR, seed));
    }
    let runs = vector_runs() - before;
    println!("{runs} kernels ran on vector instructions");
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
        assert!(runs >= 200, "the CPU has AVX2, but only {runs} of 200 kernels used it");
    }
}

fn vector_runs() -> usize {
    #[cfg(target_arch = "x86_64")]
    return super::simd::RUNS.get();
    #[cfg(not(target_arch = "x86_64"))]
    return 0;
}
