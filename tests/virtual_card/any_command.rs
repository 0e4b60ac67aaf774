//! Whatever a command's fields say, it is refused or it runs: no panic, no byte outside its regions.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use aqueduct::card::command::{
    Attend, AttentionEnd, Cells, Combine, CopyAcross, CopyIn, CopyOut, CopyWithin, Epilogue, ExpertsInto,
    GatedActivation, HeldExpert, Linear, LinearPart, Phase, RmsNorm, Rotate, Route, Routing, RunExperts, StoreKv,
    Weight, WireReceive, WireSend,
};
use aqueduct::card::{Card, CardError, CardKind, Command, HostMemory, Region, Span, Stream};
use aqueduct::ops::{
    Activation, AttentionShape, BlobLayout, CellLayout, ExpertSet, KvType, Rope, RopeKind, RouterRule, RouterScores,
};
use aqueduct::quant::QuantType;
use aqueduct::units::ExpertId;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::{Bench, WHY};

/// Sizes from which a right command is built.
#[derive(Clone, Debug)]
struct Sizes {
    kind: usize,
    rows: usize,
    cols: usize,
    heads: usize,
    count: usize,
    flag: bool,
}

/// What is then made wrong, if anything: a span or a number.
#[derive(Clone, Debug)]
enum Damage {
    None,
    Offset(usize, usize),
    Bytes(usize, usize),
    Region(usize),
    Number(usize),
}

const KINDS: usize = 13;

/// Hands out spans of a region one after the other.
struct Spans<'a> {
    region: &'a Region,
    next: Cell<usize>,
    /// Memory of another card.
    other: &'a Region,
}

impl Spans<'_> {
    fn bytes(&self, bytes: usize) -> Span {
        let at = self.next.get();
        self.next.set((at + bytes).next_multiple_of(16));
        self.region.span(at, bytes)
    }

    fn words(&self, words: usize) -> Span {
        self.bytes(words * 4)
    }
}

fn right(sizes: &Sizes, at: &Spans<'_>, host: &HostMemory) -> Command {
    let &Sizes { kind, rows, cols, heads, count, flag } = sizes;
    let routing = |experts: usize, top_k: usize| Routing {
        rows,
        experts,
        top_k,
        ids: at.words(rows * top_k),
        weights: at.words(rows * top_k),
        groups: at.words(experts + 1 + rows * top_k),
    };
    let (experts, top_k) = (heads + 1, heads.div_ceil(2));
    match kind {
        0 => Command::CopyIn(CopyIn { from: host.alloc(cols, "from").unwrap().whole(), to: at.bytes(cols) }),
        1 => Command::CopyOut(CopyOut { from: at.bytes(cols), to: host.alloc(cols, "to").unwrap().whole() }),
        2 => Command::CopyWithin(CopyWithin { from: at.bytes(cols), to: at.bytes(cols) }),
        3 => {
            let x = at.words(rows * cols);
            let out = if flag { x } else { at.words(rows * cols) };
            Command::RmsNorm(RmsNorm { x, weight: at.words(cols), eps: 1e-5, rows, cols, out })
        }
        4 => {
            let cols = cols * 32;
            let ty = QuantType::ALL[count % 7];
            let part = |outs: usize| LinearPart {
                weight: Weight { ty, rows: outs, cols, at: at.bytes(outs * ty.row_bytes(cols).unwrap_or(0)) },
                bias: flag.then(|| at.words(outs)),
                out: at.words(rows * outs),
            };
            Command::Linear(Linear {
                x: at.words(rows * cols),
                rows,
                parts: (1..=heads).map(part).collect(),
                epilogue: if flag { Epilogue::Add } else { Epilogue::Store },
                phase: Phase::Prompt,
                scratch: at.bytes(Linear::scratch_bytes(CardKind::Virtual, rows, cols)),
            })
        }
        5 => {
            let rotated = cols & !1;
            let frequencies = vec![0.5; rotated / 2].into();
            let rope = Rope {
                kind: if flag { RopeKind::Neox } else { RopeKind::Normal },
                rotated,
                frequencies,
                magnitude: 1.0,
            };
            Command::Rotate(Rotate {
                x: at.words(rows * heads * cols),
                rows,
                heads,
                head_dim: cols,
                first: count,
                rope,
            })
        }
        6 | 7 => {
            let cells_type = [KvType::F32, KvType::F16, KvType::Int8][count % 3];
            let kv_heads = heads.div_ceil(2);
            let heads = if heads.is_multiple_of(kv_heads) { heads } else { kv_heads };
            let shape = AttentionShape { heads, kv_heads, head_dim: cols, value_dim: cols + 1, scale: 0.5 };
            let layout = CellLayout::new(cells_type, &shape);
            let cells = |first, count| Cells { at: at.bytes(count * layout.cell_bytes()), first, count };
            if kind == 6 {
                let (k, v) = (at.words(count * kv_heads * cols), at.words(count * kv_heads * (cols + 1)));
                return Command::StoreKv(StoreKv { k, v, layout, cells: cells(count, count) });
            }
            let first = if flag { 64 } else { 0 };
            Command::Attend(Attend {
                q: at.words(rows * heads * cols),
                rows,
                first: first + 64,
                shape,
                layout,
                cells: vec![cells(first, 64), cells(first + 64, if count < 5 { count } else { 64 })],
                host_cells: (count >= 5).then(|| {
                    let at = host.alloc(count * layout.cell_bytes(), "cells").unwrap().whole();
                    Cells { at, first: first + 128, count }
                }),
                state: at.words(rows * heads * (cols + 3)),
                resume: flag,
                end: if flag { AttentionEnd::Keep } else { AttentionEnd::Finish(at.words(rows * heads * (cols + 1))) },
                phase: Phase::Decode,
                scratch: at.bytes(Attend::scratch_bytes(CardKind::Virtual, Phase::Decode, rows, &shape)),
            })
        }
        8 => {
            let gate = at.words(rows * cols);
            let out = if flag { gate } else { at.words(rows * cols) };
            let up = at.words(rows * cols);
            Command::GatedActivation(GatedActivation {
                gate,
                up,
                elements: rows * cols,
                activation: Activation::Silu,
                out,
            })
        }
        9 => Command::Route(Route {
            logits: at.words(rows * experts),
            rule: RouterRule { scores: RouterScores::Softmax, top_k, normalise: flag, scale: 1.0 },
            routing: routing(experts, top_k),
            routed: flag.then(|| host.alloc(ExpertSet::bytes(experts), "routed").unwrap().whole()),
        }),
        10 => {
            let (width, hidden) = (cols * 32, 32);
            let part = |rows: usize, cols: usize| {
                let ty = QuantType::Q4_0;
                (ty, rows * ty.row_bytes(cols).unwrap())
            };
            let parts = [part(hidden, width), part(hidden, width), part(width, hidden)];
            let layout = Arc::new(BlobLayout::new(width, hidden, Activation::Silu, parts));
            let held = |id| HeldExpert { id: ExpertId(id), blob: at.bytes(layout.bytes) };
            Command::RunExperts(RunExperts {
                x: at.words(rows * width),
                routing: routing(experts, top_k),
                experts: vec![held(0), held(experts as u32 - 1)],
                into: if flag {
                    ExpertsInto::Accumulate(at.words(rows * width))
                } else {
                    ExpertsInto::Slots(at.words(rows * top_k * width))
                },
                scratch: at.bytes(RunExperts::scratch_bytes(CardKind::Virtual, rows, top_k, &layout)),
                layout,
            })
        }
        11 => Command::CopyAcross(CopyAcross { from: at.other.span(cols, cols), to: at.bytes(cols) }),
        _ => Command::Combine(Combine {
            routing: routing(experts, top_k),
            slots: at.words(rows * top_k * cols),
            host_slots: flag.then(|| at.words(rows * top_k * cols)),
            held: ExpertSet::new(experts, [ExpertId(0)]),
            width: cols,
            out: at.words(rows * cols),
        }),
    }
}

