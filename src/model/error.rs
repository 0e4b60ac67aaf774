//! Why a model file cannot be run.

use std::path::PathBuf;

use thiserror::Error;

use crate::gguf::{GgufError, MetadataError};
use crate::quant::QuantType;

/// A model that cannot be run: which key or tensor of which file, what was found and what is wanted.
#[derive(Debug, Error)]
pub enum ModelError {
    /// The file itself is at fault.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A key is missing or of another type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// An architecture that is not among the supported ones.
    #[error("{}: the architecture `{found}` is not supported (supported: {supported})", file.display())]
    Architecture {
        /// The file.
        file: PathBuf,
        /// Its `general.architecture`.
        found: String,
        /// The names that would do.
        supported: String,
    },
    /// A key whose value makes no sense, or not with the others.
    #[error("{}: `{key}` is {found}, {wanted} wanted", file.display())]
    Parameter {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What would do, with the numbers it follows from.
        wanted: String,
    },
    /// Something the architecture allows and this program does not do.
    #[error("{}: {what} is not supported ({supported})", file.display())]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// What the file asks for, with the key or tensor that does.
        what: String,
        /// What is supported instead.
        supported: String,
    },
    /// A tensor that the model needs is not in the file.
    #[error("{}: the tensor `{tensor}` is missing; shape {wanted} wanted", file.display())]
    TensorMissing {
        /// The model's first file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape, with what each dimension follows from.
        wanted: String,
    },
    /// A tensor has another shape than the keys say.
    #[error("{}: the tensor `{tensor}` (at byte {offset}) has shape {found:?}, {wanted} wanted", file.display())]
    TensorShape {
        /// The file that holds the tensor.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where its data begins in the file.
        offset: u64,
        /// Its shape.
        found: Vec<u64>,
        /// The shape wanted, with what each dimension follows from.
        wanted: String,
    },
    /// A norm, bias or factor that is not stored as F32.
    #[error("{}: the tensor `{tensor}` (at byte {offset}) is stored as {found}, {wanted} wanted", file.display())]
    TensorType {
        /// The file that holds the tensor.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where its data begins in the file.
        offset: u64,
        /// Its type.
        found: QuantType,
        /// The type wanted.
        wanted: QuantType,
    },
    /// A tensor holds a value that cannot be computed with.
    #[error("{}: the tensor `{tensor}` has the value {found} at byte {offset}, {wanted} wanted", file.display())]
    TensorValue {
        /// The file that holds the tensor.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where the value is in the file.
        offset: u64,
        /// The value.
        found: f32,
        /// What would do.
        wanted: &'static str,
    },
    /// Tensors that this architecture has no use for: the file's model is another than its name says.
    #[error(
        "{}: the architecture `{architecture}` has no use for {}; the file's model is not one that can be run here",
        file.display(),
        if *count == 1 { format!("the tensor `{first}`") } else { format!("{count} of the tensors, such as `{first}`") }
    )]
    TensorsUnused {
        /// The model's first file.
        file: PathBuf,
        /// The architecture.
        architecture: &'static str,
        /// One of the tensors.
        first: String,
        /// How many there are.
        count: usize,
    },
}
