use super::*;
use crate::cpu::{RouteInto, route, sample};
use crate::ops::{Activation, RouterRule, RouterScores};
use crate::quant::{QuantType, dequantize};

struct Case {
    layout: BlobLayout,
    blobs: Vec<Vec<u8>>,
    rows: usize,
    top_k: usize,
    x: Vec<f32>,
    ids: Vec<u32>,
    weights: Vec<f32>,
    groups: Vec<u32>,
}

/// Q8_0 or F32 rows with sensible values.
fn matrix(ty: QuantType, seed: u64, elements: usize) -> Vec<u8> {
    let values = sample::floats(seed, elements);
    match ty {
        QuantType::Q8_0 => values
            .chunks(32)
            .flat_map(|block| {
                let scale = half::f16::from_f32(0.003);
                let q = block.iter().map(|x| (x * 127.0) as i8 as u8);
                scale.to_le_bytes().into_iter().chain(q).collect::<Vec<_>>()
            })
            .collect(),
        _ => values.iter().flat_map(|x| (x * 0.3).to_le_bytes()).collect(),
    }
}

fn case(seed: u64, types: [QuantType; 3], sizes: [usize; 5]) -> Case {
    let [width, hidden, experts, top_k, rows] = sizes;
    let bytes = [0, 1, 2].map(|which| types[which].row_bytes(width).unwrap() * hidden).map(|b| b.next_multiple_of(64));
    let down = types[2].row_bytes(hidden).unwrap() * width;
    let layout = BlobLayout {
        width,
        hidden,
        types,
        offsets: [0, bytes[0], bytes[0] + bytes[1]],
        bytes: bytes[0] + bytes[1] + down,
        activation: Activation::Silu,
    };
    let blob = |expert: usize| {
        let mut blob = vec![0; layout.bytes];
        for which in 0..3 {
            let part = matrix(types[which], seed + (expert * 3 + which) as u64, width * hidden);
            blob[layout.offsets[which]..][..part.len()].copy_from_slice(&part);
        }
        blob
    };
    let x = sample::floats(seed + 999, rows * width);
    let logits: Vec<f32> = sample::floats(seed + 998, rows * experts).iter().map(|x| x * 4.0).collect();
    let (mut ids, mut weights) = (vec![0; rows * top_k], vec![0.0; rows * top_k]);
    let mut groups = vec![0; experts + 1 + rows * top_k];
    let rule = RouterRule { scores: RouterScores::Softmax, top_k, normalise: true, scale: 1.0 };
    let into = RouteInto { ids: &mut ids, weights: &mut weights, groups: &mut groups, routed: None };
    route(&Team::new(1).unwrap(), &logits, experts, &rule, into);
    Case { layout, blobs: (0..experts).map(blob).collect(), rows, top_k, x, ids, weights, groups }
}

impl Case {
    fn routing(&self) -> Routing<'_> {
        let experts = self.blobs.len();
        let Self { rows, top_k, ids, weights, groups, .. } = self;
        Routing { rows: *rows, experts, top_k: *top_k, ids, weights, groups }
    }

    fn blobs(&self, of: impl Fn(usize) -> bool) -> Vec<ExpertBlob<'_>> {
        let all = self.blobs.iter().enumerate().filter(|(id, _)| of(*id));
        all.map(|(id, blob)| ExpertBlob { id: ExpertId(id as u32), blob }).collect()
    }

    fn accumulate(&self, team: &Team, scratch: usize) -> Vec<f32> {
        let mut out = vec![0.25; self.rows * self.layout.width];
        let mut scratch = vec![0xAA; scratch];
        let experts = self.blobs(|_| true);
        let to = ExpertsOut::Accumulate(&mut out);
        run_experts(team, &self.layout, &self.x, &self.routing(), &experts, to, &mut scratch);
        out
    }

    fn reference(&self) -> Vec<f64> {
        let BlobLayout { width, hidden, .. } = self.layout;
        let mut out = vec![0.25; self.rows * width];
        let product = |blob: &[u8], which: usize, x: &[f64]| {
            let weight = weight(&self.layout, blob, which);
            let mut values = vec![0.0; weight.outs * weight.cols];
            dequantize(weight.ty, weight.bytes, &mut values).unwrap();
            let dot = |w: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>();
            values.chunks(weight.cols).map(dot).collect::<Vec<_>>()
        };
        for entry in 0..self.rows * self.top_k {
            let row = entry / self.top_k;
            let blob = &self.blobs[self.ids[entry] as usize];
            let x: Vec<f64> = self.x[row * width..][..width].iter().map(|x| f64::from(*x)).collect();
            let (gate, up) = (product(blob, 0, &x), product(blob, 1, &x));
            let h: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            assert_eq!(h.len(), hidden);
            for (out, y) in out[row * width..].iter_mut().zip(product(blob, 2, &h)) {
                *out += f64::from(self.weights[entry]) * y;
            }
        }
        out
    }
}

