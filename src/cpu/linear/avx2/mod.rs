//! The kernels for AVX2, FMA and F16C.
//!
//! A tile is eight outputs, one in each 32-bit lane. `block.rs` brings a group of elements of eight weight rows into that
//! form (a transposition of 32-bit columns), `step.rs` multiplies it with one row of activations, whose elements are
//! broadcast four (bytes), two (words) or one (floats) at a time; the group stays in registers while all rows of the chunk
//! pass. A single row takes the same way with its sum in a register.

mod block;
mod convert;
mod quantise;
mod step;

use std::arch::x86_64::*;

use super::activation::{BLOCK, BYTES_BLOCK, Form, WORDS_BLOCK};
use super::part::{CHUNK, TILE, Task};
use crate::quant::QuantType;
use block::{Block, Rows};
pub(super) use quantise::{quantise_bytes, quantise_words};
use step::{Many, One, Sink};

/// Computes a task.
///
/// # Safety
/// The CPU has AVX2, FMA and F16C; `task.x` are readable rows of the right form; `task.result` is this thread's to write.
pub(super) unsafe fn run(task: &Task<'_>) {
    // SAFETY: the caller's obligations are those of `tiles`.
    unsafe {
        match task.ty {
            QuantType::F32 => tiles(task, &convert::F32),
            QuantType::F16 => tiles(task, &convert::F16),
            QuantType::BF16 => tiles(task, &convert::BF16),
            QuantType::Q4_0 => tiles(task, &block::Q4_0),
            QuantType::Q4_1 => tiles(task, &block::Q4_1),
            QuantType::Q5_0 => tiles(task, &block::Q5_0),
            QuantType::Q5_1 => tiles(task, &block::Q5_1),
            QuantType::Q8_0 => tiles(task, &block::Q8_0),
            QuantType::Q4_K => tiles(task, &block::Q4K),
            QuantType::Q5_K => tiles(task, &block::Q5K),
            QuantType::Q6_K => tiles(task, &block::Q6K),
            QuantType::IQ4_NL => tiles(task, &block::IQ4NL),
            QuantType::MXFP4 => tiles(task, &block::MXFP4),
            ty => tiles(task, &convert::Dequantised(ty)),
        }
    }
}

/// # Safety
/// As for [`run`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tiles<B: Block>(task: &Task<'_>, block: &B) {
    let mut first = task.first;
    while first < task.last {
        let valid = TILE.min(task.last - first);
        // The last tile may be short: its missing rows repeat the last one, and their sums are dropped.
        let rows: [*const u8; TILE] =
            std::array::from_fn(|i| task.weight[(first + i.min(valid - 1)) * task.row_bytes..].as_ptr());
        // SAFETY: the rows hold `task.cols` elements each, and so do the activations' rows.
        unsafe {
            if let [x] = task.x {
                let mut one = One { x: *x, sum: _mm256_setzero_ps() };
                row_of_blocks(block, &rows, task, TILE * task.row_bytes, &mut one);
                let mut sums = [0.0; TILE];
                _mm256_storeu_ps(sums.as_mut_ptr(), one.sum);
                task.result.write(0, first, &sums[..valid]);
            } else {
                let mut sums = [_mm256_setzero_ps(); CHUNK];
                let mut many = Many { x: task.x, sums: &mut sums };
                row_of_blocks(block, &rows, task, 0, &mut many);
                for (row, sum) in sums[..task.x.len()].iter().enumerate() {
                    let mut values = [0.0; TILE];
                    _mm256_storeu_ps(values.as_mut_ptr(), *sum);
                    task.result.write(row, first, &values[..valid]);
                }
            }
        }
        first += TILE;
    }
}

/// Feeds all blocks of eight rows. `ahead` bytes after what is read, the cache is asked for the next tile (0: no).
///
/// # Safety
/// As for [`run`]; `rows` hold `task.cols` elements.
#[inline(always)]
unsafe fn row_of_blocks<B: Block, S: Sink>(block: &B, rows: &Rows, task: &Task<'_>, ahead: usize, sink: &mut S) {
    let blocks = task.cols / B::LEN;
    let x_bytes = match Form::of(task.ty) {
        Form::Floats => 4 * B::LEN,
        Form::Bytes => B::LEN / BLOCK * BYTES_BLOCK,
        Form::Words => B::LEN / BLOCK * WORDS_BLOCK,
    };
    // SAFETY: blocks `0..blocks` are inside the rows; a prefetch may name any address.
    unsafe {
        for b in 0..blocks {
            if ahead > 0 {
                let next = rows[0].wrapping_add(ahead + b * TILE * block.bytes());
                for line in 0..(TILE * block.bytes()).div_ceil(64) {
                    _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(64 * line).cast());
                }
            }
            let at: Rows = std::array::from_fn(|i| rows[i].add(b * block.bytes()));
            block.feed(&at, b * x_bytes, sink);
        }
        let rest = task.cols - blocks * B::LEN;
        if rest > 0 {
            let at: Rows = std::array::from_fn(|i| rows[i].add(blocks * block.bytes()));
            convert::feed_rest(task.ty, &at, rest, blocks * x_bytes, sink);
        }
    }
}
