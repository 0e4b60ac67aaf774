//! How fast the commands are, in the shapes of Qwen3-30B-A3B. Prints; run it alone: `cuda speed --ignored --nocapture`.

use std::sync::Arc;
use std::time::Instant;

use aqueduct::card::command::{
    Attend, AttentionEnd, Cells, Combine, Command, CopyIn, Epilogue, ExpertsInto, HeldExpert, Linear, LinearPart,
    Phase, RmsNorm, Rotate, Route, Routing, RunExperts, StoreKv, Weight,
};
use aqueduct::card::{Card, CardKind, Span, Stream};
use aqueduct::ops::{
    Activation, AttentionShape, BlobLayout, CellLayout, ExpertSet, KvType, Rope, RopeKind, RouterRule, RouterScores,
};
use aqueduct::quant::QuantType;
use aqueduct::units::ExpertId;

use crate::rig::{Random, Rig, WHY, rig, shape};

const WIDTH: usize = 2048;
const HIDDEN: usize = 768;
const EXPERTS: usize = 128;
const TOP_K: usize = 8;
const LAYERS: usize = 48;
const SHAPE: (usize, usize, usize) = (32, 4, 128);

/// Seconds of the fastest of a few timed batches of `run`.
fn seconds(rig: &Rig, mut run: impl FnMut()) -> f64 {
    run();
    rig.drain();
    let start = Instant::now();
    run();
    rig.drain();
    let each = start.elapsed().as_secs_f64().max(1e-6);
    let repeat = ((0.04 / each) as usize).clamp(1, 2000);
    (0..3)
        .map(|_| {
            let start = Instant::now();
            (0..repeat).for_each(|_| run());
            rig.drain();
            start.elapsed().as_secs_f64() / repeat as f64
        })
        .fold(f64::INFINITY, f64::min)
}

/// A layer's weights and the buffers of a wave.
struct Layer {
    rows: usize,
    shape: AttentionShape,
    layout: CellLayout,
    norm: Span,
    head_norm: Span,
    q: Weight,
    k: Weight,
    v: Weight,
    o: Weight,
    router: Weight,
    blobs: Arc<BlobLayout>,
    experts: Vec<HeldExpert>,
    cells: Cells,
    rope: Rope,
}

struct Buffers {
    hidden: Span,
    normed: Span,
    q: Span,
    k: Span,
    v: Span,
    attended: Span,
    state: Span,
    logits: Span,
    routing: Routing,
    slots: Span,
    scratch: Span,
}

fn weight(rig: &Rig, random: &mut Random, ty: QuantType, rows: usize, cols: usize) -> Weight {
    Weight { ty, rows, cols, at: rig.upload(&random.weights(ty, rows, cols)) }
}

fn layer(rig: &Rig, random: &mut Random, rows: usize, cells: usize, kind: KvType) -> Layer {
    let (heads, kv_heads, dim) = SHAPE;
    let shape = shape(heads, kv_heads, dim);
    let layout = CellLayout::new(kind, &shape);
    let ty = QuantType::Q4_K;
    let each = HIDDEN * ty.row_bytes(WIDTH).unwrap();
    let blobs = BlobLayout {
        width: WIDTH,
        hidden: HIDDEN,
        types: [ty; 3],
        offsets: [0, each, 2 * each],
        bytes: 3 * each,
        activation: Activation::Silu,
    };
    let pool = random.weights(ty, 3 * HIDDEN, WIDTH);
    let experts = (0..EXPERTS as u32).map(|id| HeldExpert { id: ExpertId(id), blob: rig.upload(&pool) }).collect();
    let q8 = QuantType::Q8_0;
    let at = rig.space(cells * layout.cell_bytes());
    let n = 4096.min(cells);
    for first in (0..cells).step_by(n) {
        let count = n.min(cells - first);
        let k = rig.floats(&random.normals(count * kv_heads * dim));
        let at = at.part(first * layout.cell_bytes(), count * layout.cell_bytes());
        rig.run(Command::StoreKv(StoreKv { k, v: k, layout, cells: Cells { at, first, count } }));
    }
    rig.drain();
    Layer {
        rows,
        shape,
        layout,
        norm: rig.floats(&vec![1.0; WIDTH]),
        head_norm: rig.floats(&vec![1.0; dim]),
        q: weight(rig, random, q8, heads * dim, WIDTH),
        k: weight(rig, random, q8, kv_heads * dim, WIDTH),
        v: weight(rig, random, q8, kv_heads * dim, WIDTH),
        o: weight(rig, random, q8, WIDTH, heads * dim),
        router: weight(rig, random, QuantType::F32, EXPERTS, WIDTH),
        blobs: Arc::new(blobs),
        experts,
        cells: Cells { at, first: 0, count: cells },
        rope: Rope {
            kind: RopeKind::Neox,
            rotated: dim,
            frequencies: (0..dim / 2).map(|j| 1e6_f32.powf(-2.0 * j as f32 / dim as f32)).collect(),
            magnitude: 1.0,
        },
    }
}

