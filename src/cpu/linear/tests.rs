#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::activation::Form;
use super::*;
use crate::quant::dequantize;

fn uniform(rng: &mut ChaCha8Rng) -> f32 {
    rng.next_u32() as f32 / u32::MAX as f32 * 2.0 - 1.0
}

/// Random blocks with sane scales.
fn weight_bytes(rng: &mut ChaCha8Rng, ty: QuantType, elements: usize) -> Vec<u8> {
    let mut bytes = vec![0; ty.row_bytes(elements).unwrap()];
    rng.fill_bytes(&mut bytes);
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        let halves: &[usize] = match ty {
            QuantType::F32 => {
                block.copy_from_slice(&uniform(rng).to_le_bytes());
                &[]
            }
            QuantType::BF16 => {
                block.copy_from_slice(&half::bf16::from_f32(uniform(rng)).to_le_bytes());
                &[]
            }
            QuantType::MXFP4 => {
                block[0] = 110 + block[0] % 20;
                &[]
            }
            QuantType::Q4_1 | QuantType::Q5_1 | QuantType::Q4_K | QuantType::Q5_K => &[0, 2],
            QuantType::Q2_K => &[80, 82],
            QuantType::Q3_K => &[108],
            QuantType::Q6_K => &[208],
            _ => &[0],
        };
        for &at in halves {
            block[at..at + 2].copy_from_slice(&half::f16::from_f32(uniform(rng)).to_le_bytes());
        }
    }
    bytes
}

fn floats(rng: &mut ChaCha8Rng, len: usize) -> Vec<f32> {
    (0..len).map(|_| uniform(rng) * 3.0).collect()
}

