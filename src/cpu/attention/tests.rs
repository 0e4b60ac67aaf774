use super::*;
use crate::cpu::sample;
use crate::ops::KvType;

/// A case: shape, cells, queries.
struct Case {
    shape: AttentionShape,
    layout: CellLayout,
    cells: Vec<u8>,
    /// K and V of every cell, as the cache holds them: `[count, kv_heads * dim]`.
    kept: [Vec<f64>; 2],
    q: Vec<f32>,
    rows: usize,
    first: usize,
}

fn case(seed: u64, kind: KvType, sizes: [usize; 4], first: usize, rows: usize) -> Case {
    let [heads, kv_heads, head_dim, value_dim] = sizes;
    let shape = AttentionShape { heads, kv_heads, head_dim, value_dim, scale: (head_dim as f32).powf(-0.5) };
    let layout = CellLayout::new(kind, &shape);
    let count = first + rows;
    let grow = |x: Vec<f32>| x.into_iter().map(|x| x * 3.0).collect::<Vec<f32>>();
    let k = grow(sample::floats(seed, count * kv_heads * head_dim));
    let v = grow(sample::floats(seed + 1, count * kv_heads * value_dim));
    let mut cells = vec![0xAA; count * layout.cell_bytes()];
    store_kv(&Team::new(2).unwrap(), &layout, &k, &v, &mut cells);
    let q = grow(sample::floats(seed + 2, rows * heads * head_dim));
    Case { shape, layout, cells, kept: [kept(kind, &k, head_dim), kept(kind, &v, value_dim)], q, rows, first }
}

/// What a cache of this type keeps of the values, by its definition.
fn kept(kind: KvType, x: &[f32], dim: usize) -> Vec<f64> {
    let one = |head: &[f32], x: f32| match kind {
        KvType::F32 => f64::from(x),
        KvType::F16 => half::f16::from_f32(x).to_f64(),
        KvType::Int8 => {
            let scale = head.iter().fold(0.0f32, |a, x| a.max(x.abs())) / 127.0;
            f64::from((x / scale).round() * scale)
        }
    };
    x.chunks(dim).flat_map(|head| head.iter().map(move |x| one(head, *x))).collect()
}

impl Case {
    fn queries(&self, rows: Range<usize>) -> Queries<'_> {
        let row = self.shape.heads * self.shape.head_dim;
        Queries {
            q: &self.q[rows.start * row..rows.end * row],
            rows: rows.len(),
            first: self.first + rows.start,
            shape: self.shape,
            layout: self.layout,
        }
    }

    /// Cells `from..to`, cut at `edges`.
    fn slices(&self, from: usize, to: usize, edges: &[usize]) -> Vec<CellSlice<'_>> {
        let cell = self.layout.cell_bytes();
        let mut ends: Vec<usize> = edges.iter().copied().filter(|edge| (from + 1..to).contains(edge)).collect();
        ends.push(to);
        let mut first = from;
        ends.into_iter()
            .map(|end| {
                let slice = CellSlice { bytes: &self.cells[first * cell..end * cell], first, count: end - first };
                first = end;
                slice
            })
            .collect()
    }

    fn out_len(&self) -> usize {
        self.rows * self.shape.heads * self.shape.value_dim
    }

    fn attend(&self, team: &Team) -> Vec<f32> {
        let queries = self.queries(0..self.rows);
        let (mut state, mut out) = (vec![f32::NAN; queries.state_len()], vec![0.0; self.out_len()]);
        attend(team, &queries, &self.slices(0, self.first + self.rows, &[]), &mut state, false, Some(&mut out));
        out
    }

    fn reference(&self) -> Vec<f64> {
        let AttentionShape { heads, kv_heads, head_dim, value_dim, scale } = self.shape;
        let mut out = Vec::new();
        for row in 0..self.rows {
            for head in 0..heads {
                let kv = head / (heads / kv_heads);
                let q = &self.q[(row * heads + head) * head_dim..][..head_dim];
                let scores: Vec<f64> = (0..=self.first + row)
                    .map(|cell| {
                        let k = &self.kept[0][(cell * kv_heads + kv) * head_dim..][..head_dim];
                        q.iter().zip(k).map(|(q, k)| f64::from(*q) * k).sum::<f64>() * f64::from(scale)
                    })
                    .collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for d in 0..value_dim {
                    let value = |cell: usize| self.kept[1][(cell * kv_heads + kv) * value_dim + d];
                    out.push(weights.iter().enumerate().map(|(cell, w)| w * value(cell)).sum::<f64>() / sum);
                }
            }
        }
        out
    }
}

