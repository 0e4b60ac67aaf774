//! Causal attention over KV cells, tile by tile.
//!
//! Each tile of [`ATTENTION_TILE`] cells, cut at absolute cell numbers, gives a query its own maximum, sum and weighted
//! values ([`partials`]); they are merged into the running state in ascending order ([`merge`]). [`attend`] does both.
//! What a query gets depends on its cells alone: not on the rows beside it, the slices, the workers, or where a state
//! was resumed.
#![allow(unsafe_code)]

mod cells;
mod product;
mod state;
mod store;
mod tile;

use std::cell::RefCell;
use std::ops::Range;

use super::simd::{Kernel, LANES, Lanes};
use super::{Disjoint, Isa, Team};
use crate::ops::{ATTENTION_TILE, AttentionShape, CellLayout};
pub use cells::CellSlice;
use cells::{Tile, Widened, tiles, value_stride};
use state::HEAD;
pub use store::store_kv;
use tile::{MANY, Partial, Query, partial};

/// The queries of an attention layer.
#[derive(Clone, Copy, Debug)]
pub struct Queries<'a> {
    /// f32 `[rows, heads * head_dim]`.
    pub q: &'a [f32],
    /// Queries.
    pub rows: usize,
    /// Position of query 0; it sees cells `0..=first`.
    pub first: usize,
    /// Heads and sizes.
    pub shape: AttentionShape,
    /// Layout of a cell.
    pub layout: CellLayout,
}

/// Rows of a part at most: they share one widening of each tile.
const ROWS: usize = 128;
/// Rows of a part at least, where there are as many.
const FEW_ROWS: usize = 16;
/// Tiles of a worker from which on it takes all heads of each.
const TILES: usize = 4;
/// Floats of partials that are kept at a time.
const KEPT: usize = 1 << 18;

impl Queries<'_> {
    /// Floats of the state of one query and head: maximum, sum, weighted values.
    pub const fn state_stride(&self) -> usize {
        HEAD + self.shape.value_dim
    }

    /// Floats of the state of all queries, and of the partials of one tile: `[rows, heads, 2 + value_dim]`.
    pub const fn state_len(&self) -> usize {
        self.rows * self.shape.heads * self.state_stride()
    }

    fn check(&self) {
        let Self { shape, layout, .. } = self;
        assert!(
            shape.kv_heads > 0 && shape.heads.is_multiple_of(shape.kv_heads),
            "attention: {} heads share {} kv heads",
            shape.heads,
            shape.kv_heads
        );
        assert_eq!(*layout, CellLayout::new(layout.kind, shape), "attention: cells of another shape");
        assert_eq!(self.q.len(), self.rows * shape.heads * shape.head_dim, "attention: {} queries", self.rows);
    }

    /// How many cells of a tile query `row` sees.
    fn seen(&self, row: usize, tile: &Tile<'_>) -> usize {
        (self.first + row + 1).saturating_sub(tile.first).min(tile.count)
    }

    /// Work of these cells, in scalar operations.
    fn operations(&self, cells: usize) -> usize {
        (self.rows * self.shape.heads * cells).saturating_mul(self.shape.head_dim + self.shape.value_dim)
    }
}

/// Attends to `cells`: ascending and consecutive, every slice but the last ending at a tile's edge. `state` is f32
/// `[rows, heads, 2 + value_dim]`; with `resume` it holds earlier cells, else it is set up. With `out` (f32
/// `[rows, heads * value_dim]`) the result is written.
///
/// # Panics
/// When sizes do not fit together.
pub fn attend(
    team: &Team,
    queries: &Queries<'_>,
    cells: &[CellSlice<'_>],
    state: &mut [f32],
    resume: bool,
    out: Option<&mut [f32]>,
) {
    queries.check();
    assert_eq!(state.len(), queries.state_len(), "attention: state of {} rows", queries.rows);
    if queries.rows == 0 {
        return;
    }
    if !resume {
        set_up(queries, state);
    }
    let tiles = tiles(&queries.layout, cells);
    let kv_heads = queries.shape.kv_heads;
    let rows = (queries.rows * kv_heads / (team.workers() * 8)).clamp(FEW_ROWS, ROWS);
    let blocks = queries.rows.div_ceil(rows);
    if blocks * kv_heads >= 2 * team.workers() || tiles.len() < 2 {
        let disjoint = Disjoint::new(state);
        let cells = tiles.len() * ATTENTION_TILE;
        team.run_sized(queries.operations(cells), blocks * kv_heads, |part| {
            // The last rows see the most: they come first.
            let (kv_head, index) = (part % kv_heads, blocks - 1 - part / kv_heads);
            let rows = index * rows..queries.rows.min((index + 1) * rows);
            Isa::best().run(Part {
                queries,
                tiles: &tiles,
                rows,
                kv_heads: kv_head..kv_head + 1,
                to: To::State(&disjoint),
            });
        });
    } else {
        attend_in_pieces(team, queries, &tiles, state);
    }
    if let Some(out) = out {
        finish(team, queries, state, out);
    }
}

/// Few queries: the work is cut along the cells too.
fn attend_in_pieces(team: &Team, queries: &Queries<'_>, tiles: &[Tile<'_>], state: &mut [f32]) {
    thread_local! {
        static PARTIALS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    }
    let at_once = (KEPT / queries.state_len()).max(4 * team.workers());
    PARTIALS.with_borrow_mut(|kept| {
        for tiles in tiles.chunks(at_once) {
            let length = tiles.len() * queries.state_len();
            kept.resize(length.max(kept.len()), 0.0);
            partials_of(team, queries, tiles, &mut kept[..length]);
            merge(team, queries, &kept[..length], state);
        }
    });
}

