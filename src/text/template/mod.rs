//! Chat templates: Jinja as model files carry it, written for Python's Jinja2.

mod clock;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Serialize;

pub use clock::Moment;

use super::jinja::{Fault, Given, Program, exec::FUEL};
use super::{TextError, TokenId, Vocabulary};

/// One message with plain text, for callers that have no JSON at hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// The text.
    pub content: String,
}

impl ChatMessage {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }

    /// The message as templates see it.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({ "role": self.role, "content": self.content })
    }
}

/// What a template renders.
#[derive(Clone, Debug)]
pub struct ChatRequest {
    /// The messages, oldest first, with whatever fields the template reads (`role`, `content`, `tool_calls`, ...).
    pub messages: Vec<serde_json::Value>,
    /// Tool descriptions; where there are none, `tools` is none, as `transformers` has it.
    pub tools: Vec<serde_json::Value>,
    /// Whether the prompt ends where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// More variables (`enable_thinking`, `documents`, ...). They may replace all but the messages and tools above.
    pub variables: serde_json::Map<String, serde_json::Value>,
    /// What `strftime_now` says.
    pub now: Moment,
}

impl ChatRequest {
    /// A chat without tools, ending where the assistant's answer begins.
    pub fn new(messages: Vec<serde_json::Value>, now: Moment) -> Self {
        Self { messages, tools: Vec::new(), add_generation_prompt: true, variables: serde_json::Map::new(), now }
    }

    /// The same of plain messages.
    pub fn of(messages: &[ChatMessage], now: Moment) -> Self {
        Self::new(messages.iter().map(ChatMessage::to_json).collect(), now)
    }
}

/// A prompt that a template has written, with what in it is content: messages, tools, variables. Content is text; only
/// the template's own text can become control tokens ([`super::Tokenizer::encode_chat`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    text: String,
    /// Ascending ranges of bytes that do not touch.
    content: Vec<Range<usize>>,
}

impl Rendered {
    /// A text without content.
    pub fn own(text: impl Into<String>) -> Self {
        Self { text: text.into(), content: Vec::new() }
    }

    /// The prompt's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The ranges of bytes that came from messages, tools and variables, ascending.
    pub fn content(&self) -> &[Range<usize>] {
        &self.content
    }

    /// The same text as if the template had written all of it: control tokens in content are then control tokens.
    #[must_use]
    pub fn trusted(self) -> Self {
        Self { content: Vec::new(), ..self }
    }
}

/// A model's chat template, compiled.
#[derive(Debug)]
pub struct ChatTemplate {
    program: Program,
    /// `bos_token` and so on: only those that the model has.
    tokens: BTreeMap<&'static str, String>,
}

impl ChatTemplate {
    /// Compiles a template, with the texts of the model's special tokens.
    ///
    /// # Errors
    /// [`TextError::TemplateSyntax`] with the line.
    pub fn new(source: &str, vocabulary: &Vocabulary) -> Result<Self, TextError> {
        let program = Program::new(source).map_err(|(line, problem)| TextError::TemplateSyntax { line, problem })?;
        let text = |id: Option<TokenId>| vocabulary.tokens.get(id? as usize).cloned();
        let tokens = [
            ("bos_token", text(vocabulary.bos)),
            ("eos_token", text(vocabulary.eos)),
            ("unk_token", text(vocabulary.unk)),
            ("pad_token", text(vocabulary.pad)),
        ];
        let tokens = tokens.into_iter().filter_map(|(name, text)| Some((name, text?))).collect();
        Ok(Self { program, tokens })
    }

    /// The template that the model file carries.
    ///
    /// # Errors
    /// [`TextError::NoTemplate`] if it carries none, [`TextError::TemplateSyntax`] if it cannot be read.
    pub fn of(vocabulary: &Vocabulary) -> Result<Self, TextError> {
        Self::new(vocabulary.chat_template.as_deref().ok_or(TextError::NoTemplate)?, vocabulary)
    }

    /// Whether the template reads a variable of this name anywhere.
    pub fn reads(&self, name: &str) -> bool {
        self.program.reads(name)
    }

    /// The prompt for a chat.
    ///
    /// # Errors
    /// What the template says through `raise_exception`, with its own words; anything that fails in it, with the line;
    /// a template that does not end.
    pub fn render(&self, request: &ChatRequest) -> Result<Rendered, TextError> {
        let generation = serde_json::Value::Bool(request.add_generation_prompt);
        let tools = serde_json::Value::Array(request.tools.clone());
        let none = serde_json::Value::Null;
        let mut variables: BTreeMap<&str, Given<'_>> = BTreeMap::new();
        // `transformers` always passes these.
        variables.insert("tools", Given::Content(&none));
        variables.insert("documents", Given::Content(&none));
        variables.insert("add_generation_prompt", Given::Content(&generation));
        variables.extend(self.tokens.iter().map(|(&name, text)| (name, Given::Own(text))));
        variables.extend(request.variables.iter().map(|(name, value)| (name.as_str(), Given::Content(value))));
        if !request.tools.is_empty() {
            variables.insert("tools", Given::Content(&tools));
        }
        variables.insert("messages", Given::Messages(&request.messages));
        let (text, content) = self.program.render(variables, request.now).map_err(|(line, fault)| match fault {
            Fault::Raised(message) => TextError::TemplateRaised { message },
            Fault::Failed(problem) => TextError::TemplateFailed { line, problem },
            Fault::Endless => TextError::TemplateEndless { steps: FUEL },
        })?;
        Ok(Rendered { text, content })
    }
}