fn buffers(rig: &Rig, random: &mut Random, of: &Layer, phase: Phase) -> Buffers {
    let (heads, kv_heads, dim) = SHAPE;
    let rows = of.rows;
    let word = |n: usize| rig.space(n * 4);
    let hidden = random.normals(rows.min(512) * WIDTH);
    let hidden: Vec<f32> = hidden.iter().copied().cycle().take(rows * WIDTH).collect();
    let routing = Routing {
        rows,
        experts: EXPERTS,
        top_k: TOP_K,
        ids: word(rows * TOP_K),
        weights: word(rows * TOP_K),
        groups: word(EXPERTS + 1 + rows * TOP_K),
    };
    let work = [
        Linear::scratch_bytes(CardKind::Cuda, rows, heads * dim),
        RunExperts::scratch_bytes(CardKind::Cuda, rows, TOP_K, &of.blobs),
        Attend::scratch_bytes(CardKind::Cuda, phase, rows, &of.shape),
    ];
    Buffers {
        hidden: rig.floats(&hidden),
        normed: word(rows * WIDTH),
        q: word(rows * heads * dim),
        k: word(rows * kv_heads * dim),
        v: word(rows * kv_heads * dim),
        attended: word(rows * heads * dim),
        state: word(rows * heads * (2 + dim)),
        logits: word(rows * EXPERTS),
        routing,
        slots: word(if phase == Phase::Decode { rows * TOP_K * WIDTH } else { 0 }),
        scratch: rig.space(work.into_iter().max().unwrap_or(0)),
    }
}

/// The commands of a layer whose rows stand at `first`, with their names.
fn commands(of: &Layer, b: &Buffers, phase: Phase, first: usize) -> Vec<Command> {
    let (heads, kv_heads, dim) = SHAPE;
    let rows = of.rows;
    let linear = |x: Span, parts: Vec<(Weight, Span)>, into: Epilogue| {
        Command::Linear(Linear {
            x,
            rows,
            parts: parts.into_iter().map(|(weight, out)| LinearPart { weight, bias: None, out }).collect(),
            epilogue: into,
            phase,
            scratch: b.scratch,
        })
    };
    let norm = |x: Span, weight: Span, rows: usize, cols: usize, out: Span| {
        Command::RmsNorm(RmsNorm { x, weight, eps: 1e-6, rows, cols, out })
    };
    let rope =
        |x: Span, heads: usize| Command::Rotate(Rotate { x, rows, heads, head_dim: dim, first, rope: of.rope.clone() });
    let bytes = of.layout.cell_bytes();
    let rule = RouterRule { scores: RouterScores::Softmax, top_k: TOP_K, normalise: true, scale: 1.0 };
    let mut all = vec![
        norm(b.hidden, of.norm, rows, WIDTH, b.normed),
        linear(b.normed, vec![(of.q, b.q), (of.k, b.k), (of.v, b.v)], Epilogue::Store),
        norm(b.q, of.head_norm, rows * heads, dim, b.q),
        norm(b.k, of.head_norm, rows * kv_heads, dim, b.k),
        rope(b.q, heads),
        rope(b.k, kv_heads),
        Command::StoreKv(StoreKv {
            k: b.k,
            v: b.v,
            layout: of.layout,
            cells: Cells { at: of.cells.at.part(first * bytes, rows * bytes), first, count: rows },
        }),
        Command::Attend(Attend {
            q: b.q,
            rows,
            first,
            shape: of.shape,
            layout: of.layout,
            cells: vec![Cells { at: of.cells.at.part(0, (first + rows) * bytes), first: 0, count: first + rows }],
            host_cells: None,
            state: b.state,
            resume: false,
            end: AttentionEnd::Finish(b.attended),
            phase,
            scratch: b.scratch,
        }),
        linear(b.attended, vec![(of.o, b.hidden)], Epilogue::Store),
        norm(b.hidden, of.norm, rows, WIDTH, b.normed),
        linear(b.normed, vec![(of.router, b.logits)], Epilogue::Store),
        Command::Route(Route { logits: b.logits, rule, routing: b.routing, routed: None }),
        Command::RunExperts(RunExperts {
            x: b.normed,
            routing: b.routing,
            layout: Arc::clone(&of.blobs),
            experts: of.experts.clone(),
            into: match phase {
                Phase::Prompt => ExpertsInto::Accumulate(b.hidden),
                Phase::Decode => ExpertsInto::Slots(b.slots),
            },
            scratch: b.scratch,
        }),
    ];
    if phase == Phase::Decode {
        let held = ExpertSet::new(EXPERTS, (0..EXPERTS as u32).map(ExpertId));
        all.push(Command::Combine(Combine {
            routing: b.routing,
            slots: b.slots,
            host_slots: None,
            held,
            width: WIDTH,
            out: b.hidden,
        }));
    }
    all
}

