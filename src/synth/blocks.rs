//! Random blocks of the weight formats: every code is equally likely, scales are valid, the mean is zero.
#![allow(clippy::indexing_slicing)] // Blocks are cut to their exact size, and each index is a place of the format.

use half::f16;

use super::random::Random;
use crate::quant::{QuantType, dequantize};

/// Formats that [`BlockRing`] can fill.
pub(super) const WRITABLE: [QuantType; 11] = [
    QuantType::F32,
    QuantType::F16,
    QuantType::BF16,
    QuantType::Q4_0,
    QuantType::Q4_1,
    QuantType::Q5_0,
    QuantType::Q5_1,
    QuantType::Q8_0,
    QuantType::Q4_K,
    QuantType::Q5_K,
    QuantType::Q6_K,
];

/// A ring of random blocks of one format and spread. A matrix is the ring read from a random place on, as often around
/// as needed; the number of blocks is a prime above any matrix's rows in use, so that rows begin at different places.
pub(super) struct BlockRing {
    bytes: Vec<u8>,
    block: usize,
}

impl BlockRing {
    /// Blocks of `ty` (one of [`WRITABLE`]) whose values have mean 0 and standard deviation `spread`.
    pub fn new(ty: QuantType, spread: f32, random: &mut Random) -> Self {
        let (length, block) = (ty.block_len(), ty.block_bytes());
        let blocks = match length {
            1 => 1_048_573,
            32 => 65_521,
            _ => 16_381,
        };
        let mut bytes = vec![0; blocks * block];
        if length == 1 {
            for (out, value) in bytes.chunks_exact_mut(block).zip(random.normals(blocks)) {
                put_number(ty, value * spread, out);
            }
            return Self { bytes, block };
        }
        random.fill(&mut bytes);
        for out in bytes.chunks_exact_mut(block) {
            shape_codes(ty, out, random);
        }
        let d = unit_scale(spread / measure_spread(ty, &bytes));
        for out in bytes.chunks_exact_mut(block) {
            scale_block(ty, d, out);
        }
        Self { bytes, block }
    }

    /// Passes `count` bytes (whole blocks) of the ring from a random block on to `take`, in pieces.
    pub fn read<E>(
        &self,
        count: u64,
        random: &mut Random,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = random.below(self.bytes.len() / self.block) * self.block;
        let mut left = count;
        while left > 0 {
            let piece = left.min((self.bytes.len() - at) as u64);
            take(&self.bytes[at..at + piece as usize])?;
            left -= piece;
            at = 0;
        }
        Ok(())
    }
}

/// Writes one value in a format without blocks.
pub(super) fn put_number(ty: QuantType, value: f32, out: &mut [u8]) {
    match ty {
        QuantType::F16 => out.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        QuantType::BF16 => out.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes()),
        _ => out.copy_from_slice(&value.to_le_bytes()),
    }
}

/// Writes values as Q8_0 (`out` has 34 bytes for each 32 of them).
pub(super) fn put_q8_0(values: &[f32], out: &mut [u8]) {
    for (values, out) in values.chunks_exact(32).zip(out.chunks_exact_mut(34)) {
        let largest = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let d = f16::from_f32(largest / 127.0);
        let inverse = if d == f16::ZERO { 0.0 } else { 1.0 / d.to_f32() };
        out[..2].copy_from_slice(&d.to_le_bytes());
        for (value, code) in values.iter().zip(&mut out[2..]) {
            *code = (value * inverse).round().clamp(-127.0, 127.0) as i8 as u8;
        }
    }
}

/// Turns random bytes into a block with `d` = 1 (or -1), whose expected value is zero.
fn shape_codes(ty: QuantType, out: &mut [u8], random: &mut Random) {
    // Codes of these formats count from -8, -16 or -32 up to 7, 15 or 31, a mean of -1/2: the sign of `d` or of the
    // sub-block's scale evens it out.
    let sign = random.byte() & 1 == 1;
    match ty {
        QuantType::Q4_0 | QuantType::Q5_0 => put_half(out, 0, if sign { -1.0 } else { 1.0 }),
        QuantType::Q8_0 => {
            put_half(out, 0, 1.0);
            for code in &mut out[2..] {
                while *code == 0x80 {
                    *code = random.byte();
                }
            }
        }
        QuantType::Q4_K | QuantType::Q5_K => pack_scales(&mut out[4..16]),
        QuantType::Q6_K => {
            for scale in &mut out[192..208] {
                let size = (*scale & 63) as i8 + 64;
                *scale = if *scale & 64 == 0 { size } else { -size } as u8;
            }
        }
        _ => {}
    }
    scale_block(ty, 1.0, out);
}

