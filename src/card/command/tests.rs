use std::sync::Arc;

use super::*;
use crate::card::{HostMemory, Region, RegionId};
use crate::ops::{Activation, AttentionShape, CellLayout, KvType, Rope, RopeKind, RouterRule, RouterScores};
use crate::quant::QuantType;
use crate::units::{CardId, ExpertId};

/// A region of its own for each span.
fn bytes(bytes: usize) -> Span {
    Region { card: CardId(0), id: RegionId::fresh(), bytes, what: "test".into() }.whole()
}

fn words(sizes: &[usize]) -> Span {
    bytes(4 * sizes.iter().product::<usize>())
}

const ROWS: usize = 3;

fn routing(experts: usize, top_k: usize) -> Routing {
    Routing {
        rows: ROWS,
        experts,
        top_k,
        ids: words(&[ROWS, top_k]),
        weights: words(&[ROWS, top_k]),
        groups: words(&[experts + 1 + ROWS * top_k]),
    }
}

fn linear(epilogue: Epilogue) -> Linear {
    let part = |outs: usize, bias: bool| LinearPart {
        weight: Weight { ty: QuantType::Q8_0, rows: outs, cols: 64, at: bytes(outs * 2 * 34) },
        bias: bias.then(|| words(&[outs])),
        out: words(&[ROWS, outs]),
    };
    let parts = vec![part(5, true), part(7, false)];
    let scratch = bytes(Linear::scratch_bytes(CardKind::Virtual, ROWS, 64));
    Linear { x: words(&[ROWS, 64]), rows: ROWS, parts, epilogue, phase: Phase::Prompt, scratch }
}

fn experts(listed: u32, into: ExpertsInto) -> RunExperts {
    let matrix = (QuantType::F32, 4 * 8 * 16);
    let layout = BlobLayout::new(8, 16, Activation::Silu, [matrix; 3]);
    RunExperts {
        x: words(&[ROWS, 8]),
        routing: routing(6, 2),
        experts: (0..listed).map(|id| HeldExpert { id: ExpertId(id), blob: bytes(layout.bytes) }).collect(),
        into,
        scratch: bytes(RunExperts::scratch_bytes(CardKind::Virtual, ROWS, 2, &layout)),
        layout: Arc::new(layout),
    }
}

fn attend(first: usize, cells: &[usize], resume: bool) -> Attend {
    let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 8, value_dim: 8, scale: 1.0 };
    let layout = CellLayout::new(KvType::F16, &shape);
    let mut next = 0;
    let mut span = |count: &usize| {
        let cells = Cells { at: bytes(count * layout.cell_bytes()), first: next, count: *count };
        next += count;
        cells
    };
    let mut cells: Vec<Cells> = cells.iter().map(&mut span).collect();
    if resume {
        cells.remove(0);
    }
    Attend {
        q: words(&[ROWS, 4, 8]),
        rows: ROWS,
        first,
        shape,
        layout,
        cells,
        host_cells: None,
        state: words(&[ROWS, 4, 10]),
        resume,
        end: AttentionEnd::Finish(words(&[ROWS, 4, 8])),
        phase: Phase::Prompt,
        scratch: bytes(0),
    }
}

/// One of each operation that a single card knows, but for the wire's, which a card must make.
fn every() -> Vec<Command> {
    let host = HostMemory::default().alloc(48, "host").unwrap();
    let rope = Rope { kind: RopeKind::Neox, rotated: 4, frequencies: vec![1.0, 0.5].into(), magnitude: 1.0 };
    let shape = AttentionShape { heads: 2, kv_heads: 2, head_dim: 8, value_dim: 8, scale: 1.0 };
    let layout = CellLayout::new(KvType::Int8, &shape);
    let rule = RouterRule { scores: RouterScores::Softmax, top_k: 2, normalise: true, scale: 1.0 };
    let far = Span { card: CardId(1), ..bytes(48) };
    let x = words(&[ROWS, 8]);
    let mut host_cells = attend(127, &[64], false);
    let at = HostMemory::default().alloc(64 * host_cells.layout.cell_bytes(), "cells").unwrap().whole();
    host_cells.phase = Phase::Decode;
    host_cells.host_cells = Some(Cells { at, first: 64, count: 64 });
    vec![
        CopyIn { from: host.whole(), to: bytes(48) }.into(),
        CopyOut { from: bytes(48), to: host.whole() }.into(),
        CopyWithin { from: bytes(48), to: bytes(48) }.into(),
        CopyAcross { from: far, to: bytes(48) }.into(),
        RmsNorm { x, weight: words(&[8]), eps: 1e-5, rows: ROWS, cols: 8, out: x }.into(),
        linear(Epilogue::Store).into(),
        Rotate { x: words(&[ROWS, 2, 8]), rows: ROWS, heads: 2, head_dim: 8, first: 5, rope }.into(),
        StoreKv {
            k: words(&[ROWS, 2, 8]),
            v: words(&[ROWS, 2, 8]),
            layout,
            cells: Cells { at: bytes(ROWS * layout.cell_bytes()), first: 0, count: ROWS },
        }
        .into(),
        attend(0, &[3], false).into(),
        host_cells.into(),
        GatedActivation { gate: x, up: words(&[24]), elements: 24, activation: Activation::Silu, out: x }.into(),
        Route { logits: words(&[ROWS, 6]), rule, routing: routing(6, 2), routed: None }.into(),
        experts(3, ExpertsInto::Accumulate(words(&[ROWS, 8]))).into(),
        experts(3, ExpertsInto::Slots(words(&[ROWS * 2, 8]))).into(),
        Combine {
            routing: routing(6, 2),
            slots: words(&[ROWS * 2, 8]),
            host_slots: Some(words(&[ROWS * 2, 8])),
            held: ExpertSet::new(6, [ExpertId(1)]),
            width: 8,
            out: words(&[ROWS, 8]),
        }
        .into(),
    ]
}

