//! Norm, rope, gate and the KV store.

use aqueduct::card::command::{Cells, Command, GatedActivation, RmsNorm, Rotate, StoreKv};
use aqueduct::ops::{Activation, CellLayout, KvType, Rope, RopeKind};

use crate::rig::{Random, error, rig, shape};
use crate::support::near;

#[test]
fn norms() {
    let Some(rig) = rig() else { return };
    let mut random = Random::new(30);
    for (rows, cols) in [(1, 1), (3, 64), (70, 128), (9, 2048), (5, 5001)] {
        let x = random.normals(rows * cols);
        let weight = random.normals(cols);
        let at = rig.floats(&x);
        rig.run(Command::RmsNorm(RmsNorm { x: at, weight: rig.floats(&weight), eps: 1e-5, rows, cols, out: at }));
        let mut want = Vec::new();
        for row in x.chunks_exact(cols) {
            let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / cols as f64;
            want.extend(row.iter().zip(&weight).map(|(v, w)| f64::from(*v) * f64::from(*w) / (mean + 1e-5).sqrt()));
        }
        near("norm", error(&rig.read(&at), &want), 2e-7);
    }
}

#[test]
fn ropes() {
    let Some(rig) = rig() else { return };
    let mut random = Random::new(31);
    for kind in [RopeKind::Normal, RopeKind::Neox] {
        for (rows, heads, head_dim, rotated, first) in
            [(3, 2, 64, 64, 0), (40, 5, 128, 128, 30_000), (7, 1, 256, 64, 131_000)]
        {
            let x = random.normals(rows * heads * head_dim);
            let frequencies: Vec<f32> =
                (0..rotated / 2).map(|j| 1e6_f64.powf(-2.0 * j as f64 / rotated as f64) as f32).collect();
            let magnitude = if rows == 7 { 1.25 } else { 1.0 };
            let rope = Rope { kind, rotated, frequencies: frequencies.clone().into(), magnitude };
            let at = rig.floats(&x);
            rig.run(Command::Rotate(Rotate { x: at, rows, heads, head_dim, first, rope }));
            let mut want: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
            for (i, head) in want.chunks_exact_mut(head_dim).enumerate() {
                let position = (first + i / heads) as f32;
                for (j, frequency) in frequencies.iter().enumerate() {
                    let (a, b) = match kind {
                        RopeKind::Normal => (2 * j, 2 * j + 1),
                        RopeKind::Neox => (j, j + rotated / 2),
                    };
                    let (s, c) = f64::from(position * frequency).sin_cos();
                    let (s, c) = (s * f64::from(magnitude), c * f64::from(magnitude));
                    (head[a], head[b]) = (head[a] * c - head[b] * s, head[a] * s + head[b] * c);
                }
            }
            near("rope", error(&rig.read(&at), &want), 1.2e-7);
        }
    }
}

#[test]
fn gates() {
    let Some(rig) = rig() else { return };
    let mut random = Random::new(32);
    let n = 10_007;
    let (gate, up) = (random.normals(n), random.normals(n));
    let at = rig.floats(&gate);
    rig.run(Command::GatedActivation(GatedActivation {
        gate: at,
        up: rig.floats(&up),
        elements: n,
        activation: Activation::Silu,
        out: at,
    }));
    let want: Vec<f64> =
        gate.iter().zip(&up).map(|(g, u)| f64::from(*g) / (1.0 + (-f64::from(*g)).exp()) * f64::from(*u)).collect();
    near("gate", error(&rig.read(&at), &want), 1.4e-7);
}

#[test]
fn stored_cells_are_as_the_layout_says() {
    let Some(rig) = rig() else { return };
    let mut random = Random::new(33);
    let (count, shape) = (37, shape(6, 3, 64));
    for kind in [KvType::F32, KvType::F16, KvType::Int8] {
        let layout = CellLayout::new(kind, &shape);
        let mut k = random.normals(count * 3 * 64);
        k[..64].fill(0.0);
        let v = random.normals(count * 3 * 64);
        let at = rig.upload(&vec![0; count * layout.cell_bytes()]);
        let cells = Cells { at, first: 5, count };
        rig.run(Command::StoreKv(StoreKv { k: rig.floats(&k), v: rig.floats(&v), layout, cells }));
        let mut want = vec![0_u8; count * layout.cell_bytes()];
        for (i, cell) in want.chunks_exact_mut(layout.cell_bytes()).enumerate() {
            for (part, from) in [&k, &v].into_iter().enumerate() {
                for head in 0..3 {
                    let from = &from[(i * 3 + head) * 64..][..64];
                    let at = part * layout.value_offset() + head * 64 * kind.bytes();
                    let largest = from.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
                    let scale = largest / 127.0;
                    for (j, x) in from.iter().enumerate() {
                        match kind {
                            KvType::F32 => cell[at + 4 * j..][..4].copy_from_slice(&x.to_le_bytes()),
                            KvType::F16 => {
                                cell[at + 2 * j..][..2].copy_from_slice(&half::f16::from_f32(*x).to_le_bytes())
                            }
                            KvType::Int8 => {
                                cell[at + j] = if scale > 0.0 { (x / scale).round() as i8 } else { 0 }.cast_unsigned()
                            }
                        }
                    }
                    if kind == KvType::Int8 {
                        cell[layout.scales_offset() + (part * 3 + head) * 4..][..4]
                            .copy_from_slice(&scale.to_le_bytes());
                    }
                }
            }
        }
        assert_eq!(rig.download(&at), want, "{kind:?}");
    }
}

#[test]
fn what_is_not_finite_shows_in_byte_cells_and_norms() {
    let Some(rig) = rig() else { return };
    let (count, shape) = (4, shape(4, 2, 64));
    let layout = CellLayout::new(KvType::Int8, &shape);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut random = Random::new(34);
        let mut k = random.normals(count * 2 * 64);
        let mut v = k.clone();
        // Cell 1, head 1 of K; cell 2, head 0 of V.
        (k[(2 + 1) * 64 + 63], v[2 * 2 * 64]) = (bad, bad);
        let at = rig.upload(&vec![0; count * layout.cell_bytes()]);
        let cells = Cells { at, first: 0, count };
        rig.run(Command::StoreKv(StoreKv { k: rig.floats(&k), v: rig.floats(&v), layout, cells }));
        let found = rig.download(&at);
        for (cell, bytes) in found.chunks_exact(layout.cell_bytes()).enumerate() {
            let scales: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes[layout.scales_offset()..][..16]);
            for (at, scale) in scales.iter().enumerate() {
                assert_eq!(scale.is_nan(), (cell, at) == (1, 1) || (cell, at) == (2, 2), "{bad}: {cell} {at} {scale}");
            }
        }
    }
    // Squares that overflow, in both kernels.
    for cols in [64, 2048] {
        let mut x = vec![1.0; 2 * cols];
        x[3] = 1e30;
        let (at, out) = (rig.floats(&x), rig.space(2 * cols * 4));
        let weight = rig.floats(&vec![1.0; cols]);
        rig.run(Command::RmsNorm(RmsNorm { x: at, weight, eps: 1e-5, rows: 2, cols, out }));
        let found = rig.read(&out);
        assert!(found[..cols].iter().all(|x| x.is_nan()) && found[cols..].iter().all(|x| x.is_finite()), "{cols}");
    }
}
