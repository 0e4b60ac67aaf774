//! The file as the description is read from it: keys under the architecture's prefix, tensors by name and shape.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt::Display;
use std::path::PathBuf;

use super::architecture::Architecture;
use super::error::ModelError;
use super::spec::LinearSpec;
use super::tensor_ref::TensorRef;
use crate::gguf::{FromValue, Gguf, MetadataError, TensorInfo, Value};
use crate::quant::QuantType;

/// A dimension that a tensor must have, and what it follows from.
#[derive(Clone, Copy)]
pub(super) struct Dim(pub(super) usize, pub(super) &'static str);

/// A number that a file gives once for all layers or once for each.
#[derive(Debug)]
pub(super) enum PerLayer {
    Same(usize),
    Each(Vec<usize>),
}

impl PerLayer {
    pub(super) fn get(&self, layer: usize) -> usize {
        match self {
            Self::Same(value) => *value,
            Self::Each(values) => values.get(layer).copied().unwrap_or_default(),
        }
    }
}

/// A file that is being read as one architecture. Remembers which tensors were asked for.
pub(super) struct Source<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) architecture: Architecture,
    used: RefCell<HashSet<&'a str>>,
}

impl<'a> Source<'a> {
    pub(super) fn new(gguf: &'a Gguf, architecture: Architecture) -> Self {
        Self { gguf, architecture, used: RefCell::default() }
    }

    pub(super) fn file(&self) -> PathBuf {
        self.gguf.path().to_owned()
    }