/// The partials of each tile of `cells`: f32 `[tiles, rows, heads, 2 + value_dim]`, maximum, sum and weighted values. A
/// query that sees none of a tile's cells gets the sum 0.
///
/// # Panics
/// When sizes do not fit together.
pub fn partials(team: &Team, queries: &Queries<'_>, cells: &[CellSlice<'_>], out: &mut [f32]) {
    queries.check();
    partials_of(team, queries, &tiles(&queries.layout, cells), out);
}

fn partials_of(team: &Team, queries: &Queries<'_>, tiles: &[Tile<'_>], out: &mut [f32]) {
    assert_eq!(out.len(), tiles.len() * queries.state_len(), "attention: partials of {} tiles", tiles.len());
    let kv_heads = queries.shape.kv_heads;
    // All heads of a tile together, so that its memory passes once; a head for itself where there are not enough tiles
    // for all workers.
    let together = if tiles.len() >= TILES * team.workers() { kv_heads } else { 1 };
    let splits = kv_heads / together;
    let each = team.share(tiles.len() * splits, 2 * TILES);
    let pieces = tiles.len().div_ceil(each);
    let out = Disjoint::new(out);
    team.run_sized(queries.operations(tiles.len() * ATTENTION_TILE), pieces * splits, |part| {
        let (first, head) = (part / splits * each, part % splits * together);
        let tiles = &tiles[first..tiles.len().min(first + each)];
        let (rows, kv_heads) = (0..queries.rows, head..head + together);
        Isa::best().run(Part { queries, tiles, rows, kv_heads, to: To::Partials { out: &out, first } });
    });
}

/// Makes the state of queries that have seen no cell.
///
/// # Panics
/// When sizes do not fit together.
pub fn set_up(queries: &Queries<'_>, state: &mut [f32]) {
    assert_eq!(state.len(), queries.state_len(), "attention: state of {} rows", queries.rows);
    state.chunks_exact_mut(queries.state_stride()).for_each(state::set_up);
}

/// Merges partials of consecutive tiles, as [`partials`] gives them, into a state, in ascending order.
///
/// # Panics
/// When sizes do not fit together.
pub fn merge(team: &Team, queries: &Queries<'_>, partials: &[f32], state: &mut [f32]) {
    let (tile, stride) = (queries.state_len(), queries.state_stride());
    assert_eq!(state.len(), tile, "attention: state of {} rows", queries.rows);
    assert!(tile > 0 && partials.len().is_multiple_of(tile), "attention: {} floats of partials", partials.len());
    let each = team.share(queries.rows * queries.shape.heads, 2);
    team.for_chunks(partials.len() * 2, state, each * stride, |index, states| {
        Isa::best().run(Merge { partials, first: index * each * stride, tile, stride, states });
    });
}

/// Writes the results of states that have seen all their cells.
///
/// # Panics
/// When sizes do not fit together.
pub fn finish(team: &Team, queries: &Queries<'_>, state: &[f32], out: &mut [f32]) {
    let (stride, dim) = (queries.state_stride(), queries.shape.value_dim);
    let heads = queries.rows * queries.shape.heads;
    assert!(state.len() == heads * stride && out.len() == heads * dim, "attention: results of {} rows", queries.rows);
    let each = team.share(heads, 4);
    team.for_chunks(out.len() * 4, out, each * dim, |index, out| {
        let states = &state[index * each * stride..][..out.len() / dim * stride];
        Isa::best().run(Finish { states, stride, out, dim });
    });
}

struct Merge<'a> {
    partials: &'a [f32],
    /// Offset of `states` in the whole state.
    first: usize,
    tile: usize,
    stride: usize,
    states: &'a mut [f32],
}

impl Kernel for Merge<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (index, state) in self.states.chunks_exact_mut(self.stride).enumerate() {
            let at = self.first + index * self.stride;
            for tile in self.partials.chunks_exact(self.tile) {
                let partial = &tile[at..at + self.stride];
                if partial[1] != 0.0 {
                    let [factors, ..] = state::factors::<L>([state[0]; LANES], [partial[0]; LANES]);
                    state::merge::<L>(state, factors, partial[1], &partial[HEAD..]);
                }
            }
        }
    }
}

