//! Routing, experts in both phases, and the sums over them.

use std::sync::Arc;

use aqueduct::card::command::{Combine, Command, ExpertsInto, HeldExpert, Route, Routing, RunExperts};
use aqueduct::card::{CardKind, Span};
use aqueduct::ops::{Activation, BlobLayout, ExpertSet, RouterRule, RouterScores};
use aqueduct::quant::QuantType;
use aqueduct::units::ExpertId;

use crate::rig::{Random, Rig, bits, error, product, rig, values};
use crate::support::near;

struct Layer {
    layout: Arc<BlobLayout>,
    experts: Vec<HeldExpert>,
    weights: Vec<[Vec<f32>; 3]>,
}

fn layer(rig: &Rig, random: &mut Random, types: [QuantType; 3], width: usize, hidden: usize, count: usize) -> Layer {
    let sizes = [(hidden, width), (hidden, width), (width, hidden)];
    let bytes: Vec<usize> = types.iter().zip(sizes).map(|(ty, (r, c))| r * ty.row_bytes(c).unwrap()).collect();
    let up = bytes[0].next_multiple_of(256);
    let down = up + bytes[1].next_multiple_of(256);
    let offsets = [0, up, down];
    let layout = BlobLayout { width, hidden, types, offsets, bytes: down + bytes[2], activation: Activation::Silu };
    let (mut experts, mut weights) = (Vec::new(), Vec::new());
    for id in 0..count {
        let mut blob = vec![0_u8; layout.bytes];
        let mut of = Vec::new();
        for ((ty, (rows, cols)), offset) in types.into_iter().zip(sizes).zip(offsets) {
            let raw = random.weights(ty, rows, cols);
            of.push(values(ty, &raw, rows * cols));
            blob[offset..offset + raw.len()].copy_from_slice(&raw);
        }
        experts.push(HeldExpert { id: ExpertId(id as u32), blob: rig.upload(&blob) });
        weights.push(<[Vec<f32>; 3]>::try_from(of).unwrap());
    }
    Layer { layout: Arc::new(layout), experts, weights }
}

fn routing(rig: &Rig, rows: usize, experts: usize, top_k: usize) -> Routing {
    let ids = rig.poisoned(rows * top_k * 4);
    let weights = rig.poisoned(rows * top_k * 4);
    let groups = rig.poisoned((experts + 1 + rows * top_k) * 4);
    Routing { rows, experts, top_k, ids, weights, groups }
}

fn words(rig: &Rig, span: &Span) -> Vec<u32> {
    bytemuck::pod_collect_to_vec(&rig.download(span))
}

#[test]
fn the_router_chooses_as_told() {
    let Some(rig) = rig() else { return };
    let mut random = Random::new(10);
    let (mut ties, mut cases, mut off) = (0, 0, 0.0_f64);
    for (rows, experts, top_k) in [(1, 8, 2), (5, 7, 3), (33, 128, 8), (700, 128, 8), (300, 512, 10), (9, 1000, 32)] {
        for scores in [RouterScores::Softmax, RouterScores::Sigmoid] {
            for normalise in [false, true] {
                let coarse = random.below(2) == 0;
                let logits: Vec<f32> = random
                    .normals(rows * experts)
                    .iter()
                    .map(|v| if coarse { (v * 2.0).round() } else { v * 2.0 })
                    .collect();
                let routing = routing(rig, rows, experts, top_k);
                let rule = RouterRule { scores, top_k, normalise, scale: 1.5 };
                let set = rig.memory.alloc(ExpertSet::bytes(experts), "set").unwrap();
                assert!(set.is_locked());
                let routed = Some(set.whole());
                rig.run(Command::Route(Route { logits: rig.floats(&logits), rule, routing, routed }));
                let ids = words(rig, &routing.ids);
                let weights = rig.read(&routing.weights);
                for (row, logits) in logits.chunks_exact(experts).enumerate() {
                    let mut order: Vec<usize> = (0..experts).collect();
                    order.sort_by(|a, b| logits[*b].partial_cmp(&logits[*a]).unwrap().then(a.cmp(b)));
                    ties += usize::from(logits[order[top_k - 1]] == logits[order[top_k]]);
                    let chosen = &ids[row * top_k..(row + 1) * top_k];
                    assert!(chosen.iter().zip(&order).all(|(a, b)| *a as usize == *b), "{chosen:?} {order:?}");
                    let score = |e: usize| f64::from(logits[e]);
                    let all: f64 = (0..experts).map(|e| score(e).exp()).sum();
                    let mut want: Vec<f64> = order[..top_k]
                        .iter()
                        .map(|e| match scores {
                            RouterScores::Softmax => score(*e).exp() / all,
                            RouterScores::Sigmoid => 1.0 / (1.0 + (-score(*e)).exp()),
                        })
                        .collect();
                    let sum = if normalise { want.iter().sum() } else { 1.0 };
                    want.iter_mut().for_each(|w| *w *= 1.5 / sum);
                    off = off.max(error(&weights[row * top_k..(row + 1) * top_k], &want));
                    cases += 1;
                }
                let groups = words(rig, &routing.groups);
                let mut want = vec![0_u32; experts + 1];
                for e in 0..experts {
                    let mine = (0..ids.len() as u32).filter(|i| ids[*i as usize] == e as u32);
                    want.extend(mine);
                    want[e + 1] = (want.len() - experts - 1) as u32;
                }
                assert_eq!(groups, want);
                let found = set.whole().read(ExpertSet::from_bytes).unwrap();
                assert_eq!(found, ExpertSet::new(experts, ids.iter().map(|id| ExpertId(*id))));
            }
        }
    }
    near("router weights", off, 2e-6);
    println!("{cases} rows, {ties} ties at the edge");
    assert!(ties > 0);
}

