//! Expert FFNs over the rows that chose them, and the sum of their results.
//!
//! Entries (a row and one of its experts) are taken in batches, experts ascending. A batch is a few regions of the
//! team: its rows are quantised, all gate and up products run, the gate function, the hidden rows are quantised, all
//! down products run, and the results are added in the order of experts. An entry's result depends on its row and its
//! expert alone.
#![allow(unsafe_code)]

mod scratch;

use super::linear::{Epilogue, Formats, Pick, Product, Weight, multiply, quantise};
use super::simd::{Kernel, LANES, Lanes};
use super::{Disjoint, Isa, Routing, Team, gated_activation_in_place};
use crate::ops::{BlobLayout, ExpertSet};
use crate::units::ExpertId;
use scratch::{Batch, Space};

pub use scratch::experts_scratch;

/// An expert of the layer with its weights.
#[derive(Clone, Copy, Debug)]
pub struct ExpertBlob<'a> {
    /// Its id in the layer.
    pub id: ExpertId,
    /// Its blob, as the layout says.
    pub blob: &'a [u8],
}

/// Where results go.
#[derive(Debug)]
pub enum ExpertsOut<'a> {
    /// `out[row] = fma(weight, ffn(x[row]), out[row])` for each expert in ascending order; f32 `[rows, width]`.
    Accumulate(&'a mut [f32]),
    /// `slots[row * top_k + slot] = ffn(x[row])`, unweighted; f32 `[rows * top_k, width]`. Slots of other experts are
    /// left.
    Slots(&'a mut [f32]),
}

/// Runs `experts` (ascending ids) for the rows of `x` (f32 `[rows, width]`) that chose them. `scratch` holds at least
/// what [`experts_scratch`] says; with more, more runs at once.
///
/// # Panics
/// When sizes do not fit together.
pub fn run_experts(
    team: &Team,
    layout: &BlobLayout,
    x: &[f32],
    routing: &Routing<'_>,
    experts: &[ExpertBlob<'_>],
    mut out: ExpertsOut<'_>,
    scratch: &mut [u8],
) {
    check(layout, x, routing, experts, &out);
    let (offsets, entries) = routing.groups.split_at(routing.experts + 1);
    let mut space = Space::new(scratch, routing, layout);
    let mut batch = Batch::new(routing);
    for (index, expert) in experts.iter().enumerate() {
        let id = expert.id.0 as usize;
        let mut left = &entries[offsets[id] as usize..offsets[id + 1] as usize];
        while !left.is_empty() {
            let (now, later) = left.split_at(left.len().min(space.entries - batch.entries.len()));
            batch.push(index, now, routing.top_k);
            left = later;
            if batch.entries.len() == space.entries {
                run_batch(team, layout, x, routing, experts, &batch, &mut space, &mut out);
                batch.clear();
            }
        }
    }
    if !batch.entries.is_empty() {
        run_batch(team, layout, x, routing, experts, &batch, &mut space, &mut out);
    }
}

fn check(layout: &BlobLayout, x: &[f32], routing: &Routing<'_>, experts: &[ExpertBlob<'_>], out: &ExpertsOut<'_>) {
    let Routing { rows, experts: all, top_k, .. } = *routing;
    routing.check();
    assert_eq!(x.len(), rows * layout.width, "experts: {rows} rows of {}", layout.width);
    let (results, wanted) = match out {
        ExpertsOut::Accumulate(out) => (out.len(), rows * layout.width),
        ExpertsOut::Slots(out) => (out.len(), rows * top_k * layout.width),
    };
    assert_eq!(results, wanted, "experts: results of {rows} rows");
    assert!(experts.is_sorted_by(|a, b| a.id < b.id), "experts: ids do not ascend");
    for expert in experts {
        assert!(
            (expert.id.0 as usize) < all && expert.blob.len() == layout.bytes,
            "expert {} of {all} in {} bytes, not {}",
            expert.id.0,
            expert.blob.len(),
            layout.bytes
        );
    }
}

/// Gate, up or down (`which`) of a blob.
fn weight<'a>(layout: &BlobLayout, blob: &'a [u8], which: usize) -> Weight<'a> {
    let ty = layout.types[which];
    let (outs, cols) = if which == 2 { (layout.width, layout.hidden) } else { (layout.hidden, layout.width) };
    let bytes = ty.row_bytes(cols).unwrap_or(0) * outs;
    Weight { ty, bytes: &blob[layout.offsets[which]..][..bytes], outs, cols }
}

