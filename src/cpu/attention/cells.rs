//! Cells as tiles, and tiles as f32.
#![allow(unsafe_code)]

use std::ops::Range;

use crate::cpu::simd::{LANES, Lanes};
use crate::ops::{ATTENTION_TILE, CellLayout, KvType};

/// Consecutive KV cells of one sequence and layer.
#[derive(Clone, Copy, Debug)]
pub struct CellSlice<'a> {
    /// `count` cells of the layout's size.
    pub bytes: &'a [u8],
    /// Absolute number of the first; a tile begins there.
    pub first: usize,
    /// How many.
    pub count: usize,
}

/// The cells of one tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile<'a> {
    pub bytes: &'a [u8],
    /// Absolute number of the first cell.
    pub first: usize,
    pub count: usize,
}

/// Cuts slices into tiles.
///
/// # Panics
/// When a slice does not begin at a tile's edge or where the one before ended, or has another length than its cells.
pub(super) fn tiles<'a>(layout: &CellLayout, slices: &[CellSlice<'a>]) -> Vec<Tile<'a>> {
    let cell = layout.cell_bytes();
    let mut tiles = Vec::with_capacity(slices.iter().map(|slice| slice.count.div_ceil(ATTENTION_TILE)).sum());
    let mut next = slices.first().map_or(0, |slice| slice.first);
    for slice in slices.iter().filter(|slice| slice.count > 0) {
        assert!(
            slice.first == next
                && slice.first.is_multiple_of(ATTENTION_TILE)
                && slice.bytes.len() == slice.count * cell,
            "attention: {} cells of {cell} bytes at cell {} in {} bytes, after the cells up to {next}",
            slice.count,
            slice.first,
            slice.bytes.len()
        );
        next += slice.count;
        for (index, bytes) in slice.bytes.chunks(ATTENTION_TILE * cell).enumerate() {
            tiles.push(Tile { bytes, first: slice.first + index * ATTENTION_TILE, count: bytes.len() / cell });
        }
    }
    tiles
}

impl Tile<'_> {
    /// Asks for the lines of one head, whose cells lie too far apart for the CPU to see the pattern; or, where the
    /// heads `own` are all, for the part of the tile that is this one's turn.
    #[inline(always)]
    pub fn fetch<L: Lanes>(&self, layout: &CellLayout, own: &Range<usize>, kv_head: usize) {
        if own.len() == layout.kv_heads {
            let part = |turn: usize| self.bytes.len() * turn / own.len();
            for at in (part(kv_head)..part(kv_head + 1)).step_by(LINE) {
                L::fetch(self.bytes.as_ptr().wrapping_add(at));
            }
            return;
        }
        let element = layout.kind.bytes();
        let parts = [(0, layout.head_dim * element), (layout.value_offset(), layout.value_dim * element)];
        for cell in self.bytes.chunks_exact(layout.cell_bytes()) {
            for (start, length) in parts {
                let head = cell.as_ptr().wrapping_add(start + kv_head * length);
                for at in (0..length).step_by(LINE) {
                    L::fetch(head.wrapping_add(at));
                }
                // A head need not begin at a line.
                L::fetch(head.wrapping_add(length.saturating_sub(1)));
            }
        }
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Columns of a panel: a cache line of f32.
pub(super) const PANEL: usize = 16;

/// A panel's row of columns.
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([f32; PANEL]);

/// One key and value head of a tile as f32, in panels of columns, so that a product reads memory in order.
#[derive(Debug, Default)]
pub(super) struct Widened {
    k: Vec<Line>,
    v: Vec<Line>,
}

/// `value_dim`, padded to whole panels.
pub(super) const fn value_stride(layout: &CellLayout) -> usize {
    layout.value_dim.next_multiple_of(PANEL)
}

/// How elements lie in memory.
trait Element {
    const BYTES: usize;

    /// Eight elements, times `scale` where the format has one.
    ///
    /// # Safety
    /// Eight elements are readable at `from`.
    unsafe fn load<L: Lanes>(from: *const u8, scale: f32) -> L;

    /// One element.
    fn one(from: &[u8], scale: f32) -> f32;
}

struct F32;
struct F16;
struct Int8;

impl Element for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8, _: f32) -> L {
        // SAFETY: the caller's promise; `Lanes::load` needs no alignment.
        unsafe { L::load(from.cast()) }
    }

    #[inline(always)]
    fn one(from: &[u8], _: f32) -> f32 {
        f32::from_le_bytes([from[0], from[1], from[2], from[3]])
    }
}

impl Element for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8, _: f32) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load_f16(from) }
    }

    #[inline(always)]
    fn one(from: &[u8], _: f32) -> f32 {
        half::f16::from_le_bytes([from[0], from[1]]).to_f32()
    }
}

