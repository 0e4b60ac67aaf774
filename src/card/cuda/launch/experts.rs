//! The experts' FFN: of a prompt, grouped by expert in tiles of rows; of decode, entry by entry.

use super::super::kernels::{Grid, MOST_ACROSS, arguments, int, small};
use super::super::module::Module;
use super::super::product::{ProductBlock, ProductTile, TILE_OUTPUTS, check_count};
use super::Launch;
use super::gated_activation::activation_number;
use super::linear::{WARPS, restore_offset, stride, vector_bytes, weight_bytes};
use super::route::Routed;
use super::table::{ExpertTable, Members, TABLE_EXPERTS};
use crate::card::Span;
use crate::card::command::{self, BlobLayout, ExpertsInto, HeldExpert, Routing, RunExperts};
use crate::quant::QuantType;

/// The rows that a product reads: their address, their powers of two (0 for f32 rows) and the elements from row to row.
#[derive(Clone, Copy)]
struct Rows {
    at: u64,
    restore: u64,
    stride: usize,
}

/// A prompt's launch over one table.
struct Prompt<'a> {
    routing: &'a Routing,
    routed: Routed,
    layout: &'a BlobLayout,
    table: ExpertTable,
    tiles: u64,
    size: ProductTile,
    /// Most tiles there can be.
    most: usize,
}