#[test]
fn a_logit_that_is_not_finite_shows_in_the_weights_of_its_row() {
    let Some(rig) = rig() else { return };
    for (experts, scores) in [(8, RouterScores::Softmax), (200, RouterScores::Softmax), (200, RouterScores::Sigmoid)] {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut logits = Random::new(35).normals(3 * experts);
            logits[experts + experts / 2] = bad;
            let (top_k, normalise) = (2, true);
            let routing = routing(rig, 3, experts, top_k);
            let rule = RouterRule { scores, top_k, normalise, scale: 1.0 };
            rig.run(Command::Route(Route { logits: rig.floats(&logits), rule, routing, routed: None }));
            assert!(words(rig, &routing.ids).iter().all(|id| (*id as usize) < experts));
            let shows: Vec<bool> = rig.read(&routing.weights).iter().map(|weight| weight.is_nan()).collect();
            assert_eq!(shows, [false, false, true, true, false, false], "{bad} of {experts}, {scores:?}");
        }
    }
}

/// What the experts should make of each entry, unweighted.
fn expected(layer: &Layer, x: &[f32], ids: &[u32], top_k: usize) -> Vec<Vec<f64>> {
    let BlobLayout { width, hidden, .. } = *layer.layout;
    ids.iter()
        .enumerate()
        .map(|(entry, id)| {
            let x = &x[entry / top_k * width..][..width];
            let [gate, up, down] = &layer.weights[*id as usize];
            let (gate, up) = (product(x, gate, width), product(x, up, width));
            let h: Vec<f32> = gate.iter().zip(&up).map(|(g, u)| (g / (1.0 + (-g).exp()) * u) as f32).collect();
            product(&h, down, hidden)
        })
        .collect()
}