#[test]
fn every_operation_costs_what_its_accesses_allow() {
    let mut names = std::collections::BTreeSet::new();
    for command in every() {
        command.operation().check(CardKind::Virtual).unwrap_or_else(|e| panic!("{}: {e}", command.name()));
        let cost = command.cost();
        let (mut read, mut written, mut host_read, mut host_written) = (0, 0, 0, 0);
        for access in command.accesses() {
            match access {
                Access::Read(span) => read += span.bytes as u64,
                // Accumulators are read too.
                Access::Write(span) => (read, written) = (read + span.bytes as u64, written + span.bytes as u64),
                Access::HostRead(span) => host_read += span.bytes() as u64,
                Access::HostWrite(span) => host_written += span.bytes() as u64,
            }
        }
        let text = format!("{}: {cost:?}", command.name());
        assert!(cost.card_read <= read && cost.card_written <= written, "{text}");
        assert_eq!((cost.host_read, cost.host_written), (host_read, host_written), "{text}");
        assert_eq!(cost.operations() == 0, command.copied().is_some(), "{text}");
        assert!(cost.card() > 0, "{text}");
        if let Some(bytes) = command.copied() {
            assert!(cost.card_read.max(cost.card_written) == bytes as u64, "{text}");
        }
        names.insert(command.name());
    }
    assert_eq!(names.len(), 13, "{names:?}");
}

#[test]
fn products_are_counted_by_hand() {
    let weights = (5 + 7) * 2 * 34;
    let (x, out, bias) = (4 * 3 * 64, 4 * 3 * 12, 4 * 5);
    let cost = linear(Epilogue::Store).cost();
    assert_eq!(cost.card_read, weights + x + bias);
    assert_eq!(cost.card_written, out);
    assert_eq!(cost.tensor, 3 * 12 * 64 * 2);
    assert_eq!(cost.float, 3 * 5);
    let added = linear(Epilogue::Add).cost();
    assert_eq!(added.card_read, cost.card_read + out);
    assert_eq!((added.tensor, added.float), (cost.tensor, 3 * 5 + 3 * 12));
}

#[test]
fn experts_are_counted_by_hand() {
    // Three rows with two of six experts each: six entries; ids, weights and groups.
    let choice = 4 * (6 + 6 + 7 + 6);
    let (x, blob) = (4 * 3 * 8, 3 * 512);
    let all = experts(6, ExpertsInto::Accumulate(words(&[ROWS, 8]))).cost();
    assert_eq!(all.card_read, x + choice + 6 * blob + 4 * 3 * 8);
    assert_eq!(all.card_written, 4 * 3 * 8);
    assert_eq!(all.tensor, 6 * (8 * 16 * 3) * 2);
    assert_eq!(all.float, 6 * 16 * 4 + 6 * 8 * 2);
    // A row uses one listed expert once.
    let one = experts(1, ExpertsInto::Slots(words(&[ROWS * 2, 8]))).cost();
    assert_eq!(one.card_read, x + choice + blob);
    assert_eq!(one.card_written, 4 * 3 * 8);
    assert_eq!(one.tensor, 3 * (8 * 16 * 3) * 2);
}

#[test]
fn attention_counts_the_pairs_it_sees() {
    let pairs = |of: &Attend| of.cost().tensor / (4 * (8 + 8) * 2);
    // 1 + 2 + 3 from nothing; with 64 cells before, 64 more each.
    assert_eq!(pairs(&attend(0, &[3], false)), 6);
    assert_eq!(pairs(&attend(64, &[64, 3], false)), 6 + 3 * 64);
    // The second span alone, and cells that no query sees.
    assert_eq!(pairs(&attend(64, &[64, 3], true)), 6);
    assert_eq!(pairs(&attend(0, &[64, 64], false)), 6);
    assert_eq!(pairs(&attend(0, &[64, 64], true)), 0);
}