struct Finish<'a> {
    states: &'a [f32],
    stride: usize,
    out: &'a mut [f32],
    dim: usize,
}

impl Kernel for Finish<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (state, out) in self.states.chunks_exact(self.stride).zip(self.out.chunks_exact_mut(self.dim)) {
            state::finish::<L>(state, out);
        }
    }
}

/// The queries `rows` of some kv heads' groups over some tiles.
struct Part<'a> {
    queries: &'a Queries<'a>,
    tiles: &'a [Tile<'a>],
    rows: Range<usize>,
    kv_heads: Range<usize>,
    to: To<'a>,
}

/// Where a tile's partials go. Parts have heads, rows or tiles of their own.
#[derive(Clone, Copy)]
enum To<'a> {
    /// Merged into the state.
    State(&'a Disjoint<'a, f32>),
    /// Written as they are; the part's tiles begin with tile `first` of `out`.
    Partials { out: &'a Disjoint<'a, f32>, first: usize },
}

/// A worker's own memory, kept from call to call.
#[derive(Default)]
struct Work {
    widened: Widened,
    partial: Partial,
}

impl Kernel for Part<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        thread_local! {
            static WORK: RefCell<Work> = RefCell::default();
        }
        let Self { queries, tiles, rows, kv_heads: own, to } = self;
        let AttentionShape { heads, kv_heads, head_dim, value_dim, scale } = queries.shape;
        let (group, stride, state_stride) = (heads / kv_heads, value_stride(&queries.layout), queries.state_stride());
        // Taken out and put back, so that the borrow does not wrap the vector code in a closure.
        let mut work = WORK.take();
        let Work { widened, partial: found } = &mut work;
        for (index, tile, kv_head) in
            tiles.iter().enumerate().flat_map(|(index, tile)| own.clone().map(move |head| (index, tile, head)))
        {
            // Rows are in order of position: those that see nothing of the tile come first.
            let blind = tile.first.saturating_sub(queries.first).clamp(rows.start, rows.end);
            if let To::Partials { out, first } = to {
                for row in rows.start..blind {
                    for head in kv_head * group..(kv_head + 1) * group {
                        let at = (first + index) * queries.state_len() + (row * heads + head) * state_stride;
                        // SAFETY: this tile, row and head belong to this part alone.
                        state::set_up(unsafe { out.slice(at..at + state_stride) });
                    }
                }
            }
            if blind == rows.end {
                continue;
            }
            widened.fill::<L>(&queries.layout, tile, kv_head);
            if let Some(next) = tiles.get(index + 1) {
                next.fetch::<L>(&queries.layout, &own, kv_head);
            }
            let (mut next, last) = (blind * group, rows.end * group);
            while next < last {
                let count = MANY.min(last - next);
                let mut some = [Query { q: &[], seen: 0 }; MANY];
                let mut places = [0; MANY];
                for (offset, (query, place)) in some.iter_mut().zip(&mut places).take(count).enumerate() {
                    let (row, head) = ((next + offset) / group, kv_head * group + (next + offset) % group);
                    *place = row * heads + head;
                    query.q = &queries.q[*place * head_dim..][..head_dim];
                    query.seen = queries.seen(row, tile);
                }
                partial::<L>(&some[..count], scale, widened, stride, found);
                let values = |offset: usize| &found.values[offset * stride..][..value_dim];
                match to {
                    To::State(states) => {
                        let place = |offset: usize| places[offset] * state_stride..(places[offset] + 1) * state_stride;
                        for first in (0..count).step_by(LANES) {
                            let here = LANES.min(count - first);
                            let (mut old, mut new) = ([0.0; LANES], [0.0; LANES]);
                            for offset in 0..here {
                                // SAFETY: this row and head belong to this part alone.
                                old[offset] = unsafe { states.slice(place(first + offset)) }[0];
                                new[offset] = found.max[first + offset];
                            }
                            let factors = state::factors::<L>(old, new);
                            for (offset, factors) in (first..first + here).zip(factors) {
                                // SAFETY: as above.
                                let state = unsafe { states.slice(place(offset)) };
                                state::merge::<L>(state, factors, found.sum[offset], values(offset));
                            }
                        }
                    }
                    To::Partials { out, first } => {
                        for (offset, place) in places[..count].iter().enumerate() {
                            let at = (first + index) * queries.state_len() + place * state_stride;
                            // SAFETY: this tile, row and head belong to this part alone.
                            let out = unsafe { out.slice(at..at + state_stride) };
                            (out[0], out[1]) = (found.max[offset], found.sum[offset]);
                            out[HEAD..].copy_from_slice(values(offset));
                        }
                    }
                }
                next += count;
            }
        }
        WORK.set(work);
    }
}

#[cfg(test)]
mod tests;