fn run(isa: Isa, team: &Team, x: &[f32], rows: usize, products: &mut [Product<'_>]) -> Result<(), LinearError> {
    let cols = products[0].weight.cols;
    let formats = Formats::of(products.iter().map(|p| p.weight.ty));
    let mut scratch = vec![0; scratch_bytes(formats, rows, cols)];
    linear(isa, team, x, rows, products, &mut scratch)
}

fn one(isa: Isa, team: &Team, weight: Weight<'_>, x: &[f32], rows: usize, pick: Pick<'_>, picked: usize) -> Vec<f32> {
    let mut y = vec![f32::NAN; picked * weight.outs];
    let product = Product { weight, rows: pick, y: &mut y, epilogue: Epilogue::Store };
    run(isa, team, x, rows, &mut [product]).unwrap();
    y
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn this_machine_runs_the_fast_kernels() {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        assert_ne!(Isa::best(), Isa::SCALAR);
        assert_eq!(Isa::best().to_string(), "AVX2");
    }
    assert_eq!(Isa::SCALAR.to_string(), "scalar");
}

#[test]
fn every_output_is_the_same_bits_however_it_is_computed() {
    let teams = [Team::new(1).unwrap(), Team::new(3).unwrap()];
    let seen = RefCell::new(BTreeMap::<String, usize>::new());
    let count = |what: &str| *seen.borrow_mut().entry(what.to_owned()).or_default() += 1;
    let types = prop::sample::select(&QuantType::ALL[..]);
    let case = (types, any::<u64>(), 1_usize..44, 1_usize..140, 1_usize..6, any::<bool>(), 0_usize..40);
    let mut runner = TestRunner::new(Config { cases: 420, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&case, |(ty, seed, outs, rows, blocks, wide, odd)| {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let cols = if ty.block_len() == 1 { 32 * blocks + odd } else { blocks * ty.block_len() };
        let rows = if rows > 70 && ty.block_len() == 256 { rows / 4 } else { rows };
        let bytes = weight_bytes(&mut rng, ty, outs * cols);
        let weight = Weight { ty, bytes: &bytes, outs, cols };
        let x = floats(&mut rng, rows * cols);
        let team = &teams[usize::from(wide)];
        let all = one(Isa::best(), team, weight, &x, rows, Pick::All, rows);
        prop_assert!(all.iter().all(|v| v.is_finite()));
        let scalar = one(Isa::SCALAR, team, weight, &x, rows, Pick::All, rows);
        prop_assert_eq!(bits(&all), bits(&scalar), "{} scalar", ty);
        let list: Vec<u32> = (0..rows + 3).map(|_| rng.next_u32() % rows as u32).collect();
        let picked = one(Isa::best(), team, weight, &x, rows, Pick::List(&list), list.len());
        for (i, &row) in list.iter().enumerate() {
            let row = row as usize;
            prop_assert_eq!(bits(&picked[i * outs..][..outs]), bits(&all[row * outs..][..outs]), "{} list", ty);
        }
        let row = rng.next_u32() as usize % rows;
        let single = one(Isa::best(), team, weight, &x[row * cols..][..cols], 1, Pick::All, 1);
        prop_assert_eq!(bits(&single), bits(&all[row * outs..][..outs]), "{} single row", ty);
        let ranged =
            one(Isa::best(), team, weight, &x, rows, Pick::Range { start: row, count: rows - row }, rows - row);
        prop_assert_eq!(bits(&ranged), bits(&all[row * outs..]), "{} range", ty);
        let out = rng.next_u32() as usize % outs;
        let row_bytes = bytes.len() / outs;
        let lone = Weight { bytes: &bytes[out * row_bytes..][..row_bytes], outs: 1, ..weight };
        let lone = one(Isa::best(), team, lone, &x, rows, Pick::All, rows);
        let column: Vec<f32> = all.iter().skip(out).step_by(outs).copied().collect();
        prop_assert_eq!(bits(&lone), bits(&column), "{} lone output", ty);
        count(ty.name());
        for (what, there) in [
            ("one row", rows == 1),
            ("more rows than a chunk", rows > part::CHUNK),
            ("part of a tile", outs % part::TILE != 0),
            ("several tiles", outs > part::TILE),
            ("part of a group of eight", cols % 8 != 0),
            ("several workers", wide),
        ] {
            if there {
                count(what);
            }
        }
        Ok(())
    });
    outcome.unwrap();
    println!("cases: {:?}", seen.borrow());
    for ty in QuantType::ALL {
        assert!(seen.borrow().contains_key(ty.name()), "no case of {ty}");
    }
    for what in ["one row", "more rows than a chunk", "part of a tile", "several tiles", "part of a group of eight"] {
        assert!(seen.borrow().contains_key(what), "no case with {what}");
    }
}

#[test]
fn sums_are_close_to_exact_ones() {
    let team = Team::new(2).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let (outs, rows, cols) = (24, 9, 1024);
    for ty in QuantType::ALL {
        let bytes = weight_bytes(&mut rng, ty, outs * cols);
        let x = floats(&mut rng, rows * cols);
        let y = one(Isa::best(), &team, Weight { ty, bytes: &bytes, outs, cols }, &x, rows, Pick::All, rows);
        let mut w = vec![0.0; outs * cols];
        dequantize(ty, &bytes, &mut w).unwrap();
        let (mut error, mut size) = (0.0_f64, 0.0_f64);
        for (i, y) in y.iter().enumerate() {
            let (w, x) = (&w[i % outs * cols..][..cols], &x[i / outs * cols..][..cols]);
            let exact: f64 = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            error += (f64::from(*y) - exact).powi(2);
            size += w.iter().zip(x).map(|(w, x)| (f64::from(*w) * f64::from(*x)).powi(2)).sum::<f64>();
        }
        // Against the size that a sum of independent products has.
        let relative = (error / size).sqrt();
        let limit = match Form::of(ty) {
            Form::Floats => 1e-6,
            Form::Words => 3e-5,
            Form::Bytes => 6e-3,
        };
        println!("{ty}: {relative:.2e}");
        assert!(relative < limit, "{ty}: {relative:e}");
    }
}

#[test]
fn products_of_one_call_share_the_rows() {
    let team = Team::new(2).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let (rows, cols) = (5, 512);
    let x = floats(&mut rng, rows * cols);
    let types = [QuantType::Q4_K, QuantType::Q8_0, QuantType::F16, QuantType::Q6_K];
    let weights: Vec<Vec<u8>> = types.iter().map(|ty| weight_bytes(&mut rng, *ty, 20 * cols)).collect();
    let mut results = vec![vec![1.0_f32; rows * 20]; types.len()];
    let mut products: Vec<Product<'_>> = results
        .iter_mut()
        .zip(types.iter().zip(&weights))
        .map(|(y, (ty, bytes))| Product {
            weight: Weight { ty: *ty, bytes, outs: 20, cols },
            rows: Pick::All,
            y,
            epilogue: Epilogue::Add,
        })
        .collect();
    run(Isa::best(), &team, &x, rows, &mut products).unwrap();
    for ((y, ty), bytes) in results.iter().zip(types).zip(&weights) {
        let plain = one(Isa::best(), &team, Weight { ty, bytes, outs: 20, cols }, &x, rows, Pick::All, rows);
        let added: Vec<f32> = plain.iter().map(|v| 1.0 + v).collect();
        assert_eq!(bits(y), bits(&added), "{ty}");
    }
}

/// Activations with everything that a rounding rule can stumble over.
fn hard_activations(rng: &mut ChaCha8Rng) -> Vec<f32> {
    let mut x = floats(rng, 32 * 40);
    x[3] = f32::NAN;
    x[40] = f32::INFINITY;
    x[70] = f32::NEG_INFINITY;
    x[96..128].fill(0.0);
    x[128..160].fill(-0.0);
    x[160..192].fill(1e-38);
    x[192..224].fill(f32::from_bits(1));
    x[224..256].fill(f32::MAX);
    // Ties: 127 is the largest, so the others are rounded as they are.
    for (i, x) in x[256..288].iter_mut().enumerate() {
        *x = i as f32 - 15.5;
    }
    x[256] = -127.0;
    x[288..320].fill(f32::MIN_POSITIVE);
    x[320..352].fill(1.0001e-30);
    x
}

#[test]
fn quantised_rows_are_the_same_bytes() {
    let team = Team::new(2).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let formats = Formats::of([QuantType::Q4_0, QuantType::Q8_0]);
    for long in [false, true] {
        let mut x = hard_activations(&mut rng);
        if long {
            x.extend(floats(&mut rng, 1 << 16));
        }
        let mut scratch = [Isa::best(), Isa::SCALAR].map(|isa| {
            let mut scratch = vec![0xaa; scratch_bytes(formats, 1, x.len())];
            quantise(isa, &team, &x, 1, x.len(), formats, &mut scratch).unwrap();
            scratch
        });
        // NaN scales may differ in their payload.
        for scratch in &mut scratch {
            for v in scratch.chunks_exact_mut(4) {
                if f32::from_le_bytes([v[0], v[1], v[2], v[3]]).is_nan() {
                    v.copy_from_slice(&f32::NAN.to_le_bytes());
                }
            }
        }
        assert!(scratch[0] == scratch[1]);
    }
}

#[test]
fn what_is_not_finite_shows_in_every_output() {
    let team = Team::new(1).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    for ty in QuantType::ALL {
        let bytes = weight_bytes(&mut rng, ty, 9 * 512);
        let weight = Weight { ty, bytes: &bytes, outs: 9, cols: 512 };
        for bad in [f32::NAN, f32::INFINITY] {
            for isa in [Isa::SCALAR, Isa::best()] {
                let mut x = floats(&mut rng, 2 * 512);
                x[300] = bad;
                let y = one(isa, &team, weight, &x, 2, Pick::All, 2);
                assert!(y[..9].iter().all(|v| !v.is_finite()), "{ty} {isa} {bad}: {:?}", &y[..9]);
                assert!(y[9..].iter().all(|v| v.is_finite()), "{ty} {isa}: the other row is untouched");
            }
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let team = Team::new(1).unwrap();
    let bytes = vec![0; 18 * 2 * 3];
    let weight = Weight { ty: QuantType::Q4_0, bytes: &bytes, outs: 3, cols: 64 };
    let x = vec![0.0; 128];
    let mut y = vec![0.0; 6];
    let mut go = |weight, rows, y_len: usize, scratch: usize| {
        let product = Product { weight, rows, y: &mut y[..y_len], epilogue: Epilogue::Store };
        linear(Isa::best(), &team, &x, 2, &mut [product], &mut vec![0; scratch]).map_err(|e| e.to_string())
    };
    assert_eq!(go(weight, Pick::All, 6, 192), Ok(()));
    assert_eq!(go(weight, Pick::Range { start: 2, count: 0 }, 0, 192), Ok(()));
    let cases = [
        (go(weight, Pick::All, 6, 191), "the quantised rows take 192 bytes of scratch, but 191 were given"),
        (go(weight, Pick::All, 5, 192), "results: 2 rows of 3 take 6 floats, but 5 were given"),
        (go(weight, Pick::List(&[0, 2]), 6, 192), "row 2 was picked, but there are 2"),
        (go(weight, Pick::Range { start: 1, count: 2 }, 6, 192), "row 2 was picked, but there are 2"),
        (
            go(Weight { outs: 4, ..weight }, Pick::All, 6, 192),
            "a Q4_0 weight of 4 rows with 64 elements does not take the 108 bytes that were given",
        ),
        (
            go(Weight { cols: 32, outs: 6, ..weight }, Pick::All, 6, 192),
            "activations: 2 rows of 32 take 64 floats, but 128 were given",
        ),
    ];
    for (found, wanted) in cases {
        assert_eq!(found, Err(wanted.to_owned()));
    }
    let none = quantise(Isa::best(), &team, &x, 2, 64, Formats::default(), &mut []).unwrap();
    let product = Product { weight, rows: Pick::All, y: &mut y, epilogue: Epilogue::Store };
    let found = multiply(Isa::best(), &team, &none, &mut [product]);
    assert_eq!(found, Err(LinearError::Format { ty: QuantType::Q4_0 }));
}
