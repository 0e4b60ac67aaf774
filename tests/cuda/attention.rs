//! Attention in both phases over cells of every type.

use aqueduct::card::command::{Attend, AttentionEnd, Cells, Command, CopyOut, Phase, StoreKv};
use aqueduct::card::{Card, CardKind, HostMemory, HostSpan, Span, Stream};
use aqueduct::ops::{AttentionShape, CellLayout, KvType};

use crate::rig::{Random, Rig, bits, error, rig, shape};
use crate::support::near;

/// K and V of a layer's cells as they are stored, in f64: `[cell][k or v][head][element]`.
fn stored(layout: &CellLayout, bytes: &[u8], cell: usize, value: bool, head: usize) -> Vec<f64> {
    let cell = &bytes[cell * layout.cell_bytes()..][..layout.cell_bytes()];
    let (dim, offset) = if value { (layout.value_dim, layout.value_offset()) } else { (layout.head_dim, 0) };
    let at = offset + head * dim * layout.kind.bytes();
    let float = |at: usize| f32::from_le_bytes(cell[at..at + 4].try_into().unwrap());
    match layout.kind {
        KvType::F32 => (0..dim).map(|i| f64::from(float(at + 4 * i))).collect(),
        KvType::F16 => (0..dim)
            .map(|i| f64::from(half::f16::from_le_bytes([cell[at + 2 * i], cell[at + 2 * i + 1]]).to_f32()))
            .collect(),
        KvType::Int8 => {
            let scale = f64::from(float(layout.scales_offset() + (usize::from(value) * layout.kv_heads + head) * 4));
            (0..dim).map(|i| f64::from(cell[at + i].cast_signed()) * scale).collect()
        }
    }
}

struct Case<'a> {
    rig: &'a Rig,
    shape: AttentionShape,
    layout: CellLayout,
    cells: Span,
    q: Span,
}

impl Case<'_> {
    fn cells(&self, first: usize, count: usize) -> Cells {
        let bytes = self.layout.cell_bytes();
        Cells { at: self.cells.part(first * bytes, count * bytes), first, count }
    }

    /// Rows `from..to` of the queries, the first of them at `position`, over these pieces of the cells, with a new
    /// command at `cuts`.
    fn run(
        &self,
        phase: Phase,
        rows: std::ops::Range<usize>,
        position: usize,
        commands: &[&[(usize, usize)]],
    ) -> Vec<f32> {
        let AttentionShape { heads, head_dim, value_dim, .. } = self.shape;
        let n = rows.len();
        let state = self.rig.poisoned(n * heads * (2 + value_dim) * 4);
        let out = self.rig.poisoned(n * heads * value_dim * 4);
        let work = self.rig.poisoned(Attend::scratch_bytes(CardKind::Cuda, phase, n, &self.shape));
        for (i, pieces) in commands.iter().enumerate() {
            let last = i + 1 == commands.len();
            self.rig.run(Command::Attend(Attend {
                q: self.q.rows(rows.clone(), heads * head_dim * 4),
                rows: n,
                first: position,
                shape: self.shape,
                layout: self.layout,
                cells: pieces.iter().map(|(first, count)| self.cells(*first, *count)).collect(),
                host_cells: None,
                state,
                resume: i > 0,
                end: if last { AttentionEnd::Finish(out) } else { AttentionEnd::Keep },
                phase,
                scratch: work,
            }));
        }
        self.rig.read(&out)
    }
}

