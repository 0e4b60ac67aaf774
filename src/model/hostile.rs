//! Well-formed files that describe nonsense: reading the description must answer with an error or a description whose
//! sizes agree with the tensors, never with a panic.

use std::collections::BTreeMap;
use std::sync::Mutex;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::inspect::Summary;
use super::{ModelError, ModelSpec};
use crate::gguf::build::{Draft, DraftTensor, array, oracle};
use crate::gguf::{Value, ValueType};
use crate::quant::QuantType;

/// One change to a file.
#[derive(Clone, Debug)]
enum Change {
    Key {
        key: prop::sample::Index,
        value: Value,
    },
    Architecture {
        name: &'static str,
    },
    DropKey {
        key: prop::sample::Index,
    },
    DropTensor {
        tensor: prop::sample::Index,
    },
    Shape {
        tensor: prop::sample::Index,
        ty: QuantType,
        dims: Vec<u64>,
    },
    Rename {
        tensor: prop::sample::Index,
        name: &'static str,
    },
    Add {
        name: &'static str,
    },
    /// Stores a tensor of the right shape as another type.
    Retype {
        tensor: prop::sample::Index,
    },
    /// Fills the rope's factors, if there are any.
    Factors {
        byte: u8,
    },
}

const NAMES: [&str; 7] = [
    "rope_freqs.weight",
    "blk.0.attn_sinks.weight",
    "blk.0.attn_qkv.weight",
    "blk.1.ffn_gate_up_exps.weight",
    "blk.0.attn_v.bias",
    "blk.99999999999999999999.x",
    "output.weight",
];

