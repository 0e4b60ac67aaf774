//! Model specs of given shapes, without a file: for planning.

use std::ops::ControlFlow;

use aqueduct::model::{Ffn, LayerSpec, Mixer, Model, ModelSpec, TensorRef};
use aqueduct::quant::QuantType;
use aqueduct::synth::{Shape, write_model};

/// Sizes of a mixture of experts.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub layers: usize,
    pub width: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub experts: usize,
    pub top_k: usize,
    pub hidden: usize,
    pub vocab: usize,
    pub types: (QuantType, QuantType),
}

/// Qwen3-30B-A3B with Q4_K experts and Q8_0 for the rest.
pub const QWEN3_30B: Sizes = Sizes {
    layers: 48,
    width: 2048,
    heads: 32,
    kv_heads: 4,
    head_dim: 128,
    experts: 128,
    top_k: 8,
    hidden: 768,
    vocab: 151_936,
    types: (QuantType::Q4_K, QuantType::Q8_0),
};

/// The sample mixture of experts.
pub const SAMPLE: Sizes = Sizes {
    layers: 30,
    width: 576,
    heads: 9,
    kv_heads: 3,
    head_dim: 64,
    experts: 16,
    top_k: 12,
    hidden: 96,
    vocab: 49_152,
    types: (QuantType::Q4_1, QuantType::Q4_1),
};

/// A spec of these sizes.
pub fn spec(sizes: Sizes) -> ModelSpec {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    write_model(&Shape::named("tiny-qwen3moe").unwrap(), &path, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let mut spec = Model::open(&path).unwrap().spec;
    let dense = sizes.types.1;
    let embedding = if dense == QuantType::Q4_1 { QuantType::Q8_0 } else { dense };
    spec.width = sizes.width;
    spec.vocab = sizes.vocab;
    spec.context = 262_144;
    resize(&mut spec.embedding, embedding, sizes.width, sizes.vocab, 1);
    spec.head = spec.embedding.clone();
    resize(&mut spec.output_norm, QuantType::F32, sizes.width, 1, 1);
    let layer = layer(spec.layers[0].clone(), sizes);
    spec.layers = vec![layer; sizes.layers];
    spec
}

fn layer(mut layer: LayerSpec, sizes: Sizes) -> LayerSpec {
    let Sizes { width, heads, kv_heads, head_dim, experts: count, top_k, hidden, types: (expert, dense), .. } = sizes;
    for norm in [&mut layer.mixer_norm, &mut layer.ffn_norm] {
        resize(norm, QuantType::F32, width, 1, 1);
    }
    let Mixer::Attention(attention) = &mut layer.mixer;
    attention.shape.heads = heads;
    attention.shape.kv_heads = kv_heads;
    attention.shape.head_dim = head_dim;
    attention.shape.value_dim = head_dim;
    resize(&mut attention.q.weight, dense, width, heads * head_dim, 1);
    resize(&mut attention.k.weight, dense, width, kv_heads * head_dim, 1);
    resize(&mut attention.v.weight, dense, width, kv_heads * head_dim, 1);
    resize(&mut attention.output.weight, dense, heads * head_dim, width, 1);
    let Ffn::Experts(experts) = &mut layer.ffn else { panic!("the shape has experts") };
    experts.experts = count;
    experts.rule.top_k = top_k;
    experts.width = hidden;
    resize(&mut experts.router, QuantType::F32, width, count, 1);
    resize(&mut experts.gate, expert, width, hidden, count);
    resize(&mut experts.up, expert, width, hidden, count);
    resize(&mut experts.down, expert, hidden, width, count);
    layer
}

fn resize(tensor: &mut TensorRef, ty: QuantType, cols: usize, rows: usize, matrices: usize) {
    let bytes = ty.row_bytes(cols).unwrap() * rows * matrices;
    *tensor = TensorRef { ty, cols, rows, matrices, bytes, ..tensor.clone() };
}
