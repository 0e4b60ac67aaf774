//! One line of the tensor table.

use crate::quant::QuantType;

/// A tensor: its shape, its type and where its bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The tensor's name.
    pub name: String,
    /// How its values are stored.
    pub ty: QuantType,
    /// Its shape, 1 to 4 dimensions above 0, the contiguous one first.
    pub dims: Vec<u64>,
    /// The file that holds it, counted from 0 in the set.
    pub shard: usize,
    /// Where its data begins, in bytes from the start of that file.
    pub offset: u64,
    /// Bytes of its data.
    pub bytes: usize,
}

impl TensorInfo {
    /// Number of values.
    pub fn elements(&self) -> u64 {
        // Checked when the file was read: the product fits, and so does the size in bytes.
        self.dims.iter().product()
    }
}

/// The name of a tensor type that exists in the format, also of those that this program does not read.
pub(super) fn type_name(id: u32) -> Option<&'static str> {
    Some(match id {
        0 => "F32",
        1 => "F16",
        2 => "Q4_0",
        3 => "Q4_1",
        4 => "Q4_2 (removed from the format)",
        5 => "Q4_3 (removed from the format)",
        6 => "Q5_0",
        7 => "Q5_1",
        8 => "Q8_0",
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        12 => "Q4_K",
        13 => "Q5_K",
        14 => "Q6_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        30 => "BF16",
        31..=33 => "Q4_0 repacked (removed from the format)",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36..=38 => "IQ4_NL repacked (removed from the format)",
        39 => "MXFP4",
        40 => "NVFP4",
        41 => "Q1_0",
        42 => "Q2_0",
        _ => return None,
    })
}
