//! Chats rendered from the models' own templates, against Jinja2's texts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::path::{Path, PathBuf};

use aqueduct::gguf::Gguf;
use aqueduct::text::{ChatMessage, ChatRequest, ChatTemplate, Vocabulary};
use serde::Deserialize;

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

#[derive(Deserialize)]
struct Oracle {
    chat_template: String,
    chats: Vec<Chat>,
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<serde_json::Value>,
    add_generation_prompt: bool,
    text: String,
}

fn check(model: &Path, oracle: &str) {
    let vocabulary = Vocabulary::from_gguf(&Gguf::open(model).unwrap()).unwrap();
    let oracle: Oracle = serde_json::from_str(&fs_err::read_to_string(data(oracle)).unwrap()).unwrap();
    assert_eq!(vocabulary.chat_template.as_ref(), Some(&oracle.chat_template));
    let template = ChatTemplate::of(&vocabulary).unwrap();
    for chat in &oracle.chats {
        let request = ChatRequest {
            messages: chat.messages.clone(),
            add_generation_prompt: chat.add_generation_prompt,
            ..ChatRequest::default()
        };
        assert_eq!(template.render(&request).unwrap(), chat.text);
    }
    assert!(oracle.chats.len() >= 6);
    let without = oracle.chats.iter().filter(|chat| !chat.add_generation_prompt).count();
    assert!(without > 0 && without < oracle.chats.len());
}

#[test]
fn oracle_chats_are_equal() {
    let pairs = [
        ("oracle/models/qwen3moe-f32.gguf", "oracle/tokenizers/qwen2.json"),
        ("oracle/models/llama-q8_0-linear2.gguf", "oracle/tokenizers/llama-bpe.json"),
        ("tokenizers/qwen35.gguf", "tokenizers/qwen35.json"),
        ("tokenizers/gpt-4o.gguf", "tokenizers/gpt-4o.json"),
    ];
    for (model, oracle) in pairs {
        check(&data(model), oracle);
    }
}

/// The real model is not in the repository: the demo fetches it, and so does the CI before this test.
#[test]
fn smollm2_chats_are_equal() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    if !path.exists() {
        assert!(std::env::var_os("AQUEDUCT_NO_SKIP").is_none(), "{} is missing", path.display());
        println!("SKIPPED: {} is not there; get it with `deploy/fetch-sample.sh`", path.display());
        return;
    }
    check(&path, "oracle/smollm2/tokenizer.json");
}

#[test]
fn plain_messages_are_enough() {
    let vocabulary = Vocabulary::default();
    let source =
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}";
    let request = ChatRequest::of(&[ChatMessage::new("user", "Hi"), ChatMessage::new("assistant", "Yes?")]);
    let text = ChatTemplate::new(source, &vocabulary).unwrap().render(&request).unwrap();
    assert_eq!(text, "[user] Hi\n[assistant] Yes?\n>");
}

#[derive(Deserialize)]
struct Snippets {
    messages: Vec<serde_json::Value>,
    cases: Vec<Snippet>,
}

#[derive(Deserialize)]
struct Snippet {
    template: String,
    text: String,
}

/// `tests/data/templates/jinja2.json`: expressions and blocks of the kinds that templates use, with what Jinja2 (PyPI
/// `jinja2`, sandboxed, trim_blocks, lstrip_blocks, loop controls) makes of them.
#[test]
fn snippets_render_as_in_python() {
    let snippets: Snippets =
        serde_json::from_str(&fs_err::read_to_string(data("templates/jinja2.json")).unwrap()).unwrap();
    assert!(snippets.cases.len() >= 17);
    for case in &snippets.cases {
        let request = ChatRequest { messages: snippets.messages.clone(), ..ChatRequest::default() };
        let text = ChatTemplate::new(&case.template, &Vocabulary::default()).unwrap().render(&request).unwrap();
        assert_eq!(text, case.text, "{}", case.template);
    }
}