/// Every span of the command.
fn spans(command: &mut Command) -> Vec<&mut Span> {
    match command {
        Command::CopyIn(CopyIn { to, .. }) => vec![to],
        Command::CopyOut(CopyOut { from, .. }) => vec![from],
        Command::CopyWithin(CopyWithin { from, to }) | Command::CopyAcross(CopyAcross { from, to }) => vec![from, to],
        Command::WireSend(WireSend { from: span, .. }) | Command::WireReceive(WireReceive { to: span, .. }) => {
            vec![span]
        }
        Command::RmsNorm(RmsNorm { x, weight, out, .. }) => vec![x, weight, out],
        Command::Linear(Linear { x, parts, scratch, .. }) => {
            let parts = parts
                .iter_mut()
                .flat_map(|part| [&mut part.weight.at, &mut part.out].into_iter().chain(&mut part.bias));
            [x, scratch].into_iter().chain(parts).collect()
        }
        Command::Rotate(Rotate { x, .. }) => vec![x],
        Command::StoreKv(StoreKv { k, v, cells, .. }) => vec![k, v, &mut cells.at],
        Command::Attend(Attend { q, cells, state, end, scratch, .. }) => {
            let mut all: Vec<_> =
                [q, state, scratch].into_iter().chain(cells.iter_mut().map(|cells| &mut cells.at)).collect();
            if let AttentionEnd::Finish(out) = end {
                all.push(out);
            }
            all
        }
        Command::GatedActivation(GatedActivation { gate, up, out, .. }) => vec![gate, up, out],
        Command::Route(Route { logits, routing, .. }) => {
            vec![logits, &mut routing.ids, &mut routing.weights, &mut routing.groups]
        }
        Command::RunExperts(RunExperts { x, routing, experts, into, scratch, .. }) => {
            let (ExpertsInto::Accumulate(out) | ExpertsInto::Slots(out)) = into;
            let routing = [&mut routing.ids, &mut routing.weights, &mut routing.groups];
            [x, out, scratch].into_iter().chain(routing).chain(experts.iter_mut().map(|held| &mut held.blob)).collect()
        }
        Command::Combine(Combine { routing, slots, host_slots, out, .. }) => {
            [slots, out, &mut routing.ids, &mut routing.weights].into_iter().chain(host_slots).collect()
        }
    }
}

