//! From keys and tensors to a description, checking each against the others.

use super::architecture::{Architecture, ExpertUse};
use super::error::ModelError;
use super::rope;
use super::source::{Dim, PerLayer, Source};
use super::spec::{AttentionSpec, DenseSpec, ExpertsSpec, Ffn, LayerSpec, Mixer, ModelSpec};
use crate::gguf::{Gguf, Strings, Value};
use crate::ops::{Activation, AttentionShape, RouterRule, RouterScores};

/// A value that leaves the arithmetic as it is.
enum Neutral {
    Integer(i128),
    Float(f64),
    Bool(bool),
}

use Neutral::{Bool, Float, Integer};

/// Keys that change what a model computes, in ways that are not supported: each may be missing or hold one of these
/// values.
const NEUTRAL: [(&str, &[Neutral]); 15] = [
    ("attention.causal", &[Bool(true)]),
    ("attention.clamp_kqv", &[Float(0.0)]),
    ("attention.max_alibi_bias", &[Float(0.0)]),
    ("attn_logit_softcapping", &[Float(0.0)]),
    ("embedding_scale", &[Float(0.0), Float(1.0)]),
    ("expert_gating_func", &[Integer(0), Integer(1)]),
    ("expert_group_count", &[Integer(0), Integer(1)]),
    ("expert_shared_count", &[Integer(0)]),
    ("expert_weights_norm", &[Bool(true)]),
    ("expert_weights_scale", &[Float(0.0), Float(1.0)]),
    ("final_logit_softcapping", &[Float(0.0)]),
    ("leading_dense_block_count", &[Integer(0)]),
    ("logit_scale", &[Float(0.0), Float(1.0)]),
    ("nextn_predict_layers", &[Integer(0)]),
    ("residual_scale", &[Float(0.0), Float(1.0)]),
];

impl ModelSpec {
    /// Reads the description of a model file.
    ///
    /// # Errors
    /// [`ModelError`] names the key or tensor that is missing, wrong or not supported.
    pub fn read(gguf: &Gguf) -> Result<Self, ModelError> {
        let name: &str = gguf.metadata().require("general.architecture")?;
        let architecture = Architecture::from_name(name).ok_or_else(|| ModelError::Architecture {
            file: gguf.path().to_owned(),
            found: name.to_owned(),
            supported: Architecture::ALL.map(Architecture::name).join(", "),
        })?;
        let source = Source::new(gguf, architecture);
        check_neutral(&source)?;

        let width = source.size("embedding_length")?;
        let context = source.size("context_length")?;
        check_window(&source, context)?;
        let eps = source.require::<f32>("attention.layer_norm_rms_epsilon")?;
        if !(eps.is_finite() && eps > 0.0) {
            return Err(source.parameter("attention.layer_norm_rms_epsilon", eps, "a number above 0"));
        }
        let vocab = vocabulary(&source, width)?;
        let table = [Dim(width, "embedding_length"), Dim(vocab, "the vocabulary")];
        let embedding = source.tensor("token_embd.weight", &table)?;
        let head = source.maybe_tensor("output.weight", &table)?.unwrap_or_else(|| embedding.clone());
        let output_norm = source.vector("output_norm.weight", Dim(width, "embedding_length"))?;

        let layers = Layers::read(&source, width)?;
        let spec = Self {
            name: gguf.metadata().find::<&str>("general.name")?.unwrap_or(architecture.name()).to_owned(),
            architecture,
            vocab,
            width,
            context,
            eps,
            rope: rope::read(&source, layers.heads_of(0)?.head_dim)?,
            embedding,
            output_norm,
            head,
            layers: (0..layers.count).map(|layer| layers.layer(layer)).collect::<Result<_, _>>()?,
        };
        source.check_all_used()?;
        Ok(spec)
    }
}

fn check_neutral(source: &Source<'_>) -> Result<(), ModelError> {
    for (name, allowed) in NEUTRAL {
        let Some(value) = source.gguf.metadata().get(&source.key(name)) else { continue };
        let fits = allowed.iter().any(|neutral| match neutral {
            Integer(wanted) => value.integer() == Some(*wanted),
            Float(wanted) => value.float() == Some(*wanted),
            Bool(wanted) => *value == Value::Bool(*wanted),
        });
        if !fits {
            let shown: Vec<String> = allowed
                .iter()
                .map(|neutral| match neutral {
                    Integer(v) => v.to_string(),
                    Float(v) => v.to_string(),
                    Bool(v) => v.to_string(),
                })
                .collect();
            let what = format!("`{}` = {value}", source.key(name));
            return Err(source.unsupported(what, format!("supported: {}", shown.join(" or "))));
        }
    }
    Ok(())
}

