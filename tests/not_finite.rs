//! A value that is no finite number never passes for a result: wherever it enters, the logits tell.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use aqueduct::engine::Cancel;
use aqueduct::gguf::Gguf;
use aqueduct::model::Model;
use aqueduct::ops::KvType;
use aqueduct::quant::QuantType;
use support::oracle::settings;
use support::{ROOMY, data, engine, least_of_each};

const TOKENS: [u32; 6] = [3, 7, 11, 7, 19, 23];

/// Where the scale of a block stands, as f16, in formats that have one.
fn scale_at(ty: QuantType) -> Option<usize> {
    match ty {
        QuantType::Q6_K => Some(208),
        QuantType::Q3_K => Some(108),
        QuantType::Q2_K => Some(80),
        QuantType::F32 | QuantType::F16 | QuantType::BF16 | QuantType::MXFP4 => None,
        _ => Some(0),
    }
}

/// Bytes of the number, and where in a row's first block they go.
fn number(ty: QuantType, bad: f32) -> Option<(Vec<u8>, usize)> {
    match ty {
        QuantType::F32 => Some((bad.to_le_bytes().to_vec(), 0)),
        QuantType::F16 => Some((half::f16::from_f32(bad).to_le_bytes().to_vec(), 0)),
        _ => scale_at(ty).map(|at| (half::f16::from_f32(bad).to_le_bytes().to_vec(), at)),
    }
}

/// The model file with a number in the first row of each matrix of a tensor, or in the row of a token.
fn spoilt(gguf: &Gguf, file: &[u8], name: &str, bad: f32) -> Option<Vec<u8>> {
    let info = gguf.tensor(name)?;
    let (bytes, at) = number(info.ty, bad)?;
    let row = info.ty.row_bytes(info.dims[0] as usize)?;
    let matrix = row * info.dims.get(1).map_or(1, |rows| *rows as usize);
    let first = if name == "token_embd.weight" { row * TOKENS[1] as usize } else { 0 };
    let mut file = file.to_vec();
    for part in 0..info.dims.get(2).copied().unwrap_or(1) as usize {
        let to = info.offset as usize + part * matrix + first + at;
        file[to..to + bytes.len()].copy_from_slice(&bytes);
    }
    Some(file)
}

/// Whether a prompt, and then steps from nothing, fail or give logits that are not finite.
fn tells(model: &Arc<Model>, memory: &[aqueduct::units::Bytes], kv: KvType) -> [bool; 2] {
    let (mut engine, _rig) = engine(model, memory, &settings(kv));
    let bad = |logits: &[f32]| logits.iter().any(|x| !x.is_finite());
    let mut told = [false; 2];
    let mut sequence = engine.sequence().unwrap();
    let mut all = false;
    let whole = engine.prompt_all(&mut sequence, &TOKENS, &Cancel::new(), &mut |_, logits| all |= bad(logits));
    told[0] = whole.is_err() || all;
    drop(sequence);
    let mut sequence = engine.sequence().unwrap();
    for token in TOKENS {
        match engine.step(&mut [(&mut sequence, token)], &Cancel::new()) {
            Ok(logits) => told[1] |= bad(&logits[0]),
            Err(_) => told[1] = true,
        }
    }
    told
}

#[test]
fn nan_and_infinity_in_any_weight_show_in_the_logits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spoilt.gguf");
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let models =
        ["qwen3moe-f32", "llama-q8_0-linear2", "mixtral-q4_0", "qwen3-hd128-q4_k_m", "qwen3moe-iq2", "qwen3moe-iq3"];
    for name in models {
        let source = data(format!("oracle/models/{name}.gguf"));
        let (gguf, file) = (Gguf::open(&source).unwrap(), fs_err::read(&source).unwrap());
        let exact = name == "qwen3moe-f32";
        let kinds: &[KvType] = if exact { &[KvType::F32, KvType::F16, KvType::Int8] } else { &[KvType::Int8] };
        let least = least_of_each(&Model::open(&source).unwrap(), 1, &settings(KvType::Int8));
        let clean = Arc::new(Model::open(&source).unwrap());
        for kv in kinds {
            assert_eq!(tells(&clean, &[ROOMY], *kv), [false; 2], "{name} {kv:?}");
        }
        for tensor in gguf.tensors().iter().map(|tensor| &tensor.name) {
            if tensor.starts_with("blk.") && !tensor.starts_with("blk.0.") {
                continue;
            }
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let Some(spoilt) = spoilt(&gguf, &file, tensor, bad) else { continue };
                fs_err::write(&path, spoilt).unwrap();
                let model = Arc::new(Model::open(&path).unwrap());
                for kv in kinds {
                    // Room for all experts, and so little that they are streamed in prompts and computed by the host in
                    // steps.
                    for memory in [ROOMY, least] {
                        if memory == least && (*kv != KvType::Int8 || bad.is_infinite()) {
                            continue;
                        }
                        let told = tells(&model, &[memory], *kv);
                        assert_eq!(told, [true; 2], "{name}: {bad} in `{tensor}`, {kv:?} cells, {memory}");
                        *counts.entry(format!("{:?}", gguf.tensor(tensor).unwrap().ty)).or_default() += 1;
                    }
                }
                drop(model);
                fs_err::remove_file(&path).unwrap();
            }
        }
    }
    println!("{counts:?}");
    assert!(counts.len() >= 8, "{counts:?}");
}