#[allow(clippy::too_many_arguments)] // One step of `run_experts`, with its arguments.
fn run_batch(
    team: &Team,
    layout: &BlobLayout,
    x: &[f32],
    routing: &Routing<'_>,
    experts: &[ExpertBlob<'_>],
    batch: &Batch,
    space: &mut Space<'_>,
    out: &mut ExpertsOut<'_>,
) {
    let (isa, count, width, hidden) = (Isa::best(), batch.entries.len(), layout.width, layout.hidden);
    let fits = "sizes were checked before";
    // Products take rows by number, so a row is quantised once for all its experts.
    let rows = batch.rows.len();
    let (x, local): (_, Vec<u32>) = if rows == routing.rows {
        (x, batch.entries.iter().map(|entry| *entry / routing.top_k as u32).collect())
    } else {
        let gathered = &mut space.gathered[..rows * width];
        for (row, to) in batch.rows.iter().zip(gathered.chunks_exact_mut(width)) {
            to.copy_from_slice(&x[*row as usize * width..][..width]);
        }
        (&*gathered, batch.local.clone())
    };
    let formats = Formats::of([layout.types[0], layout.types[1]]);
    let x = quantise(isa, team, x, rows, width, formats, &mut *space.quantised_x);
    let x = x.unwrap_or_else(|e| panic!("experts: {fits}: {e}"));
    let (gate, up) = (&mut space.gate[..count * hidden], &mut space.up[..count * hidden]);
    let mut products = Vec::with_capacity(2 * batch.pieces.len());
    let (mut gates, mut ups) = (&mut *gate, &mut *up);
    for piece in &batch.pieces {
        let blob = experts[piece.expert].blob;
        let rows = Pick::List(&local[piece.entries.clone()]);
        for (which, left) in [(0, &mut gates), (1, &mut ups)] {
            let (y, rest) = std::mem::take(left).split_at_mut(piece.entries.len() * hidden);
            *left = rest;
            products.push(Product { weight: weight(layout, blob, which), rows, y, epilogue: Epilogue::Store });
        }
    }
    multiply(isa, team, &x, &mut products).unwrap_or_else(|e| panic!("experts: {fits}: {e}"));

    gated_activation_in_place(team, layout.activation, gate, up);
    let formats = Formats::of([layout.types[2]]);
    let h = quantise(isa, team, gate, count, hidden, formats, &mut *space.quantised_h);
    let h = h.unwrap_or_else(|e| panic!("experts: {fits}: {e}"));
    let results = &mut space.results[..count * width];
    let mut products = Vec::with_capacity(batch.pieces.len());
    let mut left = &mut *results;
    for piece in &batch.pieces {
        let (y, rest) = std::mem::take(&mut left).split_at_mut(piece.entries.len() * width);
        left = rest;
        let rows = Pick::Range { start: piece.entries.start, count: piece.entries.len() };
        let weight = weight(layout, experts[piece.expert].blob, 2);
        products.push(Product { weight, rows, y, epilogue: Epilogue::Store });
    }
    multiply(isa, team, &h, &mut products).unwrap_or_else(|e| panic!("experts: {fits}: {e}"));

    match out {
        ExpertsOut::Accumulate(out) => {
            let terms = batch.entries.iter().zip(results.chunks_exact(width));
            let terms = terms.map(|(entry, y)| Term {
                row: *entry as usize / routing.top_k,
                weight: routing.weights[*entry as usize],
                y,
            });
            accumulate(team, &terms.collect::<Vec<_>>(), width, out);
        }
        ExpertsOut::Slots(slots) => {
            for (entry, y) in batch.entries.iter().zip(results.chunks_exact(width)) {
                slots[*entry as usize * width..][..width].copy_from_slice(y);
            }
        }
    }
}

/// Something weighted that is added to a row.
#[derive(Clone, Copy)]
struct Term<'a> {
    row: usize,
    weight: f32,
    y: &'a [f32],
}

