//! Norms, rope, gates and the KV store.

use super::super::kernels::{Grid, arguments, int};
use super::super::module::Module;
use super::Launch;
use crate::card::Span;
use crate::card::command::Cells;
use crate::ops::{Activation, CellLayout, KvType, Rope, RopeKind};

/// Pairs of a head that a launch can carry the frequencies of.
const MOST_PAIRS: usize = 256;

#[repr(C)]
struct Frequencies([f32; MOST_PAIRS]);

/// How kernels number the gate functions.
pub(super) fn activation_number(activation: Activation) -> i32 {
    match activation {
        Activation::Silu => 0,
    }
}

/// How kernels number the cell types.
pub(super) fn kv_number(kind: KvType) -> i32 {
    match kind {
        KvType::F32 => 0,
        KvType::F16 => 1,
        KvType::Int8 => 2,
    }
}

impl Launch<'_> {
    pub(super) fn rms_norm(
        &self,
        x: &Span,
        weight: &Span,
        eps: f32,
        [rows, cols]: [usize; 2],
        out: &Span,
    ) -> Result<(), String> {
        let from = self.words(x, rows * cols, "x")?;
        let weight = self.words(weight, cols, "the weight")?;
        let out = self.words(out, rows * cols, "out")?;
        // Which kernel sums is a matter of the columns alone.
        if cols <= 1024 && cols.is_multiple_of(4) {
            if [from, weight, out].iter().any(|at| at % 16 != 0) {
                return Err("rows of this kind must be aligned to 16 bytes".to_owned());
            }
            let grid = Grid::row(rows.div_ceil(8), 256);
            let (rows, cols) = (int(rows), int(cols));
            // SAFETY: (const float*, const float*, float, int, int, float*).
            return unsafe {
                self.launch(Module::Base, "rms_norm_short", grid, arguments![from, weight, eps, rows, cols, out])
            };
        }
        let threads = cols.div_ceil(4).next_multiple_of(32).clamp(32, 512);
        let grid = Grid::row(rows, threads as u32);
        let cols = int(cols);
        // SAFETY: (const float*, const float*, float, int, float*).
        unsafe { self.launch(Module::Base, "rms_norm", grid, arguments![from, weight, eps, cols, out]) }
    }

    pub(super) fn rope(
        &self,
        x: &Span,
        [rows, heads, head_dim]: [usize; 3],
        first: usize,
        rope: &Rope,
    ) -> Result<(), String> {
        let at = self.words(x, rows * heads * head_dim, "x")?;
        let pairs = rope.rotated / 2;
        if pairs > MOST_PAIRS || rope.rotated > head_dim || rope.frequencies.len() < pairs {
            return Err(format!("{} elements of heads of {head_dim} cannot be rotated", rope.rotated));
        }
        let mut frequencies = Frequencies([0.0; MOST_PAIRS]);
        for (to, from) in frequencies.0.iter_mut().zip(rope.frequencies.iter()) {
            *to = *from;
        }
        let neox = i32::from(rope.kind == RopeKind::Neox);
        let grid = Grid::row(rows, 256);
        let (heads, head_dim, rotated, first) = (int(heads), int(head_dim), int(rope.rotated), int(first));
        // SAFETY: (float*, int, int, int, int, int, Frequencies).
        unsafe {
            self.launch(Module::Base, "rope", grid, arguments![at, heads, head_dim, rotated, first, neox, frequencies])
        }
    }

    pub(super) fn gated_activation(
        &self,
        gate: &Span,
        up: &Span,
        elements: usize,
        activation: Activation,
        out: &Span,
    ) -> Result<(), String> {
        let gate = self.words(gate, elements, "gate")?;
        let up = self.words(up, elements, "up")?;
        let out = self.words(out, elements, "out")?;
        let activation = activation_number(activation);
        let grid = Grid::row(elements.div_ceil(256), 256);
        let elements = elements as u64;
        // SAFETY: (const float*, const float*, u64, int, float*).
        unsafe { self.launch(Module::Base, "gated_activation", grid, arguments![gate, up, elements, activation, out]) }
    }

    pub(super) fn store_kv(&self, k: &Span, v: &Span, layout: &CellLayout, cells: &Cells) -> Result<(), String> {
        let count = cells.count;
        let k = self.words(k, count * layout.kv_heads * layout.head_dim, "k")?;
        let v = self.words(v, count * layout.kv_heads * layout.value_dim, "v")?;
        let at = self.wide(&cells.at, count * layout.cell_bytes(), "the cells")?;
        let kind = kv_number(layout.kind);
        let grid = Grid::row((count * layout.kv_heads * 2).div_ceil(8), 256);
        let (count, heads) = (int(count), int(layout.kv_heads));
        let (head_dim, value_dim) = (int(layout.head_dim), int(layout.value_dim));
        let (values, scales) = (int(layout.value_offset()), int(layout.scales_offset()));
        let bytes = int(layout.cell_bytes());
        // SAFETY: (const float*, const float*, u8*, int, int, int, int, int, u32, u32, u32).
        unsafe {
            self.launch(
                Module::Base,
                "store_kv",
                grid,
                arguments![k, v, at, count, kind, heads, head_dim, value_dim, values, scales, bytes],
            )
        }
    }

    /// Queues the conversion of f32 rows to f16 rows of `stride` with a power of two each.
    pub(super) fn rows_to_halves(
        &self,
        x: u64,
        [rows, cols, stride]: [usize; 3],
        halves: u64,
        restore: u64,
    ) -> Result<(), String> {
        let grid = Grid::row(rows, 256);
        let (cols, stride) = (int(cols), int(stride));
        // SAFETY: (const float*, int, int, u16*, float*).
        unsafe { self.launch(Module::Base, "rows_to_halves", grid, arguments![x, cols, stride, halves, restore]) }
    }
}
