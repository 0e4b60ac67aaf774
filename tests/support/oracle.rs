//! The oracle data: tiny models with reference logits.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use aqueduct::engine::{Cancel, Engine};
use aqueduct::model::Model;
use aqueduct::ops::KvType;
use aqueduct::topology::RunSettings;
use serde_json::Value;

/// A model with its reference cases.
pub struct Oracle {
    pub name: String,
    pub folder: PathBuf,
    pub case: Value,
}

/// Reference logits, `[rows, vocabulary]`.
pub struct Reference {
    pub rows: usize,
    pub values: Vec<f32>,
}

/// The folder: `tests/data/oracle`, or the full set where `ORACLE_DIR` names one.
pub fn folder() -> PathBuf {
    std::env::var_os("ORACLE_DIR").map_or_else(|| super::data("oracle"), PathBuf::from)
}

/// Every model of the folder.
pub fn all() -> Vec<Oracle> {
    let folder = folder();
    let mut found: Vec<Oracle> = fs_err::read_dir(folder.join("cases"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .map(|path| Oracle {
            name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
            folder: folder.clone(),
            case: serde_json::from_slice(&fs_err::read(&path).unwrap()).unwrap(),
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

impl Oracle {
    pub fn model_path(&self) -> PathBuf {
        self.folder.join("models").join(self.case["files"][0].as_str().unwrap())
    }

    pub fn open(&self) -> Arc<Model> {
        Arc::new(Model::open(self.model_path()).unwrap())
    }

    pub fn logits(&self, file: &str) -> Reference {
        read_npy(&self.folder.join("cases").join(file))
    }
}

/// Token ids of a JSON list.
pub fn ids(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A float32 matrix.
pub fn read_npy(path: &Path) -> Reference {
    let file = npyz::NpyFile::new(std::io::BufReader::new(fs_err::File::open(path).unwrap())).unwrap();
    let rows = file.shape()[0] as usize;
    Reference { rows, values: file.into_vec().unwrap() }
}

/// Largest and RMS difference, relative to the RMS of the reference.
pub fn distance(found: &[f32], wanted: &[f32]) -> (f64, f64) {
    assert_eq!(found.len(), wanted.len());
    let rms = |values: &mut dyn Iterator<Item = f64>| {
        let (sum, n) = values.fold((0.0, 0), |(sum, n), x| (sum + x * x, n + 1));
        (sum / f64::from(n)).sqrt()
    };
    let scale = rms(&mut wanted.iter().map(|x| f64::from(*x)));
    let most = found.iter().zip(wanted).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs()).fold(0.0, f64::max);
    let diff = rms(&mut found.iter().zip(wanted).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    (most / scale, diff / scale)
}

/// The first index of the largest value.
pub fn argmax(values: &[f32]) -> usize {
    values.iter().enumerate().rev().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0
}

/// A run of at most 256 tokens with cells of this type.
pub fn settings(kv: KvType) -> RunSettings {
    let mut settings = RunSettings { context: 256, ..RunSettings::default() };
    settings.kv.kind = kv;
    settings
}

/// Logits of every row of a prompt.
pub fn all_logits(engine: &mut Engine, tokens: &[u32]) -> Vec<f32> {
    let mut sequence = engine.sequence().unwrap();
    let mut all = Vec::new();
    engine.prompt_all(&mut sequence, tokens, &Cancel::new(), &mut |_, logits| all.extend_from_slice(logits)).unwrap();
    all
}

/// Logits of the tokens, one step each.
pub fn stepped(engine: &mut Engine, tokens: &[u32]) -> Vec<f32> {
    let mut sequence = engine.sequence().unwrap();
    let step = |token: &u32| engine.step(&mut [(&mut sequence, *token)], &Cancel::new()).unwrap().remove(0);
    tokens.iter().flat_map(step).collect()
}
