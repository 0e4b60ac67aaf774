//! Attention.

use super::super::kernels::{Grid, arguments, int, small};
use super::super::module::{DECODE_HEADS, GROUP, Module, PromptBlock, TensorKv, decode_shared, general_shared};
use super::super::page_lock::device_address;
use super::Launch;
use super::copy::pieces;
use super::store_kv::kv_number;
use crate::card::command::{Attend, AttentionEnd, Cells, Phase};
use crate::card::{HostSpan, Span};
use crate::ops::{ATTENTION_TILE, AttentionShape, CellLayout, KvType};

const MOST_SPANS: usize = 8;

/// Bytes that the card asks of the link at once at most.
const LINE: usize = 128;

/// `BRING_THREADS` of the kernels, and the bytes that a block brings in a round.
const BRING_THREADS: u32 = 256;
const BRING_BLOCK: usize = 256 * 4 * 16;

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

/// Cells that are attended together, after what must be brought for them.
#[derive(Default)]
struct Pass {
    bring: Vec<Bring>,
    cells: CellTable,
}

/// Page-locked host memory, by the device's address, that is brought to work memory.
struct Bring {
    from: u64,
    to: u64,
    bytes: usize,
}

/// A decode command's work memory: results of at most `tiles` tiles, then room for as many tiles of cells from the
/// host.
struct Work {
    results: u64,
    tiles: usize,
    room: u64,
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
    pub(super) fn attention(&self, of: &Attend, held: &mut Vec<HostSpan>) -> Result<(), String> {
        let Attend { q, cells, state, scratch, .. } = of;
        let (rows, shape) = (of.rows, &of.shape);
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
        let mut passes = self.cell_tables(cells, &of.layout)?;
        let work = match of.phase {
            Phase::Decode => Some(self.work(of, scratch)?),
            Phase::Prompt => None,
        };
        if let (Some(work), Some(host_cells)) = (&work, &of.host_cells) {
            passes.extend(self.brought(host_cells, &of.layout, work)?);
        }
        if passes.is_empty() {
            return Err("there are no cells".to_owned());
        }
        if rows == 0 {
            return Ok(());
        }
        held.extend(of.host_cells.as_ref().map(|cells| cells.at.clone()));
        let count = passes.len();
        for (i, pass) in passes.iter().enumerate() {
            pass.bring.iter().try_for_each(|bring| self.bring(bring))?;
            let at = At { q, state, out: if i + 1 == count { out } else { 0 }, resume: i32::from(of.resume || i > 0) };
            match &work {
                Some(work) => self.attend_decode(of, at, &pass.cells, work.results, work.tiles),
                None => self.attend_prompt(of, at, &pass.cells),
            }?;
        }
        Ok(())
    }

    /// How a decode command uses its work memory.
    fn work(&self, of: &Attend, scratch: &Span) -> Result<Work, String> {
        let result = of.rows * of.shape.heads * (2 + of.shape.value_dim) * 4;
        let (room, line) = of.host_cells.as_ref().map_or((0, 0), |_| (ATTENTION_TILE * of.layout.cell_bytes(), LINE));
        let results = self.wide(scratch, result, "the work memory")?;
        // Rooms come last and begin at a line, for which one is left over.
        let tiles = scratch.bytes.saturating_sub(line) / (result + room).max(1);
        if tiles == 0 {
            return Err(format!("the work memory has {} bytes, a tile needs {}", scratch.bytes, result + room + line));
        }
        Ok(Work { results, tiles, room: (results + (tiles * result) as u64).next_multiple_of(LINE as u64) })
    }

    /// Passes over cells in page-locked host memory. Attention kernels would read parts of lines, and some bytes
    /// several times; so whole lines are brought first, as many tiles as there is room for.
    fn brought(&self, cells: &Cells<HostSpan>, layout: &CellLayout, work: &Work) -> Result<Vec<Pass>, String> {
        let buf = cells.at.buf();
        if !buf.is_locked() {
            return Err(format!("{buf:?} is not page-locked, so the card cannot read it over its link"));
        }
        let bytes = layout.cell_bytes();
        let most = work.tiles * ATTENTION_TILE;
        let mut passes = Vec::with_capacity(cells.count.div_ceil(most));
        for start in (0..cells.count).step_by(most) {
            let count = most.min(cells.count - start);
            let outside = || format!("{buf:?} has no {count} cells from {start}");
            let part = cells.at.part(start * bytes, count * bytes).ok_or_else(outside)?;
            let bring = |(offset, bytes)| {
                let from = device_address(part.start().wrapping_add(offset)).map_err(|error| self.failed(error))?;
                if from % 16 != 0 {
                    return Err(format!("cells of {buf:?} are not aligned to 16 bytes"));
                }
                Ok(Bring { from, to: work.room + offset as u64, bytes })
            };
            let mut table = table(layout);
            table.span[0] = CellSpan { at: work.room, first: int(cells.first + start)?, count: int(count)? };
            table.spans = 1;
            passes.push(Pass { bring: pieces(&part).map(bring).collect::<Result<_, _>>()?, cells: table });
        }
        Ok(passes)
    }

