//! Block formats of GGUF weights: sizes, exact dequantisation, codebooks.
//!
//! What multiplies them without dequantising is [`crate::cpu::linear`].
#![allow(clippy::indexing_slicing)] // Blocks are cut to their exact size first; every index inside is bounded by it.

mod block32;
pub(crate) mod codebook;
pub(crate) mod iblock;
pub(crate) mod kblock;
mod types;

use thiserror::Error;

pub use types::{QuantType, type_name};

/// Why bytes could not be dequantised.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QuantError {
    /// The number of elements is no multiple of the format's block.
    #[error("{elements} elements are no whole number of {ty} blocks, which hold {block} each")]
    PartBlock {
        /// The format.
        ty: QuantType,
        /// Elements that were asked for.
        elements: usize,
        /// Elements of a block.
        block: usize,
    },
    /// The bytes are too few or too many.
    #[error("{elements} elements of {ty} take {wanted} bytes, but {found} were given")]
    Length {
        /// The format.
        ty: QuantType,
        /// Elements that were asked for.
        elements: usize,
        /// Bytes they take.
        wanted: usize,
        /// Bytes that were given.
        found: usize,
    },
}

/// Writes the exact values of `blocks` to `out`, in order.
///
/// # Errors
/// When `out` is no whole number of blocks, or `blocks` is not exactly what `out` takes.
pub fn dequantize(ty: QuantType, blocks: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    let elements = out.len();
    let wanted = ty.row_bytes(elements).ok_or(QuantError::PartBlock { ty, elements, block: ty.block_len() })?;
    if wanted != blocks.len() {
        return Err(QuantError::Length { ty, elements, wanted, found: blocks.len() });
    }
    let each: fn(&[u8], &mut [f32]) = match ty {
        QuantType::F32 => block32::f32,
        QuantType::F16 => block32::f16,
        QuantType::BF16 => block32::bf16,
        QuantType::Q8_0 => block32::q8_0,
        QuantType::Q4_0 => block32::q4_0,
        QuantType::Q4_1 => block32::q4_1,
        QuantType::Q5_0 => block32::q5_0,
        QuantType::Q5_1 => block32::q5_1,
        QuantType::IQ4_NL => block32::iq4_nl,
        QuantType::MXFP4 => block32::mxfp4,
        QuantType::Q2_K => kblock::q2_k,
        QuantType::Q3_K => kblock::q3_k,
        QuantType::Q4_K => kblock::q4_k,
        QuantType::Q5_K => kblock::q5_k,
        QuantType::Q6_K => kblock::q6_k,
        QuantType::IQ2_XXS => |block, y| iblock::write(iblock::iq2_xxs, block, y),
        QuantType::IQ2_XS => |block, y| iblock::write(iblock::iq2_xs, block, y),
        QuantType::IQ2_S => |block, y| iblock::write(iblock::iq2_s, block, y),
        QuantType::IQ3_XXS => |block, y| iblock::write(iblock::iq3_xxs, block, y),
        QuantType::IQ3_S => |block, y| iblock::write(iblock::iq3_s, block, y),
        QuantType::IQ4_XS => |block, y| iblock::write(iblock::iq4_xs, block, y),
    };
    for (block, values) in blocks.chunks_exact(ty.block_bytes()).zip(out.chunks_exact_mut(ty.block_len())) {
        each(block, values);
    }
    Ok(())
}

/// The little-endian half at byte `at`.
pub(crate) fn half_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// The scale of an MXFP4 block: `2^(e - 128)`, half of what E8M0 means, since the value table is doubled.
pub(crate) fn mxfp4_scale(e: u8) -> f32 {
    let bits = if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 };
    f32::from_bits(bits)
}

/// The 6-bit scale and minimum of sub-block `j` (of 8) of Q4_K and Q5_K, from their 12 packed bytes.
pub(crate) fn scale_min(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        ((packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4), (packed[j + 4] >> 4) | (packed[j] >> 6 << 4))
    }
}
