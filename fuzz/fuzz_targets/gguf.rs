//! Any bytes as a model file: the reader, the description and the summary must answer, and what they answer must agree.
#![no_main]

use aqueduct::gguf::Gguf;
use aqueduct::model::ModelSpec;
use aqueduct::model::inspect::Summary;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = Gguf::from_bytes("fuzz.gguf", bytes.to_vec()) else { return };
    for tensor in file.tensors() {
        assert_eq!(file.data(tensor).len(), tensor.bytes, "{}", tensor.name);
    }
    if let Ok(spec) = ModelSpec::read(&file) {
        for tensor in spec.tensors() {
            assert_eq!(tensor.row_bytes() * tensor.rows * tensor.matrices, tensor.bytes, "{}", tensor.name);
        }
    }
    assert!(serde_json::to_string(&Summary::of(&file)).is_ok());
});
