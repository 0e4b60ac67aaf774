//! Attention, norm, experts and the team's own cost, as SmolLM2-135M (9 heads of 64 over 3) and Qwen3-30B-A3B (32 heads
//! of 128 over 4) use them. `cargo bench --bench kernels -- attention` runs a part.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::hint::black_box;
use std::time::Duration;

use aqueduct::cpu::{
    CellSlice, ExpertBlob, ExpertsOut, Queries, RouteInto, Routing, Team, attend, experts_scratch, rms_norm, route,
    run_experts, store_kv,
};
use aqueduct::ops::{Activation, AttentionShape, BlobLayout, CellLayout, KvType, RouterRule, RouterScores};
use aqueduct::quant::QuantType;
use aqueduct::units::ExpertId;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const WORKERS: [usize; 2] = [1, 2];

fn floats(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * 0.37).sin()).collect()
}

fn regions(c: &mut Criterion) {
    let team = Team::new(2).unwrap();
    let mut group = c.benchmark_group("region of 2 workers");
    for parts in [2, 8, 32] {
        group.bench_function(format!("{parts} parts"), |b| {
            b.iter(|| {
                team.run(parts, |part| {
                    black_box(part);
                });
            });
        });
    }
}

/// Operations: two for each multiplication of scores and values.
fn attention(c: &mut Criterion) {
    for (heads, kv_heads, dim) in [(9, 3, 64), (32, 4, 128)] {
        let scale = (dim as f32).powf(-0.5);
        let shape = AttentionShape { heads, kv_heads, head_dim: dim, value_dim: dim, scale };
        for kind in [KvType::F16, KvType::Int8] {
            let layout = CellLayout::new(kind, &shape);
            for (rows, first) in [(512, 0), (1, 511), (1, 8191)] {
                let count = first + rows;
                let (k, v, q) =
                    (floats(count * kv_heads * dim), floats(count * kv_heads * dim), floats(rows * heads * dim));
                let mut cells = vec![0; count * layout.cell_bytes()];
                store_kv(&Team::new(1).unwrap(), &layout, &k, &v, &mut cells);
                let queries = Queries { q: &q, rows, first, shape, layout };
                let (mut state, mut out) = (vec![0.0; queries.state_len()], vec![0.0; rows * heads * dim]);
                let cells = [CellSlice { bytes: &cells, first: 0, count }];
                let seen: usize = (first + 1..=first + rows).sum();
                let mut group = c.benchmark_group(format!("attention {kind:?} {heads}/{kv_heads}x{dim}"));
                group.throughput(Throughput::Elements((seen * heads * dim * 4) as u64)).sample_size(20);
                group.measurement_time(Duration::from_secs(2));
                for workers in WORKERS {
                    let team = Team::new(workers).unwrap();
                    group.bench_function(format!("{rows} rows after {first} cells, {workers} workers"), |b| {
                        b.iter(|| attend(&team, &queries, &cells, &mut state, false, Some(&mut out)));
                    });
                }
            }
        }
    }
}

fn norm(c: &mut Criterion) {
    let mut group = c.benchmark_group("rms norm");
    for (rows, cols) in [(1, 576), (1, 2048), (512, 576)] {
        let (x, weight, mut out) = (floats(rows * cols), floats(cols), vec![0.0; rows * cols]);
        group.throughput(Throughput::Elements((rows * cols) as u64));
        for workers in WORKERS {
            let team = Team::new(workers).unwrap();
            group.bench_function(format!("{rows}x{cols}, {workers} workers"), |b| {
                b.iter(|| rms_norm(&team, &x, &weight, 1e-5, &mut out));
            });
        }
    }
}

/// Operations: two for each multiplication of gate, up and down.
fn experts(c: &mut Criterion) {
    let (width, hidden, experts, top_k) = (1024, 384, 32, 4);
    let types = [QuantType::Q4_K, QuantType::Q4_K, QuantType::Q8_0];
    let (into, down) = (types[0].row_bytes(width).unwrap() * hidden, types[2].row_bytes(hidden).unwrap() * width);
    let offsets = [0, into, 2 * into];
    let layout = BlobLayout { width, hidden, types, offsets, bytes: 2 * into + down, activation: Activation::Silu };
    // Any bytes will do where scales are sane: 0x2c2c is the half 0.065.
    let blobs: Vec<Vec<u8>> = (0..experts).map(|_| vec![0x2c; layout.bytes]).collect();
    let blobs: Vec<_> =
        blobs.iter().enumerate().map(|(id, blob)| ExpertBlob { id: ExpertId(id as u32), blob }).collect();
    let rule = RouterRule { scores: RouterScores::Softmax, top_k, normalise: true, scale: 1.0 };
    for rows in [1, 512] {
        let (x, logits) = (floats(rows * width), floats(rows * experts));
        let (mut ids, mut weights) = (vec![0; rows * top_k], vec![0.0; rows * top_k]);
        let mut groups = vec![0; experts + 1 + rows * top_k];
        let choice = RouteInto { ids: &mut ids, weights: &mut weights, groups: &mut groups, routed: None };
        route(&Team::new(1).unwrap(), &logits, experts, &rule, choice);
        let routing = Routing { rows, experts, top_k, ids: &ids, weights: &weights, groups: &groups };
        let mut scratch = vec![0; experts_scratch(rows, top_k, &layout)];
        let mut out = vec![0.0; rows * width];
        let mut group = c.benchmark_group(format!("experts {width}x{hidden}, {top_k} of {experts}"));
        group.throughput(Throughput::Elements((rows * top_k * 6 * width * hidden) as u64)).sample_size(20);
        for workers in WORKERS {
            let team = Team::new(workers).unwrap();
            group.bench_function(format!("{rows} rows, {workers} workers"), |b| {
                b.iter(|| {
                    let out = ExpertsOut::Accumulate(&mut out);
                    run_experts(&team, &layout, &x, &routing, &blobs, out, &mut scratch);
                });
            });
        }
    }
}

criterion_group!(benches, regions, attention, norm, experts);
criterion_main!(benches);
