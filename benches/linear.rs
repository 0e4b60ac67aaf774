//! Matrix products by format, shape and number of rows: bytes of weights a second for one row, operations a second (two
//! for each multiplication) for more. `cargo bench --bench linear -- Q4_1` runs one format.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::hint::black_box;
use std::time::Duration;

use aqueduct::cpu::Team;
use aqueduct::cpu::linear::{Epilogue, Formats, Isa, Pick, Product, Weight, linear, scratch_bytes};
use aqueduct::quant::QuantType;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// Elements of a row and rows: projections, FFN and head of SmolLM2-135M, an expert of Qwen3-30B-A3B.
const SHAPES: [(usize, usize); 5] = [(576, 576), (576, 1536), (1536, 576), (576, 49152), (2048, 768)];
const ROWS: [usize; 4] = [1, 8, 64, 512];
const WORKERS: usize = 2;

/// Copies of the matrix are passed one after the other until they exceed this, so that single rows read memory and not
/// a cache, as decoding does.
const BEYOND_CACHES: usize = 96 << 20;

fn products(c: &mut Criterion) {
    let team = Team::new(WORKERS).unwrap();
    let isa = Isa::best();
    for ty in QuantType::ALL {
        for (cols, outs) in SHAPES {
            let Some(bytes) = ty.row_bytes(cols).map(|row| row * outs) else { continue };
            let copies = (BEYOND_CACHES / bytes).max(1);
            // Any bytes will do where scales are sane: 0x2c2c is the half 0.065.
            let weights = vec![0x2c_u8; bytes * copies];
            for rows in ROWS {
                if rows * outs > 1 << 25 {
                    continue;
                }
                let x: Vec<f32> = (0..rows * cols).map(|i| (i % 97) as f32 / 48.0 - 1.0).collect();
                let mut y = vec![0.0; rows * outs];
                let mut scratch = vec![0; scratch_bytes(Formats::of([ty]), rows, cols)];
                let mut group = c.benchmark_group(format!("{ty} {cols}x{outs}"));
                group
                    .sample_size(10)
                    .warm_up_time(Duration::from_millis(200))
                    .measurement_time(Duration::from_millis(800));
                group.throughput(match rows {
                    1 => Throughput::BytesDecimal(bytes as u64),
                    _ => Throughput::Elements(2 * (rows * cols * outs) as u64),
                });
                let mut copy = 0;
                group.bench_function(format!("{rows} rows"), |b| {
                    b.iter(|| {
                        copy = (copy + 1) % copies;
                        let weight = Weight { ty, bytes: &weights[copy * bytes..][..bytes], outs, cols };
                        let product = Product { weight, rows: Pick::All, y: &mut y, epilogue: Epilogue::Store };
                        linear(isa, &team, &x, rows, &mut [product], &mut scratch).unwrap();
                        black_box(&mut y);
                    });
                });
            }
        }
    }
}

criterion_group!(benches, products);
criterion_main!(benches);
