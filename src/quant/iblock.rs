//! The I formats: blocks of 256 whose elements come from codebooks. In each, `block` is one block and `y` its 256 elements.

use super::codebook::{IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_VALUES, entry2, entry3, entry3_odd, signs};
use super::{half_at, u16_at, u32_at};

/// Writes `scale * magnitude`, negative where bit `j` of `signs` is set.
fn signed(y: &mut [f32], scale: f32, magnitudes: &[u8], signs: u8) {
    for (j, (y, &g)) in y.iter_mut().zip(magnitudes).enumerate() {
        let v = scale * f32::from(g);
        *y = if signs >> j & 1 == 1 { -v } else { v };
    }
}

pub(super) fn iq2_xxs(block: &[u8], y: &mut [f32]) {
    let d = half_at(block, 0);
    for (part, y) in block[2..].chunks_exact(8).zip(y.chunks_exact_mut(32)) {
        let rest = u32_at(part, 4);
        let scale = d * (0.5 + (rest >> 28) as f32) * 0.25;
        for (l, y) in y.chunks_exact_mut(8).enumerate() {
            signed(y, scale, &entry2(IQ2_XXS[usize::from(part[l])]), signs(rest >> (7 * l)));
        }
    }
}

/// Scale of group `l` (of 4) in a part whose two 4-bit scales share `packed`.
fn nibble_scale(d: f32, packed: u8, l: usize) -> f32 {
    d * (0.5 + f32::from(packed >> (4 * (l / 2)) & 15)) * 0.25
}

pub(super) fn iq2_xs(block: &[u8], y: &mut [f32]) {
    let (d, scales) = (half_at(block, 0), &block[66..74]);
    for (k, y) in y.chunks_exact_mut(8).enumerate() {
        let q = u16_at(block, 2 + 2 * k);
        let scale = nibble_scale(d, scales[k / 4], k % 4);
        signed(y, scale, &entry2(IQ2_XS[usize::from(q & 511)]), signs(u32::from(q >> 9)));
    }
}

pub(super) fn iq2_s(block: &[u8], y: &mut [f32]) {
    let d = half_at(block, 0);
    let (quants, sign, high, scales) = (&block[2..34], &block[34..66], &block[66..74], &block[74..82]);
    for (k, y) in y.chunks_exact_mut(8).enumerate() {
        let (part, l) = (k / 4, k % 4);
        let index = usize::from(quants[k]) | usize::from(high[part]) << (8 - 2 * l) & 0x300;
        signed(y, nibble_scale(d, scales[part], l), &entry2(IQ2_S[index]), sign[k]);
    }
}

pub(super) fn iq3_xxs(block: &[u8], y: &mut [f32]) {
    let (d, quants, rest) = (half_at(block, 0), &block[2..66], &block[66..98]);
    for (part, y) in y.chunks_exact_mut(32).enumerate() {
        let rest = u32_at(rest, 4 * part);
        let scale = d * (0.5 + (rest >> 28) as f32) * 0.5;
        for (k, y) in y.chunks_exact_mut(4).enumerate() {
            let signs = signs(rest >> (7 * (k / 2))) >> (4 * (k % 2));
            signed(y, scale, &entry3(IQ3_XXS[usize::from(quants[8 * part + k])]), signs);
        }
    }
}

pub(super) fn iq3_s(block: &[u8], y: &mut [f32]) {
    let d = half_at(block, 0);
    let (quants, high, sign, scales) = (&block[2..66], &block[66..74], &block[74..106], &block[106..110]);
    for (k, y) in y.chunks_exact_mut(4).enumerate() {
        let part = k / 8;
        let nibble = scales[part / 2] >> (4 * (part % 2)) & 15;
        let index = usize::from(quants[k]) | usize::from(high[part] >> (k % 8) & 1) << 8;
        let signs = sign[k / 2] >> (4 * (k % 2));
        signed(y, d * f32::from(1 + 2 * nibble), &entry3_odd(IQ3_S[index]), signs);
    }
}

pub(super) fn iq4_xs(block: &[u8], y: &mut [f32]) {
    let (d, high, low, quants) = (half_at(block, 0), u16_at(block, 2), &block[4..8], &block[8..]);
    for (part, y) in y.chunks_exact_mut(32).enumerate() {
        let bits = low[part / 2] >> (4 * (part % 2)) & 15 | ((high >> (2 * part) & 3) << 4) as u8;
        let scale = d * (f32::from(bits) - 32.0);
        for j in 0..16 {
            let q = quants[16 * part + j];
            y[j] = scale * f32::from(IQ4_VALUES[usize::from(q & 15)]);
            y[j + 16] = scale * f32::from(IQ4_VALUES[usize::from(q >> 4)]);
        }
    }
}