/// A window that no context can reach beyond changes nothing.
fn check_window(source: &Source<'_>, context: usize) -> Result<(), ModelError> {
    match source.find::<usize>("attention.sliding_window")? {
        Some(window) if window > 0 && window < context => {
            let what = format!("`{}` = {window}", source.key("attention.sliding_window"));
            Err(source.unsupported(what, format!("supported: none, or one of the context's {context} tokens")))
        }
        _ => Ok(()),
    }
}

/// The number of tokens: that of the token list, else of the key, else the rows of the embedding.
fn vocabulary(source: &Source<'_>, width: usize) -> Result<usize, ModelError> {
    if let Some(tokens) = source.gguf.metadata().find::<Strings<'_>>("tokenizer.ggml.tokens")? {
        return Ok(tokens.len());
    }
    if let Some(vocab) = source.maybe_size("vocab_size")? {
        return Ok(vocab);
    }
    match source.gguf.tensor("token_embd.weight").and_then(|tensor| tensor.dims.get(1).copied()) {
        Some(rows) => Ok(usize::try_from(rows).unwrap_or(usize::MAX)),
        // Asking for it gives the error that says so.
        None => source.tensor("token_embd.weight", &[Dim(width, "embedding_length")]).map(|tensor| tensor.rows),
    }
}

/// What the keys say about the layers.
struct Layers<'a> {
    source: &'a Source<'a>,
    count: usize,
    width: Dim,
    heads: PerLayer,
    kv_heads: Option<PerLayer>,
    key_length: Option<usize>,
    value_length: Option<usize>,
    scale: Option<f32>,
    ffn: FfnKeys,
}

enum FfnKeys {
    Dense { width: PerLayer },
    Experts { experts: usize, top_k: usize, width: PerLayer, width_key: &'static str },
}

impl<'a> Layers<'a> {
    fn read(source: &'a Source<'a>, width: usize) -> Result<Self, ModelError> {
        let count = source.size("block_count")?;
        let scale = source.find::<f32>("attention.scale")?.filter(|&scale| scale != 0.0);
        if let Some(scale) = scale.filter(|scale| !(scale.is_finite() && *scale > 0.0)) {
            return Err(source.parameter("attention.scale", scale, "a number above 0"));
        }
        let heads = source.per_layer("attention.head_count", count)?;
        Ok(Self {
            count,
            width: Dim(width, "embedding_length"),
            // Asking for it gives the error that says it is missing.
            heads: heads.map_or_else(|| source.size("attention.head_count").map(PerLayer::Same), Ok)?,
            kv_heads: source.per_layer("attention.head_count_kv", count)?,
            key_length: source.maybe_size("attention.key_length")?,
            value_length: source.maybe_size("attention.value_length")?,
            scale,
            ffn: FfnKeys::read(source, count)?,
            source,
        })
    }

    /// Heads of a layer and their sizes.
    fn heads_of(&self, layer: usize) -> Result<AttentionShape, ModelError> {
        let heads = self.heads.get(layer);
        let kv_heads = self.kv_heads.as_ref().map_or(heads, |kv_heads| kv_heads.get(layer));
        if !heads.is_multiple_of(kv_heads) {
            let wanted = format!("a divisor of {heads} (`{}`)", self.source.key("attention.head_count"));
            return Err(self.source.parameter("attention.head_count_kv", kv_heads, wanted));
        }
        // Without these keys all layers have heads of one size: what the first layer's number of heads gives.
        let first = self.heads.get(0);
        let by_width = |length: Option<usize>| match length {
            Some(length) => Ok(length),
            None if self.width.0.is_multiple_of(first) => Ok(self.width.0 / first),
            None => {
                let wanted = format!(
                    "a divisor of {} (`{}`), as there is no key_length and value_length,",
                    self.width.0,
                    self.source.key("embedding_length")
                );
                Err(self.source.parameter("attention.head_count", first, wanted))
            }
        };
        let head_dim = by_width(self.key_length)?;
        let value_dim = by_width(self.value_length)?;
        let scale = self.scale.unwrap_or(1.0 / (head_dim as f32).sqrt());
        // Sizes that overflow could meet the right shape by accident.
        for (name, size) in [("attention.key_length", head_dim), ("attention.value_length", value_dim)] {
            if heads.checked_mul(size).is_none() {
                return Err(self.source.parameter(name, size, format!("a size that {heads} heads can have")));
            }
        }
        Ok(AttentionShape { heads, kv_heads, head_dim, value_dim, scale })
    }

    fn layer(&self, layer: usize) -> Result<LayerSpec, ModelError> {
        let named = |part: &str| format!("blk.{layer}.{part}");
        Ok(LayerSpec {
            mixer_norm: self.source.vector(&named("attn_norm.weight"), self.width)?,
            mixer: Mixer::Attention(self.attention(layer)?),
            ffn_norm: self.source.vector(&named("ffn_norm.weight"), self.width)?,
            ffn: match &self.ffn {
                FfnKeys::Dense { width } => Ffn::Dense(self.dense(layer, width.get(layer))?),
                FfnKeys::Experts { experts, top_k, width, width_key } => {
                    Ffn::Experts(self.experts(layer, *experts, *top_k, Dim(width.get(layer), width_key))?)
                }
            },
        })
    }

