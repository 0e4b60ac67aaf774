//! The model's kernels on a virtual card: in place and apart, products, attention, router and experts.

use super::*;

#[test]
fn kernels_compute_in_place_and_apart() {
    let bench = Bench::new();
    let (x, weight) = (bench.floats(&[3.0, 4.0, 0.0, 0.0]), bench.floats(&[1.0, 2.0, 1.0, 1.0]));
    let out = bench.region(16, "out");
    let norm = |x, out| Command::RmsNorm(RmsNorm { x, weight: weight.whole(), eps: 0.0, rows: 1, cols: 4, out });
    bench.card.submit(Stream::Compute, norm(x.whole(), out.whole())).unwrap();
    bench.card.submit(Stream::Compute, norm(x.whole(), x.whole())).unwrap();
    let found = bench.read(&out);
    assert!((found[0] - 1.2).abs() < 1e-6 && (found[1] - 3.2).abs() < 1e-6 && found[2] == 0.0, "{found:?}");
    assert_eq!(bench.read(&x), found);

    let (gate, up) = (bench.floats(&[0.0, 20.0, -20.0, 1.0]), bench.floats(&[5.0, 2.0, 3.0, 1.0]));
    let gated = |gate: &Region, out: &Region| {
        Command::GatedActivation(GatedActivation {
            gate: gate.whole(),
            up: up.whole(),
            elements: 4,
            activation: Activation::Silu,
            out: out.whole(),
        })
    };
    bench.card.submit(Stream::Compute, gated(&gate, &out)).unwrap();
    bench.card.submit(Stream::Compute, gated(&gate, &gate)).unwrap();
    assert!(bench.refusal(gated(&up, &up)).contains("used otherwise"), "up may not be the output");
    let found = bench.read(&out);
    assert!((found[1] - 40.0).abs() < 1e-4 && (found[3] - 0.731_058_6).abs() < 1e-6, "{found:?}");
    assert_eq!(bench.read(&gate), found);
}

