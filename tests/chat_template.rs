//! Chats rendered from the models' own templates, against Jinja2's texts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::path::{Path, PathBuf};

use aqueduct::gguf::Gguf;
use aqueduct::text::{ChatMessage, ChatRequest, ChatTemplate, Moment, TextError, Vocabulary};
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
            add_generation_prompt: chat.add_generation_prompt,
            ..ChatRequest::new(chat.messages.clone(), Moment::from_unix(0))
        };
        assert_eq!(template.render(&request).unwrap().text(), chat.text);
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
    let request =
        ChatRequest::of(&[ChatMessage::new("user", "Hi"), ChatMessage::new("assistant", "Yes?")], Moment::from_unix(0));
    let text = ChatTemplate::new(source, &vocabulary).unwrap().render(&request).unwrap();
    assert_eq!(text.text(), "[user] Hi\n[assistant] Yes?\n>");
}

/// `tests/data/templates/jinja2.json`: constructs, and template shapes with chats, with what Jinja2 set up as in
/// `transformers` makes of them (`make.py` there).
#[derive(Deserialize)]
struct Corpus {
    messages: Vec<serde_json::Value>,
    tools: Vec<serde_json::Value>,
    variables: serde_json::Map<String, serde_json::Value>,
    constructs: Vec<Construct>,
    shapes: Vec<Shape>,
}

#[derive(Deserialize)]
struct Construct {
    template: String,
    #[serde(flatten)]
    wanted: Wanted,
}

/// The text, or why Jinja2 refuses the template.
#[derive(Deserialize)]
struct Wanted {
    text: Option<String>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Shape {
    name: String,
    template: String,
    chats: Vec<ShapeChat>,
}

#[derive(Deserialize)]
struct ShapeChat {
    messages: Vec<serde_json::Value>,
    #[serde(default)]
    tools: Vec<serde_json::Value>,
    #[serde(default = "yes")]
    add_generation_prompt: bool,
    #[serde(flatten)]
    more: serde_json::Map<String, serde_json::Value>,
}

fn yes() -> bool {
    true
}

/// The moment of `make.py`.
fn moment() -> Moment {
    Moment::from_unix(1_732_891_445)
}

/// One line about a difference, if there is one.
fn difference(name: &str, found: Result<String, TextError>, wanted: &Wanted) -> Option<String> {
    match (found, &wanted.text, &wanted.error) {
        (Ok(found), Some(wanted), _) if &found == wanted => None,
        (Err(_), None, Some(_)) => None,
        (found, ..) => {
            let (text, error) = (&wanted.text, &wanted.error);
            Some(format!("{name:?}\n  jinja2: {text:?} {error:?}\n  here:   {found:?}"))
        }
    }
}

fn corpus() -> Corpus {
    serde_json::from_str(&fs_err::read_to_string(data("templates/jinja2.json")).unwrap()).unwrap()
}

#[test]
fn constructs_render_as_in_python() {
    let corpus = corpus();
    let mut differences = Vec::new();
    for case in &corpus.constructs {
        let request = ChatRequest {
            tools: corpus.tools.clone(),
            variables: corpus.variables.clone(),
            ..ChatRequest::new(corpus.messages.clone(), moment())
        };
        let found = ChatTemplate::new(&case.template, &Vocabulary::default())
            .and_then(|template| template.render(&request))
            .map(|rendered| rendered.text().to_owned());
        differences.extend(difference(&case.template, found, &case.wanted));
    }
    let refused = corpus.constructs.iter().filter(|case| case.wanted.error.is_some()).count();
    println!("{} constructs, {refused} refused by Jinja2, {} differ", corpus.constructs.len(), differences.len());
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(corpus.constructs.len() >= 350 && refused >= 60);
}

#[test]
fn shapes_render_as_in_python() {
    let corpus = corpus();
    let vocabulary = Vocabulary {
        tokens: vec!["<s>".to_owned(), "</s>".to_owned()],
        bos: Some(0),
        eos: Some(1),
        ..Vocabulary::default()
    };
    let mut differences = Vec::new();
    let mut refused = 0;
    for shape in &corpus.shapes {
        let template = ChatTemplate::new(&shape.template, &vocabulary).unwrap();
        for (index, chat) in shape.chats.iter().enumerate() {
            let mut variables = chat.more.clone();
            let mut take = |key| variables.remove(key).map(|value| value.as_str().unwrap().to_owned());
            let wanted = Wanted { text: take("text"), error: take("error") };
            refused += usize::from(wanted.error.is_some());
            let request = ChatRequest {
                tools: chat.tools.clone(),
                add_generation_prompt: chat.add_generation_prompt,
                variables,
                ..ChatRequest::new(chat.messages.clone(), moment())
            };
            let found = template.render(&request).map(|rendered| rendered.text().to_owned());
            differences.extend(difference(&format!("{} {index}", shape.name), found, &wanted));
        }
    }
    println!("{} shapes, {refused} chats refused, {} differ", corpus.shapes.len(), differences.len());
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(corpus.shapes.len() >= 20 && refused >= 10);
}
