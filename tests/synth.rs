//! Synthetic models are models: every small shape opens, says what it was made as, and has a tokenizer that reads and
//! writes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::ops::ControlFlow;

use aqueduct::model::Model;
use aqueduct::quant::QuantType;
use aqueduct::synth::{LEAST_VOCABULARY, NAMES, Overrides, Shape, write_model};
use aqueduct::text::{ControlTokens, Ends, Specials, TokenId, Tokenizer, Vocabulary};

fn open(shape: &Shape) -> Model {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write_model(shape, &path, &mut |_, _| ControlFlow::Continue(())).unwrap();
    // The file stays mapped after its folder is gone.
    Model::open(&path).unwrap()
}

fn check(shape: &Shape) {
    let model = open(shape);
    let spec = &model.spec;
    assert_eq!((spec.layers.len(), spec.width, spec.vocab), (shape.layers, shape.width, shape.vocabulary));
    assert_eq!(spec.is_tied(), shape.tied);
    let experts = shape.experts.map(|e| (e.count, e.used, e.ff));
    for layer in &spec.layers {
        assert_eq!(layer.experts().map(|e| (e.experts, e.rule.top_k, e.width)), experts);
    }
    let attention = spec.layers[0].attention().unwrap();
    let sizes = (attention.shape.heads, attention.shape.kv_heads, attention.shape.head_dim);
    assert_eq!(sizes, (shape.heads, shape.kv_heads, shape.head_dim));
}

#[test]
fn every_small_shape_opens_as_what_it_was_made() {
    let small: Vec<Shape> = NAMES
        .iter()
        .filter(|(name, _)| name.starts_with("tiny-"))
        .map(|(name, _)| Shape::named(name).unwrap())
        .collect();
    assert!(small.len() >= 5);
    small.iter().for_each(check);
}

#[test]
fn every_type_and_many_sizes_can_be_written() {
    let wide = Overrides { width: Some(256), ff: Some(256), ..Overrides::default() };
    for ty in QuantType::ALL {
        let changes = Overrides { ffn_type: Some(ty), attention_type: Some(QuantType::Q8_0), ..wide.clone() };
        match Shape::named("tiny-qwen3moe").unwrap().with(&changes) {
            Ok(shape) => check(&shape),
            // Formats whose blocks are not written at random are refused by name, with those that are.
            Err(error) => assert!(error.to_string().starts_with(&format!("`{ty}` is no type for")), "{error}"),
        }
    }
    let shape = Shape::named("tiny-llama-moe").unwrap();
    let odd = Overrides {
        layers: Some(1),
        width: Some(96),
        heads: Some(6),
        kv_heads: Some(3),
        experts: Some(5),
        experts_used: Some(5),
        vocabulary: Some(LEAST_VOCABULARY),
        embedding_type: Some(QuantType::F32),
        ..Overrides::default()
    };
    check(&shape.with(&odd).unwrap());
}

#[test]
fn its_tokenizer_reads_and_writes() {
    let shape = Shape::named("tiny-qwen3moe").unwrap();
    let model = open(&shape);
    let vocabulary = Vocabulary::from_gguf(model.gguf()).unwrap();
    let tokenizer = Tokenizer::new(&vocabulary).unwrap();
    for text in ["The end of the thing is in sight, and on.\n", "größer 漢字 🦀\t\u{0}", "  two  spaces", ""] {
        let ids = tokenizer.encode(text, Specials::Parsed, Ends::Added).unwrap();
        assert_eq!(tokenizer.decode(&ids, ControlTokens::Shown).unwrap(), text);
    }
    let merged = tokenizer.encode(" the thing", Specials::Parsed, Ends::Bare).unwrap();
    assert!(merged.len() < " the thing".len(), "no merge acts");
    let turn = tokenizer.encode("<|im_end|>", Specials::Parsed, Ends::Bare).unwrap();
    assert_eq!(turn.len(), 1);
    assert!(tokenizer.is_end(turn[0]));
    let words: Vec<TokenId> = (LEAST_VOCABULARY..shape.vocabulary).map(|id| id as TokenId).collect();
    let text = tokenizer.decode(&words, ControlTokens::Shown).unwrap();
    assert_eq!(text.split_whitespace().count(), words.len());
    assert!(text.chars().all(|c| c == ' ' || c.is_ascii_lowercase()), "{text}");
}
