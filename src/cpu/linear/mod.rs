//! Matrix products with quantised weights: `y[r][o] = sum over k of w[o][k] * x[r][k]`.
//!
//! Weights stay in the file's blocks. The activations are brought into the form that the weight's format multiplies
//! with ([`quantise`]), once for any number of products that share them, and [`multiply`] runs all products over the
//! team.
//!
//! **Same bits.** Each output is one sum over k in one fixed order, whatever the number of rows, the tiling, the
//! workers, the neighbours and the instruction set: integer sums inside a group of 16 or 32 elements are exact, and the
//! groups are added one after the other in ascending k with fused multiply-adds. Float weights are summed in groups of
//! eight. `scalar.rs` is the plain statement of these sums; `avx2` computes eight outputs in the eight lanes of a
//! register, so that no lane ever meets another.
#![allow(unsafe_code)] // Kernels read weights and activations through pointers whose ranges `multiply` has checked.
#![allow(clippy::indexing_slicing)] // Kernel loops; lengths are checked once at the door.

mod activation;
#[cfg(target_arch = "x86_64")]
mod avx2;
pub(in crate::cpu) mod isa;
mod part;
mod scalar;

use thiserror::Error;

use super::Team;
pub use crate::ops::Epilogue;
use crate::quant::QuantType;
pub use activation::{Activations, Formats, quantise, scratch_bytes};
pub use isa::Isa;
use part::Plan;

/// A weight matrix in the layout of GGUF: `outs` rows of `cols` elements.
#[derive(Clone, Copy, Debug)]
pub struct Weight<'a> {
    /// The format of the rows.
    pub ty: QuantType,
    /// The blocks of all rows, one row after the other.
    pub bytes: &'a [u8],
    /// Rows: outputs for each row of activations.
    pub outs: usize,
    /// Elements of a row.
    pub cols: usize,
}

/// Which rows of the activations a product uses, in which order.
#[derive(Clone, Copy, Debug)]
pub enum Pick<'a> {
    /// Every row.
    All,
    /// `count` rows from `start` on.
    Range {
        /// The first row.
        start: usize,
        /// How many.
        count: usize,
    },
    /// These rows.
    List(&'a [u32]),
}

/// One matrix product of a [`multiply`].
#[derive(Debug)]
pub struct Product<'a> {
    /// The matrix.
    pub weight: Weight<'a>,
    /// The rows of the activations it multiplies.
    pub rows: Pick<'a>,
    /// The result: one row of `outs` floats for each picked row.
    pub y: &'a mut [f32],
    /// Whether `y` is overwritten or added to.
    pub epilogue: Epilogue,
}

/// Shapes that do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LinearError {
    /// The weight's bytes are not what its shape takes, or its rows are no whole number of blocks.
    #[error("a {ty} weight of {outs} rows with {cols} elements does not take the {bytes} bytes that were given")]
    Weight {
        /// The format.
        ty: QuantType,
        /// Rows of the matrix.
        outs: usize,
        /// Elements of a row.
        cols: usize,
        /// Bytes that were given.
        bytes: usize,
    },
    /// The weight's rows are longer or shorter than the activations'.
    #[error("the weight's rows have {weight} elements, the activations' rows {activations}")]
    Cols {
        /// Elements of a row of the weight.
        weight: usize,
        /// Elements of a row of the activations.
        activations: usize,
    },
    /// Activations or results have another length than their rows take.
    #[error(
        "{what}: {rows} rows of {cols} take {wanted} floats, but {found} were given",
        wanted = rows.saturating_mul(*cols)
    )]
    Floats {
        /// Which slice.
        what: &'static str,
        /// Its rows.
        rows: usize,
        /// Elements of a row.
        cols: usize,
        /// Its length.
        found: usize,
    },
    /// A picked row does not exist.
    #[error("row {row} was picked, but there are {rows}")]
    Row {
        /// The row.
        row: usize,
        /// Rows of the activations.
        rows: usize,
    },
    /// The scratch is too small.
    #[error("the quantised rows take {wanted} bytes of scratch, but {found} were given")]
    Scratch {
        /// What [`scratch_bytes`] says.
        wanted: usize,
        /// What was given.
        found: usize,
    },
    /// The activations lack the form that the weight multiplies with.
    #[error("the activations were not quantised for {ty} weights")]
    Format {
        /// The weight's format.
        ty: QuantType,
    },
    /// The activations have parts of a block at the end of a row.
    #[error("rows of {cols} elements cannot be quantised: they are no whole number of blocks of 32")]
    PartBlock {
        /// Elements of a row.
        cols: usize,
    },
}

/// Runs all `products` over the same activations, spread over the team.
///
/// # Errors
/// When shapes do not fit together; then nothing has been written.
pub fn multiply(
    isa: Isa,
    team: &Team,
    activations: &Activations<'_>,
    products: &mut [Product<'_>],
) -> Result<(), LinearError> {
    let plan = Plan::new(isa, team.workers(), activations, products)?;
    match plan.parts() {
        0 => {}
        1 => plan.run(0),
        parts => team.run(parts, |part| plan.run(part)),
    }
    Ok(())
}

/// Quantises `rows` rows of activations `x` for all `products` and runs them: [`quantise`] and [`multiply`] in one.
/// `scratch` holds at least [`scratch_bytes`].
///
/// # Errors
/// When shapes do not fit together; then nothing has been written to the results.
pub fn linear(
    isa: Isa,
    team: &Team,
    x: &[f32],
    rows: usize,
    products: &mut [Product<'_>],
    scratch: &mut [u8],
) -> Result<(), LinearError> {
    let Some(cols) = products.first().map(|p| p.weight.cols) else { return Ok(()) };
    let formats = Formats::of(products.iter().map(|p| p.weight.ty));
    let activations = quantise(isa, team, x, rows, cols, formats, scratch)?;
    multiply(isa, team, &activations, products)
}

#[cfg(test)]
mod tests;
