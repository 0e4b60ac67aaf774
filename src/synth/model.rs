//! Writes a synthetic model: the metadata and tensors of its architecture, random weights of mean zero.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use thiserror::Error;

use super::blocks::{BlockRing, put_number, put_q8_0};
use super::header::{Header, HeaderError, TensorHead};
use super::random::Random;
use super::shape::{Architecture, Shape, ShapeError};
use super::topics::{Embeddings, TOPICS_KEY, router};
use super::vocabulary::add_tokenizer;
use super::writer::{Watch, WriteError, Writer, Written};
use crate::files::Output;
use crate::gguf::Value;
use crate::quant::QuantType;
use crate::units::TokenId;

/// Why a synthetic model was not written.
#[derive(Debug, Error)]
pub enum SynthError {
    /// The shape cannot be.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// Its header cannot be.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// What a tensor is filled with.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fill {
    Embedding,
    Head,
    Ones,
    Router(usize),
    /// Random blocks of this standard deviation.
    Blocks(f32),
}

const RINGS: u64 = 16;
const PLACES: u64 = 17;

/// What all layers together add to a residual stream of unit size, for attention and FFN each. Small, so that a token's
/// routing stays its own in every layer; large enough that each layer's error shows in the logits.
const LAYERS_GAIN: f32 = 0.5;

/// Writes the model of `shape` to `path`.
///
/// # Errors
/// [`SynthError`]; nothing is left of the file then.
pub fn write_model(shape: &Shape, path: &Path, watch: Watch<'_>) -> Result<Written, SynthError> {
    shape.check()?;
    let mut header = Header::new();
    add_metadata(&mut header, shape)?;
    let fills = add_tensors(&mut header, shape)?;
    let out = Output::create(path, &[]).map_err(WriteError::from)?;
    let mut writer = Writer::create(out, &header, None, watch)?;
    let embeddings = Embeddings::new(shape);
    let mut rings = HashMap::new();
    let mut places = Random::new(shape.seed, PLACES);
    for (tensor, fill) in header.tensors().iter().zip(fills) {
        writer.begin(&tensor.name)?;
        match fill {
            Fill::Embedding => write_rows(&mut writer, shape, tensor, |token, row| embeddings.row(token, row))?,
            Fill::Head => write_rows(&mut writer, shape, tensor, |token, row| embeddings.head_row(token, row))?,
            Fill::Ones => writer.write(&1.0f32.to_le_bytes().repeat(tensor.bytes as usize / 4))?,
            Fill::Router(layer) => {
                let rows = router(shape, layer, shape.experts.map_or(0, |e| e.count));
                writer.write(&rows.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())?;
            }
            Fill::Blocks(spread) => {
                let seed = rings.len() as u64;
                let ring: &BlockRing = match rings.entry((tensor.ty, spread.to_bits())) {
                    Entry::Occupied(there) => there.into_mut(),
                    Entry::Vacant(free) => {
                        let mut random = Random::new(shape.seed ^ seed << 32, RINGS);
                        free.insert(BlockRing::new(tensor.ty, spread, &mut random))
                    }
                };
                // Each matrix of a stack begins at a place of its own.
                let matrices = tensor.dims.get(2).copied().unwrap_or(1);
                for _ in 0..matrices {
                    ring.read(tensor.bytes / matrices, &mut places, |piece| writer.write(piece))?;
                }
            }
        }
    }
    Ok(writer.finish()?)
}

fn write_rows(
    writer: &mut Writer<'_>,
    shape: &Shape,
    tensor: &TensorHead,
    fill: impl Fn(TokenId, &mut [f32]),
) -> Result<(), WriteError> {
    let mut row = vec![0.0; shape.width];
    let mut bytes = vec![0; tensor.bytes as usize / shape.vocabulary];
    for token in 0..shape.vocabulary {
        fill(token as TokenId, &mut row);
        match tensor.ty {
            QuantType::Q8_0 => put_q8_0(&row, &mut bytes),
            ty => {
                for (value, out) in row.iter().zip(bytes.chunks_exact_mut(ty.block_bytes())) {
                    put_number(ty, *value, out);
                }
            }
        }
        writer.write(&bytes)?;
    }
    Ok(())
}