/// Gives the eight sub-blocks scales of 32 to 63, and minima equal to them: with `dmin` = mean code x `d` each
/// sub-block's mean is zero.
fn pack_scales(packed: &mut [u8]) {
    let mut scales = [0u8; 8];
    for (scale, byte) in scales.iter_mut().zip(packed.iter()) {
        *scale = 32 + (byte & 31);
    }
    for j in 0..4 {
        packed[j] = scales[j] | (scales[j + 4] >> 4 << 6);
        packed[j + 4] = packed[j];
        packed[j + 8] = (scales[j + 4] & 15) | (scales[j + 4] & 15) << 4;
    }
}

/// Sets the scales of a block with shaped codes.
fn scale_block(ty: QuantType, d: f32, out: &mut [u8]) {
    match ty {
        QuantType::Q4_1 => {
            put_half(out, 0, d);
            put_half(out, 2, -7.5 * d);
        }
        QuantType::Q5_1 => {
            put_half(out, 0, d);
            put_half(out, 2, -15.5 * d);
        }
        QuantType::Q4_K => {
            put_half(out, 0, d);
            put_half(out, 2, 7.5 * d);
        }
        QuantType::Q5_K => {
            put_half(out, 0, d);
            put_half(out, 2, 15.5 * d);
        }
        QuantType::Q6_K => put_half(out, 208, d),
        _ => {
            let sign = if out[1] & 0x80 == 0 { 1.0 } else { -1.0 };
            put_half(out, 0, sign * d);
        }
    }
}

fn put_half(out: &mut [u8], at: usize, value: f32) {
    out[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// The largest half not above `wanted` of which 7.5 and 15.5 times are halves too, so that minima cancel means exactly.
fn unit_scale(wanted: f32) -> f32 {
    let mut bits = f16::from_f32(wanted).to_bits();
    loop {
        let d = f16::from_bits(bits).to_f32();
        let exact = |factor: f32| f16::from_f32(factor * d).to_f32() == factor * d;
        if bits <= 2 || (exact(7.5) && exact(15.5)) {
            return d;
        }
        bits -= 1;
    }
}

fn measure_spread(ty: QuantType, bytes: &[u8]) -> f32 {
    let mut values = vec![0.0; ty.block_len()];
    let (mut sum, mut count) = (0.0f64, 0);
    for block in bytes.chunks_exact(ty.block_bytes()).take(4096) {
        // Whole blocks of a known format cannot be refused.
        if dequantize(ty, block, &mut values).is_ok() {
            sum += values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
            count += values.len();
        }
    }
    (sum / count.max(1) as f64).sqrt() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_zero_mean_and_the_wanted_spread() {
        for ty in WRITABLE {
            for spread in [0.02f32, 0.005] {
                let ring = BlockRing::new(ty, spread, &mut Random::new(7, 1));
                let mut bytes = Vec::new();
                let blocks = 1 << 20 >> ty.block_len().ilog2();
                let count = (blocks * ty.block_bytes()) as u64;
                ring.read(count, &mut Random::new(7, 2), |piece| -> Result<(), ()> {
                    bytes.extend_from_slice(piece);
                    Ok(())
                })
                .unwrap();
                let mut values = vec![0.0; blocks * ty.block_len()];
                dequantize(ty, &bytes, &mut values).unwrap();
                let n = values.len() as f64;
                let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
                let found = (values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n).sqrt();
                assert!(mean.abs() < 4.0 * f64::from(spread) / n.sqrt() * 6.0, "{ty}: mean {mean}");
                assert!((found / f64::from(spread) - 1.0).abs() < 0.06, "{ty}: spread {found}, wanted {spread}");
                assert!(values.iter().all(|v| v.abs() < 8.0 * spread), "{ty}: an outlier");
            }
        }
    }

    #[test]
    fn q8_0_keeps_values() {
        let values = Random::new(1, 1).normals(256);
        let mut bytes = vec![0; 8 * 34];
        put_q8_0(&values, &mut bytes);
        let mut back = vec![0.0; 256];
        dequantize(QuantType::Q8_0, &bytes, &mut back).unwrap();
        for (value, back) in values.iter().zip(&back) {
            assert!((value - back).abs() < 0.02, "{value} became {back}");
        }
        put_q8_0(&[0.0; 32], &mut bytes[..34]);
        assert_eq!(bytes[..34], [0; 34]);
    }
}
