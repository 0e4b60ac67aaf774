//! A model file in short, for people and programs: keys, tensors by layer, sizes of experts.
//!
//! It needs no supported architecture, so that a file that is refused can be looked at too.

use std::collections::BTreeMap;

use serde::Serialize;

use super::spec::{ExpertsSpec, ModelSpec};
use crate::gguf::{Gguf, TensorInfo, Value};
use crate::quant::QuantType;

/// A model file in short.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The files, in the order of the set.
    pub files: Vec<FileSummary>,
    /// The keys, in file order.
    pub metadata: Vec<EntrySummary>,
    /// What the model is; `None` if it cannot be run.
    pub model: Option<ModelSummary>,
    /// Why it cannot be run, if so.
    pub refused: Option<String>,
    /// Tensors that belong to no layer.
    pub edge: Vec<TensorSummary>,
    /// Tensors by layer.
    pub layers: Vec<LayerSummary>,
    /// Sizes of all of it.
    pub totals: Totals,
}

/// One file.
#[derive(Clone, Debug, Serialize)]
pub struct FileSummary {
    /// Its path.
    pub path: String,
    /// Its length.
    pub bytes: u64,
}

/// One key.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EntrySummary {
    /// The key.
    pub key: String,
    /// The value's type; of an array `[element; count]`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The value; long strings and arrays cut.
    pub value: String,
}

/// The sizes that matter of a model that can be run.
#[derive(Clone, Debug, Serialize)]
pub struct ModelSummary {
    /// The name its makers gave it.
    pub name: String,
    /// The architecture's name.
    pub architecture: &'static str,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Values of a hidden state.
    pub width: usize,
    /// Number of layers.
    pub layers: usize,
    /// Tokens of context it was trained for.
    pub context: usize,
    /// Query heads, key and value heads, and the size of a head, of the first layer.
    pub heads: [usize; 3],
    /// Whether the head is the embedding.
    pub tied: bool,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorSummary {
    /// Its name in the file.
    pub name: String,
    /// How its values are stored.
    #[serde(rename = "type")]
    pub ty: QuantType,
    /// Its shape, the contiguous dimension first.
    pub dims: Vec<u64>,
    /// Bytes of its data.
    pub bytes: usize,
    /// The file of the set that holds it, from 0.
    pub file: usize,
    /// Where its data begins in that file.
    pub offset: u64,
}

/// One layer.
#[derive(Clone, Debug, Serialize)]
pub struct LayerSummary {
    /// The layer, from 0.
    pub layer: usize,
    /// Its tensors in file order.
    pub tensors: Vec<TensorSummary>,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Its experts, if it has any and the model can be run.
    pub experts: Option<ExpertsSummary>,
}

/// The experts of one layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertsSummary {
    /// Number of experts.
    pub experts: usize,
    /// Experts a token uses.
    pub top_k: usize,
    /// Hidden values of one.
    pub width: usize,
    /// Types of gate, up and down.
    pub types: [QuantType; 3],
    /// Bytes of one expert's blob, with padding.
    pub blob_bytes: usize,
    /// Bytes of all blobs of the layer.
    pub bytes: u64,
}

/// Sizes of the whole.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Totals {
    /// Number of tensors.
    pub tensors: usize,
    /// Number of values.
    pub parameters: u64,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Bytes of all expert blobs, with padding; 0 if the model cannot be run.
    pub expert_bytes: u64,
    /// Bytes of all tensors that are not experts'; of all tensors if the model cannot be run.
    pub dense_bytes: u64,
    /// Bytes of experts that one token reads; 0 if the model cannot be run.
    pub expert_bytes_per_token: u64,
    /// Bytes by tensor type.
    pub by_type: BTreeMap<&'static str, u64>,
}