const SIZES: [[usize; 4]; 7] =
    [[9, 3, 64, 64], [8, 1, 32, 32], [4, 4, 16, 24], [14, 2, 20, 12], [5, 1, 8, 8], [4, 2, 128, 128], [6, 2, 4, 3]];

#[test]
fn results_are_those_of_the_definition() {
    let team = Team::new(2).unwrap();
    for (index, sizes) in SIZES.into_iter().enumerate() {
        for kind in [KvType::F32, KvType::F16, KvType::Int8] {
            for (first, rows) in [(0, 1), (0, 7), (63, 2), (100, 70), (200, 1), (383, 1)] {
                let case = case(index as u64 * 10, kind, sizes, first, rows);
                for (at, (found, wanted)) in case.attend(&team).iter().zip(case.reference()).enumerate() {
                    let error = (f64::from(*found) - wanted).abs();
                    assert!(
                        error < 5e-6,
                        "{sizes:?} {kind:?} {rows} rows at {first}, element {at}: {found}, not {wanted}"
                    );
                }
            }
        }
    }
}

#[test]
fn workers_rows_slices_and_resume_points_change_nothing() {
    let mut counts = [0; 4];
    for (index, sizes) in SIZES.into_iter().enumerate() {
        for kind in [KvType::F32, KvType::F16, KvType::Int8] {
            for (first, rows) in [(0, 130), (250, 3), (190, 70), (700, 1)] {
                let case = case(index as u64 * 7 + 100, kind, sizes, first, rows);
                let wanted = case.attend(&Team::new(1).unwrap());
                for workers in [2, 3] {
                    sample::assert_same(&case.attend(&Team::new(workers).unwrap()), &wanted);
                    counts[0] += 1;
                }
                let team = Team::new(3).unwrap();
                // Row by row, as decode does.
                let row_out = case.shape.heads * case.shape.value_dim;
                for row in (0..rows).step_by(rows.div_ceil(8)) {
                    let queries = case.queries(row..row + 1);
                    let (mut state, mut out) = (vec![0.0; queries.state_len()], vec![0.0; row_out]);
                    let cells = case.slices(0, first + row + 1, &[64, 256]);
                    attend(&team, &queries, &cells, &mut state, false, Some(&mut out));
                    sample::assert_same(&out, &wanted[row * row_out..][..row_out]);
                    counts[1] += 1;
                }
                // In two steps, the second resuming, each in slices.
                let queries = case.queries(0..rows);
                let end = first + rows;
                for cut in (64..end).step_by(64).step_by(3) {
                    let (mut state, mut out) = (vec![f32::NAN; queries.state_len()], vec![0.0; case.out_len()]);
                    attend(&team, &queries, &case.slices(0, cut, &[64]), &mut state, false, None);
                    let rest = case.slices(cut, end, &[cut + 64, cut + 128]);
                    attend(&team, &queries, &rest, &mut state, true, Some(&mut out));
                    sample::assert_same(&out, &wanted);
                    counts[2] += 1;
                    // The later cells as partials, merged afterwards, as the host pool gives them.
                    attend(&team, &queries, &case.slices(0, cut, &[]), &mut state, false, None);
                    let mut found = vec![f32::NAN; (end - cut).div_ceil(ATTENTION_TILE) * queries.state_len()];
                    partials(&team, &queries, &case.slices(cut, end, &[]), &mut found);
                    merge(&team, &queries, &found, &mut state);
                    finish(&team, &queries, &state, &mut out);
                    sample::assert_same(&out, &wanted);
                    counts[3] += 1;
                }
            }
        }
    }
    println!(
        "worker counts {}, rows alone {}, resumed {}, merged from partials {}",
        counts[0], counts[1], counts[2], counts[3]
    );
    assert!(counts.iter().all(|count| *count > 0));
}

#[test]
fn later_cells_do_not_matter() {
    for kind in [KvType::F32, KvType::F16] {
        let mut case = case(3, kind, [6, 2, 32, 32], 40, 100);
        let team = Team::new(2).unwrap();
        let wanted = case.attend(&team);
        // What comes after the first 50 positions becomes not a number.
        let cell = case.layout.cell_bytes();
        case.cells[50 * cell..].fill(0xFF);
        let found = case.attend(&team);
        let row = case.shape.heads * case.shape.value_dim;
        sample::assert_same(&found[..10 * row], &wanted[..10 * row]);
        assert!(found[10 * row..].iter().all(|x| x.is_nan()));
    }
}

