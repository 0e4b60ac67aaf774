//! Every oracle model's description, and altered files.

use std::path::Path;
use std::sync::Arc;

use super::inspect::Summary;
use super::{Architecture, Ffn, Model, ModelError, ModelSpec};
use crate::gguf::Value;
use crate::gguf::build::{Draft, ORACLE, array, oracle, strings};
use crate::ops::{RopeKind, RouterRule, RouterScores};
use crate::quant::QuantType;
use crate::units::Bytes;

fn spec(name: &str) -> ModelSpec {
    ModelSpec::read(&oracle(name)).unwrap()
}

fn refusal(draft: &Draft) -> String {
    let text = ModelSpec::read(&draft.open()).unwrap_err().to_string();
    assert!(text.starts_with("draft.gguf: "), "{text}");
    text.replacen("draft.gguf: ", "", 1)
}

fn drafts() -> (Draft, Draft, Draft) {
    (Draft::of(&oracle("llama-q8_0-linear2")), Draft::of(&oracle("qwen3-hd128-q4_k_m")), moe())
}

fn moe() -> Draft {
    Draft::of(&oracle("qwen3moe-q4_k_m-split"))
}

#[test]
fn every_oracle_model_is_described() {
    // name, layers, width, [heads, kv heads, head size], FFN width, (experts, top-k), tied: from the table in
    // tests/data.
    let wanted = [
        ("llama-f16-tied-ropefreqs", 3, 256, [4, 2, 64], 128, None, true),
        ("llama-q8_0-linear2", 3, 256, [4, 2, 64], 128, None, false),
        ("mixtral-q4_0", 2, 256, [4, 2, 64], 128, Some((8, 2)), false),
        ("qwen3-hd128-q4_k_m", 2, 256, [4, 2, 128], 256, None, false),
        ("qwen3moe-f32", 3, 128, [4, 2, 64], 48, Some((12, 4)), false),
        ("qwen3moe-hd128-ud", 2, 256, [4, 2, 128], 128, Some((8, 4)), false),
        ("qwen3moe-iq2", 2, 256, [4, 2, 64], 256, Some((8, 4)), false),
        ("qwen3moe-iq3", 2, 256, [4, 2, 64], 256, Some((8, 2)), false),
        ("qwen3moe-mxfp4", 2, 256, [4, 2, 64], 128, Some((8, 2)), false),
        ("qwen3moe-q4_k_m-split", 3, 256, [4, 2, 64], 256, Some((8, 3)), false),
    ];
    assert_eq!(wanted.map(|model| model.0), ORACLE);
    for (name, layers, width, heads, inner, experts, tied) in wanted {
        let spec = spec(name);
        let qwen3 = name.starts_with("qwen3");
        assert_eq!((spec.name.as_str(), spec.layers.len(), spec.width), (name, layers, width));
        assert_eq!((spec.vocab, spec.context, spec.is_tied()), (512, 4096, tied), "{name}");
        assert_eq!(spec.eps, if qwen3 { 1e-6 } else { 1e-5 }, "{name}");
        assert_eq!(spec.rope.kind, if qwen3 { RopeKind::Neox } else { RopeKind::Normal }, "{name}");
        assert_eq!((spec.rope.rotated, spec.rope.frequencies.len()), (heads[2], heads[2] / 2), "{name}");
        for layer in &spec.layers {
            let attention = layer.attention().unwrap();
            let shape = attention.shape;
            assert_eq!([shape.heads, shape.kv_heads, shape.head_dim], heads, "{name}");
            assert_eq!((shape.value_dim, shape.scale), (heads[2], (heads[2] as f32).sqrt().recip()));
            assert_eq!((attention.q.weight.cols, attention.q.weight.rows), (width, heads[0] * heads[2]));
            assert_eq!((attention.v.weight.cols, attention.v.weight.rows), (width, heads[1] * heads[2]));
            assert_eq!((attention.output.weight.cols, attention.output.weight.rows), (heads[0] * heads[2], width));
            assert_eq!((attention.q_norm.is_some(), attention.k_norm.is_some()), (qwen3, qwen3), "{name}");
            match &layer.ffn {
                Ffn::Dense(ffn) => {
                    assert_eq!((None, ffn.width, ffn.down.weight.cols), (experts, inner, inner), "{name}");
                }
                Ffn::Experts(ffn) => {
                    assert_eq!((Some((ffn.experts, ffn.rule.top_k)), ffn.width), (experts, inner), "{name}");
                    assert_eq!((ffn.gate.cols, ffn.gate.rows, ffn.gate.matrices), (width, inner, ffn.experts));
                    assert_eq!((ffn.down.cols, ffn.down.rows, ffn.down.matrices), (inner, width, ffn.experts));
                    let rule = RouterRule {
                        scores: RouterScores::Softmax,
                        top_k: ffn.rule.top_k,
                        normalise: true,
                        scale: 1.0,
                    };
                    assert_eq!(ffn.rule, rule);
                }
            }
        }
        let gguf = oracle(name);
        let extra = usize::from(name.ends_with("ropefreqs"));
        assert_eq!(spec.tensors().count() + extra, gguf.tensors().len(), "{name}");
        for tensor in spec.tensors() {
            let info = gguf.tensor(&tensor.name).unwrap();
            assert_eq!(
                (tensor.ty, tensor.shard, tensor.offset, tensor.bytes),
                (info.ty, info.shard, info.offset, info.bytes)
            );
            assert_eq!(tensor.elements() as u64, info.elements());
            assert_eq!(tensor.ty.row_bytes(tensor.cols).unwrap(), tensor.row_bytes());
            assert_eq!(tensor.matrix_bytes() * tensor.matrices, tensor.bytes);
        }
    }
}

