//! Cutting products into parts for the team, and what one part computes.

use super::activation::{Activations, Form};
use super::isa::{Isa, Kind};
use super::{Epilogue, LinearError, Pick, Product, Weight};
use crate::quant::QuantType;

/// Outputs of one tile: the lanes of a register.
pub(super) const TILE: usize = 8;
/// The most rows that a kernel takes at once. Their blocks stay in the second-level cache while tiles pass.
pub(super) const CHUNK: usize = 64;
/// Parts for each worker, so that the last ones to end leave little idle time.
const PARTS_PER_WORKER: usize = 6;
/// Weight bytes, each counted once for every row, that a part reads at least, so that handing it out costs little
/// beside it.
const PART_BYTES: usize = 16 << 10;
/// Weight bytes, each counted once for every row, that a part reads at most (but at least one tile).
const PART_BYTES_MOST: usize = 1 << 20;

/// What a kernel computes: some tiles of one matrix for at most [`CHUNK`] rows.
pub(super) struct Task<'a> {
    pub(super) ty: QuantType,
    /// All rows of the matrix.
    pub(super) weight: &'a [u8],
    pub(super) row_bytes: usize,
    pub(super) cols: usize,
    /// The outputs to compute, beginning at a multiple of [`TILE`].
    pub(super) first: usize,
    pub(super) last: usize,
    /// The rows, each in the form that `ty` multiplies with.
    pub(super) x: &'a [*const u8],
    pub(super) result: Target,
}

/// Where results go.
#[derive(Clone, Copy)]
pub(super) struct Target {
    y: *mut f32,
    outs: usize,
    epilogue: Epilogue,
}

impl Target {
    /// Writes outputs `first..first + values.len()` of row `row`.
    ///
    /// # Safety
    /// The row and these outputs are in the task's range, which no other thread touches.
    #[inline(always)]
    pub(super) unsafe fn write(self, row: usize, first: usize, values: &[f32]) {
        for (i, value) in values.iter().enumerate() {
            // SAFETY: the caller vouches for the range.
            let y = unsafe { &mut *self.y.add(row * self.outs + first + i) };
            match self.epilogue {
                Epilogue::Store => *y = *value,
                Epilogue::Add => *y += *value,
            }
        }
    }
}

/// Every part of a [`super::multiply`], checked.
pub(super) struct Plan<'a> {
    isa: Isa,
    steps: Vec<Step<'a>>,
    parts: usize,
}

struct Step<'a> {
    weight: Weight<'a>,
    row_bytes: usize,
    x: &'a [u8],
    x_row_bytes: usize,
    rows: Pick<'a>,
    count: usize,
    result: Target,
    first_part: usize,
    /// Rows and tiles of a part.
    chunk: usize,
    tiles: usize,
    chunks: usize,
}

// SAFETY: the only thing that is written is `result.y`, an exclusive slice that the plan borrows for `'a`, and parts
// write disjoint ranges of it (different rows or different outputs).
unsafe impl Sync for Plan<'_> {}

impl<'a> Plan<'a> {
    pub(super) fn new(
        isa: Isa,
        workers: usize,
        activations: &'a Activations<'_>,
        products: &'a mut [Product<'_>],
    ) -> Result<Self, LinearError> {
        let mut steps = Vec::with_capacity(products.len());
        for product in products.iter_mut() {
            steps.push(Step::new(activations, product)?);
        }
        let tile_chunks: usize = steps.iter().map(|s| s.weight.outs.div_ceil(TILE) * s.chunks).sum();
        let wanted = tile_chunks.div_ceil(workers.max(1) * PARTS_PER_WORKER).max(1);
        let mut parts = 0;
        for step in &mut steps {
            let tile = step.row_bytes.max(1) * TILE * step.chunk.max(1);
            step.tiles = wanted.clamp(PART_BYTES.div_ceil(tile), (PART_BYTES_MOST / tile).max(1));
            step.first_part = parts;
            parts += step.weight.outs.div_ceil(TILE).div_ceil(step.tiles) * step.chunks;
        }
        Ok(Self { isa, steps, parts })
    }

    pub(super) fn parts(&self) -> usize {
        self.parts
    }

    /// Computes one part.
    pub(super) fn run(&self, part: usize) {
        let at = self.steps.partition_point(|s| s.first_part <= part) - 1;
        let step = &self.steps[at];
        let local = part - step.first_part;
        let (range, chunk) = (local / step.chunks, local % step.chunks);
        let first_row = chunk * step.chunk;
        let rows = step.chunk.min(step.count - first_row);
        let mut x = [std::ptr::null(); CHUNK];
        for (i, x) in x[..rows].iter_mut().enumerate() {
            let row = match step.rows {
                Pick::All => first_row + i,
                Pick::Range { start, .. } => start + first_row + i,
                Pick::List(list) => list[first_row + i] as usize,
            };
            *x = step.x[row * step.x_row_bytes..][..step.x_row_bytes].as_ptr();
        }
        let outs = step.weight.outs;
        let first = range * step.tiles * TILE;
        let result = Target { y: step.result.y.wrapping_add(first_row * outs), ..step.result };
        let task = Task {
            ty: step.weight.ty,
            weight: step.weight.bytes,
            row_bytes: step.row_bytes,
            cols: step.weight.cols,
            first,
            last: (first + step.tiles * TILE).min(outs),
            x: &x[..rows],
            result,
        };
        match self.isa.kind() {
            // SAFETY: `Step::new` has checked the ranges of weight, rows and result; this part's rows and outputs are
            // no other's.
            Kind::Scalar => unsafe { super::scalar::run(&task) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above, and an `Isa` of this kind exists only where the CPU has AVX2, FMA and F16C.
            Kind::Avx2 => unsafe { super::avx2::run(&task) },
        }
    }
}

impl<'a> Step<'a> {
    fn new(activations: &'a Activations<'_>, product: &'a mut Product<'_>) -> Result<Self, LinearError> {
        let Weight { ty, bytes, outs, cols } = product.weight;
        let row_bytes = ty.row_bytes(cols).filter(|row| row.checked_mul(outs) == Some(bytes.len()));
        let row_bytes = row_bytes.ok_or(LinearError::Weight { ty, outs, cols, bytes: bytes.len() })?;
        if cols != activations.cols() {
            return Err(LinearError::Cols { weight: cols, activations: activations.cols() });
        }
        let rows = activations.rows();
        let (count, past) = match product.rows {
            Pick::All => (rows, rows),
            Pick::Range { start, count } => (count, start.saturating_add(count)),
            Pick::List(list) => (list.len(), list.iter().max().map_or(0, |&r| r as usize + 1)),
        };
        if past > rows && count > 0 {
            return Err(LinearError::Row { row: past - 1, rows });
        }
        if count.checked_mul(outs) != Some(product.y.len()) {
            return Err(LinearError::Floats { what: "results", rows: count, cols: outs, found: product.y.len() });
        }
        let x = activations.form(ty).ok_or(LinearError::Format { ty })?;
        let chunks = count.div_ceil(CHUNK);
        Ok(Self {
            weight: product.weight,
            row_bytes,
            x,
            x_row_bytes: Form::of(ty).row_bytes(cols),
            rows: product.rows,
            count,
            result: Target { y: product.y.as_mut_ptr(), outs, epilogue: product.epilogue },
            first_part: 0,
            // Equal chunks: 65 rows are 33 and 32, not 64 and a slow 1.
            chunk: if chunks == 0 { 0 } else { count.div_ceil(chunks) },
            tiles: 1,
            chunks,
        })
    }
}
