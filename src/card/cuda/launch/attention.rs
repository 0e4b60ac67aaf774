//! Attention.

use super::super::kernels::{Grid, arguments, int};
use super::super::module::{DECODE_HEADS, GROUP, Module, PromptBlock, TensorKv, decode_shared, general_shared};
use super::Launch;
use super::elementwise::kv_number;
use crate::card::Span;
use crate::card::command::{AttentionEnd, Cells, Phase};
use crate::ops::{ATTENTION_TILE, AttentionShape, CellLayout, KvType};

const MOST_SPANS: usize = 8;

/// Elements of a value head that they can hold.
const MOST_VALUE_DIM: usize = 512;

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct CellSpan {
    at: u64,
    first: i32,
    count: i32,
}

/// `Cells` of the kernels.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct CellTable {
    span: [CellSpan; MOST_SPANS],
    spans: i32,
    cell_bytes: u32,
    value_offset: u32,
    scales_offset: u32,
}

/// `Heads` of the general kernels.
#[derive(Clone, Copy)]
#[repr(C)]
struct Heads {
    kind: i32,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    value_dim: i32,
    scale: f32,
}

/// `PromptHeads` of the tensor-core kernels.
#[derive(Clone, Copy)]
#[repr(C)]
struct PromptHeads {
    heads: i32,
    kv_heads: i32,
    scale: f32,
}

/// What a command asks for beside its memory.
pub(super) struct Attention<'a> {
    pub(super) rows: usize,
    pub(super) first: usize,
    pub(super) shape: &'a AttentionShape,
    pub(super) layout: &'a CellLayout,
    pub(super) resume: bool,
    pub(super) end: AttentionEnd,
}

/// The addresses of one launch; `out` is 0 where the state is kept.
#[derive(Clone, Copy)]
struct At {
    q: u64,
    state: u64,
    out: u64,
    resume: i32,
}