/// Prints what each command takes alone, and what all layers take together.
fn report(rig: &Rig, title: &str, layers: &[Layer], b: &Buffers, phase: Phase, first: usize) {
    let rows = layers[0].rows;
    let mut total = 0.0;
    println!("{title}");
    let one = commands(&layers[0], b, phase, first);
    one.iter().for_each(|command| rig.run(command.clone()));
    for (i, command) in one.iter().enumerate() {
        let mut layer = 0;
        let each = seconds(rig, || {
            layer += 1;
            rig.run(commands(&layers[layer % layers.len()], b, phase, first).swap_remove(i));
        });
        total += each;
        println!("  {:17} {:9.1} us", command.name(), each * 1e6);
    }
    let whole = seconds(rig, || {
        for layer in 0..LAYERS {
            commands(&layers[layer % layers.len()], b, phase, first).into_iter().for_each(|command| rig.run(command));
        }
    });
    let start = Instant::now();
    for layer in 0..LAYERS {
        commands(&layers[layer % layers.len()], b, phase, first).into_iter().for_each(|command| rig.run(command));
    }
    let host = start.elapsed().as_secs_f64();
    rig.drain();
    println!(
        "  sum {:.1} us a layer, {LAYERS} layers {:.2} ms ({:.2} ms to queue), {:.0} tokens a second",
        total * 1e6,
        whole * 1e3,
        host * 1e3,
        rows as f64 / whole
    );
}

#[test]
#[ignore = "measures"]
fn attention_over_the_link() {
    let Some(rig) = rig() else { return };
    let mut random = Random::new(41);
    let (heads, kv_heads, dim) = SHAPE;
    let shape = shape(heads, kv_heads, dim);
    let (q, state, out) =
        (rig.floats(&random.normals(heads * dim)), rig.space(heads * (2 + dim) * 4), rig.space(heads * dim * 4));
    for kind in [KvType::F16, KvType::Int8] {
        for count in [1024, 8192, 32_768] {
            let layout = CellLayout::new(kind, &shape);
            let bytes = count * layout.cell_bytes();
            let scratch = rig.space(64 << 20);
            // Other cells for each layer, so that none are found in the card's caches.
            let cells: Vec<_> = (0..8).map(|_| rig.memory.alloc(bytes, "host cells").unwrap()).collect();
            let each = seconds(rig, || {
                for cells in &cells {
                    rig.run(Command::Attend(Attend {
                        q,
                        rows: 1,
                        first: count - 1,
                        shape,
                        layout,
                        cells: Vec::new(),
                        host_cells: Some(Cells { at: cells.whole(), first: 0, count }),
                        state,
                        resume: false,
                        end: AttentionEnd::Finish(out),
                        phase: Phase::Decode,
                        scratch,
                    }));
                }
            }) / cells.len() as f64;
            println!("{count} cells, {kind:?}: {:.1} us, {:.1} GB/s", each * 1e6, bytes as f64 / each / 1e9);
        }
    }
}

#[test]
#[ignore = "measures"]
fn speed() {
    let Some(rig) = rig() else { return };
    let mut random = Random::new(40);
    for kind in [KvType::F16, KvType::Int8] {
        for (rows, first) in [(8192, 0), (2048, 0), (512, 0), (2048, 32_768)] {
            let layers: Vec<Layer> = (0..3).map(|_| layer(rig, &mut random, rows, rows + first, kind)).collect();
            let b = buffers(rig, &mut random, &layers[0], Phase::Prompt);
            report(rig, &format!("prompt of {rows} on {first}, {kind:?}"), &layers, &b, Phase::Prompt, first);
        }
        for (rows, first) in [(1, 512), (1, 8191), (1, 32_767), (4, 512)] {
            let layers: Vec<Layer> = (0..3).map(|_| layer(rig, &mut random, rows, rows + first, kind)).collect();
            let b = buffers(rig, &mut random, &layers[0], Phase::Decode);
            report(rig, &format!("decode of {rows} at {first}, {kind:?}"), &layers, &b, Phase::Decode, first);
        }
    }
    let head = weight(rig, &mut random, QuantType::Q8_0, 151_936, WIDTH);
    let (x, out) = (rig.floats(&random.normals(WIDTH)), rig.space(151_936 * 4));
    let scratch = rig.space(Linear::scratch_bytes(CardKind::Cuda, 1, WIDTH));
    let each = seconds(rig, || {
        let parts = vec![LinearPart { weight: head, bias: None, out }];
        rig.run(Command::Linear(Linear {
            x,
            rows: 1,
            parts,
            epilogue: Epilogue::Store,
            phase: Phase::Decode,
            scratch,
        }));
    });
    println!("head: {:.1} us, {:.2} TB/s", each * 1e6, head.at.bytes as f64 / each / 1e12);
    let bytes = 1 << 28;
    let host = rig.memory.alloc(bytes, "copy").unwrap();
    let to = rig.space(bytes);
    for size in [1 << 20, 3 << 20, 16 << 20, 256 << 20] {
        let start = Instant::now();
        for at in (0..bytes).step_by(size) {
            let size = size.min(bytes - at);
            let from = host.span(at, size).unwrap();
            rig.card.submit(Stream::Experts, Command::CopyIn(CopyIn { from, to: to.part(at, size) })).unwrap();
        }
        rig.card.drain(Stream::Experts, WHY).unwrap();
        println!("copies of {} MiB: {:.1} GB/s", size >> 20, bytes as f64 / start.elapsed().as_secs_f64() / 1e9);
    }
}
