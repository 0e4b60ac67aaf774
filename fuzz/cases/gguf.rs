//! Any bytes as a model file or a split set: the reader, the description, the summary and the planner must answer, and
//! their answers must agree.
//!
//! Bytes that begin with `SET` are a split set: four bytes with a length and that many bytes, for each file.

use aqueduct::card::CardKind;
use aqueduct::gguf::Gguf;
use aqueduct::model::ModelSpec;
use aqueduct::model::inspect::Summary;
use aqueduct::plan::{self, CardBudget, Crossing, HostBudget, Request};
use aqueduct::topology::RunSettings;
use aqueduct::units::{Bytes, CardId, Rate};

/// What begins the bytes of a split set.
pub const SET: &[u8] = b"SET";

/// Most files of a set.
const FILES: usize = 4;

/// Reads the bytes; whether they are a file or a set.
pub fn check(bytes: &[u8]) -> bool {
    if let Some(set) = bytes.strip_prefix(SET) {
        return check_set(set);
    }
    Gguf::from_bytes("fuzz.gguf", bytes.to_vec()).inspect(check_file).is_ok()
}

/// The bytes of a split set.
#[allow(dead_code, reason = "used for seeds")]
pub fn set_of(files: &[Vec<u8>]) -> Vec<u8> {
    let file = |file: &Vec<u8>| [(file.len() as u32).to_le_bytes().as_slice(), file].concat();
    [SET.to_vec(), files.iter().flat_map(file).collect()].concat()
}

fn check_set(mut rest: &[u8]) -> bool {
    let mut files: Vec<&[u8]> = Vec::new();
    while let Some((length, bytes)) = rest.split_first_chunk::<4>() {
        let (file, after) = bytes.split_at(bytes.len().min(u32::from_le_bytes(*length) as usize));
        files.push(file);
        rest = after;
    }
    files.truncate(FILES);
    let folder = tempfile::tempdir().unwrap();
    let path = |number: usize| folder.path().join(format!("fuzz-{number:05}-of-{:05}.gguf", files.len()));
    for (number, file) in (1..).zip(&files) {
        std::fs::write(path(number), file).unwrap();
    }
    let set = Gguf::open(path(1));
    if let Ok(set) = &set {
        assert_eq!(set.shards().len(), files.len());
        check_file(set);
    }
    set.is_ok()
}

fn check_file(file: &Gguf) {
    for tensor in file.tensors() {
        assert_eq!(file.data(tensor).len(), tensor.bytes, "{}", tensor.name);
    }
    assert!(serde_json::to_string(&Summary::of(file)).is_ok());
    let Ok(spec) = ModelSpec::read(file) else { return };
    for tensor in spec.tensors() {
        assert_eq!(tensor.row_bytes() * tensor.rows * tensor.matrices, tensor.bytes, "{}", tensor.name);
    }
    check_plan(&spec);
}

/// A plan holds the layers once each and no more than the cards have.
fn check_plan(spec: &ModelSpec) {
    let settings = RunSettings { context: 256, ..RunSettings::default() };
    let card = |id: u32| CardBudget {
        id: CardId(id),
        name: format!("card{id}"),
        kind: CardKind::Virtual,
        memory: Bytes(3 << 20),
        link: Rate(10e9),
        rate: Rate(20e9),
        compute: None,
        crossing: Crossing { staged: Rate(10e9), peer: None },
    };
    let host = HostBudget { memory: Bytes(1 << 30), workers: 2, rate: Rate(20e9), disk: Rate(1e9), shared: false };
    let request = Request { spec, cards: vec![card(0), card(1)], host, settings: &settings };
    match plan::plan(&request) {
        Ok(plan) => {
            assert_eq!(plan.stages.iter().map(|stage| stage.layers.len()).sum::<usize>(), spec.layers.len());
            assert!(plan.stages.iter().all(|stage| stage.total() <= stage.budget), "{plan}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
