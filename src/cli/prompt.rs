//! Where a prompt's text comes from, and how it becomes tokens.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use anyhow::{bail, ensure};

use crate::files::{read_text, text_of};
use crate::text::{Ends, Specials, Tokenizer};
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
    /// The prompt's text, every byte of it.
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

    /// The prompt as someone means it who typed it: of a file or a pipe, what editors and shells put around it is left
    /// out ([`as_typed`]).
    pub fn typed(&self) -> anyhow::Result<String> {
        let text = self.text()?;
        Ok(if self.prompt.is_some() { text } else { as_typed(&text).to_owned() })
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

/// A text without the mark (BOM) that some editors put before it, and without its last line end.
fn as_typed(text: &str) -> &str {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    text.strip_suffix('\n').map_or(text, |line| line.strip_suffix('\r').unwrap_or(line))
}

/// Tokens of a text that is to be continued.
pub fn tokens(tokenizer: &Tokenizer, text: &str) -> anyhow::Result<Vec<TokenId>> {
    let tokens = tokenizer.encode(text, Specials::Parsed, Ends::Begun)?;
    ensure!(!tokens.is_empty(), "the prompt is empty; give one with --prompt or --file, or pipe it in");
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn editors_and_shells_add_nothing_to_a_prompt() {
        let cases = [
            ("\u{feff}Hi\n", "Hi"),
            ("Hi\r\n", "Hi"),
            ("Hi\n\n", "Hi\n"),
            ("\n", ""),
            (" Hi ", " Hi "),
            ("a\u{feff}b", "a\u{feff}b"),
            ("Hi\r", "Hi\r"),
        ];
        for (text, wanted) in cases {
            assert_eq!(as_typed(text), wanted, "{text:?}");
        }
    }
}
