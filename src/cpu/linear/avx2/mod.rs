//! The kernels for AVX2, FMA and F16C.
//!
//! A tile is eight outputs, one in each 32-bit lane. `block.rs` brings a group of elements of eight weight rows into
//! that form (a transposition of 32-bit columns), `step.rs` multiplies it with one row of activations, whose elements
//! are broadcast four (bytes), two (words) or one (floats) at a time; the group stays in registers while all rows of
//! the chunk pass. A single row takes the same way with its sum in a register.

mod block;
mod convert;
mod iblock;
mod kblock;
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
/// The CPU has AVX2, FMA and F16C; `task.x` are readable rows of the right form; `task.result` is this thread's to
/// write.
pub(super) unsafe fn run(task: &Task<'_>) {
    // SAFETY: the caller's obligations are those of `tiles`.
    unsafe {
        match task.ty {
            QuantType::F32 => tiles::<convert::F32>(task),
            QuantType::F16 => tiles::<convert::F16>(task),
            QuantType::BF16 => tiles::<convert::BF16>(task),
            QuantType::Q4_0 => tiles::<block::Q4_0>(task),
            QuantType::Q4_1 => tiles::<block::Q4_1>(task),
            QuantType::Q5_0 => tiles::<block::Q5_0>(task),
            QuantType::Q5_1 => tiles::<block::Q5_1>(task),
            QuantType::Q8_0 => tiles::<block::Q8_0>(task),
            QuantType::IQ4_NL => tiles::<block::IQ4NL>(task),
            QuantType::MXFP4 => tiles::<block::MXFP4>(task),
            QuantType::Q2_K => tiles::<kblock::Q2K>(task),
            QuantType::Q3_K => tiles::<kblock::Q3K>(task),
            QuantType::Q4_K => tiles::<kblock::Q4K>(task),
            QuantType::Q5_K => tiles::<kblock::Q5K>(task),
            QuantType::Q6_K => tiles::<kblock::Q6K>(task),
            QuantType::IQ4_XS => tiles::<iblock::IQ4XS>(task),
            QuantType::IQ2_XXS => tiles::<iblock::IQ2XXS>(task),
            QuantType::IQ2_XS => tiles::<iblock::IQ2XS>(task),
            QuantType::IQ2_S => tiles::<iblock::IQ2S>(task),
            QuantType::IQ3_XXS => tiles::<iblock::IQ3XXS>(task),
            QuantType::IQ3_S => tiles::<iblock::IQ3S>(task),
        }
    }
}

/// # Safety
/// As for [`run`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tiles<B: Block>(task: &Task<'_>) {
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
                row_of_blocks::<B, _>(&rows, task, &mut one);
                let mut sums = [0.0; TILE];
                _mm256_storeu_ps(sums.as_mut_ptr(), one.sum);
                task.result.write(0, first, &sums[..valid]);
            } else {
                // Filled by hand: only as many as there are rows.
                let mut sums = [std::mem::MaybeUninit::<__m256>::uninit(); CHUNK];
                let sums = &mut sums[..task.x.len()];
                for sum in sums.iter_mut() {
                    sum.write(_mm256_setzero_ps());
                }
                let sums = std::slice::from_raw_parts_mut(sums.as_mut_ptr().cast::<__m256>(), task.x.len());
                row_of_blocks::<B, _>(&rows, task, &mut Many { x: task.x, sums });
                for (row, sum) in sums.iter().enumerate() {
                    let mut values = [0.0; TILE];
                    _mm256_storeu_ps(values.as_mut_ptr(), *sum);
                    task.result.write(row, first, &values[..valid]);
                }
            }
        }
        first += TILE;
    }
}

/// Feeds all blocks of eight rows, and asks the cache for the next tile on the way.
///
/// # Safety
/// As for [`run`]; `rows` hold `task.cols` elements.
#[inline(always)]
unsafe fn row_of_blocks<B: Block, S: Sink>(rows: &Rows, task: &Task<'_>, sink: &mut S) {
    let blocks = task.cols / B::LEN;
    let x_bytes = match Form::of(task.ty) {
        Form::Floats => 4 * B::LEN,
        Form::Bytes => B::LEN / BLOCK * BYTES_BLOCK,
        Form::Words => B::LEN / BLOCK * WORDS_BLOCK,
    };
    // SAFETY: blocks `0..blocks` are inside the rows; a prefetch may name any address.
    unsafe {
        for b in 0..blocks {
            let next = rows[0].wrapping_add(TILE * (task.row_bytes + b * B::BYTES));
            for line in 0..(TILE * B::BYTES).div_ceil(64) {
                _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(64 * line).cast());
            }
            let at: Rows = std::array::from_fn(|i| rows[i].add(b * B::BYTES));
            B::feed(&at, b * x_bytes, sink);
        }
        let rest = task.cols - blocks * B::LEN;
        if rest > 0 {
            let at: Rows = std::array::from_fn(|i| rows[i].add(blocks * B::BYTES));
            convert::feed_rest(task.ty, &at, rest, blocks * x_bytes, sink);
        }
    }
}