fn add_metadata(header: &mut Header, shape: &Shape) -> Result<(), HeaderError> {
    let arch = shape.architecture.name();
    header.set_text("general.architecture", arch)?;
    header.set_text("general.type", "model")?;
    header.set_text("general.name", &format!("synthetic {}", shape.name))?;
    header.set("general.quantization_version", &Value::U32(2))?;
    header.set("general.file_type", &Value::U32(file_type(shape.ffn_type)))?;
    let mut number = |key: &str, value: usize| header.set(&format!("{arch}.{key}"), &Value::U32(value as u32));
    number("context_length", shape.context)?;
    number("embedding_length", shape.width)?;
    number("block_count", shape.layers)?;
    number("attention.head_count", shape.heads)?;
    number("attention.head_count_kv", shape.kv_heads)?;
    number("attention.key_length", shape.head_dim)?;
    number("attention.value_length", shape.head_dim)?;
    number("rope.dimension_count", shape.head_dim)?;
    number("vocab_size", shape.vocabulary)?;
    match (shape.architecture, shape.experts) {
        (Architecture::Llama, Some(experts)) => number("feed_forward_length", experts.ff)?,
        (_, experts) => {
            number("feed_forward_length", shape.ff)?;
            if let Some(experts) = experts {
                number("expert_feed_forward_length", experts.ff)?;
            }
        }
    }
    if let Some(experts) = shape.experts {
        number("expert_count", experts.count)?;
        number("expert_used_count", experts.used)?;
    }
    header.set(&format!("{arch}.rope.freq_base"), &Value::F32(shape.rope_base))?;
    header.set(&format!("{arch}.attention.layer_norm_rms_epsilon"), &Value::F32(1e-6))?;
    header.set(TOPICS_KEY, &Value::U32(shape.routing.topics as u32))?;
    add_tokenizer(header, shape.vocabulary)
}

/// The number that stands in files for "mostly this type".
fn file_type(ty: QuantType) -> u32 {
    match ty {
        QuantType::F32 => 0,
        QuantType::Q4_0 => 2,
        QuantType::Q4_1 => 3,
        QuantType::Q8_0 => 7,
        QuantType::Q5_0 => 8,
        QuantType::Q5_1 => 9,
        QuantType::Q4_K => 15,
        QuantType::Q5_K => 17,
        QuantType::Q6_K => 18,
        QuantType::BF16 => 32,
        _ => 1,
    }
}

fn add_tensors(header: &mut Header, shape: &Shape) -> Result<Vec<Fill>, HeaderError> {
    let mut fills = Vec::new();
    let mut add = |name: &str, ty: QuantType, dims: &[usize], fill: Fill| {
        fills.push(fill);
        header.add_tensor(name, ty, &dims.iter().map(|d| *d as u64).collect::<Vec<_>>())
    };
    let (width, ff) = (shape.width, shape.ffn_units());
    let (query, key) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    // A matrix with this spread keeps the size of its input; the last one of a branch also brings it down to the
    // layer's share.
    let keep = |inputs: usize| Fill::Blocks(1.0 / (inputs as f32).sqrt());
    let share = |inputs: usize, parts: usize| {
        Fill::Blocks(LAYERS_GAIN * (parts as f32).sqrt() / (inputs as f32 * shape.layers as f32).sqrt())
    };
    let norms = QuantType::F32;

    add("token_embd.weight", shape.embedding_type, &[width, shape.vocabulary], Fill::Embedding)?;
    if !shape.tied {
        add("output.weight", shape.embedding_type, &[width, shape.vocabulary], Fill::Head)?;
    }
    add("output_norm.weight", norms, &[width], Fill::Ones)?;
    for layer in 0..shape.layers {
        let mut add = |name: &str, ty, dims: &[usize], fill| add(&format!("blk.{layer}.{name}.weight"), ty, dims, fill);
        add("attn_norm", norms, &[width], Fill::Ones)?;
        add("attn_q", shape.attention_type, &[width, query], keep(width))?;
        add("attn_k", shape.attention_type, &[width, key], keep(width))?;
        add("attn_v", shape.attention_type, &[width, key], keep(width))?;
        add("attn_output", shape.attention_type, &[query, width], share(query, 1))?;
        if shape.architecture != Architecture::Llama {
            add("attn_q_norm", norms, &[shape.head_dim], Fill::Ones)?;
            add("attn_k_norm", norms, &[shape.head_dim], Fill::Ones)?;
        }
        add("ffn_norm", norms, &[width], Fill::Ones)?;
        match shape.experts {
            Some(experts) => {
                add("ffn_gate_inp", norms, &[width, experts.count], Fill::Router(layer))?;
                add("ffn_gate_exps", shape.ffn_type, &[width, ff, experts.count], keep(width))?;
                add("ffn_up_exps", shape.ffn_type, &[width, ff, experts.count], keep(width))?;
                // The experts' weights add up to 1, so their sum is smaller than each, by the root of their number.
                let down = share(ff, experts.used);
                add("ffn_down_exps", shape.down_type, &[ff, width, experts.count], down)?;
            }
            None => {
                add("ffn_gate", shape.ffn_type, &[width, ff], keep(width))?;
                add("ffn_up", shape.ffn_type, &[width, ff], keep(width))?;
                add("ffn_down", shape.down_type, &[ff, width], share(ff, 1))?;
            }
        }
    }
    Ok(fills)
}

#[cfg(test)]
mod tests;