/// `out[row] = fma(weight, y, out[row])` for each term in order, spread over the columns.
fn accumulate(team: &Team, terms: &[Term<'_>], width: usize, out: &mut [f32]) {
    let each = team.share(width, 2).next_multiple_of(64);
    let out = Disjoint::new(out);
    team.run_sized(terms.len() * width * 2, width.div_ceil(each), |part| {
        let columns = part * each..width.min((part + 1) * each);
        for term in terms {
            // SAFETY: parts have columns of their own.
            let out = unsafe { out.slice(term.row * width + columns.start..term.row * width + columns.end) };
            Isa::best().run(AddWeighted { weight: term.weight, y: &term.y[columns.clone()], out });
        }
    });
}

struct AddWeighted<'a> {
    weight: f32,
    y: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for AddWeighted<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { weight, y, out } = self;
        assert_eq!(y.len(), out.len());
        let whole = out.len() / LANES * LANES;
        for at in (0..whole).step_by(LANES) {
            // SAFETY: eight elements from `at` on lie within both.
            unsafe {
                let to = out.as_mut_ptr().add(at);
                L::splat(weight).fma(L::load(y.as_ptr().add(at)), L::load(to)).store(to);
            }
        }
        for at in whole..out.len() {
            out[at] = weight.mul_add(y[at], out[at]);
        }
    }
}

/// `out[row] = fma(weight, slot, out[row])` over the row's chosen experts in ascending id, taking each from `slots`
/// where `held` has the expert and from `host_slots` otherwise. Both are f32 `[rows * top_k, width]`, `out` is f32
/// `[rows, width]`.
///
/// # Panics
/// When sizes do not fit together, or an expert is neither held nor in `host_slots`.
pub fn combine(
    team: &Team,
    routing: &Routing<'_>,
    slots: &[f32],
    host_slots: Option<&[f32]>,
    held: &ExpertSet,
    width: usize,
    out: &mut [f32],
) {
    let Routing { rows, top_k, ids, weights, .. } = *routing;
    let sized = rows * top_k * width;
    assert!(
        ids.len() == rows * top_k && weights.len() == rows * top_k && out.len() == rows * width,
        "combine: {} ids, {} weights, {} results of {rows} rows",
        ids.len(),
        weights.len(),
        out.len()
    );
    assert!(
        slots.len() == sized && host_slots.is_none_or(|slots| slots.len() == sized),
        "combine: {} floats in slots of {width} for {rows} rows with {top_k} experts",
        slots.len()
    );
    let mut terms = Vec::with_capacity(rows * top_k);
    for row in 0..rows {
        let mut chosen: Vec<usize> = (row * top_k..(row + 1) * top_k).collect();
        chosen.sort_by_key(|entry| ids[*entry]);
        for entry in chosen {
            let from = match (held.contains(ExpertId(ids[entry])), host_slots) {
                (true, _) => slots,
                (false, Some(slots)) => slots,
                (false, None) => panic!("combine: expert {} is not held and nothing came from the host", ids[entry]),
            };
            terms.push(Term { row, weight: weights[entry], y: &from[entry * width..][..width] });
        }
    }
    accumulate(team, &terms, width, out);
}

#[cfg(test)]
mod tests;
