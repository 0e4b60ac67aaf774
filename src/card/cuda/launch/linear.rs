//! Dense products.

use super::super::kernels::{Grid, arguments, int, small};
use super::super::module::Module;
use super::super::product::{ProductBlock, ProductTile, TILE_OUTPUTS, check_count};
use super::Launch;
use crate::card::command::{self, Epilogue, Linear, Phase};
use crate::quant::QuantType;

/// As in `linear.cu`, and so are `Part` and `Parts`.
const MOST_PARTS: usize = 4;

/// Rows of a decode launch.
const MOST_ROWS: usize = 8;

/// Warps of a decode block, each computing one output at a time.
pub(super) const WARPS: usize = 8;

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Part {
    weight: u64,
    bias: u64,
    out: u64,
    outputs: i32,
    first_tile: i32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Parts {
    part: [Part; MOST_PARTS],
    count: i32,
    add: i32,
}

/// Columns of rows in f16: whole steps of the products.
pub(super) fn stride(cols: usize) -> usize {
    cols.next_multiple_of(64)
}

/// Where the powers of two stand behind the f16 rows.
pub(super) fn restore_offset(rows: usize, cols: usize) -> u64 {
    (rows * stride(cols) * 2).next_multiple_of(256) as u64
}

/// Bytes of a weight of this format.
pub(super) fn weight_bytes(ty: QuantType, rows: usize, cols: usize) -> Result<usize, String> {
    ty.row_bytes(cols).map(|row| row * rows).ok_or_else(|| format!("rows of {cols} are no whole {ty} blocks"))
}

/// Shared memory of `rows` rows of decode.
pub(super) fn vector_bytes(ty: QuantType, rows: usize, cols: usize) -> usize {
    match ty {
        QuantType::F32 | QuantType::F16 | QuantType::BF16 => 0,
        _ => rows * cols + rows * (cols / 32) * 8,
    }
}

impl Launch<'_> {
    pub(super) fn linear(&self, of: &Linear) -> Result<(), String> {
        let Linear { x, rows, parts, epilogue, phase, scratch } = of;
        let rows = *rows;
        let Some(cols) = parts.first().map(|part| part.weight.cols) else { return Ok(()) };
        let from = self.words(x, rows * cols, "x")?;
        let mut groups: Vec<(QuantType, Parts)> = Vec::new();
        for part in parts {
            let weight = &part.weight;
            if weight.cols != cols {
                return Err(format!("products of {cols} and {} inputs do not go together", weight.cols));
            }
            let resolved = Part {
                weight: self.wide(&weight.at, weight_bytes(weight.ty, weight.rows, cols)?, "a weight")?,
                bias: part.bias.map_or(Ok(0), |bias| self.words(&bias, weight.rows, "a bias"))?,
                out: self.words(&part.out, rows * weight.rows, "an output")?,
                outputs: int(weight.rows)?,
                first_tile: 0,
            };
            self.need(Module::Weights(weight.ty))?;
            match groups.last_mut() {
                Some((ty, parts)) if *ty == weight.ty && (parts.count as usize) < MOST_PARTS => push(parts, resolved),
                _ => {
                    let mut parts = Parts { add: i32::from(*epilogue == Epilogue::Add), ..Parts::default() };
                    push(&mut parts, resolved);
                    groups.push((weight.ty, parts));
                }
            }
        }
        match phase {
            Phase::Decode => {
                groups.iter().try_for_each(|(ty, parts)| self.linear_decode(from, [rows, cols], *ty, parts))
            }
            Phase::Prompt => {
                check_count(rows, stride(cols))?;
                let halves = self.wide(scratch, command::halves(rows, cols), "the work memory")?;
                let restore = halves + restore_offset(rows, cols);
                if groups.iter().any(|(ty, _)| *ty != QuantType::F32) {
                    self.rows_to_halves(from, [rows, cols, stride(cols)], halves, restore)?;
                }
                groups.iter().try_for_each(|(ty, parts)| match ty {
                    QuantType::F32 => self.linear_prompt([from, 0], [rows, cols, cols], *ty, parts),
                    _ => self.linear_prompt([halves, restore], [rows, cols, stride(cols)], *ty, parts),
                })
            }
        }
    }

    /// Refuses what needs a module that was not loaded.
    pub(super) fn need(&self, module: Module) -> Result<(), String> {
        if self.kernels.has(module) {
            Ok(())
        } else {
            Err(format!("the {module} kernels were not asked for when the card was opened"))
        }
    }

    fn linear_prompt(
        &self,
        [x, restore]: [u64; 2],
        [rows, cols, stride]: [usize; 3],
        ty: QuantType,
        parts: &Parts,
    ) -> Result<(), String> {
        let mut parts = *parts;
        let across = tile(&mut parts, TILE_OUTPUTS)?;
        let size = ProductTile::for_linear(rows, across, ty, self.arch, self.processors);
        let kernel = size.linear();
        let ProductBlock { threads, shared } = ProductBlock::of(ty, size, self.arch);
        let grid = Grid { blocks: (small(across), small(rows.div_ceil(size.rows())), 1), threads, shared };
        let (stride, rows, cols) = (int(stride)?, int(rows)?, int(cols)?);
        // SAFETY: (const void*, int, const float*, int, int, Parts).
        unsafe { self.launch(Module::Weights(ty), kernel, grid, arguments![x, stride, restore, rows, cols, parts]) }
    }

    fn linear_decode(&self, x: u64, [rows, cols]: [usize; 2], ty: QuantType, parts: &Parts) -> Result<(), String> {
        let most = match vector_bytes(ty, 1, cols) {
            0 => MOST_ROWS,
            each => (self.shared.min(64 << 10) / each).min(MOST_ROWS),
        };
        if most == 0 {
            return Err(format!("a row of {cols} does not fit the {} bytes of shared memory", self.shared));
        }
        let outputs: usize = parts.part.iter().map(|part| part.outputs as usize).sum();
        // Every block turns the rows into bytes for itself: many rows want fewer blocks.
        let blocks = if rows == 1 { 4 } else { 1 };
        let each = (outputs / (WARPS * self.processors * blocks)).clamp(1, 8);
        for start in (0..rows).step_by(most) {
            let count = most.min(rows - start);
            let mut parts = *parts;
            let across = tile(&mut parts, WARPS * each)?;
            for part in parts.part.iter_mut().take(parts.count as usize) {
                part.out += (start * part.outputs as usize * 4) as u64;
            }
            let kernel = if count == 1 { "linear_decode_1" } else { "linear_decode_8" };
            let grid = Grid { shared: vector_bytes(ty, count, cols), ..Grid::row(across, 256) };
            let from = x + (start * cols * 4) as u64;
            let (count, cols, each) = (int(count)?, int(cols)?, int(each)?);
            // SAFETY: (const float*, int, int, int, Parts).
            unsafe { self.launch(Module::Weights(ty), kernel, grid, arguments![from, count, cols, each, parts]) }?;
        }
        Ok(())
    }
}

fn push(parts: &mut Parts, part: Part) {
    if let Some(slot) = parts.part.get_mut(parts.count as usize) {
        *slot = part;
        parts.count += 1;
    }
}

/// Numbers the tiles of `outputs` outputs over the parts, and counts them.
fn tile(parts: &mut Parts, outputs: usize) -> Result<usize, String> {
    let mut tiles = 0;
    for part in parts.part.iter_mut().take(parts.count as usize) {
        part.first_tile = int(tiles)?;
        tiles += (part.outputs as usize).div_ceil(outputs);
    }
    Ok(tiles)
}