#[test]
fn a_description_in_full() {
    insta::assert_debug_snapshot!(ModelSpec {
        layers: spec("qwen3moe-hd128-ud").layers.into_iter().take(1).collect(),
        ..spec("qwen3moe-hd128-ud")
    });
}

#[test]
fn ropes_follow_the_keys() {
    let frequency = |base: f64, pair: f64, rotated: f64| base.powf(-2.0 * pair / rotated);
    let plain = spec("qwen3-hd128-q4_k_m").rope;
    let base = oracle("qwen3-hd128-q4_k_m").metadata().require::<f32>("qwen3.rope.freq_base").unwrap();
    for (pair, &found) in plain.frequencies.iter().enumerate() {
        assert_eq!(found, frequency(f64::from(base), pair as f64, 128.0) as f32);
    }

    let (llama, qwen3, _) = drafts();
    let halved = spec("llama-q8_0-linear2").rope.frequencies;
    let read = |draft: &Draft| ModelSpec::read(&draft.open()).unwrap().rope.frequencies;
    let whole = read(&llama.clone().set("llama.rope.scaling.type", Value::String("none".to_owned())));
    assert_eq!(halved.len(), whole.len());
    assert!(halved.iter().zip(whole.iter()).all(|(halved, whole)| halved * 2.0 == *whole));
    let old_name = llama.clone().without("llama.rope.scaling.factor").set("llama.rope.scale_linear", Value::F32(2.0));
    assert_eq!(read(&old_name), halved);

    let scaled = oracle("llama-f16-tied-ropefreqs");
    let factors: Vec<f32> = scaled
        .data(scaled.tensor("rope_freqs.weight").unwrap())
        .as_chunks()
        .0
        .iter()
        .map(|v| f32::from_le_bytes(*v))
        .collect();
    let with = spec("llama-f16-tied-ropefreqs").rope.frequencies;
    let without = read(&Draft::of(&scaled).without("rope_freqs.weight"));
    assert!(factors.iter().any(|&factor| factor != 1.0));
    for ((with, without), factor) in with.iter().zip(without.iter()).zip(&factors) {
        assert!((with * factor / without - 1.0).abs() < 1e-6);
    }
    let partial = ModelSpec::read(&qwen3.set("qwen3.rope.dimension_count", Value::U32(32)).open()).unwrap().rope;
    assert_eq!((partial.rotated, partial.frequencies.len()), (32, 16));
}

