//! Dense weights in card memory.

use std::sync::Arc;

use super::EngineError;
use crate::card::command::{CopyIn, LinearPart, Weight};
use crate::card::{Card, Command, HostBuf, HostMemory, Region, Span, Stream};
use crate::model::{AttentionSpec, ExpertsSpec, Ffn, LayerSpec, LinearSpec, Mixer, Model, TensorRef};
use crate::ops::{Activation, AttentionShape, BlobLayout, CellLayout, KvType, RouterRule};
use crate::plan::{StagePlan, Use, memory};
use crate::units::Bytes;

/// A product's weight and bias.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linear {
    /// The matrix.
    pub weight: Weight,
    /// Added to each row.
    pub bias: Option<Span>,
}

impl Linear {
    /// The product written to `out`.
    pub fn to(self, out: Span) -> LinearPart {
        LinearPart { weight: self.weight, bias: self.bias, out }
    }
}

/// An attention mixer.
pub(super) struct Attention {
    pub shape: AttentionShape,
    pub cells: CellLayout,
    pub q: Linear,
    pub k: Linear,
    pub v: Linear,
    pub output: Linear,
    pub q_norm: Option<Span>,
    pub k_norm: Option<Span>,
}

/// A layer's FFN.
#[allow(clippy::large_enum_variant, reason = "one a layer, never moved")]
pub(super) enum LayerFfn {
    Dense { gate: Linear, up: Linear, down: Linear, activation: Activation },
    Experts { router: Linear, experts: usize, rule: RouterRule, layout: Arc<BlobLayout> },
}

/// One layer of a stage.
pub(super) struct Layer {
    /// Its number in the model.
    pub index: usize,
    pub mixer_norm: Span,
    pub attention: Attention,
    pub ffn_norm: Span,
    pub ffn: LayerFfn,
}

/// The final norm and the output head.
pub(super) struct Head {
    pub norm: Span,
    pub output: Linear,
}

/// Brings tensors to a card: used in place where the card can, copied otherwise.
pub(super) struct Loader<'a> {
    card: &'a Arc<dyn Card>,
    model: &'a Model,
    shards: Vec<Option<HostBuf>>,
    region: Option<Region>,
    used: usize,
    bytes: usize,
    progress: &'a dyn Fn(Bytes),
}

impl<'a> Loader<'a> {
    /// A loader for the dense tensors of a stage.
    pub fn new(
        card: &'a Arc<dyn Card>,
        model: &'a Model,
        host: &HostMemory,
        plan: &StagePlan,
        progress: &'a dyn Fn(Bytes),
    ) -> Self {
        let shards = model.gguf().shards().iter();
        let shards = shards.map(|shard| Some(host.map(Arc::clone(shard.mapping()?) as _, "model file"))).collect();
        let bytes = plan.bytes(Use::Weights) + plan.bytes(Use::Head);
        Self { card, model, shards, region: None, used: 0, bytes, progress }
    }

    fn tensor(&mut self, tensor: &TensorRef) -> Result<Span, EngineError> {
        let shard = self.shards.get(tensor.shard).and_then(Option::as_ref);
        let outside = || EngineError::Internal(format!("{} lies outside the model file", tensor.name));
        let from = shard
            .and_then(|shard| shard.span(usize::try_from(tensor.offset).ok()?, tensor.bytes))
            .ok_or_else(outside)?;
        (self.progress)(Bytes(tensor.bytes as u64));
        if self.region.is_none()
            && let Some(region) = self.card.adopt(&from, &tensor.name)?
        {
            return Ok(region.whole());
        }
        let region = match &self.region {
            Some(region) => region.clone(),
            None => self.region.insert(self.card.alloc(Bytes(self.bytes as u64), "weights")?).clone(),
        };
        let to = region.span(self.used, tensor.bytes);
        self.used += memory::tensor_bytes(self.card.kind(), tensor);
        self.card.submit(Stream::Compute, Command::CopyIn(CopyIn { from, to }))?;
        Ok(to)
    }

    fn matrix(&mut self, tensor: &TensorRef) -> Result<Weight, EngineError> {
        Ok(Weight { ty: tensor.ty, rows: tensor.rows, cols: tensor.cols, at: self.tensor(tensor)? })
    }

    fn linear(&mut self, spec: &LinearSpec) -> Result<Linear, EngineError> {
        let weight = self.matrix(&spec.weight)?;
        let bias = spec.bias.as_ref().map(|bias| self.tensor(bias)).transpose()?;
        Ok(Linear { weight, bias })
    }

    fn attention(&mut self, spec: &AttentionSpec, kv: KvType) -> Result<Attention, EngineError> {
        Ok(Attention {
            shape: spec.shape,
            cells: CellLayout::new(kv, &spec.shape),
            q: self.linear(&spec.q)?,
            k: self.linear(&spec.k)?,
            v: self.linear(&spec.v)?,
            output: self.linear(&spec.output)?,
            q_norm: spec.q_norm.as_ref().map(|norm| self.tensor(norm)).transpose()?,
            k_norm: spec.k_norm.as_ref().map(|norm| self.tensor(norm)).transpose()?,
        })
    }

    fn experts(&mut self, spec: &ExpertsSpec) -> Result<LayerFfn, EngineError> {
        Ok(LayerFfn::Experts {
            router: Linear { weight: self.matrix(&spec.router)?, bias: None },
            experts: spec.experts,
            rule: spec.rule,
            layout: Arc::new(spec.blob()),
        })
    }

    /// One layer without its experts' blobs.
    pub fn layer(&mut self, index: usize, spec: &LayerSpec, kv: KvType) -> Result<Layer, EngineError> {
        let Mixer::Attention(attention) = &spec.mixer;
        Ok(Layer {
            index,
            mixer_norm: self.tensor(&spec.mixer_norm)?,
            attention: self.attention(attention, kv)?,
            ffn_norm: self.tensor(&spec.ffn_norm)?,
            ffn: match &spec.ffn {
                Ffn::Dense(dense) => LayerFfn::Dense {
                    gate: self.linear(&dense.gate)?,
                    up: self.linear(&dense.up)?,
                    down: self.linear(&dense.down)?,
                    activation: dense.activation,
                },
                Ffn::Experts(experts) => self.experts(experts)?,
            },
        })
    }

    /// The final norm and the output head.
    pub fn head(&mut self) -> Result<Head, EngineError> {
        let spec = &self.model.spec;
        Ok(Head {
            norm: self.tensor(&spec.output_norm)?,
            output: Linear { weight: self.matrix(&spec.head)?, bias: None },
        })
    }
}