#[test]
fn products_store_or_add_and_take_a_bias() {
    let bench = Bench::new();
    let x = bench.floats(&[1.0, 2.0, 3.0, 4.0]);
    let weight = bench.floats(&[1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
    let (bias, out) = (bench.floats(&[100.0, 200.0]), bench.floats(&[7.0, 7.0]));
    let work = bench.region(Linear::scratch_bytes(CardKind::Virtual, 1, 4) as u64, "scratch");
    let product = |bias, into| {
        Command::Linear(Linear {
            x: x.whole(),
            rows: 1,
            parts: vec![LinearPart {
                weight: Weight { ty: QuantType::F32, rows: 2, cols: 4, at: weight.whole() },
                bias,
                out: out.whole(),
            }],
            epilogue: into,
            phase: Phase::Decode,
            scratch: work.whole(),
        })
    };
    bench.card.submit(Stream::Compute, product(None, Epilogue::Add)).unwrap();
    assert_eq!(bench.read(&out), [8.0, 17.0]);
    bench.card.submit(Stream::Compute, product(Some(bias.whole()), Epilogue::Store)).unwrap();
    assert_eq!(bench.read(&out), [101.0, 210.0]);
}

#[test]
fn attention_reads_the_cells_that_were_written_in_one_pass_or_two() {
    let bench = Bench::new();
    let shape = AttentionShape { heads: 2, kv_heads: 1, head_dim: 8, value_dim: 8, scale: 1.0 };
    let layout = CellLayout::new(KvType::F16, &shape);
    let count = ATTENTION_TILE + 3;
    let wave = |step: f32| (0..count * 8).map(|i| (i as f32 * step).sin()).collect::<Vec<f32>>();
    let (k, v, q) = (bench.floats(&wave(0.37)), bench.floats(&wave(0.11)), bench.floats(&wave(0.73)[..16]));
    let cells = bench.region((count * layout.cell_bytes()) as u64, "cells");
    let stored = Command::StoreKv(StoreKv {
        k: k.whole(),
        v: v.whole(),
        layout,
        cells: Cells { at: cells.whole(), first: 0, count },
    });
    bench.card.submit(Stream::Compute, stored).unwrap();

    let (state, one, two) = (bench.region(2 * 10 * 4, "state"), bench.region(64, "out"), bench.region(64, "out"));
    let part = |first: usize, count: usize| Cells {
        at: cells.span(first * layout.cell_bytes(), count * layout.cell_bytes()),
        first,
        count,
    };
    let attend = |cells: Vec<Cells>, resume, end| {
        Command::Attend(Attend {
            q: q.whole(),
            rows: 1,
            first: count - 1,
            shape,
            layout,
            cells,
            host_cells: None,
            state: state.whole(),
            resume,
            end,
            phase: Phase::Decode,
            scratch: state.span(0, 0),
        })
    };
    let (early, late) = (part(0, ATTENTION_TILE), part(ATTENTION_TILE, 3));
    bench.card.submit(Stream::Compute, attend(vec![early, late], false, AttentionEnd::Finish(one.whole()))).unwrap();
    bench.card.submit(Stream::Compute, attend(vec![early], false, AttentionEnd::Keep)).unwrap();
    bench.card.submit(Stream::Compute, attend(vec![late], true, AttentionEnd::Finish(two.whole()))).unwrap();
    let found = bench.read(&one);
    assert_eq!(found, bench.read(&two), "the same bits");
    assert!(found.iter().all(|x| x.is_finite() && *x != 0.0), "{found:?}");
    let gap = bench.refusal(attend(vec![late], false, AttentionEnd::Keep));
    assert!(gap.contains("cells from 64"), "{gap}");
}

#[test]
fn the_router_chooses_experts_which_run_and_are_combined() {
    let bench = Bench::new();
    let (rows, experts, top_k, width) = (2, 4, 2, 32);
    let logits = bench.floats(&[0.0, 3.0, 1.0, 2.0, 5.0, 0.0, 0.0, 4.0]);
    let words = |count: usize, what: &str| bench.region(count as u64 * 4, what);
    let (ids, weights, groups) =
        (words(rows * top_k, "ids"), words(rows * top_k, "weights"), words(experts + 1 + rows * top_k, "groups"));
    let routing = Routing { rows, experts, top_k, ids: ids.whole(), weights: weights.whole(), groups: groups.whole() };
    let routed = HostMemory::default().alloc(ExpertSet::bytes(experts), "routed set").unwrap();
    let route = Command::Route(Route {
        logits: logits.whole(),
        rule: RouterRule { scores: RouterScores::Softmax, top_k, normalise: true, scale: 1.0 },
        routing,
        routed: Some(routed.whole()),
    });
    bench.card.submit(Stream::Compute, route).unwrap();
    let ids: Vec<u32> = bench.read(&ids).iter().map(|x| x.to_bits()).collect();
    assert_eq!(ids, [1, 3, 0, 3]);
    let chosen = routed.whole().read(ExpertSet::from_bytes).unwrap();
    assert_eq!(chosen, ExpertSet::new(experts, [0, 1, 3].map(ExpertId)));

    // Accumulated at once (prompt) and through slots (decode) the sums have the same bits.
    let part = (QuantType::F32, width * width * 4);
    let layout = Arc::new(BlobLayout::new(width, width, Activation::Silu, [part; 3]));
    let wave = |seed: usize, count: usize| (0..count).map(|i| ((i + seed) as f32 * 0.7).sin()).collect::<Vec<f32>>();
    let x = bench.floats(&wave(9, rows * width));
    let blobs: Vec<Region> = (0..experts).map(|id| bench.floats(&wave(id, layout.bytes / 4))).collect();
    let held = |ids: &[usize]| -> Vec<HeldExpert> {
        ids.iter().map(|id| HeldExpert { id: ExpertId(*id as u32), blob: blobs[*id].whole() }).collect()
    };
    let work = bench.region(RunExperts::scratch_bytes(CardKind::Virtual, rows, top_k, &layout) as u64, "scratch");
    let run = |experts, into| {
        Command::RunExperts(RunExperts {
            x: x.whole(),
            routing,
            layout: Arc::clone(&layout),
            experts,
            into,
            scratch: work.whole(),
        })
    };
    let (prompt, decode) = (words(rows * width, "prompt"), words(rows * width, "decode"));
    let (slots, host_slots) = (words(rows * top_k * width, "slots"), words(rows * top_k * width, "host slots"));
    let all = run(held(&[0, 1, 2, 3]), ExpertsInto::Accumulate(prompt.whole()));
    bench.card.submit(Stream::Compute, all).unwrap();
    bench.card.submit(Stream::Compute, run(held(&[1, 3]), ExpertsInto::Slots(slots.whole()))).unwrap();
    bench.card.submit(Stream::Compute, run(held(&[0]), ExpertsInto::Slots(host_slots.whole()))).unwrap();
    let combine = Command::Combine(Combine {
        routing,
        slots: slots.whole(),
        host_slots: Some(host_slots.whole()),
        held: ExpertSet::new(experts, [1, 3].map(ExpertId)),
        width,
        out: decode.whole(),
    });
    bench.card.submit(Stream::Compute, combine).unwrap();
    let found = bench.read(&prompt);
    assert!(found.iter().all(|x| x.is_finite() && *x != 0.0), "{found:?}");
    assert_eq!(found, bench.read(&decode));
}