impl Launch<'_> {
    pub(super) fn attention(
        &self,
        of: &Attention<'_>,
        q: &Span,
        cells: &[Cells],
        state: &Span,
        phase: Phase,
        scratch: &Span,
    ) -> Result<(), String> {
        let (rows, shape) = (of.rows, of.shape);
        if shape.kv_heads == 0 || !shape.heads.is_multiple_of(shape.kv_heads) || shape.value_dim > MOST_VALUE_DIM {
            return Err(format!(
                "{} heads over {} of {} values are not supported",
                shape.heads, shape.kv_heads, shape.value_dim
            ));
        }
        let q = self.wide(q, rows * shape.heads * shape.head_dim * 4, "q")?;
        let state = self.words(state, rows * shape.heads * (2 + shape.value_dim), "the state")?;
        let out = match &of.end {
            AttentionEnd::Keep => 0,
            AttentionEnd::Finish(out) => self.words(out, rows * shape.heads * shape.value_dim, "out")?,
        };
        let tables = self.cell_tables(cells, of.layout)?;
        let per_tile = rows * shape.heads * (2 + shape.value_dim) * 4;
        let results = match phase {
            Phase::Decode => Some((self.wide(scratch, per_tile, "the work memory")?, scratch.bytes / per_tile.max(1))),
            Phase::Prompt => None,
        };
        if rows == 0 {
            return Ok(());
        }
        let count = tables.len();
        for (i, table) in tables.iter().enumerate() {
            let at = At { q, state, out: if i + 1 == count { out } else { 0 }, resume: i32::from(of.resume || i > 0) };
            match results {
                Some((results, tiles)) => self.attend_decode(of, at, table, results, tiles),
                None => self.attend_prompt(of, at, table),
            }?;
        }
        Ok(())
    }

    /// The cells in tables of at most [`MOST_SPANS`] spans.
    fn cell_tables(&self, cells: &[Cells], layout: &CellLayout) -> Result<Vec<CellTable>, String> {
        let bytes = layout.cell_bytes();
        let mut end = cells.first().map(|cells| cells.first).ok_or("there are no cells")?;
        let mut tables = Vec::with_capacity(1);
        for part in cells.chunks(MOST_SPANS) {
            let mut table = CellTable {
                cell_bytes: bytes as u32,
                value_offset: layout.value_offset() as u32,
                scales_offset: layout.scales_offset() as u32,
                ..CellTable::default()
            };
            for (slot, cells) in table.span.iter_mut().zip(part) {
                if cells.first != end || !cells.first.is_multiple_of(ATTENTION_TILE) {
                    return Err(format!("cells from {} do not follow {end} at a tile's edge", cells.first));
                }
                end = cells.first + cells.count;
                let at = self.wide(&cells.at, cells.count * bytes, "the cells")?;
                *slot = CellSpan { at, first: int(cells.first), count: int(cells.count) };
                table.spans += 1;
            }
            tables.push(table);
        }
        Ok(tables)
    }

    fn attend_prompt(&self, of: &Attention<'_>, at: At, cells: &CellTable) -> Result<(), String> {
        let shape = of.shape;
        let At { q, state, out, resume } = at;
        let (rows, first) = (int(of.rows), int(of.first));
        if let Some((module, heads)) = self.tensor_heads(of) {
            let kv = if of.layout.kind == KvType::Int8 { TensorKv::Int8 } else { TensorKv::F16 };
            let block = PromptBlock::of(shape.head_dim, kv, self.arch);
            let grid = Grid {
                blocks: (shape.heads as u32, of.rows.div_ceil(block.rows) as u32, 1),
                threads: block.threads,
                shared: block.shared,
            };
            // SAFETY: (const float*, int, int, PromptHeads, Cells, int, float*, float*).
            return unsafe {
                self.launch(
                    module,
                    "attend_prompt",
                    grid,
                    arguments![q, rows, first, heads, *cells, resume, state, out],
                )
            };
        }
        self.need(Module::Attention)?;
        let heads = general(shape, of.layout.kind);
        let grid = Grid {
            blocks: (of.rows as u32, head_blocks(shape, GROUP), 1),
            threads: 128,
            shared: general_shared(shape.head_dim, shape.value_dim),
        };
        // SAFETY: (const float*, Heads, Cells, int, int, float*, float*).
        unsafe {
            self.launch(Module::Attention, "attend_rows", grid, arguments![q, heads, *cells, first, resume, state, out])
        }
    }

    /// The tensor-core kernels for these heads, if they were loaded.
    fn tensor_heads(&self, of: &Attention<'_>) -> Option<(Module, PromptHeads)> {
        let module = Module::for_attention(of.shape, of.layout.kind, self.arch)?;
        let AttentionShape { heads, kv_heads, scale, .. } = *of.shape;
        self.kernels.has(module).then_some((module, PromptHeads { heads: int(heads), kv_heads: int(kv_heads), scale }))
    }

    /// As many tiles at a time as the work memory holds the results of.
    fn attend_decode(
        &self,
        of: &Attention<'_>,
        at: At,
        cells: &CellTable,
        results: u64,
        most: usize,
    ) -> Result<(), String> {
        let shape = of.shape;
        let heads = general(shape, of.layout.kind);
        let tensor = self.tensor_heads(of);
        let first_cell = cells.span.first().map_or(0, |span| span.first as usize);
        let end = cells
            .span
            .iter()
            .take(cells.spans as usize)
            .map(|span| (span.first + span.count) as usize)
            .max()
            .unwrap_or(0);
        let begin = first_cell / ATTENTION_TILE;
        let end = end.min(of.first + of.rows).div_ceil(ATTENTION_TILE).max(begin);
        let first = int(of.first);
        let At { q, state, out, mut resume } = at;
        let mut tile = begin;
        loop {
            let count = most.min(end - tile);
            let last = tile + count == end;
            let to = if last { out } else { 0 };
            let (start, tiles) = (int(tile), int(count));
            if let Some((module, heads)) = tensor {
                let grid = Grid {
                    blocks: (count as u32, head_blocks(shape, DECODE_HEADS), of.rows as u32),
                    threads: 128,
                    shared: decode_shared(shape.head_dim),
                };
                // SAFETY: (const float*, PromptHeads, Cells, int, int, int, float*).
                unsafe {
                    self.launch(
                        module,
                        "decode_tiles",
                        grid,
                        arguments![q, heads, *cells, first, start, tiles, results],
                    )
                }?;
            } else {
                let grid = Grid {
                    blocks: (count as u32, head_blocks(shape, GROUP), of.rows as u32),
                    threads: 128,
                    shared: general_shared(shape.head_dim, shape.value_dim),
                };
                // SAFETY: (const float*, Heads, Cells, int, int, int, float*).
                unsafe {
                    self.launch(
                        Module::Attention,
                        "attend_tiles",
                        grid,
                        arguments![q, heads, *cells, first, start, tiles, results],
                    )
                }?;
            }
            let grid = Grid { blocks: (shape.heads as u32, of.rows as u32, 1), threads: 128, shared: 0 };
            // SAFETY: (const float*, Heads, Cells, int, int, int, int, float*, float*).
            unsafe {
                self.launch(
                    Module::Attention,
                    "merge_tiles",
                    grid,
                    arguments![results, heads, *cells, first, start, tiles, resume, state, to],
                )
            }?;
            if last {
                return Ok(());
            }
            tile += count;
            resume = 1;
        }
    }
}

fn general(shape: &AttentionShape, kind: KvType) -> Heads {
    Heads {
        kind: kv_number(kind),
        heads: int(shape.heads),
        kv_heads: int(shape.kv_heads),
        head_dim: int(shape.head_dim),
        value_dim: int(shape.value_dim),
        scale: shape.scale,
    }
}

/// Blocks that together take all heads, at most `most` with one key head each.
fn head_blocks(shape: &AttentionShape, most: usize) -> u32 {
    (shape.kv_heads * (shape.heads / shape.kv_heads).div_ceil(most)) as u32
}