#[test]
fn yarn_is_that_of_the_formula() {
    let (_, qwen3, _) = drafts();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/yarn/golden.json");
    let golden: serde_json::Value = serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap();
    let yarn = qwen3.set("qwen3.rope.scaling.type", Value::String("yarn".to_owned()));
    let mut seen = [0; 3];
    for rope in golden["ropes"].as_array().unwrap() {
        let number = |name: &str| rope[name].as_f64();
        let mut draft = yarn.clone();
        for (key, name) in [
            ("rope.freq_base", "base"),
            ("rope.scaling.factor", "factor"),
            ("rope.scaling.yarn_beta_fast", "fast"),
            ("rope.scaling.yarn_beta_slow", "slow"),
            ("rope.scaling.yarn_ext_factor", "extrapolated"),
            ("rope.scaling.attn_factor", "attention"),
        ] {
            if let Some(value) = number(name) {
                draft = draft.set(&format!("qwen3.{key}"), Value::F32(value as f32));
            }
        }
        let integers = [("rope.dimension_count", "rotated"), ("rope.scaling.original_context_length", "original")];
        for (key, name) in integers {
            draft = draft.set(&format!("qwen3.{key}"), Value::U32(number(name).unwrap() as u32));
        }
        let found = ModelSpec::read(&draft.open()).unwrap().rope;
        assert!((f64::from(found.magnitude) / number("magnitude").unwrap() - 1.0).abs() < 1e-6, "{rope}");
        let wanted = rope["frequencies"].as_array().unwrap();
        assert_eq!(found.frequencies.len(), wanted.len());
        let (base, factor) = (number("base").unwrap(), number("factor").unwrap());
        for (pair, (found, wanted)) in found.frequencies.iter().zip(wanted).enumerate() {
            let (found, wanted) = (f64::from(*found), wanted.as_f64().unwrap());
            assert!((found / wanted - 1.0).abs() < 1e-6, "pair {pair}: {found}, not {wanted} of {rope}");
            let plain = base.powf(-(pair as f64) / wanted_pairs(rope));
            let place = if (wanted / plain - 1.0).abs() < 1e-9 {
                0
            } else if (wanted * factor / plain - 1.0).abs() < 1e-9 {
                2
            } else {
                1
            };
            seen[place] += 1;
        }
    }
    println!("pairs kept, blended and divided: {seen:?}");
    assert!(seen.iter().all(|count| *count > 10), "{seen:?}");
}

fn wanted_pairs(rope: &serde_json::Value) -> f64 {
    rope["rotated"].as_f64().unwrap() / 2.0
}

#[test]
fn yarn_keys_that_make_no_sense_are_refused_by_name() {
    let (_, qwen3, _) = drafts();
    let yarn = qwen3.set("qwen3.rope.scaling.type", Value::String("yarn".to_owned()));
    for key in ["factor", "yarn_beta_fast", "yarn_beta_slow", "attn_factor", "yarn_attn_factor"] {
        for bad in [-2.0, f32::NAN, f32::INFINITY] {
            let text = refusal(&yarn.clone().set(&format!("qwen3.rope.scaling.{key}"), Value::F32(bad)));
            assert!(text.contains(key) && text.contains("a number above 0"), "{text}");
        }
    }
    let text = refusal(&yarn.clone().set("qwen3.rope.scaling.yarn_ext_factor", Value::F32(f32::NAN)));
    assert!(text.contains("a number up to 1"), "{text}");
    let text = refusal(&yarn.clone().set("qwen3.rope.scaling.original_context_length", Value::U32(0)));
    assert!(text.contains("a number above 0"), "{text}");
    assert!(refusal(&yarn.set("qwen3.rope.freq_base", Value::F32(1.0))).contains("above 1"));
}

