//! The sums in plain Rust: what every other kernel must equal, bit for bit.

use super::activation::{BLOCK, BYTES_BLOCK, Form, TINY, WORDS_BLOCK};
use super::part::{CHUNK, Task};
use crate::quant::codebook::{IQ4_VALUES, MXFP4_VALUES};
use crate::quant::iblock::{self, Group};
use crate::quant::kblock::q3_scale;
use crate::quant::{QuantType, dequantize, half_at, mxfp4_scale, scale_min};

/// Added to MXFP4 values to make them unsigned.
pub(super) const MXFP4_OFFSET: i8 = 12;

/// The order in which a block of words keeps each four elements.
const WORD_ORDER: [usize; 4] = [0, 2, 1, 3];

/// Scale and inverse scale of a block, by the rule of `activation.rs`.
fn scales(x: &[f32], steps: f32) -> (f32, f32) {
    let largest = x.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap_or(0);
    let largest = f32::from_bits(largest);
    if !largest.is_finite() {
        (f32::NAN, 0.0)
    } else if largest < TINY {
        (0.0, 0.0)
    } else {
        (largest / steps, steps / largest)
    }
}

/// `round(x * inverse)`; an inverse of zero stands for an unusable block and gives zero whatever `x` is.
fn round(x: f32, inverse: f32) -> i32 {
    if inverse == 0.0 { 0 } else { (x * inverse).round_ties_even() as i32 }
}

pub(super) fn quantise_bytes(x: &[f32], out: &mut [u8]) {
    for (x, out) in x.chunks_exact(BLOCK).zip(out.chunks_exact_mut(BYTES_BLOCK)) {
        let (scale, inverse) = scales(x, 127.0);
        let mut sums = [0; 2];
        for (i, &x) in x.iter().enumerate() {
            let q = round(x, inverse).clamp(-127, 127);
            sums[i / 16] += q;
            out[i] = q as i8 as u8;
        }
        let [low, high] = sums;
        for (at, v) in [scale, (low + high) as f32, low as f32, high as f32].into_iter().enumerate() {
            out[BLOCK + 4 * at..][..4].copy_from_slice(&v.to_le_bytes());
        }
    }
}

pub(super) fn quantise_words(x: &[f32], out: &mut [u8]) {
    for (x, out) in x.chunks_exact(BLOCK).zip(out.chunks_exact_mut(WORDS_BLOCK)) {
        let (scale, inverse) = scales(x, 32767.0);
        for i in 0..BLOCK {
            let q = round(x[i / 4 * 4 + WORD_ORDER[i % 4]], inverse).clamp(-32767, 32767) as i16;
            out[2 * i..][..2].copy_from_slice(&q.to_le_bytes());
        }
        out[64..68].copy_from_slice(&scale.to_le_bytes());
    }
}

/// Computes a task.
///
/// # Safety
/// `task.x` are readable rows of the right form, and `task.result` is this thread's to write.
pub(super) unsafe fn run(task: &Task<'_>) {
    let x_bytes = Form::of(task.ty).row_bytes(task.cols);
    for out in task.first..task.last {
        let w = &task.weight[out * task.row_bytes..][..task.row_bytes];
        let mut sums = [0.0; CHUNK];
        let rows = task.x.iter().zip(&mut sums);
        for (&x, sum) in rows {
            // SAFETY: the caller vouches for rows of this many bytes.
            let x = unsafe { std::slice::from_raw_parts(x, x_bytes) };
            *sum = match Form::of(task.ty) {
                Form::Floats => dot_floats(task.ty, w, x),
                Form::Bytes => dot_bytes(task.ty, w, x),
                Form::Words => dot_words(task.ty, w, x),
            };
        }
        for (row, sum) in sums.iter().enumerate().take(task.x.len()) {
            // SAFETY: row and output are in the task's range.
            unsafe { task.result.write(row, out, std::slice::from_ref(sum)) };
        }
    }
}

fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Groups of eight: even and odd elements apart, then both, then onto the sum.
fn dot_floats(ty: QuantType, w: &[u8], x: &[u8]) -> f32 {
    let mut sum = 0.0;
    for (w, x) in w.chunks(8 * ty.block_bytes()).zip(x.chunks(32)) {
        let (mut values, mut even, mut odd) = ([0.0; 8], 0.0_f32, 0.0_f32);
        let fits = dequantize(ty, w, &mut values[..x.len() / 4]);
        debug_assert!(fits.is_ok(), "as many elements as activations");
        let x = |k: usize| if 4 * k < x.len() { f32_at(x, 4 * k) } else { 0.0 };
        for k in (0..8).step_by(2) {
            even = values[k].mul_add(x(k), even);
            odd = values[k + 1].mul_add(x(k + 1), odd);
        }
        sum += even + odd;
    }
    sum
}

/// What multiplies a group of unsigned values: `w = scale * u + min`.
type ScaleMin = (f32, f32);

fn dot_bytes(ty: QuantType, w: &[u8], x: &[u8]) -> f32 {
    let mut sum = 0.0_f32;
    let groups = ty.block_len() / BLOCK;
    for (w, x) in w.chunks_exact(ty.block_bytes()).zip(x.chunks_exact(groups * BYTES_BLOCK)) {
        for (group, x) in x.chunks_exact(BYTES_BLOCK).enumerate() {
            let (u, scales) = unsigned(ty, w, group);
            let dot =
                |from: usize, to: usize| -> i32 { (from..to).map(|k| i32::from(u[k]) * i32::from(x[k] as i8)).sum() };
            let scale = f32_at(x, 32);
            let add =
                |sum: f32, (d, m): ScaleMin, dot: i32, total: f32| d.mul_add(dot as f32, m * total).mul_add(scale, sum);
            sum = match scales {
                Scales::One(s) => add(sum, s, dot(0, 32), f32_at(x, 36)),
                Scales::Two(low, high) => {
                    let sum = add(sum, low, dot(0, 16), f32_at(x, 40));
                    add(sum, high, dot(16, 32), f32_at(x, 44))
                }
            };
        }
    }
    sum
}

enum Scales {
    One(ScaleMin),
    Two(ScaleMin, ScaleMin),
}

