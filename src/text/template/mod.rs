//! Chat templates: Jinja as model files carry it, written for Python's Jinja2.

mod clock;
mod python;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde::Serialize;

pub use clock::Moment;

use super::{TextError, TokenId, Vocabulary};

/// Steps that a template may take, where 64 bytes made or read are a step too: far more than any real chat needs, and a
/// second or two of work.
const FUEL: u64 = 10_000_000;

const NAME: &str = "chat";

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
#[derive(Clone, Debug, Default)]
pub struct ChatRequest {
    /// The messages, oldest first, with whatever fields the template reads (`role`, `content`, `tool_calls`, ...).
    pub messages: Vec<serde_json::Value>,
    /// Tool descriptions; empty if there are none, and then the template does not see the variable.
    pub tools: Vec<serde_json::Value>,
    /// Whether the prompt ends where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// More variables (`enable_thinking`, `documents`, ...). They do not replace the ones above.
    pub variables: serde_json::Map<String, serde_json::Value>,
    /// What `strftime_now` says; the epoch if nothing else is given.
    pub now: Moment,
}

impl ChatRequest {
    /// A chat of plain messages, ending where the assistant's answer begins.
    pub fn of(messages: &[ChatMessage]) -> Self {
        Self {
            messages: messages.iter().map(ChatMessage::to_json).collect(),
            add_generation_prompt: true,
            ..Self::default()
        }
    }
}

/// A model's chat template, compiled.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// `bos_token` and so on: only those that the model has.
    tokens: BTreeMap<&'static str, String>,
}

/// What a template says through `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Compiles a template, with the texts of the model's special tokens.
    ///
    /// # Errors
    /// [`TextError::TemplateSyntax`] with the line.
    pub fn new(source: &str, vocabulary: &Vocabulary) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| syntax_error(&error))?);
        environment.set_fuel(Some(FUEL));
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(python::call_method);
        environment.set_formatter(python::write_value);
        environment.add_filter("tojson", python::to_json);
        environment.add_function("raise_exception", raise_exception);
        environment
            .add_template_owned(NAME, python::without_generation_marks(source))
            .map_err(|error| syntax_error(&error))?;
        let text = |id: Option<TokenId>| vocabulary.tokens.get(id? as usize).cloned();
        let tokens = [
            ("bos_token", text(vocabulary.bos)),
            ("eos_token", text(vocabulary.eos)),
            ("unk_token", text(vocabulary.unk)),
            ("pad_token", text(vocabulary.pad)),
        ];
        let tokens = tokens.into_iter().filter_map(|(name, text)| Some((name, text?))).collect();
        Ok(Self { environment, tokens })
    }

    /// The template that the model file carries.
    ///
    /// # Errors
    /// [`TextError::NoTemplate`] if it carries none, [`TextError::TemplateSyntax`] if it cannot be read.
    pub fn of(vocabulary: &Vocabulary) -> Result<Self, TextError> {
        Self::new(vocabulary.chat_template.as_deref().ok_or(TextError::NoTemplate)?, vocabulary)
    }

    /// The prompt for a chat.
    ///
    /// # Errors
    /// What the template says through `raise_exception`, with its own words; anything that fails in it, with the line; a
    /// template that does not end.
    pub fn render(&self, request: &ChatRequest) -> Result<String, TextError> {
        let mut variables: BTreeMap<&str, Value> = BTreeMap::new();
        variables.extend(request.variables.iter().map(|(name, value)| (name.as_str(), Value::from(Serde(value)))));
        variables.extend(self.tokens.iter().map(|(&name, text)| (name, Value::from(text.as_str()))));
        variables.insert("messages", Value::from(Serde(&request.messages)));
        if !request.tools.is_empty() {
            variables.insert("tools", Value::from(Serde(&request.tools)));
        }
        variables.insert("add_generation_prompt", Value::from(request.add_generation_prompt));
        let now = request.now;
        let strftime =
            move |format: &str| now.format(format).map_err(|problem| Error::new(ErrorKind::InvalidOperation, problem));
        variables.insert("strftime_now", Value::from_function(strftime));
        let template = self.environment.get_template(NAME).map_err(failure)?;
        template.render(Value::from_pairs(variables)).map_err(failure)
    }
}

fn raise_exception(message: &str, extra: Kwargs) -> Result<Value, Error> {
    extra.assert_all_used()?;
    Err(Error::new(ErrorKind::InvalidOperation, message.to_owned()).with_source(Raised(message.to_owned())))
}

fn syntax_error(error: &Error) -> TextError {
    TextError::TemplateSyntax { line: error.line().unwrap_or(0), problem: detail(error) }
}

fn failure(error: Error) -> TextError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return TextError::TemplateRaised { message: message.clone() };
        }
        if current.downcast_ref().is_some_and(|error: &Error| error.kind() == ErrorKind::OutOfFuel) {
            return TextError::TemplateEndless { steps: FUEL };
        }
        cause = current.source();
    }
    TextError::TemplateFailed { line: error.line().unwrap_or(0), problem: detail(&error) }
}

fn detail(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}
