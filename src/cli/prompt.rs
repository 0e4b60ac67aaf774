//! Where a prompt's text comes from, and how it becomes tokens.

use std::io::{IsTerminal as _, Read as _};
use std::path::PathBuf;

use anyhow::{Context as _, bail};

use crate::text::{ChatMessage, ChatRequest, ChatTemplate, Ends, Specials, Tokenizer, Vocabulary};
use crate::units::TokenId;

/// The prompt.
#[derive(clap::Args)]
pub struct PromptArgs {
    /// The prompt [default: standard input].
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file")]
    prompt: Option<String>,
    /// Reads the prompt from a file.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl PromptArgs {
    /// The prompt's text.
    pub fn text(&self) -> anyhow::Result<String> {
        if let Some(prompt) = &self.prompt {
            return Ok(prompt.clone());
        }
        if let Some(file) = &self.file {
            return Ok(fs_err::read_to_string(file)?);
        }
        let mut input = std::io::stdin();
        if input.is_terminal() {
            bail!("there is no prompt; give it with --prompt or --file, or pipe it in");
        }
        let mut bytes = Vec::new();
        input.read_to_end(&mut bytes).context("reading the prompt from standard input")?;
        String::from_utf8(bytes).context("the prompt on standard input is not UTF-8")
    }
}

/// Tokens of a text: as it stands, or as a user's message in the model's chat template.
pub fn tokens(
    tokenizer: &Tokenizer,
    vocabulary: &Vocabulary,
    text: &str,
    chat: bool,
    system: Option<&str>,
) -> anyhow::Result<Vec<TokenId>> {
    if !chat {
        return Ok(tokenizer.encode(text, Specials::Parsed, Ends::Added)?);
    }
    let mut messages: Vec<ChatMessage> = system.map(|text| ChatMessage::new("system", text)).into_iter().collect();
    messages.push(ChatMessage::new("user", text));
    let rendered = ChatTemplate::of(vocabulary)?.render(&ChatRequest::of(&messages))?;
    Ok(tokenizer.encode_chat(&rendered)?)
}