impl Summary {
    /// The summary of an open file.
    pub fn of(gguf: &Gguf) -> Self {
        let (spec, refused) = match ModelSpec::read(gguf) {
            Ok(spec) => (Some(spec), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let (mut edge, mut layers) = (Vec::new(), BTreeMap::<usize, Vec<TensorSummary>>::new());
        for tensor in gguf.tensors() {
            let group = layer_of(&tensor.name).map_or(&mut edge, |layer| layers.entry(layer).or_default());
            group.push(TensorSummary::of(tensor));
        }
        let experts = |layer: usize| spec.as_ref()?.layers.get(layer)?.experts().map(ExpertsSummary::of);
        let layers: Vec<LayerSummary> = layers
            .into_iter()
            .map(|(layer, tensors)| LayerSummary {
                layer,
                bytes: tensors.iter().map(|tensor| tensor.bytes as u64).sum(),
                experts: experts(layer),
                tensors,
            })
            .collect();
        Self {
            files: gguf
                .shards()
                .iter()
                .map(|shard| FileSummary { path: shard.path().display().to_string(), bytes: shard.len() })
                .collect(),
            metadata: gguf
                .metadata()
                .entries()
                .iter()
                .map(|entry| EntrySummary {
                    key: entry.key.clone(),
                    kind: match &entry.value {
                        Value::Array(array) => format!("[{}; {}]", array.element().name(), array.len()),
                        value => value.kind().name().to_owned(),
                    },
                    value: entry.value.to_string(),
                })
                .collect(),
            totals: Totals::of(gguf, spec.as_ref()),
            model: spec.as_ref().map(ModelSummary::of),
            refused,
            edge,
            layers,
        }
    }
}

/// The layer that a tensor's name (`blk.N.`) puts it in.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

impl TensorSummary {
    fn of(tensor: &TensorInfo) -> Self {
        Self {
            name: tensor.name.clone(),
            ty: tensor.ty,
            dims: tensor.dims.clone(),
            bytes: tensor.bytes,
            file: tensor.shard,
            offset: tensor.offset,
        }
    }
}

impl ModelSummary {
    fn of(spec: &ModelSpec) -> Self {
        let shape = spec.layers.first().and_then(|layer| layer.attention()).map(|attention| attention.shape);
        Self {
            name: spec.name.clone(),
            architecture: spec.architecture.name(),
            vocab: spec.vocab,
            width: spec.width,
            layers: spec.layers.len(),
            context: spec.context,
            heads: shape.map_or([0; 3], |shape| [shape.heads, shape.kv_heads, shape.head_dim]),
            tied: spec.is_tied(),
        }
    }
}

impl ExpertsSummary {
    fn of(layer: &ExpertsSpec) -> Self {
        let blob = layer.blob();
        Self {
            experts: layer.experts,
            top_k: layer.rule.top_k,
            width: layer.width,
            types: [layer.gate.ty, layer.up.ty, layer.down.ty],
            blob_bytes: blob.bytes,
            bytes: (blob.bytes * layer.experts) as u64,
        }
    }
}

impl Totals {
    fn of(gguf: &Gguf, spec: Option<&ModelSpec>) -> Self {
        let mut by_type = BTreeMap::new();
        for tensor in gguf.tensors() {
            *by_type.entry(tensor.ty.name()).or_default() += tensor.bytes as u64;
        }
        let bytes = gguf.tensors().iter().map(|tensor| tensor.bytes as u64).sum();
        let layers = || spec.into_iter().flat_map(ModelSpec::expert_layers).map(|(_, layer)| layer);
        let stored: usize = layers().map(|layer| layer.gate.bytes + layer.up.bytes + layer.down.bytes).sum();
        Self {
            tensors: gguf.tensors().len(),
            parameters: gguf.tensors().iter().map(TensorInfo::elements).sum(),
            bytes,
            expert_bytes: spec.map_or(0, |spec| spec.expert_bytes().0),
            dense_bytes: bytes - stored as u64,
            expert_bytes_per_token: layers().map(|layer| (layer.blob().bytes * layer.rule.top_k) as u64).sum(),
            by_type,
        }
    }
}