    fn bring(&self, bring: &Bring) -> Result<(), String> {
        let &Bring { from, to, bytes } = bring;
        let chunks = bytes as u64 / 16;
        let grid = Grid::row(bytes.div_ceil(BRING_BLOCK).min(self.processors), BRING_THREADS);
        // SAFETY: (const uint4*, uint4*, u64).
        unsafe { self.launch(Module::Attention, "bring_cells", grid, arguments![from, to, chunks]) }
    }

    /// The cells in tables of at most [`MOST_SPANS`] spans.
    fn cell_tables(&self, cells: &[Cells], layout: &CellLayout) -> Result<Vec<Pass>, String> {
        let bytes = layout.cell_bytes();
        let mut end = cells.first().map_or(0, |cells| cells.first);
        let mut tables = Vec::with_capacity(1);
        for part in cells.chunks(MOST_SPANS) {
            let mut table = table(layout);
            for (slot, cells) in table.span.iter_mut().zip(part) {
                if cells.first != end || !cells.first.is_multiple_of(ATTENTION_TILE) {
                    return Err(format!("cells from {} do not follow {end} at a tile's edge", cells.first));
                }
                end = cells.first + cells.count;
                let at = self.wide(&cells.at, cells.count * bytes, "the cells")?;
                *slot = CellSpan { at, first: int(cells.first)?, count: int(cells.count)? };
                table.spans += 1;
            }
            tables.push(Pass { bring: Vec::new(), cells: table });
        }
        Ok(tables)
    }

    fn attend_prompt(&self, of: &Attend, at: At, cells: &CellTable) -> Result<(), String> {
        let shape = &of.shape;
        let At { q, state, out, resume } = at;
        let (rows, first) = (int(of.rows)?, int(of.first)?);
        if let Some((module, heads)) = self.tensor_heads(of)? {
            let kv = if of.layout.kind == KvType::Int8 { TensorKv::Int8 } else { TensorKv::F16 };
            let block = PromptBlock::of(shape.head_dim, kv, self.arch);
            let grid = Grid {
                blocks: (small(shape.heads), small(of.rows.div_ceil(block.rows)), 1),
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
        let heads = general(shape, of.layout.kind)?;
        let grid = Grid {
            blocks: (small(of.rows), head_blocks(shape, GROUP), 1),
            threads: 128,
            shared: general_shared(shape.head_dim, shape.value_dim),
        };
        // SAFETY: (const float*, Heads, Cells, int, int, float*, float*).
        unsafe {
            self.launch(Module::Attention, "attend_rows", grid, arguments![q, heads, *cells, first, resume, state, out])
        }
    }

    /// The tensor-core kernels for these heads, if they were loaded.
    fn tensor_heads(&self, of: &Attend) -> Result<Option<(Module, PromptHeads)>, String> {
        let Some(module) = Module::for_attention(&of.shape, of.layout.kind, self.arch) else { return Ok(None) };
        let AttentionShape { heads, kv_heads, scale, .. } = of.shape;
        let heads = PromptHeads { heads: int(heads)?, kv_heads: int(kv_heads)?, scale };
        Ok(self.kernels.has(module).then_some((module, heads)))
    }

    /// As many tiles at a time as the work memory holds the results of.
    fn attend_decode(&self, of: &Attend, at: At, cells: &CellTable, results: u64, most: usize) -> Result<(), String> {
        let shape = &of.shape;
        let heads = general(shape, of.layout.kind)?;
        let tensor = self.tensor_heads(of)?;
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
        let first = int(of.first)?;
        let At { q, state, out, mut resume } = at;
        let mut tile = begin;
        loop {
            let count = most.min(end - tile);
            let last = tile + count == end;
            let to = if last { out } else { 0 };
            let (start, tiles) = (int(tile)?, int(count)?);
            if let Some((module, heads)) = tensor {
                let grid = Grid {
                    blocks: (small(count), head_blocks(shape, DECODE_HEADS), small(of.rows)),
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
                    blocks: (small(count), head_blocks(shape, GROUP), small(of.rows)),
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
            let grid = Grid { blocks: (small(shape.heads), small(of.rows), 1), threads: 128, shared: 0 };
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

/// A table without spans.
fn table(layout: &CellLayout) -> CellTable {
    CellTable {
        cell_bytes: layout.cell_bytes() as u32,
        value_offset: layout.value_offset() as u32,
        scales_offset: layout.scales_offset() as u32,
        ..CellTable::default()
    }
}

fn general(shape: &AttentionShape, kind: KvType) -> Result<Heads, String> {
    Ok(Heads {
        kind: kv_number(kind),
        heads: int(shape.heads)?,
        kv_heads: int(shape.kv_heads)?,
        head_dim: int(shape.head_dim)?,
        value_dim: int(shape.value_dim)?,
        scale: shape.scale,
    })
}

/// Blocks that together take all heads, at most `most` with one key head each.
fn head_blocks(shape: &AttentionShape, most: usize) -> u32 {
    small(shape.kv_heads * (shape.heads / shape.kv_heads).div_ceil(most))
}