#[test]
fn both_builds_give_the_same_bits() {
    sample::both_builds(|isa, seed| {
        let kind = [KvType::F32, KvType::F16, KvType::Int8][seed as usize % 3];
        let case = case(seed, kind, SIZES[seed as usize % SIZES.len()], seed as usize % 90, 1 + seed as usize % 5);
        let queries = case.queries(0..case.rows);
        let cells = case.slices(0, case.first + case.rows, &[]);
        let tiles = tiles(&case.layout, &cells);
        let mut found = vec![0.0; tiles.len() * queries.state_len()];
        let out = Disjoint::new(&mut found);
        for kv_head in 0..case.shape.kv_heads {
            let to = To::Partials { out: &out, first: 0 };
            isa.run(Part { queries: &queries, tiles: &tiles, rows: 0..case.rows, kv_heads: kv_head..kv_head + 1, to });
        }
        let mut state = vec![0.0; queries.state_len()];
        let (tile, stride) = (state.len(), queries.state_stride());
        state.chunks_exact_mut(stride).for_each(state::set_up);
        isa.run(Merge { partials: &found, first: 0, tile, stride, states: &mut state });
        let mut out = vec![0.0; case.out_len()];
        isa.run(Finish { states: &state, stride, out: &mut out, dim: case.shape.value_dim });
        found.extend(state);
        found.extend(out);
        found
    });
}

#[test]
fn cells_are_written_alike_in_both_builds() {
    let before = case(1, KvType::F16, [2, 2, 20, 12], 0, 300).cells;
    assert!(!before.is_empty());
    sample::both_builds(|isa, seed| {
        let kind = [KvType::F32, KvType::F16, KvType::Int8][seed as usize % 3];
        let layout = CellLayout { kind, kv_heads: 3, head_dim: 1 + seed as usize % 70, value_dim: 12 };
        let k: Vec<f32> = sample::floats(seed, 3 * layout.head_dim).iter().map(|x| x * 1e5).collect();
        let v = sample::floats(seed + 1, 3 * layout.value_dim);
        let mut cell = vec![0xAA; layout.cell_bytes()];
        isa.run(store::Cell { layout: &layout, k: &k, v: &v, cell: &mut cell });
        cell.into_iter().map(f32::from).collect()
    });
}

#[test]
fn what_is_not_finite_shows_in_cells_of_every_type() {
    let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 20, value_dim: 20, scale: 0.25 };
    let count = 70;
    let mut runs = 0;
    for kind in [KvType::F32, KvType::F16, KvType::Int8] {
        let layout = CellLayout::new(kind, &shape);
        let dims = shape.kv_heads * shape.head_dim;
        let clean = [sample::floats(1, count * dims), sample::floats(2, count * dims)];
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            // Of the first head, in whole vectors and behind them; a cell of the first tile and one of the last.
            for (part, cell, element) in (0..2).flat_map(|part| [(part, 3, 5), (part, 3, 19), (part, 66, 0)]) {
                let mut kv = clean.clone();
                kv[part][cell * dims + element] = bad;
                for team in [Team::new(1).unwrap(), Team::new(3).unwrap()] {
                    let mut cells = vec![0; count * layout.cell_bytes()];
                    store_kv(&team, &layout, &kv[0], &kv[1], &mut cells);
                    for rows in [1, 40] {
                        let q = sample::floats(3, rows * shape.heads * shape.head_dim);
                        let queries = Queries { q: &q, rows, first: count - rows, shape, layout };
                        let mut state = vec![0.0; queries.state_len()];
                        let mut out = vec![0.0; rows * shape.heads * shape.value_dim];
                        let slice = CellSlice { bytes: &cells, first: 0, count };
                        attend(&team, &queries, &[slice], &mut state, false, Some(&mut out));
                        let last = &out[(rows - 1) * shape.heads * shape.value_dim..];
                        let (hit, other) = last.split_at(2 * shape.value_dim);
                        let what =
                            format!("{kind:?} {bad} in part {part}, cell {cell}, element {element}, {rows} rows");
                        for head in hit.chunks(shape.value_dim) {
                            assert!(head.iter().any(|x| !x.is_finite()), "{what}");
                        }
                        assert!(other.iter().all(|x| x.is_finite()), "{what}: the other heads too");
                        runs += 1;
                    }
                }
            }
        }
    }
    assert_eq!(runs, 3 * 3 * 6 * 2 * 2);
}