#[test]
fn optional_parts_are_read_when_present() {
    let (llama, _, moe) = drafts();
    let model = ModelSpec::read(
        &llama
            .clone()
            .tensor("blk.0.attn_q.bias", QuantType::F32, &[256])
            .tensor("blk.1.ffn_down.bias", QuantType::F32, &[256])
            .open(),
    )
    .unwrap();
    let biases: Vec<_> =
        model.tensors().filter(|tensor| tensor.name.ends_with("bias")).map(|tensor| &*tensor.name).collect();
    assert_eq!(biases, ["blk.0.attn_q.bias", "blk.1.ffn_down.bias"]);
    assert!(model.layers[0].attention().unwrap().q.bias.is_some());

    // Without the key, heads share the width; without a tokenizer, the vocabulary is the embedding's rows.
    let bare = llama
        .without("llama.attention.key_length")
        .without("llama.attention.value_length")
        .without("llama.rope.dimension_count")
        .without("tokenizer.ggml.tokens")
        .without("llama.vocab_size")
        .without("general.name")
        .set("tokenizer.ggml.model", Value::String("none".to_owned()));
    let model = ModelSpec::read(&bare.open()).unwrap();
    assert_eq!((model.vocab, model.name.as_str()), (512, "llama"));
    assert_eq!(model.layers[0].attention().unwrap().shape.head_dim, 64);

    // One number for each layer, and a window that nothing reaches beyond.
    let heads = array(crate::gguf::ValueType::U32, &[4_u32; 3].map(Value::U32));
    let each =
        moe.set("qwen3moe.attention.head_count", heads).set("qwen3moe.attention.sliding_window", Value::U32(4096));
    let shapes = |draft: &Draft| {
        let layers = ModelSpec::read(&draft.open()).unwrap().layers;
        layers.iter().map(|layer| layer.attention().unwrap().shape).collect::<Vec<_>>()
    };
    assert_eq!(shapes(&each), shapes(&self::moe()));
}

#[test]
fn other_architectures_are_refused_by_name() {
    let (llama, ..) = drafts();
    assert_eq!(
        refusal(&llama.clone().set("general.architecture", Value::String("gpt-oss".to_owned()))),
        "the architecture `gpt-oss` is not supported (supported: llama, qwen3, qwen3moe)"
    );
    assert!(refusal(&llama.without("general.architecture")).contains("the key `general.architecture` is missing"));
    for architecture in Architecture::ALL {
        assert_eq!(Architecture::from_name(architecture.name()), Some(architecture));
    }
}

#[test]
fn faulty_keys_are_refused() {
    let (llama, qwen3, moe) = drafts();
    let zero = |key: &str| refusal(&moe.clone().set(&format!("qwen3moe.{key}"), Value::U32(0)));
    for key in ["embedding_length", "context_length", "block_count", "attention.head_count", "attention.head_count_kv"]
    {
        assert_eq!(zero(key), format!("`qwen3moe.{key}` is 0, a number above 0 wanted"));
    }
    for key in ["attention.key_length", "rope.dimension_count", "expert_count", "expert_used_count"] {
        assert_eq!(zero(key), format!("`qwen3moe.{key}` is 0, a number above 0 wanted"));
    }
    for key in ["embedding_length", "context_length", "block_count", "attention.head_count", "expert_count"] {
        let text = refusal(&moe.clone().without(&format!("qwen3moe.{key}")));
        assert!(text.starts_with(&format!("the key `qwen3moe.{key}` is missing; ")), "{text}");
    }
    assert_eq!(
        refusal(&moe.clone().set("qwen3moe.expert_used_count", Value::U32(9))),
        "`qwen3moe.expert_used_count` is 9, a number up to 8 (`qwen3moe.expert_count`) wanted"
    );
    assert_eq!(
        refusal(&moe.clone().set("qwen3moe.attention.head_count_kv", Value::U32(3))),
        "`qwen3moe.attention.head_count_kv` is 3, a divisor of 4 (`qwen3moe.attention.head_count`) wanted"
    );
    assert!(
        refusal(&llama.clone().without("llama.attention.key_length").set("llama.attention.head_count", Value::U32(6)))
            .starts_with(
                "`llama.attention.head_count` is 6, a divisor of 256 (`llama.embedding_length`), as there is no"
            )
    );
    let heads = array(crate::gguf::ValueType::U32, &[4_u32; 2].map(Value::U32));
    assert_eq!(
        refusal(&moe.clone().set("qwen3moe.attention.head_count", heads)),
        "`qwen3moe.attention.head_count` is an array of 2 values, one for each of the 3 layers (`qwen3moe.block_count`) wanted"
    );
    for bad in [f32::NAN, 0.0, -1e-6, f32::INFINITY] {
        let text = refusal(&moe.clone().set("qwen3moe.attention.layer_norm_rms_epsilon", Value::F32(bad)));
        assert!(text.ends_with(&format!("is {bad}, a number above 0 wanted")), "{text}");
    }
    for bad in [f32::NAN, 0.0, -10.0, f32::INFINITY] {
        assert!(
            refusal(&moe.clone().set("qwen3moe.rope.freq_base", Value::F32(bad))).contains("a number of 1 or more")
        );
    }
    for bad in [f32::NAN, -2.0, f32::INFINITY] {
        assert!(refusal(&llama.clone().set("llama.rope.scaling.factor", Value::F32(bad))).contains("a number above 0"));
    }
    assert!(refusal(&llama.set("llama.rope.dimension_count", Value::U32(32))).contains("rotates whole heads"));
    for bad in [33, 130] {
        let text = refusal(&qwen3.clone().set("qwen3.rope.dimension_count", Value::U32(bad)));
        assert!(text.contains(&format!("is {bad}, an even number up to 128")), "{text}");
    }
    let huge = qwen3
        .set("qwen3.attention.head_count", Value::U32(u32::MAX))
        .set("qwen3.attention.head_count_kv", Value::U32(1));
    assert!(refusal(&huge).starts_with("the tensor `blk.0.attn_q.weight` (at byte"));
}