/// The 32 elements of group `group` of a block as unsigned values with their scales.
fn unsigned(ty: QuantType, w: &[u8], group: usize) -> ([u8; 32], Scales) {
    let nibble = |at: usize, k: usize| w[at + k % 16] >> (4 * (k / 16)) & 15;
    let fifth = |at: usize, k: usize| (w[at + k / 8] >> (k % 8) & 1) << 4;
    let k_nibble = |at: usize, k: usize| w[at + 32 * (group / 2) + k] >> (4 * (group % 2)) & 15;
    let d = half_at(w, 0);
    let centred = |offset: f32| Scales::One((d, -offset * d));
    let k_scales = || {
        let (scale, min) = scale_min(&w[4..16], group);
        Scales::One((d * f32::from(scale), -half_at(w, 2) * f32::from(min)))
    };
    let (half, quarter) = (group / 4, group % 4);
    match ty {
        QuantType::Q4_0 => (std::array::from_fn(|k| nibble(2, k)), centred(8.0)),
        QuantType::Q4_1 => (std::array::from_fn(|k| nibble(4, k)), Scales::One((d, half_at(w, 2)))),
        QuantType::Q5_0 => (std::array::from_fn(|k| nibble(6, k) | fifth(2, k)), centred(16.0)),
        QuantType::Q5_1 => (std::array::from_fn(|k| nibble(8, k) | fifth(4, k)), Scales::One((d, half_at(w, 2)))),
        QuantType::Q4_K => (std::array::from_fn(|k| k_nibble(16, k)), k_scales()),
        QuantType::Q5_K => (std::array::from_fn(|k| k_nibble(48, k) | (w[16 + k] >> group & 1) << 4), k_scales()),
        QuantType::MXFP4 => {
            let d = mxfp4_scale(w[0]);
            let u = |k| (MXFP4_VALUES[usize::from(nibble(1, k))] + MXFP4_OFFSET) as u8;
            (std::array::from_fn(u), Scales::One((d, -f32::from(MXFP4_OFFSET) * d)))
        }
        QuantType::Q2_K => {
            let scale = |side: usize| {
                let packed = w[2 * group + side];
                (half_at(w, 80) * f32::from(packed & 15), -half_at(w, 82) * f32::from(packed >> 4))
            };
            let u = |k: usize| w[16 + 32 * half + k] >> (2 * quarter) & 3;
            (std::array::from_fn(u), Scales::Two(scale(0), scale(1)))
        }
        QuantType::Q3_K => {
            let scale = |side: usize| {
                let d = half_at(w, 108) * (f32::from(q3_scale(&w[96..108], 2 * group + side)) - 32.0);
                (d, -4.0 * d)
            };
            let u = |k: usize| w[32 + 32 * half + k] >> (2 * quarter) & 3 | (w[k] >> group & 1) << 2;
            (std::array::from_fn(u), Scales::Two(scale(0), scale(1)))
        }
        _ => {
            let u = |k: usize| {
                let low = w[64 * half + 32 * (quarter % 2) + k] >> (4 * (quarter / 2)) & 15;
                low | (w[128 + 32 * half + k] >> (2 * quarter) & 3) << 4
            };
            let scale = |side: usize| {
                let d = half_at(w, 208) * f32::from(w[192 + 2 * group + side] as i8);
                (d, -32.0 * d)
            };
            (std::array::from_fn(u), Scales::Two(scale(0), scale(1)))
        }
    }
}

fn dot_words(ty: QuantType, w: &[u8], x: &[u8]) -> f32 {
    let mut sum = 0.0_f32;
    let groups = ty.block_len() / BLOCK;
    for (w, x) in w.chunks_exact(ty.block_bytes()).zip(x.chunks_exact(groups * WORDS_BLOCK)) {
        for (group, x) in x.chunks_exact(WORDS_BLOCK).enumerate() {
            let (values, scales) = signed(ty, w, group);
            for (half, scale) in scales.iter().enumerate() {
                let mut dot = 0;
                for i in 16 * half..16 * half + 16 {
                    let word = i16::from_le_bytes([x[2 * i], x[2 * i + 1]]);
                    dot += i32::from(values[i / 4 * 4 + WORD_ORDER[i % 4]]) * i32::from(word);
                }
                sum = (scale * dot as f32).mul_add(f32_at(x, 64), sum);
            }
        }
    }
    sum
}

/// The 32 elements of group `group` of a block as signed values with the scales of their halves.
fn signed(ty: QuantType, w: &[u8], group: usize) -> ([i8; 32], [f32; 2]) {
    let d = half_at(w, 0);
    let looked_up =
        |(values, factors): Group| (bytemuck::cast(values.map(u64::to_le)), [d * factors[0], d * factors[1]]);
    match ty {
        QuantType::Q8_0 => (std::array::from_fn(|k| w[2 + k] as i8), [d; 2]),
        QuantType::IQ4_NL => {
            let value = |k: usize| IQ4_VALUES[usize::from(w[2 + k % 16] >> (4 * (k / 16)) & 15)];
            (std::array::from_fn(value), [d; 2])
        }
        QuantType::IQ4_XS => looked_up(iblock::iq4_xs(w, group)),
        QuantType::IQ2_XXS => looked_up(iblock::iq2_xxs(w, group)),
        QuantType::IQ2_XS => looked_up(iblock::iq2_xs(w, group)),
        QuantType::IQ2_S => looked_up(iblock::iq2_s(w, group)),
        QuantType::IQ3_XXS => looked_up(iblock::iq3_xxs(w, group)),
        _ => looked_up(iblock::iq3_s(w, group)),
    }
}
