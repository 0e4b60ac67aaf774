//! The formats by id, name and size.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A weight format that Aqueduct computes with. The discriminant is the id in GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(non_camel_case_types, reason = "these are the formats' own names")]
#[allow(missing_docs, reason = "the names say it all; sizes are in `block_len` and `block_bytes`")]
#[repr(u32)]
pub enum QuantType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    BF16 = 30,
    MXFP4 = 39,
}

impl QuantType {
    /// Every format, in the order of ids.
    pub const ALL: [Self; 21] = [
        Self::F32,
        Self::F16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ2_XXS,
        Self::IQ2_XS,
        Self::IQ3_XXS,
        Self::IQ4_NL,
        Self::IQ3_S,
        Self::IQ2_S,
        Self::IQ4_XS,
        Self::BF16,
        Self::MXFP4,
    ];

    /// The format with this GGUF id; `None` for ids that are unknown or that Aqueduct does not compute with
    /// ([`type_name`] names the latter).
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.id() == id)
    }

    /// The id in GGUF.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// The name, as in GGUF tools.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2_K => "Q2_K",
            Self::Q3_K => "Q3_K",
            Self::Q4_K => "Q4_K",
            Self::Q5_K => "Q5_K",
            Self::Q6_K => "Q6_K",
            Self::IQ2_XXS => "IQ2_XXS",
            Self::IQ2_XS => "IQ2_XS",
            Self::IQ3_XXS => "IQ3_XXS",
            Self::IQ4_NL => "IQ4_NL",
            Self::IQ3_S => "IQ3_S",
            Self::IQ2_S => "IQ2_S",
            Self::IQ4_XS => "IQ4_XS",
            Self::BF16 => "BF16",
            Self::MXFP4 => "MXFP4",
        }
    }

    /// Elements of one block: 1, 32 or 256. A row is a whole number of blocks.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::IQ4_NL | Self::MXFP4 => 32,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K => 256,
            Self::IQ2_XXS | Self::IQ2_XS | Self::IQ3_XXS | Self::IQ3_S | Self::IQ2_S | Self::IQ4_XS => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 | Self::IQ4_NL => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::MXFP4 => 17,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::IQ2_XXS => 66,
            Self::IQ2_XS => 74,
            Self::IQ3_XXS => 98,
            Self::IQ3_S => 110,
            Self::IQ2_S => 82,
            Self::IQ4_XS => 136,
        }
    }

    /// Bytes of a row of `elements`; `None` when they are no whole number of blocks or the product overflows.
    pub const fn row_bytes(self, elements: usize) -> Option<usize> {
        let block = self.block_len();
        if !elements.is_multiple_of(block) {
            return None;
        }
        (elements / block).checked_mul(self.block_bytes())
    }
}

impl fmt::Display for QuantType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The name of any known GGUF tensor type, also of those without a [`QuantType`], for messages.
pub fn type_name(id: u32) -> Option<&'static str> {
    if let Some(ty) = QuantType::from_id(id) {
        return Some(ty.name());
    }
    let name = match id {
        4 => "Q4_2 (removed from GGUF)",
        5 => "Q4_3 (removed from GGUF)",
        9 => "Q8_1",
        15 => "Q8_K",
        19 => "IQ1_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        31 => "Q4_0_4_4 (removed from GGUF)",
        32 => "Q4_0_4_8 (removed from GGUF)",
        33 => "Q4_0_8_8 (removed from GGUF)",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36 => "IQ4_NL_4_4 (removed from GGUF)",
        37 => "IQ4_NL_4_8 (removed from GGUF)",
        38 => "IQ4_NL_8_8 (removed from GGUF)",
        40 => "NVFP4",
        41 => "Q1_0",
        42 => "Q2_0",
        _ => return None,
    };
    Some(name)
}