#[test]
fn experts_of_prompt_and_decode() {
    let Some(rig) = rig() else { return };
    let mut random = Random::new(11);
    use QuantType as Q;
    let kinds = [
        ([Q::Q4_K, Q::Q4_K, Q::Q4_K], 512, 256),
        ([Q::Q4_K, Q::Q4_K, Q::Q6_K], 256, 256),
        ([Q::Q4_K, Q::Q5_K, Q::Q5_1], 256, 96),
        ([Q::IQ3_S, Q::IQ3_S, Q::IQ4_NL], 256, 160),
        ([Q::MXFP4, Q::MXFP4, Q::MXFP4], 96, 96),
        ([Q::Q8_0, Q::Q8_0, Q::Q8_0], 64, 32),
        ([Q::F32, Q::F32, Q::F32], 70, 50),
        ([Q::F32, Q::Q8_0, Q::F16], 96, 40),
        ([Q::BF16, Q::BF16, Q::F32], 72, 48),
    ];
    for (types, width, hidden) in kinds {
        let (experts, top_k) = (12, 3);
        let layer = layer(rig, &mut random, types, width, hidden, experts);
        for rows in [1, 6, 90, 700] {
            let x = random.normals(rows * width);
            let x_span = rig.floats(&x);
            let routing = routing(rig, rows, experts, top_k);
            let logits: Vec<f32> = random.normals(rows * experts);
            let rule = RouterRule { scores: RouterScores::Softmax, top_k, normalise: true, scale: 1.0 };
            rig.run(Command::Route(Route { logits: rig.floats(&logits), rule, routing, routed: None }));
            let ids = words(rig, &routing.ids);
            let weights = rig.read(&routing.weights);
            let entries = expected(&layer, &x, &ids, top_k);
            let size = RunExperts::scratch_bytes(CardKind::Cuda, rows, top_k, &layer.layout);
            let run = |listed: &[HeldExpert], into: ExpertsInto| {
                rig.run(Command::RunExperts(RunExperts {
                    x: x_span,
                    routing,
                    layout: Arc::clone(&layer.layout),
                    experts: listed.to_vec(),
                    into,
                    scratch: rig.poisoned(size),
                }));
            };

            // A prompt: all at once, and in two parts as a ring would bring them.
            let before = random.normals(rows * width);
            let mut want: Vec<f64> = before.iter().map(|v| f64::from(*v)).collect();
            for (entry, y) in entries.iter().enumerate() {
                for (to, y) in want[entry / top_k * width..].iter_mut().zip(y) {
                    *to += f64::from(weights[entry]) * y;
                }
            }
            let whole = rig.floats(&before);
            run(&layer.experts, ExpertsInto::Accumulate(whole));
            let whole = rig.read(&whole);
            let float = types.iter().all(|ty| *ty == Q::F32);
            let off = error(&whole, &want);
            let what = if float { "f32" } else { "quantised" };
            near(&format!("experts, prompt, {what}"), off, if float { 9e-7 } else { 2e-3 });
            let cut = rig.floats(&before);
            run(&layer.experts[..5], ExpertsInto::Accumulate(cut));
            run(&layer.experts[5..6], ExpertsInto::Accumulate(cut));
            run(&layer.experts[6..], ExpertsInto::Accumulate(cut));
            assert_eq!(bits(&rig.read(&cut)), bits(&whole), "{types:?} {rows} rows");

            // Decode: two thirds of the experts on the card, the others from the host.
            if rows > 8 {
                continue;
            }
            let held: Vec<HeldExpert> = layer.experts.iter().filter(|e| e.id.0 % 3 != 1).copied().collect();
            let slots = rig.poisoned(rows * top_k * width * 4);
            run(&held, ExpertsInto::Slots(slots));
            let got = rig.read(&slots);
            let mut host = vec![f32::NAN; got.len()];
            let (mut mine, mut exact) = (Vec::new(), Vec::new());
            for (entry, y) in entries.iter().enumerate() {
                if ids[entry] % 3 == 1 {
                    host[entry * width..][..width].iter_mut().zip(y).for_each(|(to, y)| *to = *y as f32);
                } else {
                    mine.extend(&got[entry * width..][..width]);
                    exact.extend(y);
                }
            }
            let off = if exact.is_empty() { 0.0 } else { error(&mine, &exact) };
            near(&format!("experts, decode, {what}"), off, if float { 3.9e-7 } else { 3e-2 });
            let out = rig.floats(&before);
            rig.run(Command::Combine(Combine {
                routing,
                slots,
                host_slots: Some(rig.floats(&host)),
                held: ExpertSet::new(experts, held.iter().map(|e| e.id)),
                width,
                out,
            }));
            let got_sum = rig.read(&out);
            for row in 0..rows {
                let mut order: Vec<usize> = (row * top_k..(row + 1) * top_k).collect();
                order.sort_by_key(|entry| ids[*entry]);
                for c in 0..width {
                    let mut sum = before[row * width + c];
                    for entry in &order {
                        let from = if ids[*entry] % 3 == 1 { &host } else { &got };
                        sum = weights[*entry].mul_add(from[entry * width + c], sum);
                    }
                    assert_eq!(sum.to_bits(), got_sum[row * width + c].to_bits());
                }
            }
        }
        println!("{types:?} {width} x {hidden}: right");
    }
}

#[test]
fn a_prompts_rows_do_not_depend_on_the_wave() {
    let Some(rig) = rig() else { return };
    let mut random = Random::new(12);
    let (experts, top_k, width, hidden, rows) = (10, 4, 256, 256, 600);
    let layer = layer(rig, &mut random, [QuantType::Q4_K; 3], width, hidden, experts);
    let x = random.normals(rows * width);
    let logits = random.normals(rows * experts);
    let run = |from: usize, to: usize| {
        let n = to - from;
        let routing = routing(rig, n, experts, top_k);
        let rule = RouterRule { scores: RouterScores::Softmax, top_k, normalise: true, scale: 1.0 };
        let logits = rig.floats(&logits[from * experts..to * experts]);
        rig.run(Command::Route(Route { logits, rule, routing, routed: None }));
        let out = rig.floats(&vec![0.25; n * width]);
        rig.run(Command::RunExperts(RunExperts {
            x: rig.floats(&x[from * width..to * width]),
            routing,
            layout: Arc::clone(&layer.layout),
            experts: layer.experts.clone(),
            into: ExpertsInto::Accumulate(out),
            scratch: rig.poisoned(RunExperts::scratch_bytes(CardKind::Cuda, n, top_k, &layer.layout)),
        }));
        bits(&rig.read(&out))
    };
    let whole = run(0, rows);
    for _ in 0..10 {
        assert_eq!(run(0, rows), whole, "the same again");
    }
    for (from, to) in [(0, 1), (1, 40), (40, 200), (200, 600)] {
        assert_eq!(run(from, to), whole[from * width..to * width], "rows {from} to {to}");
    }
}
