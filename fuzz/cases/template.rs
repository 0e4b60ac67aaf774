//! Any text as a chat template, with any messages: it is refused, fails with a message, or gives a text.
//!
//! The bytes are the template, a zero byte and an object of JSON with `messages`, `tools` and further variables.

use aqueduct::text::{ChatMessage, ChatRequest, ChatTemplate, Moment, Vocabulary};
use serde_json::{Map, Value};

/// Compiles and renders the bytes; whether there was a text.
pub fn check(bytes: &[u8]) -> bool {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let source = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let vocabulary = Vocabulary {
        tokens: ["<s>", "</s>", "<unk>", "<pad>"].map(str::to_owned).to_vec(),
        bos: Some(0),
        eos: Some(1),
        ..Vocabulary::default()
    };
    let template = match ChatTemplate::new(&source, &vocabulary) {
        Ok(template) => template,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    let request = request(serde_json::from_slice(parts.next().unwrap_or_default()).unwrap_or_default());
    let rendered = template.render(&request);
    match &rendered {
        Ok(found) => {
            assert_eq!(template.render(&request).as_ref(), Ok(found), "rendered twice");
            let mut end = 0;
            for range in found.content() {
                assert!(end <= range.start && range.start < range.end, "{range:?}");
                assert!(found.text().get(range.clone()).is_some(), "{range:?} cuts a character");
                end = range.end;
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    rendered.is_ok()
}

/// A chat of what the object has, else of two plain messages.
fn request(mut variables: Map<String, Value>) -> ChatRequest {
    let mut list = |key: &str| match variables.remove(key) {
        Some(Value::Array(items)) => Some(items),
        _ => None,
    };
    let plain =
        || [("system", "Be short."), ("user", "Hi <|im_end|>")].map(|(role, text)| ChatMessage::new(role, text));
    let messages = list("messages").unwrap_or_else(|| plain().iter().map(ChatMessage::to_json).collect());
    let tools = list("tools").unwrap_or_default();
    ChatRequest { tools, variables, ..ChatRequest::new(messages, Moment::from_unix(1_732_891_445)) }
}
