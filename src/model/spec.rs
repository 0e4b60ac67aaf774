//! The description of a model: layers, tensors, sizes.

use super::architecture::Architecture;
use super::tensor_ref::TensorRef;
use crate::ops::{Activation, AttentionShape, BlobLayout, Rope, RouterRule};
use crate::units::{Bytes, LayerId};

/// A model as data. Per layer: `h += mixer(norm(h))`, then `h += ffn(norm(h))`; at the end `head(norm(h))`.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The name its makers gave it, or the architecture's.
    pub name: String,
    /// Which description it was read by.
    pub architecture: Architecture,
    /// Tokens of the vocabulary: rows of `embedding` and `head`.
    pub vocab: usize,
    /// Values of a hidden state.
    pub width: usize,
    /// Tokens of context it was trained for.
    pub context: usize,
    /// The epsilon of every RMS norm.
    pub eps: f32,
    /// The rotary position embedding of queries and keys.
    pub rope: Rope,
    /// `[width, vocab]`: a row a token.
    pub embedding: TensorRef,
    /// `[width]`: the norm before the head.
    pub output_norm: TensorRef,
    /// `[width, vocab]`: hidden state to logits; equal to `embedding` when tied.
    pub head: TensorRef,
    /// The layers in order.
    pub layers: Vec<LayerSpec>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// `[width]`: the norm before the mixer.
    pub mixer_norm: TensorRef,
    /// What mixes tokens.
    pub mixer: Mixer,
    /// `[width]`: the norm before the FFN.
    pub ffn_norm: TensorRef,
    /// What works on each token alone.
    pub ffn: Ffn,
}

/// The part of a layer that lets tokens see earlier ones.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Causal softmax attention over all earlier cells.
    Attention(AttentionSpec),
}

/// An attention layer.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Heads and their sizes.
    pub shape: AttentionShape,
    /// `[width, heads x head_dim]`.
    pub q: LinearSpec,
    /// `[width, kv_heads x head_dim]`.
    pub k: LinearSpec,
    /// `[width, kv_heads x value_dim]`.
    pub v: LinearSpec,
    /// `[heads x value_dim, width]`.
    pub output: LinearSpec,
    /// `[head_dim]`: RMS norm of each query head, before the rope.
    pub q_norm: Option<TensorRef>,
    /// `[head_dim]`: RMS norm of each key head, before the rope.
    pub k_norm: Option<TensorRef>,
}

/// A matrix with an optional bias: `y = W x + b`.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearSpec {
    /// `[inputs, outputs]`.
    pub weight: TensorRef,
    /// `[outputs]`, F32.
    pub bias: Option<TensorRef>,
}

/// The feed-forward part of a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum Ffn {
    /// One FFN for all tokens.
    Dense(DenseSpec),
    /// Experts, some of which each token uses.
    Experts(ExpertsSpec),
}

/// `down(activation(gate x) * (up x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseSpec {
    /// `[width of the model, width]`.
    pub gate: LinearSpec,
    /// `[width of the model, width]`.
    pub up: LinearSpec,
    /// `[width, width of the model]`.
    pub down: LinearSpec,
    /// Hidden values of the FFN.
    pub width: usize,
    /// The gate's function.
    pub activation: Activation,
}

/// Experts and the router that picks among them: the sum over the picked ones of weight times FFN.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsSpec {
    /// `[width of the model, experts]`.
    pub router: TensorRef,
    /// `[width of the model, width]` for each expert.
    pub gate: TensorRef,
    /// `[width of the model, width]` for each expert.
    pub up: TensorRef,
    /// `[width, width of the model]` for each expert.
    pub down: TensorRef,
    /// Number of experts.
    pub experts: usize,
    /// Hidden values of one expert.
    pub width: usize,
    /// The gate's function.
    pub activation: Activation,
    /// How the router picks and weighs.
    pub rule: RouterRule,
}

impl ModelSpec {
    /// Whether the head is the embedding.
    pub fn is_tied(&self) -> bool {
        self.head == self.embedding
    }

    /// The layers that have experts.
    pub fn expert_layers(&self) -> impl Iterator<Item = (LayerId, &ExpertsSpec)> {
        (0..).map(LayerId).zip(&self.layers).filter_map(|(id, layer)| Some((id, layer.experts()?)))
    }

    /// Bytes of all expert blobs, with padding.
    pub fn expert_bytes(&self) -> Bytes {
        self.expert_layers().map(|(_, layer)| Bytes((layer.experts * layer.blob().bytes) as u64)).sum()
    }

    /// Every tensor once: embedding, norm and head, then the layers'.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorRef> {
        let head = (!self.is_tied()).then_some(&self.head);
        let edges = [&self.embedding, &self.output_norm].into_iter().chain(head);
        let layers = self.layers.iter().flat_map(|layer| {
            let experts = layer.experts().into_iter().flat_map(|experts| [&experts.gate, &experts.up, &experts.down]);
            layer.dense_tensors().into_iter().chain(experts)
        });
        edges.chain(layers)
    }
}

impl LayerSpec {
    /// The layer's experts, if it has any.
    pub fn experts(&self) -> Option<&ExpertsSpec> {
        match &self.ffn {
            Ffn::Experts(experts) => Some(experts),
            Ffn::Dense(_) => None,
        }
    }

    /// The layer's attention.
    pub fn attention(&self) -> Option<&AttentionSpec> {
        let Mixer::Attention(attention) = &self.mixer;
        Some(attention)
    }

    /// Every tensor of the layer that is not an expert's: what the card of this layer always holds.
    pub fn dense_tensors(&self) -> Vec<&TensorRef> {
        let Mixer::Attention(AttentionSpec { q, k, v, output, q_norm, k_norm, .. }) = &self.mixer;
        let mut all = vec![&self.mixer_norm, &self.ffn_norm];
        all.extend([q, k, v, output].into_iter().flat_map(LinearSpec::tensors));
        all.extend(q_norm.iter().chain(k_norm));
        match &self.ffn {
            Ffn::Dense(DenseSpec { gate, up, down, .. }) => {
                all.extend([gate, up, down].into_iter().flat_map(LinearSpec::tensors));
            }
            Ffn::Experts(experts) => all.push(&experts.router),
        }
        all
    }
}

impl LinearSpec {
    /// The weight and, if there is one, the bias.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorRef> {
        std::iter::once(&self.weight).chain(&self.bias)
    }
}

impl ExpertsSpec {
    /// Where the parts of each expert's blob lie.
    pub fn blob(&self) -> BlobLayout {
        let part = |tensor: &TensorRef| (tensor.ty, tensor.matrix_bytes());
        BlobLayout::new(self.down.rows, self.width, self.activation, [&self.gate, &self.up, &self.down].map(part))
    }
}
