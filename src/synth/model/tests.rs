//! Every shape is written with the tensors its architecture has, and the same seed gives the same file.

use std::ops::ControlFlow;

use super::*;
use crate::gguf::Gguf;
use crate::quant::dequantize;
use crate::synth::{LEAST_VOCABULARY, NAMES, Overrides, Topics};
use crate::units::Bytes;

fn go_on(_: Bytes, _: Bytes) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn write(shape: &Shape) -> (tempfile::TempDir, Gguf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write_model(shape, &path, &mut go_on).unwrap();
    let file = Gguf::open(&path).unwrap();
    (folder, file)
}

fn values(file: &Gguf, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap_or_else(|| panic!("no tensor {name}"));
    let mut values = vec![0.0; tensor.elements() as usize];
    dequantize(tensor.ty, file.data(tensor), &mut values).unwrap();
    values
}

#[test]
fn tiny_models_are_whole() {
    let mut written = 0;
    for (name, _) in NAMES.iter().filter(|(name, _)| name.starts_with("tiny-")) {
        let shape = Shape::named(name).unwrap();
        let (_folder, file) = write(&shape);
        let metadata = file.metadata();
        let arch = shape.architecture.name();
        assert_eq!(metadata.require::<&str>("general.architecture").unwrap(), arch);
        assert_eq!(metadata.require::<usize>(&format!("{arch}.block_count")).unwrap(), shape.layers);
        assert_eq!(file.tensor("output.weight").is_none(), shape.tied);
        assert_eq!(file.tensor("blk.0.attn_q_norm.weight").is_some(), arch != "llama");
        let down = if shape.experts.is_some() { "ffn_down_exps" } else { "ffn_down" };
        let tensor = file.tensor(&format!("blk.{}.{down}.weight", shape.layers - 1)).unwrap();
        assert_eq!((tensor.dims[0], tensor.dims[1]), (shape.ffn_units() as u64, shape.width as u64));
        assert!(file.file_bytes() < Bytes(4 << 20), "{name} has {}", file.file_bytes());
        for tensor in file.tensors() {
            assert!(values(&file, &tensor.name).iter().all(|v| v.is_finite()), "{name}: {}", tensor.name);
        }
        written += 1;
    }
    assert!(written >= 5);
}

#[test]
fn a_seed_is_a_file() {
    let shape = Shape::named("tiny-qwen3moe").unwrap();
    let ((folder, _), (again, _)) = (write(&shape), write(&shape));
    let other = shape.clone().with(&Overrides { seed: Some(8), ..Overrides::default() }).unwrap();
    let (other, _) = write(&other);
    let read = |folder: &tempfile::TempDir| fs_err::read(folder.path().join("model.gguf")).unwrap();
    assert_eq!(read(&folder), read(&again));
    assert_ne!(read(&folder), read(&other));
}

#[test]
fn embeddings_are_of_unit_size_and_topics_can_be_found_again() {
    let shape = Shape::named("tiny-qwen3moe-k").unwrap();
    let (_folder, file) = write(&shape);
    let topics = Topics::of_model(file.metadata()).unwrap().unwrap();
    assert_eq!(topics, Topics::new(shape.vocabulary, shape.routing.topics));
    let embedding = values(&file, "token_embd.weight");
    let size = (embedding.iter().map(|v| v * v).sum::<f32>() / embedding.len() as f32).sqrt();
    assert!((size - 1.0).abs() < 0.1, "{size}");

    // Two words of a topic are nearer to each other than to a word of another, and a word's output row is nearest to
    // the word before it.
    let row = |values: &[f32], token: usize| values[token * shape.width..][..shape.width].to_vec();
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let first = LEAST_VOCABULARY;
    let last = shape.vocabulary - LEAST_VOCABULARY;
    let [a, b, far] = [first, first + 1, first + last / 2].map(|token| row(&embedding, token));
    assert!(dot(&a, &b) > dot(&a, &far) + 20.0, "{} against {}", dot(&a, &b), dot(&a, &far));
    let head = values(&file, "output.weight");
    let scores: Vec<f32> = (0..shape.vocabulary).map(|token| dot(&a, &row(&head, token))).collect();
    let best = (0..scores.len()).max_by(|x, y| scores[*x].total_cmp(&scores[*y])).unwrap();
    assert_eq!(best, first + 1);
}

#[test]
fn experts_differ() {
    let shape = Shape::named("tiny-qwen3moe").unwrap();
    let (_folder, file) = write(&shape);
    let gates = values(&file, "blk.1.ffn_gate_exps.weight");
    let experts: Vec<&[f32]> = gates.chunks_exact(shape.width * shape.ffn_units()).collect();
    for (n, a) in experts.iter().enumerate() {
        for b in &experts[..n] {
            let same = a.iter().zip(*b).filter(|(a, b)| a == b).count();
            assert!(same < a.len() / 4, "{same} of {} weights are equal", a.len());
        }
    }
}
