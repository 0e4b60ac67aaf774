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
