//! A model whose rope is stretched by YaRN, against an exact pass beyond the original context
//! (`tests/data/yarn/make.py`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::sync::Arc;

use aqueduct::model::Model;
use aqueduct::ops::KvType;
use serde_json::Value;
use support::oracle::{all_logits, distance, ids, settings, stepped};
use support::{ROOMY, data, engine, least_of_each};

/// A key of a model file with its value.
fn entry(out: &mut Vec<u8>, key: &str, kind: u32, value: &[u8]) {
    out.extend((key.len() as u64).to_le_bytes());
    out.extend(key.as_bytes());
    out.extend(kind.to_le_bytes());
    out.extend(value);
}

/// The bytes of a model file with more keys at its front.
fn with_keys(file: &[u8], keys: &[(&str, u32, Vec<u8>)]) -> Vec<u8> {
    let mut more = Vec::new();
    keys.iter().for_each(|(key, kind, value)| entry(&mut more, key, *kind, value));
    // A last key makes the length a multiple of the tensors' alignment, so that they only move.
    let fill = (32 - (more.len() + 8 + 4 + 4 + 8) % 32) % 32;
    let mut text = (fill as u64).to_le_bytes().to_vec();
    text.resize(8 + fill, b'.');
    entry(&mut more, "fill", 8, &text);
    assert_eq!(more.len() % 32, 0);
    let count = u64::from_le_bytes(file[16..24].try_into().unwrap()) + keys.len() as u64 + 1;
    [&file[..16], &count.to_le_bytes(), &more, &file[24..]].concat()
}

fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes(), value.as_bytes()].concat()
}

#[test]
fn logits_beyond_the_original_context_are_those_of_the_formula() {
    let golden: Value = serde_json::from_slice(&fs_err::read(data("yarn/golden.json")).unwrap()).unwrap();
    let golden = &golden["model"];
    let tokens = ids(&golden["tokens"]);
    let original = golden["original"].as_u64().unwrap() as u32;
    assert!(tokens.len() > 3 * original as usize);
    let plain = fs_err::read(data("oracle/models/qwen3moe-f32.gguf")).unwrap();
    let keys = [
        ("qwen3moe.rope.scaling.type", 8, text("yarn")),
        ("qwen3moe.rope.scaling.factor", 6, (golden["factor"].as_f64().unwrap() as f32).to_le_bytes().to_vec()),
        ("qwen3moe.rope.scaling.original_context_length", 4, original.to_le_bytes().to_vec()),
    ];
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs_err::write(&path, bytes).unwrap();
        Arc::new(Model::open(path).unwrap())
    };
    let model = open("yarn.gguf", &with_keys(&plain, &keys));
    let rows = golden["logits"].as_array().unwrap();
    let wanted: Vec<f32> =
        rows.iter().flat_map(|row| row.as_array().unwrap()).map(|x| x.as_f64().unwrap() as f32).collect();
    let last = |all: Vec<f32>| all[all.len() - wanted.len()..].to_vec();
    for (kv, most) in [(KvType::F32, 1e-4), (KvType::F16, 0.02)] {
        let settings = settings(kv);
        for memory in [ROOMY, least_of_each(&model, 1, &settings)] {
            let (mut engine, rig) = engine(&model, &[memory], &settings);
            for found in [last(all_logits(&mut engine, &tokens)), last(stepped(&mut engine, &tokens))] {
                let (off, _) = distance(&found, &wanted);
                println!("{kv:?}, {memory}: {off:.1e}");
                assert!(off < most, "{kv:?}, {memory}: {off:.1e}");
            }
            assert_eq!(rig.ledger.violations(), Vec::<String>::new());
        }
    }
    // Without the keys the logits are others: the golden ones would show a scaling that does nothing.
    let (mut engine, _rig) = engine(&open("plain.gguf", &plain), &[ROOMY], &settings(KvType::F32));
    assert!(distance(&last(all_logits(&mut engine, &tokens)), &wanted).0 > 0.1);
}