impl Element for Int8 {
    const BYTES: usize = 1;

    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8, scale: f32) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load_i8(from) }.mul(L::splat(scale))
    }

    #[inline(always)]
    fn one(from: &[u8], scale: f32) -> f32 {
        f32::from(from[0].cast_signed()) * scale
    }
}

impl Widened {
    /// K, a column a cell: `[ATTENTION_TILE / PANEL, head_dim, PANEL]`. Cells that the tile lacks hold anything.
    pub fn k(&self) -> &[f32] {
        bytemuck::cast_slice(&self.k)
    }

    /// V, a column an element: `[value_stride / PANEL, ATTENTION_TILE, PANEL]`, zero past `value_dim`. Cells that the
    /// tile lacks hold anything.
    pub fn v(&self) -> &[f32] {
        bytemuck::cast_slice(&self.v)
    }

    /// Widens one head of a tile.
    #[inline(always)]
    pub fn fill<L: Lanes>(&mut self, layout: &CellLayout, tile: &Tile<'_>, kv_head: usize) {
        let zero = Line([0.0; PANEL]);
        self.k.resize(layout.head_dim * ATTENTION_TILE / PANEL, zero);
        self.v.resize(ATTENTION_TILE * value_stride(layout) / PANEL, zero);
        match layout.kind {
            KvType::F32 => self.fill_from::<L, F32>(layout, tile, kv_head),
            KvType::F16 => self.fill_from::<L, F16>(layout, tile, kv_head),
            KvType::Int8 => self.fill_from::<L, Int8>(layout, tile, kv_head),
        }
    }

    #[inline(always)]
    fn fill_from<L: Lanes, E: Element>(&mut self, layout: &CellLayout, tile: &Tile<'_>, kv_head: usize) {
        let (bytes, cell, count) = (tile.bytes, layout.cell_bytes(), tile.count);
        assert!(count <= ATTENTION_TILE && bytes.len() == count * cell && kv_head < layout.kv_heads);
        let scale = |index: usize, head: usize| match layout.kind {
            KvType::Int8 => F32::one(&bytes[index * cell + layout.scales_offset() + 4 * head..], 1.0),
            KvType::F32 | KvType::F16 => 1.0,
        };
        let dim = layout.head_dim;
        let start = kv_head * dim * E::BYTES;
        let whole = dim / LANES * LANES;
        for first in (0..count).step_by(LANES) {
            let here = LANES.min(count - first);
            let mut scales = [1.0; LANES];
            for (index, value) in scales[..here].iter_mut().enumerate() {
                *value = scale(first + index, kv_head);
            }
            let (panel, half) = (&mut self.k[first / PANEL * dim..][..dim], first % PANEL);
            let lines = bytemuck::cast_slice_mut::<Line, f32>(panel);
            for d in (0..whole).step_by(LANES) {
                let mut rows = [L::splat(0.0); LANES];
                for (index, row) in rows[..here].iter_mut().enumerate() {
                    let from = &bytes[(first + index) * cell + start + d * E::BYTES..][..LANES * E::BYTES];
                    // SAFETY: the slice holds eight elements.
                    *row = unsafe { E::load::<L>(from.as_ptr(), scales[index]) };
                }
                let to = &mut lines[d * PANEL..][..LANES * PANEL];
                for (index, column) in L::transpose(rows).into_iter().enumerate() {
                    // SAFETY: eight lines were cut, and each has room for a vector in either half.
                    unsafe { column.store(to.as_mut_ptr().add(index * PANEL + half)) };
                }
            }
            for d in whole..dim {
                for (index, scale) in scales[..here].iter().enumerate() {
                    let from = &bytes[(first + index) * cell + start + d * E::BYTES..];
                    lines[d * PANEL + half + index] = E::one(from, *scale);
                }
            }
        }
        let dim = layout.value_dim;
        let start = layout.value_offset() + kv_head * dim * E::BYTES;
        for index in 0..count {
            let scale = scale(index, layout.kv_heads + kv_head);
            let from = &bytes[index * cell + start..][..dim * E::BYTES];
            for (panel, from) in from.chunks(PANEL * E::BYTES).enumerate() {
                let Line(to) = &mut self.v[panel * ATTENTION_TILE + index];
                if from.len() == PANEL * E::BYTES {
                    // SAFETY: both hold sixteen elements.
                    unsafe {
                        E::load::<L>(from.as_ptr(), scale).store(to.as_mut_ptr());
                        E::load::<L>(from.as_ptr().add(LANES * E::BYTES), scale).store(to.as_mut_ptr().add(LANES));
                    }
                } else {
                    to.fill(0.0);
                    for (from, to) in from.chunks_exact(E::BYTES).zip(to) {
                        *to = E::one(from, scale);
                    }
                }
            }
        }
    }
}
