//! The GGUF file format: header, metadata, tensor table, split files, mapping.
//!
//! [`Gguf::open`] reads versions 2 and 3, one file or a split set, and checks all of it before it returns: every shard
//! is there, every count fits in the bytes that are left, every tensor lies inside its file and on no other tensor. So
//! whoever reads tensors later can trust offsets and sizes. A damaged or hostile file gives a [`GgufError`] with the
//! file, the byte and what was wanted there; it never panics and never allocates from a number that was not checked.

mod cursor;
mod error;
mod header;
mod mapping;
mod metadata;
mod shard;
mod split;
mod tensor;
mod value;

#[cfg(test)]
pub(crate) mod build;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

pub use error::{Fault, GgufError, MetadataError};
pub use header::Header;
pub use mapping::Mapping;
pub use metadata::{Entry, FromValue, Metadata};
pub use shard::Shard;
pub use tensor::TensorInfo;
pub use value::{Array, Strings, Value, ValueType};

use crate::units::Bytes;

/// An open model file or split set: metadata, tensor table, and the bytes of every tensor.
#[derive(Debug)]
pub struct Gguf {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    shards: Vec<Shard>,
}

impl Gguf {
    /// Opens a model. For a file of a split set (`prefix-00001-of-00003.gguf`) any of its names will do: the whole set
    /// is looked for and checked first.
    ///
    /// # Errors
    /// [`GgufError`] names the file, the byte and what was wanted; for a split set, each missing shard.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let paths = split::find_shards(path.as_ref())?;
        let mut parts = Vec::with_capacity(paths.len());
        for path in paths {
            let shard = Shard::map(path)?;
            let header = Header::parse(shard.path(), shard.contents());
            // A file that is being written has any fault; that it is being written is the one to tell.
            shard.check()?;
            parts.push((shard, header?));
        }
        Self::join(parts)
    }

    /// The files of the model that `path` belongs to: the whole set, where its name is one of a set's and all of it is
    /// there.
    pub fn files(path: &Path) -> Vec<PathBuf> {
        split::find_shards(path).unwrap_or_else(|_| vec![path.to_owned()])
    }

    /// Reads a model of one file from memory; `name` stands for the path in errors.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_bytes(name: impl Into<PathBuf>, contents: Vec<u8>) -> Result<Self, GgufError> {
        let shard = Shard::in_memory(name.into(), contents);
        let header = Header::parse(shard.path(), shard.contents())?;
        Self::join(vec![(shard, header)])
    }

    fn join(parts: Vec<(Shard, Header)>) -> Result<Self, GgufError> {
        let mut metadata = None;
        let mut tensors: Vec<TensorInfo> = Vec::new();
        let mut by_name: HashMap<String, usize> = HashMap::new();
        let mut shards: Vec<Shard> = Vec::with_capacity(parts.len());
        let mut declared = Vec::with_capacity(parts.len());
        let count = parts.len();
        for (number, (shard, header)) in parts.into_iter().enumerate() {
            declared.push(split::check_part(shard.path(), &header.metadata, number, count)?);
            for mut tensor in header.tensors {
                tensor.shard = number;
                if let Some(first) = by_name.insert(tensor.name.clone(), tensors.len()) {
                    let first = tensors.get(first).and_then(|first| shards.get(first.shard)).unwrap_or(&shard);
                    return Err(GgufError::TensorInTwoShards {
                        tensor: tensor.name,
                        first: first.path().to_owned(),
                        second: shard.path().to_owned(),
                    });
                }
                tensors.push(tensor);
            }
            if let Some(first) = &metadata {
                split::check_same_model(first, shard.path(), &header.metadata)?;
            }
            metadata.get_or_insert(header.metadata);
            shards.push(shard);
        }
        split::check_tensor_count(&shards, &declared, tensors.len())?;
        let metadata = metadata.unwrap_or_else(|| Metadata::new(PathBuf::new()));
        Ok(Self { metadata, tensors, by_name, shards })
    }

    /// The model's metadata: that of the first shard.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Every tensor of every shard, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).and_then(|&at| self.tensors.get(at))
    }

    /// The files, in the order of the set; [`TensorInfo::shard`] counts them from 0.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The path of the first file.
    pub fn path(&self) -> &Path {
        self.metadata.file()
    }

    /// Length of all files together.
    pub fn file_bytes(&self) -> Bytes {
        self.shards.iter().map(|shard| Bytes(shard.len())).sum()
    }

    /// Whether all files are still those that were opened. To be asked before what was computed from them is shown.
    ///
    /// # Errors
    /// [`GgufError::Changed`] names the file.
    pub fn check(&self) -> Result<(), GgufError> {
        self.shards.iter().try_for_each(Shard::check)
    }

    /// The bytes of a tensor of this model, mapped: reading them may read from disk. Empty for a tensor of another
    /// model that does not fit in this one.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        self.slice(tensor.shard, tensor.offset, tensor.bytes)
    }

    /// `bytes` bytes at `offset` of a shard, mapped; empty where the shard has no such bytes.
    pub fn slice(&self, shard: usize, offset: u64, bytes: usize) -> &[u8] {
        let range = || {
            let start = usize::try_from(offset).ok()?;
            self.shards.get(shard)?.contents().get(start..start.checked_add(bytes)?)
        };
        range().unwrap_or_default()
    }

    /// Fills `out` from `offset` of a shard by a positioned read, which does not grow this process's resident set as
    /// reading the mapping would.
    ///
    /// # Errors
    /// [`GgufError::Read`] when the file cannot be read or has become shorter.
    pub fn read_at(&self, shard: usize, offset: u64, out: &mut [u8]) -> Result<(), GgufError> {
        match self.shards.get(shard) {
            Some(shard) => shard.read_at(offset, out),
            None => Err(GgufError::NoSuchShard { file: self.path().to_owned(), shard, shards: self.shards.len() }),
        }
    }
}