impl Launch<'_> {
    pub(super) fn experts(&self, of: &RunExperts) -> Result<(), String> {
        let RunExperts { x, routing, layout, experts, into, scratch } = of;
        let routed = self.routed(routing)?;
        let x = self.words(x, routing.rows * layout.width, "x")?;
        self.check_layout(layout)?;
        match into {
            ExpertsInto::Accumulate(out) => self.experts_prompt(x, routing, routed, layout, experts, out, scratch),
            ExpertsInto::Slots(slots) => self.experts_decode(x, routing, routed, layout, experts, slots, scratch),
        }
    }

    fn check_layout(&self, layout: &BlobLayout) -> Result<(), String> {
        let BlobLayout { width, hidden, types, offsets, bytes, .. } = *layout;
        for ((ty, offset), (rows, cols)) in
            types.into_iter().zip(offsets).zip([(hidden, width), (hidden, width), (width, hidden)])
        {
            self.need(Module::Weights(ty))?;
            if offset % 16 != 0 || offset + weight_bytes(ty, rows, cols)? > bytes {
                return Err(format!("{ty} weights at byte {offset} do not fit a blob of {bytes} bytes in steps of 16"));
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one command, taken apart")]
    fn experts_prompt(
        &self,
        x: u64,
        routing: &Routing,
        routed: Routed,
        layout: &BlobLayout,
        experts: &[HeldExpert],
        out: &Span,
        scratch: &Span,
    ) -> Result<(), String> {
        let BlobLayout { width, hidden, types: [gate, up, down], .. } = *layout;
        let (rows, top_k) = (routing.rows, routing.top_k);
        let entries = rows * top_k;
        check_count(rows, stride(width))?;
        check_count(entries, stride(hidden))?;
        let out = self.words(out, rows * width, "out")?;
        let work = self.wide(scratch, command::cuda_scratch(rows, top_k, layout), "the work memory")?;
        let tables =
            experts.chunks(TABLE_EXPERTS).map(|part| self.table(part, layout)).collect::<Result<Vec<_>, String>>()?;

        let inner = work + command::halves(rows, width) as u64;
        let products = inner + command::cuda_inner(entries, hidden, down) as u64;
        let tiles = products + command::cuda_products(entries, hidden) as u64;
        let halves = Rows { at: work, restore: work + restore_offset(rows, width), stride: stride(width) };
        let floats = Rows { at: x, restore: 0, stride: width };
        if gate != QuantType::F32 || up != QuantType::F32 {
            self.rows_to_halves(x, [rows, width, halves.stride], halves.at, halves.restore)?;
        }
        let rows_for = |ty| if ty == QuantType::F32 { floats } else { halves };
        let inner = match down {
            QuantType::F32 => Rows { at: inner, restore: 0, stride: hidden },
            _ => Rows { at: inner, restore: inner + restore_offset(entries, hidden), stride: stride(hidden) },
        };

        // Rows of an expert if all were alike; the experts' true numbers are known on the card only.
        let size = ProductTile::for_experts(entries / routing.experts, &layout.types, self.arch);
        for (table, listed) in tables.into_iter().zip(experts.chunks(TABLE_EXPERTS)) {
            let most = (entries / size.rows() + listed.len()).min(listed.len() * rows.div_ceil(size.rows()));
            let prompt = Prompt { routing, routed, layout, table, tiles, size, most };
            self.plan_tiles(&prompt)?;
            if gate == up {
                self.experts_in(&prompt, gate, rows_for(gate), 0, 2, products)?;
            } else {
                self.experts_in(&prompt, gate, rows_for(gate), 0, 1, products)?;
                self.experts_in(&prompt, up, rows_for(up), 1, 1, products)?;
            }
            self.gate_rows(&prompt, products, inner)?;
            // The results of a block of columns take the place of the products, which nobody needs any more.
            let columns = ((2 * hidden).max(TILE_OUTPUTS) / TILE_OUTPUTS * TILE_OUTPUTS).min(width);
            for first in (0..width).step_by(columns) {
                let cols = columns.min(width - first);
                self.experts_out(&prompt, inner, [first, cols], products)?;
                let members = Members::listed(listed);
                self.sum_experts(routing, routed, [products, 0], members, [first, cols, width], out)?;
            }
        }
        Ok(())
    }

    fn plan_tiles(&self, of: &Prompt<'_>) -> Result<(), String> {
        let rows = int(of.size.rows())?;
        let (groups, table, tiles) = (of.routed.groups, &of.table, of.tiles);
        // SAFETY: (const u32*, ExpertTable, int, u32*).
        unsafe { self.launch(Module::Base, "plan_tiles", Grid::row(1, 256), arguments![groups, *table, rows, tiles]) }
    }

    fn experts_in(
        &self,
        of: &Prompt<'_>,
        ty: QuantType,
        x: Rows,
        first_part: i32,
        parts: usize,
        products: u64,
    ) -> Result<(), String> {
        let BlobLayout { width, hidden, offsets: [gate, up, _], .. } = *of.layout;
        let kernel = of.size.experts_in();
        let grid = self.product_grid(of, ty, hidden.div_ceil(TILE_OUTPUTS) * parts);
        let Rows { at, restore, stride } = x;
        let Routed { groups, list, .. } = of.routed;
        let (gate, up) = (gate as u64, up as u64);
        let (stride, top_k, hidden, width) = (int(stride)?, int(of.routing.top_k)?, int(hidden)?, int(width)?);
        // SAFETY: (const void*, int, const float*, const u32*, const u32*, int, ExpertTable, const u32*, u64, u64, int,
        // int, int, float*).
        unsafe {
            self.launch(
                Module::Weights(ty),
                kernel,
                grid,
                arguments![
                    at, stride, restore, groups, list, top_k, of.table, of.tiles, gate, up, first_part, hidden, width,
                    products
                ],
            )
        }
    }

    fn gate_rows(&self, of: &Prompt<'_>, products: u64, inner: Rows) -> Result<(), String> {
        let tile_rows = int(of.size.rows())?;
        let hidden = int(of.layout.hidden)?;
        let stride = int(inner.stride)?;
        let activation = activation_number(of.layout.activation);
        let (halves, floats) = if inner.restore == 0 { (0_u64, inner.at) } else { (inner.at, 0_u64) };
        let restore = inner.restore;
        let groups = of.routed.groups;
        // SAFETY: (const u32*, ExpertTable, int, const u32*, const float*, int, int, int, u16*, float*, float*).
        unsafe {
            self.launch(
                Module::Base,
                "gate_rows",
                Grid { blocks: (small(of.most), small(of.size.rows() / 8), 1), threads: 256, shared: 0 },
                arguments![
                    groups, of.table, tile_rows, of.tiles, products, hidden, stride, activation, halves, restore,
                    floats
                ],
            )
        }
    }

    fn experts_out(&self, of: &Prompt<'_>, inner: Rows, [first, cols]: [usize; 2], results: u64) -> Result<(), String> {
        let BlobLayout { hidden, types: [_, _, ty], offsets: [_, _, down], .. } = *of.layout;
        let kernel = of.size.experts_out();
        let grid = self.product_grid(of, ty, cols.div_ceil(TILE_OUTPUTS));
        let Rows { at, restore, stride } = inner;
        let Routed { groups, list, .. } = of.routed;
        let down = down as u64;
        let (stride, hidden, first, cols) = (int(stride)?, int(hidden)?, int(first)?, int(cols)?);
        // SAFETY: (const void*, int, const float*, const u32*, const u32*, ExpertTable, const u32*, u64, int, int, int,
        // float*).
        unsafe {
            self.launch(
                Module::Weights(ty),
                kernel,
                grid,
                arguments![at, stride, restore, groups, list, of.table, of.tiles, down, hidden, first, cols, results],
            )
        }
    }

    fn product_grid(&self, of: &Prompt<'_>, ty: QuantType, across: usize) -> Grid {
        let ProductBlock { threads, shared } = ProductBlock::of(ty, of.size, self.arch);
        Grid { blocks: (small(across), small(of.most), 1), threads, shared }
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one command, taken apart")]
    fn experts_decode(
        &self,
        x: u64,
        routing: &Routing,
        routed: Routed,
        layout: &BlobLayout,
        experts: &[HeldExpert],
        slots: &Span,
        scratch: &Span,
    ) -> Result<(), String> {
        let BlobLayout { width, hidden, types: [gate, up, down], offsets, .. } = *layout;
        let entries = routing.rows * routing.top_k;
        let slots = self.words(slots, entries * width, "the slots")?;
        let h = self.wide(scratch, entries * hidden * 4, "the work memory")?;
        let tables =
            experts.chunks(TABLE_EXPERTS).map(|part| self.table(part, layout)).collect::<Result<Vec<_>, String>>()?;
        let activation = activation_number(layout.activation);
        let [gate_at, up_at, down_at] = offsets.map(|offset| offset as u64);
        let (top_k, hidden_n, width_n) = (int(routing.top_k)?, int(hidden)?, int(width)?);
        for (start, count) in row_blocks(routing.rows, routing.top_k) {
            // A block of entries by itself, so that they fit a grid.
            let (first, entries) = (start * routing.top_k, count * routing.top_k);
            let grid = |outputs: usize, shared: usize| {
                let each = (outputs * entries / (WARPS * self.processors * 4)).clamp(1, 4);
                let blocks = (small(outputs.div_ceil(WARPS * each)), small(entries), 1);
                Ok::<_, String>((Grid { blocks, threads: 256, shared }, int(each)?))
            };
            let x = x + (start * width * 4) as u64;
            let ids = routed.ids + (first * 4) as u64;
            let h = h + (first * hidden * 4) as u64;
            let slots = slots + (first * width * 4) as u64;
            for table in &tables {
                // Part 2 is gate and up in one; formats that differ take 0 and 1 in turn.
                let passes: &[(QuantType, i32)] = if gate == up { &[(gate, 2)] } else { &[(gate, 0), (up, 1)] };
                for (ty, part) in passes {
                    let (grid, each) = grid(hidden, vector_bytes(*ty, 1, width))?;
                    // SAFETY: (const float*, const u32*, int, ExpertTable, u64, u64, int, int, int, int, int, float*).
                    unsafe {
                        self.launch(
                            Module::Weights(*ty),
                            "experts_decode_in",
                            grid,
                            arguments![
                                x, ids, top_k, *table, gate_at, up_at, *part, hidden_n, width_n, activation, each, h
                            ],
                        )
                    }?;
                }
                let (grid, each) = grid(width, vector_bytes(down, 1, hidden))?;
                // SAFETY: (const float*, const u32*, ExpertTable, u64, int, int, int, float*).
                unsafe {
                    self.launch(
                        Module::Weights(down),
                        "experts_decode_out",
                        grid,
                        arguments![h, ids, *table, down_at, hidden_n, width_n, each, slots],
                    )
                }?;
            }
        }
        Ok(())
    }
}

/// Rows whose entries fit the second dimension of a grid: the first of each block, and how many.
fn row_blocks(rows: usize, top_k: usize) -> impl Iterator<Item = (usize, usize)> {
    let most = (MOST_ACROSS as usize / top_k.max(1)).max(1);
    (0..rows).step_by(most).map(move |start| (start, most.min(rows - start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_decode_fit_a_grid_however_many_rows_there_are() {
        for (rows, top_k) in [(0, 8), (1, 8), (8191, 8), (8192, 8), (65_535, 1), (65_536, 1), (1 << 20, 8), (5000, 32)]
        {
            let mut next = 0;
            for (start, count) in row_blocks(rows, top_k) {
                assert_eq!(start, next, "{rows} rows of {top_k}");
                assert!(count > 0 && count * top_k <= 65_535, "{rows} rows of {top_k}: {count}");
                next += count;
            }
            assert_eq!(next, rows);
        }
    }
}