    fn attention(&self, layer: usize) -> Result<AttentionSpec, ModelError> {
        let source = self.source;
        let named = |part: &str| format!("blk.{layer}.{part}");
        if source.has(&named("attn_qkv.weight")) {
            let what = format!("the fused tensor `{}`", named("attn_qkv.weight"));
            return Err(source.unsupported(what, "supported: attn_q, attn_k and attn_v apart"));
        }
        let shape = self.heads_of(layer)?;
        let queries = Dim(shape.heads * shape.head_dim, "head_count x key_length");
        let keys = Dim(shape.kv_heads * shape.head_dim, "head_count_kv x key_length");
        let values = Dim(shape.kv_heads * shape.value_dim, "head_count_kv x value_length");
        let mixed = Dim(shape.heads * shape.value_dim, "head_count x value_length");
        let norm = |part: &str| match source.architecture.family().head_norms {
            true => source.vector(&named(part), Dim(shape.head_dim, "key_length")).map(Some),
            false => Ok(None),
        };
        Ok(AttentionSpec {
            shape,
            q: source.linear(&named("attn_q"), self.width, queries)?,
            k: source.linear(&named("attn_k"), self.width, keys)?,
            v: source.linear(&named("attn_v"), self.width, values)?,
            output: source.linear(&named("attn_output"), mixed, self.width)?,
            q_norm: norm("attn_q_norm.weight")?,
            k_norm: norm("attn_k_norm.weight")?,
        })
    }

    fn dense(&self, layer: usize, width: usize) -> Result<DenseSpec, ModelError> {
        let named = |part: &str| format!("blk.{layer}.{part}");
        let inner = Dim(width, "feed_forward_length");
        Ok(DenseSpec {
            gate: self.source.linear(&named("ffn_gate"), self.width, inner)?,
            up: self.source.linear(&named("ffn_up"), self.width, inner)?,
            down: self.source.linear(&named("ffn_down"), inner, self.width)?,
            width,
            activation: Activation::Silu,
        })
    }

    fn experts(&self, layer: usize, experts: usize, top_k: usize, inner: Dim) -> Result<ExpertsSpec, ModelError> {
        let source = self.source;
        let named = |part: &str| format!("blk.{layer}.{part}");
        for (part, kind) in [("ffn_gate_up_exps.weight", "fused"), ("ffn_gate.0.weight", "single expert's")] {
            if source.has(&named(part)) {
                let what = format!("the {kind} tensor `{}`", named(part));
                let supported = "supported: ffn_gate_exps, ffn_up_exps and ffn_down_exps with all experts; \
                                 converting the model again gives those";
                return Err(source.unsupported(what, supported));
            }
        }
        let all = Dim(experts, "expert_count");
        Ok(ExpertsSpec {
            router: source.tensor(&named("ffn_gate_inp.weight"), &[self.width, all])?,
            gate: source.tensor(&named("ffn_gate_exps.weight"), &[self.width, inner, all])?,
            up: source.tensor(&named("ffn_up_exps.weight"), &[self.width, inner, all])?,
            down: source.tensor(&named("ffn_down_exps.weight"), &[inner, self.width, all])?,
            experts,
            width: inner.0,
            activation: Activation::Silu,
            rule: RouterRule { scores: RouterScores::Softmax, top_k, normalise: true, scale: 1.0 },
        })
    }
}

impl FfnKeys {
    fn read(source: &Source<'_>, layers: usize) -> Result<Self, ModelError> {
        let counted = source.find::<u32>("expert_count")?.filter(|&experts| experts > 0);
        let experts = match source.architecture.family().experts {
            ExpertUse::Always => Some(source.size("expert_count")?),
            ExpertUse::IfCounted => counted.map(|experts| experts as usize),
            ExpertUse::Never => match counted {
                None => None,
                Some(experts) => {
                    let what = format!("`{}` = {experts}", source.key("expert_count"));
                    return Err(source.unsupported(what, format!("`{}` is dense", source.architecture)));
                }
            },
        };
        let (general, own) = ("feed_forward_length", "expert_feed_forward_length");
        let required = |name: &str| match source.per_layer(name, layers)? {
            Some(width) => Ok(width),
            None => source.size(name).map(PerLayer::Same),
        };
        let Some(experts) = experts else { return Ok(Self::Dense { width: required(general)? }) };
        let top_k = source.size("expert_used_count")?;
        if top_k > experts {
            let wanted = format!("a number up to {experts} (`{}`)", source.key("expert_count"));
            return Err(source.parameter("expert_used_count", top_k, wanted));
        }
        let (width, width_key) = match source.per_layer(own, layers)? {
            Some(width) => (width, own),
            None => (required(general)?, general),
        };
        Ok(Self::Experts { experts, top_k, width, width_key })
    }
}