    /// The full name of an architecture's key.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    pub(super) fn find<T: FromValue<'a>>(&self, name: &str) -> Result<Option<T>, MetadataError> {
        self.gguf.metadata().find(&self.key(name))
    }

    pub(super) fn require<T: FromValue<'a>>(&self, name: &str) -> Result<T, MetadataError> {
        self.gguf.metadata().require(&self.key(name))
    }

    /// A number above 0.
    pub(super) fn size(&self, name: &str) -> Result<usize, ModelError> {
        match self.require::<u32>(name)? {
            0 => Err(self.parameter(name, 0, "a number above 0")),
            size => Ok(size as usize),
        }
    }

    /// A number above 0 that may be missing.
    pub(super) fn maybe_size(&self, name: &str) -> Result<Option<usize>, ModelError> {
        match self.gguf.metadata().get(&self.key(name)) {
            None => Ok(None),
            Some(_) => self.size(name).map(Some),
        }
    }

    /// A number above 0 for each of `layers` layers, given once or as an array; `None` where it is missing.
    pub(super) fn per_layer(&self, name: &str, layers: usize) -> Result<Option<PerLayer>, ModelError> {
        let Some(Value::Array(_)) = self.gguf.metadata().get(&self.key(name)) else {
            return Ok(self.maybe_size(name)?.map(PerLayer::Same));
        };
        let values: Vec<u32> = self.require(name)?;
        if values.len() != layers {
            let wanted = format!("one for each of the {layers} layers (`{}`)", self.key("block_count"));
            return Err(self.parameter(name, format!("an array of {} values", values.len()), wanted));
        }
        match values.iter().position(|&value| value == 0) {
            Some(layer) => Err(self.parameter(name, format!("0 in layer {layer}"), "a number above 0")),
            None => Ok(Some(PerLayer::Each(values.into_iter().map(|value| value as usize).collect()))),
        }
    }

    /// The error of a key whose value does not fit.
    pub(super) fn parameter(&self, name: &str, found: impl Display, wanted: impl Display) -> ModelError {
        ModelError::Parameter {
            file: self.file(),
            key: self.key(name),
            found: found.to_string(),
            wanted: wanted.to_string(),
        }
    }

    pub(super) fn unsupported(&self, what: impl Display, supported: impl Display) -> ModelError {
        ModelError::Unsupported { file: self.file(), what: what.to_string(), supported: supported.to_string() }
    }

    /// The file that holds a tensor.
    pub(super) fn file_of(&self, tensor: &TensorInfo) -> PathBuf {
        self.gguf.shards().get(tensor.shard).map_or_else(|| self.file(), |shard| shard.path().to_owned())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    /// A tensor of one to three dimensions: columns, rows, matrices.
    pub(super) fn tensor(&self, name: &str, dims: &[Dim]) -> Result<TensorRef, ModelError> {
        self.maybe_tensor(name, dims)?.ok_or_else(|| ModelError::TensorMissing {
            file: self.file(),
            tensor: name.to_owned(),
            wanted: show(dims),
        })
    }

    pub(super) fn maybe_tensor(&self, name: &str, dims: &[Dim]) -> Result<Option<TensorRef>, ModelError> {
        let Some(info) = self.gguf.tensor(name) else { return Ok(None) };
        self.used.borrow_mut().insert(&info.name);
        let wanted = dims.iter().map(|dim| dim.0 as u64).chain(std::iter::repeat(1));
        let found = info.dims.iter().copied().chain(std::iter::repeat(1));
        if wanted.zip(found).take(dims.len().max(info.dims.len())).any(|(wanted, found)| wanted != found) {
            return Err(ModelError::TensorShape {
                file: self.file_of(info),
                tensor: name.to_owned(),
                offset: info.offset,
                found: info.dims.clone(),
                wanted: show(dims),
            });
        }
        let size = |at: usize| dims.get(at).map_or(1, |dim| dim.0);
        Ok(Some(TensorRef {
            name: name.to_owned(),
            ty: info.ty,
            cols: size(0),
            rows: size(1),
            matrices: size(2),
            shard: info.shard,
            offset: info.offset,
            bytes: info.bytes,
        }))
    }

    /// A vector of F32: a norm or a bias.
    pub(super) fn vector(&self, name: &str, length: Dim) -> Result<TensorRef, ModelError> {
        self.tensor(name, &[length]).and_then(|tensor| self.plain(tensor))
    }

    pub(super) fn maybe_vector(&self, name: &str, length: Dim) -> Result<Option<TensorRef>, ModelError> {
        self.maybe_tensor(name, &[length])?.map(|tensor| self.plain(tensor)).transpose()
    }

    fn plain(&self, tensor: TensorRef) -> Result<TensorRef, ModelError> {
        match tensor.ty {
            QuantType::F32 => Ok(tensor),
            found => Err(ModelError::TensorType {
                file: self.gguf.tensor(&tensor.name).map_or_else(|| self.file(), |info| self.file_of(info)),
                tensor: tensor.name,
                offset: tensor.offset,
                found,
                wanted: QuantType::F32,
            }),
        }
    }

    /// `NAME.weight` and, if there is one, `NAME.bias`.
    pub(super) fn linear(&self, name: &str, inputs: Dim, outputs: Dim) -> Result<LinearSpec, ModelError> {
        Ok(LinearSpec {
            weight: self.tensor(&format!("{name}.weight"), &[inputs, outputs])?,
            bias: self.maybe_vector(&format!("{name}.bias"), outputs)?,
        })
    }

    /// Refuses the file if it holds tensors that nobody asked for.
    pub(super) fn check_all_used(&self) -> Result<(), ModelError> {
        let used = self.used.borrow();
        // Old converters stored the rope's frequencies in each layer; they follow from the keys.
        let known = |tensor: &&TensorInfo| {
            used.contains(tensor.name.as_str()) || tensor.name.ends_with(".attn_rot_embd.weight")
        };
        let mut unused = self.gguf.tensors().iter().filter(|tensor| !known(tensor));
        match unused.next() {
            None => Ok(()),
            Some(first) => Err(ModelError::TensorsUnused {
                file: self.file(),
                architecture: self.architecture.name(),
                first: first.name.clone(),
                count: 1 + unused.count(),
            }),
        }
    }
}

fn show(dims: &[Dim]) -> String {
    let dims: Vec<String> = dims.iter().map(|Dim(size, what)| format!("{size} ({what})")).collect();
    format!("[{}]", dims.join(", "))
}
