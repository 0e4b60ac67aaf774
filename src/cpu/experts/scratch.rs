//! What a batch of entries is, and the memory it needs.

use std::ops::Range;

use crate::cpu::Routing;
use crate::cpu::linear::{Formats, scratch_bytes};
use crate::ops::BlobLayout;

/// Entries of a batch that are worth memory: beyond these, running more at once gains nothing.
const MOST: usize = 512;
/// Every part of the scratch begins at a multiple of this.
const ALIGN: usize = 64;

/// Bytes of work memory with which [`super::run_experts`] runs as much at once as is worth it, for `rows` rows with
/// `top_k` experts each. Less does too, down to what one entry takes: `experts_scratch(1, 1, layout)`.
pub fn experts_scratch(rows: usize, top_k: usize, layout: &BlobLayout) -> usize {
    Sizes::new(rows, rows.saturating_mul(top_k).clamp(1, MOST), layout).bytes()
}

/// Bytes of each part.
struct Sizes {
    gathered: usize,
    quantised_x: usize,
    hidden: usize,
    quantised_h: usize,
    results: usize,
}

impl Sizes {
    /// For batches of `entries` out of `rows` rows.
    fn new(rows: usize, entries: usize, layout: &BlobLayout) -> Self {
        let BlobLayout { width, hidden, types: [gate, up, down], .. } = *layout;
        let rows = rows.min(entries);
        Self {
            gathered: rows * width * 4,
            quantised_x: scratch_bytes(Formats::of([gate, up]), rows, width),
            hidden: entries * hidden * 4,
            quantised_h: scratch_bytes(Formats::of([down]), entries, hidden),
            results: entries * width * 4,
        }
    }

    fn bytes(&self) -> usize {
        let parts = [self.gathered, self.quantised_x, self.hidden, self.hidden, self.quantised_h, self.results];
        parts.iter().map(|part| part.next_multiple_of(ALIGN)).sum::<usize>() + ALIGN
    }
}

/// The scratch of [`super::run_experts`], cut.
pub(super) struct Space<'a> {
    /// Entries of a batch.
    pub entries: usize,
    /// Rows of the batch, next to each other.
    pub gathered: &'a mut [f32],
    pub quantised_x: &'a mut [u8],
    pub gate: &'a mut [f32],
    pub up: &'a mut [f32],
    pub quantised_h: &'a mut [u8],
    pub results: &'a mut [f32],
}

impl<'a> Space<'a> {
    /// As many entries as fit.
    pub fn new(scratch: &'a mut [u8], routing: &Routing<'_>, layout: &BlobLayout) -> Self {
        let fits = |entries: &usize| Sizes::new(routing.rows, *entries, layout).bytes() <= scratch.len();
        let most = (routing.rows * routing.top_k).clamp(1, MOST);
        // Halving finds a fair size in few steps; the exact one is not worth more.
        let entries = std::iter::successors(Some(most), |most| (*most > 1).then_some(*most / 2)).find(fits);
        let Some(entries) = entries else {
            panic!("experts: {} bytes of work memory, {} are the least", scratch.len(), experts_scratch(1, 1, layout))
        };
        let sizes = Sizes::new(routing.rows, entries, layout);
        let mut left = scratch;
        let skipped = left.as_ptr().align_offset(ALIGN);
        cut(&mut left, skipped);
        let mut part = |bytes: usize| &mut cut(&mut left, bytes.next_multiple_of(ALIGN))[..bytes];
        Self {
            entries,
            gathered: bytemuck::cast_slice_mut(part(sizes.gathered)),
            quantised_x: part(sizes.quantised_x),
            gate: bytemuck::cast_slice_mut(part(sizes.hidden)),
            up: bytemuck::cast_slice_mut(part(sizes.hidden)),
            quantised_h: part(sizes.quantised_h),
            results: bytemuck::cast_slice_mut(part(sizes.results)),
        }
    }
}

/// Takes the first `bytes` off.
fn cut<'a>(left: &mut &'a mut [u8], bytes: usize) -> &'a mut [u8] {
    let (now, rest) = std::mem::take(left).split_at_mut(bytes);
    *left = rest;
    now
}

/// Entries that run together.
pub(super) struct Batch {
    /// Entries `row * top_k + slot`, expert after expert.
    pub entries: Vec<u32>,
    /// For each entry the place of its row in `rows`.
    pub local: Vec<u32>,
    /// The rows, each once.
    pub rows: Vec<u32>,
    pub pieces: Vec<Piece>,
    /// For each row of the call its place in `rows`, or `ABSENT`.
    places: Vec<u32>,
}

const ABSENT: u32 = u32::MAX;

/// The batch's entries of one expert.
pub(super) struct Piece {
    /// Index in the list of experts.
    pub expert: usize,
    pub entries: Range<usize>,
}

impl Batch {
    pub fn new(routing: &Routing<'_>) -> Self {
        let (entries, local, rows, pieces) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { entries, local, rows, pieces, places: vec![ABSENT; routing.rows] }
    }

    pub fn push(&mut self, expert: usize, entries: &[u32], top_k: usize) {
        let start = self.entries.len();
        self.entries.extend_from_slice(entries);
        for entry in entries {
            let row = *entry as usize / top_k;
            if self.places[row] == ABSENT {
                self.places[row] = self.rows.len() as u32;
                self.rows.push(row as u32);
            }
            self.local.push(self.places[row]);
        }
        self.pieces.push(Piece { expert, entries: start..self.entries.len() });
    }

    pub fn clear(&mut self) {
        for row in self.rows.drain(..) {
            self.places[row as usize] = ABSENT;
        }
        self.entries.clear();
        self.local.clear();
        self.pieces.clear();
    }
}
