//! Dense products in every format.

use aqueduct::card::command::{Command, Epilogue, Linear, LinearPart, Phase, Weight};
use aqueduct::card::{CardKind, Span};
use aqueduct::quant::QuantType;

use crate::rig::{Random, Rig, bits, error, product, rig, values};
use crate::support::near;

/// How far a phase may be from the exact product: at most three times what is measured on an H200, by all kernels.
fn limit(ty: QuantType, phase: Phase) -> f64 {
    match (ty, phase) {
        (QuantType::F32, Phase::Prompt) => 1.2e-6,
        (QuantType::F32 | QuantType::F16 | QuantType::BF16, Phase::Decode) => 2.8e-7,
        (QuantType::BF16, Phase::Prompt) => 4.9e-4,
        (_, Phase::Prompt) => 5.6e-4,
        (_, Phase::Decode) => 1.09e-2,
    }
}

fn cols_of(ty: QuantType) -> [usize; 2] {
    match ty.block_len() {
        1 => [77, 328],
        32 => [96, 352],
        _ => [256, 768],
    }
}

struct Case {
    x: Span,
    rows: usize,
    weight: Weight,
    bias: Option<Span>,
    scratch: Span,
}

impl Case {
    fn run(&self, rig: &Rig, rows: std::ops::Range<usize>, into: Epilogue, phase: Phase, out: Span) -> Vec<f32> {
        let Weight { cols, rows: outputs, .. } = self.weight;
        let out = out.part(0, rows.len() * outputs * 4);
        rig.run(Command::Linear(Linear {
            x: self.x.rows(rows.clone(), cols * 4),
            rows: rows.len(),
            parts: vec![LinearPart { weight: self.weight, bias: self.bias, out }],
            epilogue: into,
            phase,
            scratch: self.scratch,
        }));
        rig.read(&out)
    }
}

#[test]
fn products_are_near_the_exact_ones_and_rows_do_not_know_each_other() {
    let Some(rig) = rig() else { return };
    let mut random = Random::new(1);
    for ty in QuantType::ALL {
        let (mut worst, mut checks) = ([0.0_f64; 2], 0);
        for cols in cols_of(ty) {
            for outputs in [1, 200] {
                let rows = 150;
                let bytes = random.weights(ty, outputs, cols);
                let w = values(ty, &bytes, outputs * cols);
                let x = random.normals(rows * cols);
                let bias = random.normals(outputs);
                let mut want = product(&x, &w, cols);
                let scale = (want.iter().map(|v| v * v).sum::<f64>() / want.len() as f64).sqrt() as f32;
                let bias: Vec<f32> = bias.iter().map(|b| b * scale).collect();
                for row in want.chunks_exact_mut(outputs) {
                    row.iter_mut().zip(&bias).for_each(|(v, b)| *v += f64::from(*b));
                }
                let case = Case {
                    x: rig.floats(&x),
                    rows,
                    weight: Weight { ty, rows: outputs, cols, at: rig.upload(&bytes) },
                    bias: Some(rig.floats(&bias)),
                    scratch: rig.poisoned(Linear::scratch_bytes(CardKind::Cuda, rows, cols)),
                };
                for (at, phase) in [Phase::Prompt, Phase::Decode].into_iter().enumerate() {
                    let out = rig.poisoned(rows * outputs * 4);
                    let all = case.run(rig, 0..rows, Epilogue::Store, phase, out);
                    worst[at] = worst[at].max(error(&all, &want));
                    // Tiles for few and many rows, launches of 1 and 8.
                    for part in [0..1, 3..8, 5..35, 20..84, 40..150] {
                        let out = rig.poisoned(part.len() * outputs * 4);
                        let alone = case.run(rig, part.clone(), Epilogue::Store, phase, out);
                        assert_eq!(
                            bits(&alone),
                            bits(&all[part.start * outputs..part.end * outputs]),
                            "{ty} {phase:?} {part:?}"
                        );
                        checks += 1;
                    }
                    let before = random.normals(case.rows * outputs);
                    let sums = case.run(rig, 0..rows, Epilogue::Add, phase, rig.floats(&before));
                    for ((sum, before), product) in sums.iter().zip(&before).zip(&all) {
                        assert_eq!(sum.to_bits(), (before + product).to_bits(), "{ty} {phase:?} added");
                    }
                }
            }
        }
        println!("{ty:8} prompt {:.1e} decode {:.1e}, {checks} row comparisons", worst[0], worst[1]);
        near(&format!("product, prompt, {ty}"), worst[0], limit(ty, Phase::Prompt));
        near(&format!("product, decode, {ty}"), worst[1], limit(ty, Phase::Decode));
    }
}