#[test]
fn what_would_change_the_arithmetic_is_refused() {
    let (llama, qwen3, moe) = drafts();
    for kind in ["longrope", "ntk", "dynamic"] {
        assert_eq!(
            refusal(&llama.clone().set("llama.rope.scaling.type", Value::String(kind.to_owned()))),
            format!("`llama.rope.scaling.type` = `{kind}` is not supported (supported: none, linear, yarn)")
        );
    }
    for (key, value, shown) in [
        ("expert_gating_func", Value::U32(2), "= 2 is not supported (supported: 0 or 1)"),
        ("expert_group_count", Value::U32(4), "= 4 is not supported (supported: 0 or 1)"),
        ("expert_shared_count", Value::U32(1), "= 1 is not supported (supported: 0)"),
        ("expert_weights_norm", Value::Bool(false), "= false is not supported (supported: true)"),
        ("expert_weights_scale", Value::F32(2.5), "= 2.5 is not supported (supported: 0 or 1)"),
        ("attention.causal", Value::Bool(false), "= false is not supported (supported: true)"),
        (
            "attention.sliding_window",
            Value::U32(512),
            "= 512 is not supported (supported: none, or one of the context's 4096 tokens)",
        ),
        ("final_logit_softcapping", Value::F32(30.0), "= 30 is not supported (supported: 0)"),
    ] {
        assert_eq!(refusal(&moe.clone().set(&format!("qwen3moe.{key}"), value)), format!("`qwen3moe.{key}` {shown}"));
    }
    let neutral = moe
        .clone()
        .set("qwen3moe.expert_gating_func", Value::U32(1))
        .set("qwen3moe.expert_weights_scale", Value::F32(1.0));
    assert_eq!(ModelSpec::read(&neutral.open()).unwrap().layers.len(), 3);
    assert_eq!(
        refusal(&qwen3.clone().set("qwen3.expert_count", Value::U32(8))),
        "`qwen3.expert_count` = 8 is not supported (`qwen3` is dense)"
    );
    assert_eq!(
        refusal(&qwen3.clone().tensor("blk.1.attn_sinks.weight", QuantType::F32, &[4])),
        "the architecture `qwen3` has no use for the tensor `blk.1.attn_sinks.weight`; the file's model is not one that can be run here"
    );
    assert!(
        refusal(&qwen3.clone().set("qwen3.block_count", Value::U32(1)))
            .contains("no use for 11 of the tensors, such as `blk.1.")
    );
    assert!(
        refusal(&qwen3.clone().tensor("rope_freqs.weight", QuantType::F32, &[64]))
            .contains("no use for the tensor `rope_freqs.weight`")
    );
    assert!(
        refusal(&qwen3.tensor("blk.0.attn_qkv.weight", QuantType::F32, &[256, 1024]))
            .contains("the fused tensor `blk.0.attn_qkv.weight`")
    );
    assert!(
        refusal(&moe.clone().tensor("blk.2.ffn_gate_up_exps.weight", QuantType::F32, &[256, 512, 8])).starts_with(
            "the fused tensor `blk.2.ffn_gate_up_exps.weight` is not supported (supported: ffn_gate_exps, "
        )
    );
    assert!(
        refusal(&moe.tensor("blk.1.ffn_gate.0.weight", QuantType::F32, &[256, 256]))
            .starts_with("the single expert's tensor `blk.1.ffn_gate.0.weight` is not supported")
    );
}