#[test]
fn attention_is_near_the_exact_one_however_its_cells_come() {
    let Some(rig) = rig() else { return };
    let mut random = Random::new(20);
    let shapes = [
        shape(8, 2, 64),
        shape(10, 1, 128),
        shape(4, 4, 256),
        shape(6, 2, 80),
        AttentionShape { value_dim: 40, ..shape(3, 3, 48) },
    ];
    for kind in [KvType::F32, KvType::F16, KvType::Int8] {
        for shape in shapes {
            let AttentionShape { heads, kv_heads, head_dim, value_dim, scale } = shape;
            let (total, rows, first) = (700, 300, 400);
            let layout = CellLayout::new(kind, &shape);
            let cells = rig.poisoned(total * layout.cell_bytes());
            let k = rig.floats(&random.normals(total * kv_heads * head_dim));
            let v = rig.floats(&random.normals(total * kv_heads * value_dim));
            rig.run(Command::StoreKv(StoreKv { k, v, layout, cells: Cells { at: cells, first: 0, count: total } }));
            let bytes = rig.download(&cells);
            let q = random.normals(rows * heads * head_dim);
            let case = Case { rig, shape, layout, cells, q: rig.floats(&q) };

            let probes = [0, 1, 63, 64, 170, rows - 1];
            let mut want = Vec::new();
            for row in probes {
                for head in 0..heads {
                    let kv_head = head / (heads / kv_heads);
                    let q = &q[(row * heads + head) * head_dim..][..head_dim];
                    let scores: Vec<f64> = (0..=first + row)
                        .map(|cell| {
                            let k = stored(&layout, &bytes, cell, false, kv_head);
                            k.iter().zip(q).map(|(k, q)| k * f64::from(*q)).sum::<f64>() * f64::from(scale)
                        })
                        .collect();
                    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let all: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
                    let mut out = vec![0.0; value_dim];
                    for (cell, score) in scores.iter().enumerate() {
                        let p = (score - largest).exp() / all;
                        let v = stored(&layout, &bytes, cell, true, kv_head);
                        out.iter_mut().zip(v).for_each(|(o, v)| *o += p * v);
                    }
                    want.extend(out);
                }
            }
            let each = heads * value_dim;
            let pick = |all: &[f32]| -> Vec<f32> {
                probes.iter().flat_map(|r| all[r * each..(r + 1) * each].to_vec()).collect()
            };

            let prompt = case.run(Phase::Prompt, 0..rows, first, &[&[(0, total)]]);
            let off = error(&pick(&prompt), &want);
            let tensor = kind != KvType::F32 && matches!(head_dim, 64 | 128 | 256);
            let what = if tensor { "tensor cores" } else { "general" };
            near(&format!("attention, prompt, {what}, {kind:?} cells"), off, if tensor { 9e-4 } else { 1.7e-6 });
            let pieces: [&[(usize, usize)]; 3] = [&[(0, 128), (128, 64)], &[(192, 320)], &[(512, 64), (576, 124)]];
            assert_eq!(
                bits(&case.run(Phase::Prompt, 0..rows, first, &pieces)),
                bits(&prompt),
                "{kind:?} {shape:?} in pieces"
            );
            for part in [0..1, 5..70, 130..300] {
                let alone = case.run(Phase::Prompt, part.clone(), first + part.start, &[&[(0, 256), (256, 444)]]);
                assert_eq!(
                    bits(&alone),
                    bits(&prompt[part.start * each..part.end * each]),
                    "{kind:?} {shape:?} {part:?}"
                );
            }
            for _ in 0..3 {
                assert_eq!(bits(&case.run(Phase::Prompt, 0..rows, first, &[&[(0, total)]])), bits(&prompt));
            }

            let decode = case.run(Phase::Decode, 0..rows, first, &[&[(0, total)]]);
            let decode_off = error(&pick(&decode), &want);
            near(&format!("attention, decode, {what}, {kind:?} cells"), decode_off, if tensor { 9e-4 } else { 1.7e-6 });
            let again = case.run(Phase::Decode, 0..rows, first, &pieces);
            assert_eq!(bits(&again), bits(&decode), "{kind:?} {shape:?} in pieces");
            let alone = case.run(Phase::Decode, 77..78, first + 77, &[&[(0, first + 78)]]);
            assert_eq!(bits(&alone), bits(&decode[77 * each..78 * each]));
            println!("{kind:?} {heads}/{kv_heads} x {head_dim}: prompt {off:.1e} decode {decode_off:.1e}");
        }
    }
}

