//! Architectures as data: from a file's keys and tensors to a [`ModelSpec`] that the engine walks.
//!
//! There is no code for a model anywhere else. Reading a spec is checking: every number that the engine will size
//! something by is held against the tensors' shapes, every key that would change the arithmetic is either honoured or
//! refused by name, and a tensor that nothing uses is refused too, since it means that the file's model is not the one
//! that would run.

mod architecture;
mod error;
pub mod inspect;
mod read;
mod rope;
mod source;
mod spec;
mod tensor_ref;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

pub use architecture::Architecture;
pub use error::ModelError;
pub use spec::{AttentionSpec, DenseSpec, ExpertsSpec, Ffn, LayerSpec, LinearSpec, Mixer, ModelSpec};
pub use tensor_ref::TensorRef;

use crate::gguf::{Gguf, GgufError};

/// A model file with its description.
#[derive(Clone, Debug)]
pub struct Model {
    /// What the model computes, and with which tensors.
    pub spec: ModelSpec,
    gguf: Arc<Gguf>,
}

impl Model {
    /// Opens a model file or split set and reads its description.
    ///
    /// # Errors
    /// [`ModelError`] names the key or tensor that is missing, wrong or not supported.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        Self::new(Arc::new(Gguf::open(path)?))
    }

    /// Reads the description of an open file.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn new(gguf: Arc<Gguf>) -> Result<Self, ModelError> {
        let spec = ModelSpec::read(&gguf)?;
        Ok(Self { spec, gguf })
    }

    /// The file.
    pub fn gguf(&self) -> &Arc<Gguf> {
        &self.gguf
    }

    /// A tensor's bytes, mapped.
    pub fn bytes(&self, tensor: &TensorRef) -> &[u8] {
        self.gguf.slice(tensor.shard, tensor.offset, tensor.bytes)
    }

    /// Fills `out` with a whole tensor by a positioned read; `out` has the tensor's length.
    ///
    /// # Errors
    /// [`GgufError::Read`] when the file cannot be read.
    pub fn read(&self, tensor: &TensorRef, out: &mut [u8]) -> Result<(), GgufError> {
        debug_assert_eq!(out.len(), tensor.bytes, "{}", tensor.name);
        self.gguf.read_at(tensor.shard, tensor.offset, out)
    }

    /// Fills `out` with an expert's blob (see [`ExpertsSpec::blob`]) by positioned reads; the padding stays as it was.
    ///
    /// # Errors
    /// [`GgufError::Read`] when the file cannot be read, or `out` is shorter than the blob.
    pub fn read_expert(&self, layer: &ExpertsSpec, expert: usize, out: &mut [u8]) -> Result<(), GgufError> {
        let blob = layer.blob();
        for (start, tensor) in blob.offsets.into_iter().zip([&layer.gate, &layer.up, &layer.down]) {
            let offset = tensor.matrix_offset(expert);
            match out.get_mut(start..start + tensor.matrix_bytes()) {
                Some(out) => self.gguf.read_at(tensor.shard, offset, out)?,
                None => {
                    return Err(GgufError::Read {
                        file: self.gguf.path().to_owned(),
                        offset,
                        wanted: tensor.matrix_bytes(),
                        source: std::io::Error::other(format!("the buffer for the blob has only {} bytes", out.len())),
                    });
                }
            }
        }
        Ok(())
    }

    /// Asks the system to read one expert into its cache; nothing happens where it cannot.
    pub fn read_expert_ahead(&self, layer: &ExpertsSpec, expert: usize) {
        for tensor in [&layer.gate, &layer.up, &layer.down] {
            if let Some(shard) = self.gguf.shards().get(tensor.shard) {
                shard.read_ahead(tensor.matrix_offset(expert), tensor.matrix_bytes());
            }
        }
    }
}