fn value() -> impl Strategy<Value = Value> {
    let number = || prop_oneof![0..20_u32, Just(256), Just(u32::MAX), Just(1 << 31), any::<u32>()];
    prop_oneof![
        4 => number().prop_map(Value::U32),
        1 => any::<i64>().prop_map(Value::I64),
        1 => any::<u64>().prop_map(Value::U64),
        1 => prop_oneof![any::<f32>(), Just(f32::NAN), Just(1e-30)].prop_map(Value::F32),
        1 => any::<bool>().prop_map(Value::Bool),
        1 => prop_oneof![Just("llama"), Just("qwen3"), Just("qwen3moe"), Just("yarn"), Just("none"), Just("")]
            .prop_map(|text| Value::String(text.to_owned())),
        1 => (prop::collection::vec(number(), 0..4)).prop_map(|values| {
            array(ValueType::U32, &values.into_iter().map(Value::U32).collect::<Vec<_>>())
        }),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let index = any::<prop::sample::Index>;
    let dims = prop::collection::vec(prop_oneof![Just(1_u64), Just(32), Just(64), Just(256), Just(8)], 1..4);
    let ty = prop_oneof![Just(QuantType::F32), Just(QuantType::F16)];
    prop_oneof![
        6 => (index(), value()).prop_map(|(key, value)| Change::Key { key, value }),
        1 => prop::sample::select(vec!["llama", "qwen3", "qwen3moe", "gpt-oss", "", "LLAMA"])
            .prop_map(|name| Change::Architecture { name }),
        1 => index().prop_map(|key| Change::DropKey { key }),
        1 => index().prop_map(|tensor| Change::DropTensor { tensor }),
        2 => (index(), ty, dims).prop_map(|(tensor, ty, dims)| Change::Shape { tensor, ty, dims }),
        2 => (index(), prop::sample::select(NAMES.to_vec())).prop_map(|(tensor, name)| Change::Rename { tensor, name }),
        1 => prop::sample::select(NAMES.to_vec()).prop_map(|name| Change::Add { name }),
        1 => index().prop_map(|tensor| Change::Retype { tensor }),
        1 => any::<u8>().prop_map(|byte| Change::Factors { byte }),
    ]
}

fn apply(mut draft: Draft, change: &Change) -> Draft {
    // The tokenizer's keys say nothing about the model's shape, save the list of tokens.
    let keys: Vec<String> = draft.entries.iter().map(|entry| entry.0.clone()).collect();
    let telling: Vec<&String> =
        keys.iter().filter(|key| !key.starts_with("tokenizer.") || key.ends_with("tokens")).collect();
    match change {
        Change::Key { key, value } => draft.set(telling[key.index(telling.len())], value.clone()),
        Change::Architecture { name } => draft.set("general.architecture", Value::String((*name).to_owned())),
        Change::DropKey { key } => draft.without(telling[key.index(telling.len())]),
        Change::DropTensor { tensor } => {
            draft.tensors.remove(tensor.index(draft.tensors.len()));
            draft
        }
        Change::Shape { tensor, ty, dims } => {
            let name = tensor.get(&draft.tensors).name.clone();
            draft.reshape(&name, *ty, dims)
        }
        Change::Rename { tensor, name } => {
            if draft.tensors.iter().all(|other| other.name != *name) {
                let at = tensor.index(draft.tensors.len());
                draft.tensors[at].name = (*name).to_owned();
            }
            draft
        }
        Change::Add { name } if draft.tensors.iter().all(|other| other.name != *name) => {
            draft.tensor(name, QuantType::F32, &[32])
        }
        Change::Add { .. } => draft,
        Change::Retype { tensor } => {
            let tensor = tensor.get(&draft.tensors).clone();
            draft.reshape(&tensor.name, QuantType::F16, &tensor.dims)
        }
        Change::Factors { byte } => {
            let factors = draft.tensors.iter_mut().filter(|tensor| tensor.name == "rope_freqs.weight");
            factors.for_each(|tensor| tensor.data.fill(*byte));
            draft
        }
    }
}

/// The same model with every weight zero and, save the first layer, no layers: small, so that many cases are quick.
fn small(name: &str) -> Draft {
    let mut draft = Draft::of(&oracle(name));
    let prefix = name.split('-').next().unwrap().replace("mixtral", "llama");
    draft.tensors.retain(|tensor| !tensor.name.starts_with("blk.") || tensor.name.starts_with("blk.0."));
    draft = draft.set(&format!("{prefix}.block_count"), Value::U32(1));
    for DraftTensor { name, data, .. } in &mut draft.tensors {
        if name != "rope_freqs.weight" {
            data.fill(0);
        }
    }
    draft
}

#[test]
fn nonsense_is_answered_with_an_error() {
    let names = ["mixtral-q4_0", "llama-f16-tied-ropefreqs", "qwen3-hd128-q4_k_m", "qwen3moe-f32", "qwen3moe-mxfp4"];
    let models = names.map(small);
    for model in &models {
        assert_eq!(ModelSpec::read(&model.open()).unwrap().layers.len(), 1);
    }
    let counts: Mutex<BTreeMap<String, usize>> = Mutex::default();
    let mut runner = TestRunner::new(Config { cases: 3_000, failure_persistence: None, ..Config::default() });
    let cases = (0..models.len(), prop::collection::vec(change(), 1..3));
    let outcome = runner.run(&cases, |(model, changes)| {
        let draft = changes.iter().fold(models[model].clone(), apply);
        let Ok(gguf) = crate::gguf::Gguf::from_bytes("draft.gguf", draft.bytes()) else {
            *counts.lock().unwrap().entry("file refused".to_owned()).or_default() += 1;
            return Ok(());
        };
        let answer = match ModelSpec::read(&gguf) {
            Ok(spec) => {
                for tensor in spec.tensors() {
                    prop_assert_eq!(tensor.ty.row_bytes(tensor.cols), Some(tensor.row_bytes()));
                    prop_assert_eq!(tensor.row_bytes() * tensor.rows * tensor.matrices, tensor.bytes);
                }
                prop_assert!(spec.rope.frequencies.iter().all(|frequency| frequency.is_finite()));
                for (_, experts) in spec.expert_layers() {
                    prop_assert!(experts.rule.top_k >= 1 && experts.rule.top_k <= experts.experts);
                }
                "accepted".to_owned()
            }
            Err(error) => {
                prop_assert!(error.to_string().starts_with("draft.gguf: "), "{}", error);
                let kind = match &error {
                    ModelError::Metadata(inner) => format!("{inner:?}"),
                    other => format!("{other:?}"),
                };
                kind.split(' ').next().unwrap_or_default().to_owned()
            }
        };
        prop_assert!(Summary::of(&gguf).refused.is_none() == (answer == "accepted"));
        *counts.lock().unwrap().entry(answer).or_default() += 1;
        Ok(())
    });
    let counts = counts.into_inner().unwrap();
    println!("{counts:#?}");
    outcome.unwrap();
    for kind in [
        "accepted",
        "Architecture",
        "Missing",
        "Parameter",
        "TensorMissing",
        "TensorShape",
        "TensorType",
        "TensorValue",
        "TensorsUnused",
        "Unexpected",
        "Unsupported",
    ] {
        assert!(counts.contains_key(kind), "no altered file was answered with {kind}");
    }
}