/// Changes one of the command's numbers.
fn renumber(command: &mut Command, by: usize) {
    let (a, b) = (by / 4, by % 4);
    match command {
        Command::CopyIn(_)
        | Command::CopyOut(_)
        | Command::CopyWithin(_)
        | Command::CopyAcross(_)
        | Command::WireSend(_)
        | Command::WireReceive(_) => {}
        Command::RmsNorm(RmsNorm { rows, cols, .. }) => *if b == 0 { rows } else { cols } = a,
        Command::Linear(Linear { rows, parts, .. }) => match parts.first_mut() {
            Some(part) if b == 0 => part.weight.rows = a,
            Some(part) if b == 1 => part.weight.cols = a * 16,
            _ => *rows = a,
        },
        Command::Rotate(Rotate { rows, heads, head_dim, rope, .. }) => {
            *[rows, heads, head_dim, &mut rope.rotated].into_iter().nth(b).unwrap() = a;
        }
        Command::StoreKv(StoreKv { layout, cells, .. }) => {
            *if b == 0 { &mut layout.kv_heads } else { &mut cells.count } = a
        }
        Command::Attend(Attend { rows, shape, layout, cells, .. }) => match b {
            0 => *rows = a,
            1 => shape.heads = a,
            2 => layout.value_dim = a,
            _ => cells[0].first = a,
        },
        Command::GatedActivation(GatedActivation { elements, .. }) => *elements = a,
        Command::Route(Route { routing, rule, .. }) => match b {
            0 => routing.rows = a,
            1 => rule.top_k = a,
            2 => routing.experts = a,
            _ => (rule.top_k, routing.top_k) = (a, a),
        },
        Command::RunExperts(RunExperts { routing, layout, experts, .. }) => match b {
            0 => routing.rows = a,
            1 => experts[0].id = ExpertId(a as u32),
            _ => Arc::make_mut(layout).offsets[b - 1] = a * 100,
        },
        Command::Combine(Combine { routing, width, held, .. }) => match b {
            0 => routing.experts = a,
            1 => *width = a,
            _ => held.0.resize(a, 0),
        },
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        2 => Just(Damage::None),
        1 => (any::<usize>(), 0..70_000usize).prop_map(|(span, offset)| Damage::Offset(span, offset)),
        1 => (any::<usize>(), 0..2_000usize).prop_map(|(span, bytes)| Damage::Bytes(span, bytes)),
        1 => any::<usize>().prop_map(Damage::Region),
        2 => (0..80usize).prop_map(Damage::Number),
    ]
}

#[test]
fn a_command_is_refused_or_runs() {
    let counts: RefCell<BTreeMap<(&str, bool), usize>> = RefCell::default();
    let sizes = (0..KINDS, 0..4usize, 1..9usize, 1..5usize, 0..9usize, any::<bool>())
        .prop_map(|(kind, rows, cols, heads, count, flag)| Sizes { kind, rows, cols, heads, count, flag });
    let bench = Bench::new();
    let region = bench.region(64 << 10, "all");
    let other = Bench::new();
    let beyond = other.region(64, "beyond");
    bench.card.reach(&other.card.neighbour()).unwrap();
    let host = HostMemory::default();
    let zeros = host.alloc(region.bytes, "zeros").unwrap();
    let mut runner = TestRunner::new(Config { cases: 6_000, failure_persistence: None, ..Config::default() });
    let result = runner.run(&(sizes, damage()), |(sizes, damage)| {
        let mut command = right(&sizes, &Spans { region: &region, next: Cell::new(0), other: &beyond }, &host);
        let name = command.name();
        {
            let mut spans = spans(&mut command);
            let count = spans.len();
            match damage {
                Damage::Offset(span, offset) => spans[span % count].offset = offset,
                Damage::Bytes(span, bytes) => spans[span % count].bytes = bytes,
                Damage::Region(span) => spans[span % count].region.0 += 1_000_000,
                Damage::None | Damage::Number(_) => {}
            }
        }
        if let Damage::Number(by) = damage {
            renumber(&mut command, by);
        }
        let text = format!("{command:?}");
        // Tables that point nowhere are another matter than fields that do not agree.
        bench
            .card
            .submit(Stream::Compute, Command::CopyIn(CopyIn { from: zeros.whole(), to: region.whole() }))
            .unwrap();
        let accepted = match bench.card.submit(Stream::Compute, command) {
            Ok(()) => true,
            Err(CardError::Refused { .. }) => false,
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        };
        if matches!(damage, Damage::None) {
            prop_assert!(accepted, "a right command was refused: {}", text);
        }
        let ran = bench.card.drain(Stream::Compute, WHY);
        bench.card.recover().unwrap();
        prop_assert_eq!(ran, Ok(()), "{}", text);
        *counts.borrow_mut().entry((name, accepted)).or_default() += 1;
        Ok(())
    });
    println!("commands by (name, whether accepted): {:?}", counts.borrow());
    result.unwrap();
    assert_eq!(counts.borrow().len(), KINDS * 2, "some command was never accepted or never refused");
}
