//! Cells in host memory, which a decode step's attention reads over the link.

use std::time::{Duration, Instant};

use aqueduct::card::command::{Attend, AttentionEnd, Cells, CopyOut, Phase, StoreKv};
use aqueduct::card::timeline::Work;
use aqueduct::card::virt::LinkRates;
use aqueduct::card::{Card, Command, HostMemory, Stream};
use aqueduct::ops::{ATTENTION_TILE, AttentionShape, CellLayout, KvType};
use aqueduct::units::Rate;

use super::{Bench, WHY};

#[test]
fn cells_in_host_memory_give_the_same_bits_and_take_the_links_time() {
    let bench = Bench::with(Some(LinkRates { h2d: Rate(2e6), d2h: Rate(1e9) }));
    let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 16, value_dim: 8, scale: 0.5 };
    let layout = CellLayout::new(KvType::Int8, &shape);
    let (count, bytes) = (5 * ATTENTION_TILE + 7, layout.cell_bytes());
    let wave = |n: usize, step: f32| (0..n).map(|i| (i as f32 * step).sin()).collect::<Vec<f32>>();
    let (k, v) = (bench.floats(&wave(count * 2 * 16, 0.37)), bench.floats(&wave(count * 2 * 8, 0.11)));
    let q = bench.floats(&wave(4 * 16, 0.73));
    let cells = bench.region((count * bytes) as u64, "cells");
    let stored = Command::StoreKv(StoreKv {
        k: k.whole(),
        v: v.whole(),
        layout,
        cells: Cells { at: cells.whole(), first: 0, count },
    });
    bench.card.submit(Stream::Compute, stored).unwrap();
    let host = HostMemory::default().alloc(count * bytes, "host cells").unwrap();
    bench.card.submit(Stream::Compute, Command::CopyOut(CopyOut { from: cells.whole(), to: host.whole() })).unwrap();
    bench.card.drain(Stream::Compute, WHY).unwrap();

    let state = bench.region(4 * 10 * 4, "state");
    let attend = |on_card: usize, phase| {
        let out = bench.region(4 * 8 * 4, "out");
        let beyond = (on_card < count).then(|| Cells {
            at: host.span(on_card * bytes, (count - on_card) * bytes).unwrap(),
            first: on_card,
            count: count - on_card,
        });
        let on_card = Cells { at: cells.span(0, on_card * bytes), first: 0, count: on_card };
        let command = Command::Attend(Attend {
            q: q.whole(),
            rows: 1,
            first: count - 1,
            shape,
            layout,
            cells: if on_card.count > 0 { vec![on_card] } else { Vec::new() },
            host_cells: beyond,
            state: state.whole(),
            resume: false,
            end: AttentionEnd::Finish(out.whole()),
            phase,
            scratch: state.span(0, 0),
        });
        (command, out)
    };
    let run = |on_card: usize| {
        let (command, out) = attend(on_card, Phase::Decode);
        let moved = command.read_over_link();
        let start = Instant::now();
        bench.card.submit(Stream::Compute, command).unwrap();
        bench.card.drain(Stream::Compute, WHY).unwrap();
        (bench.read(&out), moved, start.elapsed())
    };
    let (wanted, none, _) = run(count);
    assert_eq!(none, 0);
    assert!(wanted.iter().all(|x| x.is_finite() && *x != 0.0), "{wanted:?}");
    for on_card in [0, ATTENTION_TILE, 4 * ATTENTION_TILE] {
        let (found, moved, took) = run(on_card);
        assert_eq!(found, wanted, "other bits with {on_card} cells on the card");
        assert_eq!(moved, (count - on_card) * bytes);
        let least = Duration::from_secs_f64(moved as f64 / 2e6);
        assert!(took + Duration::from_millis(1) >= least, "{moved} bytes in {took:?} over a link of 2 MB/s");
    }
    let shown = bench.timeline.entries().into_iter().filter(|entry| entry.name == "attention" && entry.bytes.is_some());
    assert!(shown.clone().all(|entry| entry.work == Work::Kernel) && shown.count() == 3);

    let prompt = bench.refusal(attend(ATTENTION_TILE, Phase::Prompt).0);
    assert!(prompt.contains("decode only"), "{prompt}");
    let gap = bench.refusal(attend(ATTENTION_TILE + 1, Phase::Decode).0);
    assert!(gap.contains("cells from 65"), "{gap}");
}