#[test]
fn parts_of_different_formats_go_together() {
    let Some(rig) = rig() else { return };
    let mut random = Random::new(2);
    let (rows, cols) = (70, 512);
    let x = random.normals(rows * cols);
    let types = [QuantType::Q8_0, QuantType::Q8_0, QuantType::Q4_K, QuantType::F32, QuantType::Q4_K];
    for phase in [Phase::Prompt, Phase::Decode] {
        let mut parts = Vec::new();
        let mut wants = Vec::new();
        for (i, ty) in types.into_iter().enumerate() {
            let outputs = 100 + 60 * i;
            let bytes = random.weights(ty, outputs, cols);
            wants.push(product(&x, &values(ty, &bytes, outputs * cols), cols));
            let weight = Weight { ty, rows: outputs, cols, at: rig.upload(&bytes) };
            parts.push(LinearPart { weight, bias: None, out: rig.poisoned(rows * outputs * 4) });
        }
        rig.run(Command::Linear(Linear {
            x: rig.floats(&x),
            rows,
            parts: parts.clone(),
            epilogue: Epilogue::Store,
            phase,
            scratch: rig.space(Linear::scratch_bytes(CardKind::Cuda, rows, cols)),
        }));
        for (part, want) in parts.iter().zip(&wants) {
            let off = error(&rig.read(&part.out), want);
            near(&format!("parts, {phase:?}, {}", part.weight.ty), off, limit(part.weight.ty, phase));
        }
    }
}

#[test]
fn tiles_for_many_rows_make_the_same_bits() {
    let Some(rig) = rig() else { return };
    let mut random = Random::new(4);
    // With these every processor of any card gets a tile of the largest size (F32: of the smallest); the last one is
    // not full.
    let (outputs, rows) = (1_100, 256 * 33 + 70);
    for (ty, cols) in QuantType::ALL.into_iter().flat_map(|ty| cols_of(ty).map(|cols| (ty, cols))) {
        let x = rig.floats(&random.normals(rows * cols));
        let weight = Weight { ty, rows: outputs, cols, at: rig.upload(&random.weights(ty, outputs, cols)) };
        let case = Case {
            x,
            rows,
            weight,
            bias: None,
            scratch: rig.poisoned(Linear::scratch_bytes(CardKind::Cuda, rows, cols)),
        };
        let all = case.run(rig, 0..rows, Epilogue::Store, Phase::Prompt, rig.poisoned(rows * outputs * 4));
        for part in [0..3, 60..190, 250..260, 4_000..4_500, rows - 80..rows] {
            let out = rig.poisoned(part.len() * outputs * 4);
            let alone = case.run(rig, part.clone(), Epilogue::Store, Phase::Prompt, out);
            assert_eq!(bits(&alone), bits(&all[part.start * outputs..part.end * outputs]), "{ty} {part:?}");
        }
        let empty = all.iter().filter(|v| v.is_nan()).count();
        assert_eq!(empty, 0, "{ty}: outputs that nobody wrote");
    }
}

#[test]
fn rows_far_from_one_keep_their_precision() {
    let Some(rig) = rig() else { return };
    let mut random = Random::new(3);
    let (rows, cols, outputs, ty) = (40, 256, 128, QuantType::Q4_K);
    let bytes = random.weights(ty, outputs, cols);
    let w = values(ty, &bytes, outputs * cols);
    for factor in [1e-12_f32, 1e-3, 1e6, 1e15] {
        let x: Vec<f32> = random.normals(rows * cols).iter().map(|v| v * factor).collect();
        let out = rig.poisoned(rows * outputs * 4);
        rig.run(Command::Linear(Linear {
            x: rig.floats(&x),
            rows,
            parts: vec![LinearPart {
                weight: Weight { ty, rows: outputs, cols, at: rig.upload(&bytes) },
                bias: None,
                out,
            }],
            epilogue: Epilogue::Store,
            phase: Phase::Prompt,
            scratch: rig.space(Linear::scratch_bytes(CardKind::Cuda, rows, cols)),
        }));
        let off = error(&rig.read(&out), &product(&x, &w, cols));
        assert!(off < 6e-4, "rows of about {factor:e}: {off:.1e}");
    }
}