#[test]
fn faulty_tensors_are_refused_by_name() {
    let (llama, qwen3, moe) = drafts();
    assert_eq!(
        refusal(&moe.clone().without("blk.1.ffn_up_exps.weight")),
        "the tensor `blk.1.ffn_up_exps.weight` is missing; shape [256 (embedding_length), 256 (expert_feed_forward_length), 8 (expert_count)] wanted"
    );
    assert!(
        refusal(&moe.clone().set("qwen3moe.block_count", Value::U32(4)))
            .starts_with("the tensor `blk.3.attn_norm.weight` is missing")
    );
    let narrow = qwen3.clone().reshape("blk.1.attn_k.weight", QuantType::F32, &[256, 128]);
    let at = narrow.open().tensor("blk.1.attn_k.weight").unwrap().offset;
    assert_eq!(
        refusal(&narrow),
        format!(
            "the tensor `blk.1.attn_k.weight` (at byte {at}) has shape [256, 128], [256 (embedding_length), 256 (head_count_kv x key_length)] wanted"
        )
    );
    for (tensor, dims) in [
        ("token_embd.weight", [256, 511]),
        ("output_norm.weight", [128, 2]),
        ("blk.0.attn_q_norm.weight", [64, 2]),
        ("blk.0.ffn_down.weight", [128, 256]),
    ] {
        let text = refusal(&qwen3.clone().reshape(tensor, QuantType::F32, &dims));
        assert!(
            text.contains(&format!("`{tensor}` (at byte")) && text.contains(&format!("has shape {dims:?}, [")),
            "{text}"
        );
    }
    let text = refusal(&qwen3.set("tokenizer.ggml.tokens", strings(&["a", "b"])));
    assert!(text.ends_with("has shape [256, 512], [256 (embedding_length), 2 (the vocabulary)] wanted"), "{text}");
    let text = refusal(&moe.clone().reshape("blk.0.ffn_norm.weight", QuantType::F16, &[256]));
    assert!(
        text.starts_with("the tensor `blk.0.ffn_norm.weight` (at byte")
            && text.ends_with("is stored as F16, F32 wanted"),
        "{text}"
    );
    // A router of any type will do, and trailing dimensions of 1 say nothing.
    assert!(
        ModelSpec::read(&moe.clone().reshape("blk.0.ffn_gate_inp.weight", QuantType::Q8_0, &[256, 8]).open()).is_ok()
    );
    assert!(ModelSpec::read(&moe.reshape("blk.0.ffn_norm.weight", QuantType::F32, &[256, 1, 1]).open()).is_ok());

    let bad = llama.tensor("rope_freqs.weight", QuantType::F32, &[32]);
    let at = bad.open().tensor("rope_freqs.weight").unwrap().offset;
    assert_eq!(
        refusal(&bad),
        format!("the tensor `rope_freqs.weight` has the value 0 at byte {at}, a number above 0 wanted")
    );
    let text =
        refusal(&Draft::of(&oracle("llama-f16-tied-ropefreqs")).reshape("rope_freqs.weight", QuantType::F32, &[16]));
    assert!(text.ends_with("has shape [16], [32 (half of the elements that rotate)] wanted"), "{text}");
}

