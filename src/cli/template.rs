//! The arguments of chat templates.

use std::path::PathBuf;

use clap::ValueEnum;
use clap::builder::{PathBufValueParser, TypedValueParser as _};
use serde_json::{Map, Value};

use super::Mistake;
use crate::files::read_text;
use crate::text::{ChatMessage, ChatRequest, ChatTemplate, Moment, TextError, Tokenizer, Vocabulary};
use crate::units::{Bytes, TokenId};

/// The longest template that is read: the largest known ones have some 20 KiB.
const MOST: Bytes = Bytes(4 << 20);

/// Variables by which templates let a model think or not, the usual one first.
const THINKING: [&str; 2] = ["enable_thinking", "thinking"];

/// How messages become a prompt.
#[derive(clap::Args)]
pub struct TemplateArgs {
    /// Uses the chat template (Jinja) of a file in place of the model's own.
    #[arg(long, value_name = "FILE", value_parser = PathBufValueParser::new().try_map(TemplateFile::read))]
    template: Option<TemplateFile>,
    /// Gives the template more variables: an object of JSON.
    #[arg(long, value_name = "JSON", value_parser = object)]
    template_kwargs: Option<Map<String, Value>>,
    /// Whether the model thinks before it answers; `auto` leaves that to its template.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Reasoning::Auto)]
    reasoning: Reasoning,
    /// The date, or date and time (2024-11-29T14:44:05), that the template takes for now [default: the clock].
    #[arg(long, value_name = "DATE", value_parser = Moment::parse)]
    date: Option<Moment>,
    /// Reads control tokens that stand in messages, such as `<|im_end|>`, as control tokens and not as text.
    #[arg(long)]
    parse_special: bool,
}

/// Whether a model thinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Reasoning {
    /// It does.
    On,
    /// It does not.
    Off,
    /// As its template has it.
    Auto,
}

/// A template that can be read.
#[derive(Clone)]
struct TemplateFile(String);

impl TemplateFile {
    fn read(path: PathBuf) -> Result<Self, String> {
        let source = read_text(&path, MOST).map_err(|error| error.to_string())?;
        ChatTemplate::new(&source, &Vocabulary::default()).map_err(|error| error.to_string())?;
        Ok(Self(source))
    }
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    let wanted = "an object of JSON is wanted, such as {\"enable_thinking\": false}";
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) if map.contains_key("messages") => Err("messages are what you say".to_owned()),
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(wanted.to_owned()),
        Err(error) => Err(format!("{wanted}: {error}")),
    }
}

/// A template with all that it is given but the messages.
pub struct Chat {
    template: ChatTemplate,
    variables: Map<String, Value>,
    /// Taken once, so that the turns of one talk have one beginning.
    now: Moment,
    trusted: bool,
}

impl TemplateArgs {
    /// Refuses options of the template where there is no chat.
    pub fn without_chat(&self) -> Result<(), Mistake> {
        let given = [
            ("--template", self.template.is_some()),
            ("--template-kwargs", self.template_kwargs.is_some()),
            ("--reasoning", self.reasoning != Reasoning::Auto),
            ("--date", self.date.is_some()),
            ("--parse-special", self.parse_special),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(Mistake(format!("{name} is for the chat template: add --chat"))),
            None => Ok(()),
        }
    }

    /// The model's chat, as the options have it.
    ///
    /// # Errors
    /// No template, one that cannot be read, `--reasoning on` where it has no such choice.
    pub fn chat(&self, vocabulary: &Vocabulary) -> anyhow::Result<Chat> {
        let template = match &self.template {
            Some(TemplateFile(source)) => ChatTemplate::new(source, vocabulary)?,
            None => ChatTemplate::of(vocabulary)?,
        };
        let mut variables = self.template_kwargs.clone().unwrap_or_default();
        if self.reasoning != Reasoning::Auto {
            let on = self.reasoning == Reasoning::On;
            let known = THINKING.into_iter().find(|name| template.reads(name));
            if let Some(name) = known.filter(|name| variables.contains_key(*name)) {
                return Err(Mistake(format!("--reasoning and --template-kwargs both set {name}: leave one out")).into());
            }
            match known {
                Some(name) => drop(variables.insert(name.to_owned(), Value::Bool(on))),
                None if on => {
                    let problem =
                        "--reasoning on: the chat template has no such choice (it does not read enable_thinking)";
                    return Err(Mistake(format!("{problem}; leave the option out")).into());
                }
                None => tracing::warn!(
                    "--reasoning off changes nothing: the chat template has no such choice (it does not read enable_thinking)"
                ),
            }
        }
        let now = self.date.unwrap_or_else(Moment::now);
        Ok(Chat { template, variables, now, trusted: self.parse_special })
    }
}

impl Chat {
    /// The tokens of a prompt that ends where the assistant's answer to `messages` begins.
    pub fn tokens(&self, tokenizer: &Tokenizer, messages: &[ChatMessage]) -> Result<Vec<TokenId>, TextError> {
        let request = ChatRequest { variables: self.variables.clone(), ..ChatRequest::of(messages, self.now) };
        let rendered = self.template.render(&request)?;
        tokenizer.encode_chat(&if self.trusted { rendered.trusted() } else { rendered })
    }
}
