//! A tensor as the engine uses it: matrices of rows.

use std::ops::Range;

use crate::quant::QuantType;

/// A weight of the model: where it is and what shape it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorRef {
    /// The tensor's name in the file.
    pub name: String,
    /// How its values are stored.
    pub ty: QuantType,
    /// Values of a row: the inputs of a product. A vector is one row.
    pub cols: usize,
    /// Rows of a matrix: the outputs of a product.
    pub rows: usize,
    /// Matrices, one after the other: one an expert, else 1.
    pub matrices: usize,
    /// The file of the set that holds it, from 0.
    pub shard: usize,
    /// Where its data begins in that file, in bytes.
    pub offset: u64,
    /// Bytes of all its data.
    pub bytes: usize,
}

impl TensorRef {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.bytes / (self.rows * self.matrices)
    }

    /// Bytes of one matrix.
    pub fn matrix_bytes(&self) -> usize {
        self.bytes / self.matrices
    }

    /// The bytes of matrix `index` within the tensor's data.
    pub fn matrix_range(&self, index: usize) -> Range<usize> {
        debug_assert!(index < self.matrices, "{}: matrix {index} of {}", self.name, self.matrices);
        let bytes = self.matrix_bytes();
        index * bytes..(index + 1) * bytes
    }

    /// Where matrix `index` begins in the tensor's file, in bytes.
    pub fn matrix_offset(&self, index: usize) -> u64 {
        self.offset + self.matrix_range(index).start as u64
    }

    /// Number of values.
    pub fn elements(&self) -> usize {
        self.cols * self.rows * self.matrices
    }
}
