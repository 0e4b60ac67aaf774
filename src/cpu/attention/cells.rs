//! Cells as tiles, and tiles as f32.
#![allow(unsafe_code)]

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

/// One key and value head of a tile, as f32.
#[derive(Debug, Default)]
pub(super) struct Widened {
    /// K, transposed: `[head_dim, ATTENTION_TILE]`. Cells that the tile lacks hold anything.
    pub k: Vec<f32>,
    /// V: `[ATTENTION_TILE, value_stride]`, zero past `value_dim`. Cells that the tile lacks hold anything.
    pub v: Vec<f32>,
}

/// `value_dim`, padded to whole vectors.
pub(super) const fn value_stride(layout: &CellLayout) -> usize {
    layout.value_dim.next_multiple_of(LANES)
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
    /// Widens one head of a tile.
    #[inline(always)]
    pub fn fill<L: Lanes>(&mut self, layout: &CellLayout, tile: &Tile<'_>, kv_head: usize) {
        self.k.resize(layout.head_dim * ATTENTION_TILE, 0.0);
        self.v.resize(ATTENTION_TILE * value_stride(layout), 0.0);
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
            for d in (0..whole).step_by(LANES) {
                let mut rows = [L::splat(0.0); LANES];
                for (index, row) in rows[..here].iter_mut().enumerate() {
                    let from = &bytes[(first + index) * cell + start + d * E::BYTES..][..LANES * E::BYTES];
                    // SAFETY: the slice holds eight elements.
                    *row = unsafe { E::load::<L>(from.as_ptr(), scales[index]) };
                }
                for (index, column) in L::transpose(rows).into_iter().enumerate() {
                    let to = &mut self.k[(d + index) * ATTENTION_TILE + first..][..LANES];
                    // SAFETY: the slice holds eight f32.
                    unsafe { column.store(to.as_mut_ptr()) };
                }
            }
            for d in whole..dim {
                for (index, scale) in scales[..here].iter().enumerate() {
                    let from = &bytes[(first + index) * cell + start + d * E::BYTES..];
                    self.k[d * ATTENTION_TILE + first + index] = E::one(from, *scale);
                }
            }
        }
        let (dim, stride) = (layout.value_dim, value_stride(layout));
        let start = layout.value_offset() + kv_head * dim * E::BYTES;
        let whole = dim / LANES * LANES;
        for index in 0..count {
            let scale = scale(index, layout.kv_heads + kv_head);
            let from = &bytes[index * cell + start..][..dim * E::BYTES];
            let to = &mut self.v[index * stride..][..stride];
            for d in (0..whole).step_by(LANES) {
                // SAFETY: eight elements from `d` on lie within both.
                unsafe { E::load::<L>(from.as_ptr().add(d * E::BYTES), scale).store(to.as_mut_ptr().add(d)) };
            }
            for d in whole..dim {
                to[d] = E::one(&from[d * E::BYTES..], scale);
            }
            to[dim..].fill(0.0);
        }
    }
}
