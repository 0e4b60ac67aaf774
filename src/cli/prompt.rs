//! Where a prompt's text comes from, and how it becomes tokens.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use anyhow::{bail, ensure};

use crate::files::{read_text, text_of};
use crate::text::{ChatMessage, ChatRequest, ChatTemplate, Ends, Specials, Tokenizer, Vocabulary};
use crate::units::{Bytes, TokenId};

/// The longest prompt that is read: far more than any context holds.
const MOST: Bytes = Bytes(64 << 20);

/// The prompt.
#[derive(clap::Args)]
pub struct PromptArgs {
    /// The prompt [default: standard input].
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file")]
    prompt: Option<String>,
    /// Reads the prompt from a file; `-` is standard input.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl PromptArgs {
    /// The prompt's text.
    pub fn text(&self) -> anyhow::Result<String> {
        if let Some(prompt) = &self.prompt {
            return Ok(prompt.clone());
        }
        if let Some(file) = self.named_file() {
            return Ok(read_text(file, MOST)?);
        }
        let input = std::io::stdin();
        if input.is_terminal() {
            bail!("there is no prompt; give it with --prompt or --file, or pipe it in");
        }
        Ok(text_of(input, "the prompt on standard input", MOST)?)
    }

    /// The file that the prompt is read from, standard input included.
    pub fn input(&self) -> Option<PathBuf> {
        let stdin = || self.prompt.is_none().then(|| PathBuf::from("/dev/stdin"));
        self.named_file().cloned().or_else(stdin)
    }

    /// The file that was named; `-` is standard input.
    fn named_file(&self) -> Option<&PathBuf> {
        self.file.as_ref().filter(|file| file.as_os_str() != "-")
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
        let tokens = tokenizer.encode(text, Specials::Parsed, Ends::Begun)?;
        ensure!(!tokens.is_empty(), "the prompt is empty; give one with --prompt or --file, or pipe it in");
        return Ok(tokens);
    }
    let mut messages: Vec<ChatMessage> = system.map(|text| ChatMessage::new("system", text)).into_iter().collect();
    messages.push(ChatMessage::new("user", text));
    let rendered = ChatTemplate::of(vocabulary)?.render(&ChatRequest::of(&messages, crate::text::Moment::now()))?;
    Ok(tokenizer.encode_chat(&rendered)?)
}