#[test]
fn cells_that_come_over_the_link_give_the_bits_of_those_on_the_card() {
    let Some(rig) = rig() else { return };
    let mut random = Random::new(22);
    // Cells whose heads begin at lines or between them; groups of heads in one part or more; the general kernels.
    for (shape, total) in [
        (shape(8, 1, 128), 20_000),
        (shape(32, 4, 128), 3_000),
        (shape(40, 2, 64), 1_000),
        (shape(6, 2, 80), 1_000),
        (AttentionShape { value_dim: 40, ..shape(3, 3, 48) }, 1_000),
    ] {
        for kind in [KvType::F32, KvType::F16, KvType::Int8] {
            let AttentionShape { heads, kv_heads, head_dim, value_dim, .. } = shape;
            let layout = CellLayout::new(kind, &shape);
            let bytes = layout.cell_bytes();
            let cells = rig.space(total * bytes);
            let (k, v) = (random.normals(total * kv_heads * head_dim), random.normals(total * kv_heads * value_dim));
            let (k, v) = (rig.floats(&k), rig.floats(&v));
            rig.run(Command::StoreKv(StoreKv { k, v, layout, cells: Cells { at: cells, first: 0, count: total } }));
            let q = rig.floats(&random.normals(heads * head_dim));
            let case = Case { rig, shape, layout, cells, q };
            let wanted = case.run(Phase::Decode, 0..1, total - 1, &[&[(0, total)]]);

            // As a stage keeps them: written on the stream, and read on it.
            let host = rig.memory.alloc(total * bytes, "host cells").unwrap();
            assert!(host.is_locked());
            rig.run(Command::CopyOut(CopyOut { from: cells, to: host.whole() }));
            let state = rig.poisoned(heads * (2 + value_dim) * 4);
            let out = rig.poisoned(heads * value_dim * 4);
            let least = Attend::scratch_bytes(CardKind::Cuda, Phase::Decode, 1, &shape);
            for (on_card, work) in [(0, least), (64, least), (640, least + 3_000_000), (total / 64 * 64, least)] {
                let at = host.span(on_card * bytes, (total - on_card) * bytes).unwrap();
                let work = rig.poisoned(work);
                let command = |memory: &HostSpan| {
                    Command::Attend(Attend {
                        q,
                        rows: 1,
                        first: total - 1,
                        shape,
                        layout,
                        cells: if on_card > 0 { vec![case.cells(0, on_card)] } else { Vec::new() },
                        host_cells: Some(Cells { at: memory.clone(), first: on_card, count: total - on_card }),
                        state,
                        resume: false,
                        end: AttentionEnd::Finish(out),
                        phase: Phase::Decode,
                        scratch: work,
                    })
                };
                rig.run(command(&at));
                let found = rig.read(&out);
                assert_eq!(bits(&found), bits(&wanted), "{kind:?} {shape:?} with {on_card} of {total} on the card");
                let pageable = HostMemory::default().alloc(at.bytes(), "pageable cells").unwrap();
                let refused = rig.card.submit(Stream::Compute, command(&pageable.whole())).unwrap_err().to_string();
                assert!(refused.contains("`pageable cells`") && refused.contains("not page-locked"), "{refused}");
            }
        }
    }
}

#[test]
fn long_contexts_are_merged_in_passes_of_one_order() {
    let Some(rig) = rig() else { return };
    let mut random = Random::new(21);
    let shape = shape(2, 1, 64);
    for kind in [KvType::F32, KvType::Int8] {
        // More tiles than the work memory of a row holds.
        let total = 20_000;
        let layout = CellLayout::new(kind, &shape);
        let cells = rig.poisoned(total * layout.cell_bytes());
        let k = rig.floats(&random.normals(total * 64));
        rig.run(Command::StoreKv(StoreKv { k, v: k, layout, cells: Cells { at: cells, first: 0, count: total } }));
        let case = Case { rig, shape, layout, cells, q: rig.floats(&random.normals(2 * 64)) };
        let whole = case.run(Phase::Decode, 0..1, total - 1, &[&[(0, total)]]);
        let pieces = case.run(Phase::Decode, 0..1, total - 1, &[&[(0, 8192)], &[(8192, 64)], &[(8256, total - 8256)]]);
        assert_eq!(bits(&whole), bits(&pieces), "{kind:?}");
    }
}
