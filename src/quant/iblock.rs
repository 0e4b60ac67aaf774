//! The I formats: blocks of 256 that begin with a half `d` and whose elements come from codebooks. Each function reads
//! group `g` (of 8) of a block.

use super::codebook::{IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_VALUES, signs};
use super::{half_at, u16_at, u32_at};

/// 32 signed bytes, the first one lowest, and a factor for each half of them: an element is `d * factor * byte`.
///
/// `d` is left out of the factors, which are exact, so that kernels can take it from all rows at once.
pub(crate) type Group = ([u64; 4], [f32; 2]);

/// Writes the elements of a block.
pub(super) fn write(group: fn(&[u8], usize) -> Group, block: &[u8], y: &mut [f32]) {
    let d = half_at(block, 0);
    for (g, y) in y.chunks_exact_mut(32).enumerate() {
        let (values, factors) = group(block, g);
        let values: [i8; 32] = bytemuck::cast(values.map(u64::to_le));
        for (half, factor) in factors.iter().enumerate() {
            let scale = d * factor;
            for k in 16 * half..16 * half + 16 {
                y[k] = scale * f32::from(values[k]);
            }
        }
    }
}

/// Eight magnitudes (none of them zero), negated where the bits of `signs` are set.
fn signed(magnitudes: u64, signs: u8) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let bits = (u64::from(signs) * ONES) & 0x8040_2010_0804_0201;
    // One in every byte whose bit is set.
    let set = ((((bits & (0x7f * ONES)) + 0x7f * ONES) | bits) >> 7) & ONES;
    (magnitudes ^ (set * 0xff)) + set
}

pub(crate) fn iq2_xxs(block: &[u8], g: usize) -> Group {
    let part = &block[2 + 8 * g..][..8];
    let rest = u32_at(part, 4);
    let factor = (0.5 + (rest >> 28) as f32) * 0.25;
    let entry = |l: usize| signed(IQ2_XXS[usize::from(part[l])], signs(rest >> (7 * l)));
    (std::array::from_fn(entry), [factor; 2])
}

/// The two factors that share a byte.
fn nibble_factors(packed: u8) -> [f32; 2] {
    [packed & 15, packed >> 4].map(|n| (0.5 + f32::from(n)) * 0.25)
}

pub(crate) fn iq2_xs(block: &[u8], g: usize) -> Group {
    let entry = |l: usize| {
        let q = u16_at(block, 2 + 8 * g + 2 * l);
        signed(IQ2_XS[usize::from(q & 511)], signs(u32::from(q >> 9)))
    };
    (std::array::from_fn(entry), nibble_factors(block[66 + g]))
}

pub(crate) fn iq2_s(block: &[u8], g: usize) -> Group {
    let (quants, sign, high) = (&block[2 + 4 * g..][..4], &block[34 + 4 * g..][..4], block[66 + g]);
    let entry = |l: usize| {
        let index = usize::from(quants[l]) | usize::from(high) << (8 - 2 * l) & 0x300;
        signed(IQ2_S[index], sign[l])
    };
    (std::array::from_fn(entry), nibble_factors(block[74 + g]))
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

pub(crate) fn iq3_xxs(block: &[u8], g: usize) -> Group {
    let (quants, rest) = (&block[2 + 8 * g..][..8], u32_at(block, 66 + 4 * g));
    let factor = (0.5 + (rest >> 28) as f32) * 0.5;
    let grid = |k: usize| IQ3_XXS[usize::from(quants[k])];
    let entry = |l: usize| signed(pair(grid(2 * l), grid(2 * l + 1)), signs(rest >> (7 * l)));
    (std::array::from_fn(entry), [factor; 2])
}

pub(crate) fn iq3_s(block: &[u8], g: usize) -> Group {
    let (quants, high, sign) = (&block[2 + 8 * g..][..8], block[66 + g], &block[74 + 4 * g..][..4]);
    let nibble = block[106 + g / 2] >> (4 * (g % 2)) & 15;
    let grid = |k: usize| IQ3_S[usize::from(quants[k]) | usize::from(high >> k & 1) << 8];
    let entry = |l: usize| signed(pair(grid(2 * l), grid(2 * l + 1)), sign[l]);
    (std::array::from_fn(entry), [f32::from(1 + 2 * nibble); 2])
}

pub(crate) fn iq4_xs(block: &[u8], g: usize) -> Group {
    let (high, low, quants) = (u16_at(block, 2), block[4 + g / 2], &block[8 + 16 * g..][..16]);
    let bits = low >> (4 * (g % 2)) & 15 | ((high >> (2 * g) & 3) << 4) as u8;
    let value = |k: usize| IQ4_VALUES[usize::from(quants[k % 16] >> (4 * (k / 16)) & 15)];
    let eight = |l: usize| u64::from_le_bytes(std::array::from_fn(|i| value(8 * l + i) as u8));
    (std::array::from_fn(eight), [f32::from(bits) - 32.0; 2])
}