const F32: [QuantType; 3] = [QuantType::F32; 3];
const Q8: [QuantType; 3] = [QuantType::Q8_0; 3];
const MIXED: [QuantType; 3] = [QuantType::Q8_0, QuantType::Q8_0, QuantType::F32];

#[test]
fn results_are_those_of_the_definition() {
    for (types, tolerance) in [(F32, 1e-5), (Q8, 2e-3), (MIXED, 2e-3)] {
        for sizes in [[64, 96, 8, 2, 40], [32, 64, 16, 4, 1], [96, 32, 4, 4, 9]] {
            let case = case(5, types, sizes);
            let bytes = experts_scratch(case.rows, case.top_k, &case.layout);
            let found = case.accumulate(&Team::new(2).unwrap(), bytes);
            for (found, wanted) in found.iter().zip(case.reference()) {
                assert!((f64::from(*found) - wanted).abs() < tolerance * (1.0 + wanted.abs()), "{found}, not {wanted}");
            }
        }
    }
}

#[test]
fn batches_workers_neighbours_and_lists_change_nothing() {
    let mut batches = 0;
    for types in [F32, Q8, MIXED] {
        for sizes in [[64, 96, 8, 2, 300], [64, 32, 16, 4, 17], [32, 64, 4, 1, 3]] {
            let case = case(77, types, sizes);
            let (width, team) = (case.layout.width, Team::new(3).unwrap());
            let enough = experts_scratch(case.rows, case.top_k, &case.layout);
            let least = experts_scratch(1, 1, &case.layout);
            let wanted = case.accumulate(&Team::new(1).unwrap(), enough);
            for scratch in [enough, enough / 3 + least, least + 5000, least] {
                batches += usize::from(scratch < enough);
                sample::assert_same(&case.accumulate(&team, scratch), &wanted);
            }
            // Expert by expert, as streamed ones run, and odd ones apart from even ones but in order.
            let mut out = vec![0.25; wanted.len()];
            let mut scratch = vec![0; enough];
            for id in 0..case.blobs.len() {
                let to = ExpertsOut::Accumulate(&mut out);
                let one = case.blobs(|other| other == id);
                run_experts(&team, &case.layout, &case.x, &case.routing(), &one, to, &mut scratch);
            }
            sample::assert_same(&out, &wanted);
            // Through slots, some from the card and some from the host.
            let mut slots =
                [vec![f32::NAN; case.rows * case.top_k * width], vec![f32::NAN; case.rows * case.top_k * width]];
            for (odd, slots) in slots.iter_mut().enumerate() {
                let some = case.blobs(|id| id % 2 == odd);
                let to = ExpertsOut::Slots(slots);
                run_experts(&team, &case.layout, &case.x, &case.routing(), &some, to, &mut scratch);
            }
            let even = (0..case.blobs.len()).step_by(2).map(|id| ExpertId(id as u32));
            let held = ExpertSet::new(case.blobs.len(), even);
            let mut out = vec![0.25; wanted.len()];
            combine(&team, &case.routing(), &slots[0], Some(&slots[1]), &held, width, &mut out);
            sample::assert_same(&out, &wanted);
            // A row alone.
            for row in (0..case.rows).step_by(case.rows.div_ceil(5)) {
                let mut alone =
                    Case { rows: 1, x: case.x[row * width..][..width].to_vec(), ..self::case(77, types, sizes) };
                let chosen = row * case.top_k..(row + 1) * case.top_k;
                alone.ids = case.ids[chosen.clone()].to_vec();
                alone.weights = case.weights[chosen].to_vec();
                let mut order: Vec<u32> = (0..case.top_k as u32).collect();
                order.sort_by_key(|slot| alone.ids[*slot as usize]);
                let before = |expert: usize| alone.ids.iter().filter(|id| (**id as usize) < expert).count() as u32;
                alone.groups = (0..=case.blobs.len()).map(before).chain(order).collect();
                sample::assert_same(&alone.accumulate(&team, enough), &wanted[row * width..][..width]);
            }
        }
    }
    println!("{batches} runs had less memory than they could use");
    assert!(batches > 10);
}

#[test]
#[should_panic(expected = "expert 3 is not held")]
fn an_expert_from_nowhere_is_named() {
    let routing = Routing { rows: 1, experts: 4, top_k: 1, ids: &[3], weights: &[1.0], groups: &[] };
    combine(&Team::new(1).unwrap(), &routing, &[0.0; 8], None, &ExpertSet::default(), 8, &mut [0.0; 8]);
}

#[test]
fn both_builds_give_the_same_bits() {
    sample::both_builds(|isa, seed| {
        let length = 1 + seed as usize % 40;
        let (y, mut out) = (sample::floats(seed, length), sample::floats(seed + 1, length));
        isa.run(AddWeighted { weight: 0.3, y: &y, out: &mut out });
        out
    });
}