#[test]
fn experts_are_read_into_blobs() {
    for name in ORACLE {
        let model = Model::new(Arc::new(oracle(name))).unwrap();
        let mut sizes = std::collections::BTreeSet::new();
        let mut total = 0;
        for (id, layer) in model.spec.expert_layers() {
            let layout = layer.blob();
            sizes.insert(layout.bytes);
            for expert in [0, layer.experts - 1] {
                let mut blob = vec![0xa5; layout.bytes];
                model.read_expert(layer, expert, &mut blob).unwrap();
                let mut end = 0;
                for (start, tensor) in layout.offsets.into_iter().zip([&layer.gate, &layer.up, &layer.down]) {
                    assert!(start.is_multiple_of(256) && start >= end, "{name} {id:?}");
                    end = start + tensor.matrix_bytes();
                    assert_eq!(blob[start..end], model.bytes(tensor)[tensor.matrix_range(expert)], "{name} {id:?}");
                }
                assert_eq!(end.next_multiple_of(256), layout.bytes);
            }
            assert!(
                model.read_expert(layer, 0, &mut vec![0; layout.offsets[2] + layer.down.matrix_bytes() - 1]).is_err()
            );
            total += layer.experts * layout.bytes;
        }
        assert_eq!(model.spec.expert_bytes(), Bytes(total as u64));
        assert_eq!(total > 0, name.contains("moe") || name.contains("mixtral"), "{name}");
        if name.ends_with("split") {
            assert_eq!(sizes.len(), 2, "down is Q6_K in some layers and Q4_K in others");
        }
    }
}

#[test]
fn models_open_by_path() {
    let path = crate::gguf::build::oracle_path("qwen3moe-mxfp4");
    let model = Model::open(&path).unwrap();
    let mut norm = vec![0; model.spec.output_norm.bytes];
    model.read(&model.spec.output_norm, &mut norm).unwrap();
    assert_eq!(norm, model.bytes(&model.spec.output_norm));
    assert!(matches!(Model::open(Path::new("none.gguf")), Err(ModelError::Gguf(_))));
}

#[test]
fn summaries_hold_the_whole_file() {
    let gguf = oracle("qwen3moe-q4_k_m-split");
    let summary = Summary::of(&gguf);
    assert_eq!((summary.files.len(), summary.layers.len(), summary.edge.len()), (3, 3, 3));
    assert_eq!(summary.totals.tensors, 39);
    assert_eq!(summary.totals.bytes, summary.totals.by_type.values().sum::<u64>());
    // 256 x 256 values: Q4_K 36864 bytes, Q6_K 53760; all are multiples of 256.
    let blobs: Vec<_> = summary.layers.iter().map(|layer| layer.experts.as_ref().unwrap().blob_bytes).collect();
    assert_eq!(blobs, [127_488, 110_592, 127_488]);
    assert_eq!(summary.totals.expert_bytes, 8 * blobs.iter().sum::<usize>() as u64);
    assert_eq!(summary.totals.expert_bytes_per_token, 3 * blobs.iter().sum::<usize>() as u64);
    assert_eq!(summary.totals.dense_bytes + summary.totals.expert_bytes, summary.totals.bytes);
    let json = serde_json::to_value(&summary).unwrap();
    assert_eq!(json["model"]["architecture"], "qwen3moe");
    assert_eq!(json["layers"][0]["experts"]["types"], serde_json::json!(["Q4_K", "Q4_K", "Q6_K"]));
    let tokens = summary.metadata.iter().find(|entry| entry.key == "tokenizer.ggml.tokens").unwrap();
    assert_eq!((tokens.kind.as_str(), tokens.value.len() < 80), ("[string; 512]", true));

    let foreign = Draft::of(&gguf).set("general.architecture", Value::String("deepseek4".to_owned())).open();
    let summary = Summary::of(&foreign);
    assert!(summary.model.is_none() && summary.refused.as_deref().unwrap().contains("`deepseek4` is not supported"));
    assert_eq!((summary.layers.len(), summary.totals.expert_bytes), (3, 0));
    assert_eq!(summary.totals.dense_bytes, summary.totals.bytes);
}
