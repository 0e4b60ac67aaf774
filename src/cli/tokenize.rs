//! `aqueduct tokenize`: turns text into token ids.

use std::io::Write as _;
use std::path::PathBuf;

use serde::Serialize;

use super::prompt::PromptArgs;
use crate::gguf::Gguf;
use crate::text::{Ends, Specials, Tokenizer, Vocabulary};

/// Arguments of `tokenize`.
#[derive(clap::Args)]
pub struct Args {
    /// The model whose tokenizer is used.
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    #[command(flatten)]
    prompt: PromptArgs,
    /// Reads control tokens such as `<|im_end|>` as plain text.
    #[arg(long)]
    plain: bool,
    /// Adds the tokens that begin and end a text, as the model asks.
    #[arg(long)]
    add_special: bool,
    /// Prints ids and texts as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Token<'a> {
    id: u32,
    text: Option<&'a str>,
}

/// Prints the ids.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let text = args.prompt.text()?;
    let gguf = Gguf::open(&args.model)?;
    let tokenizer = Tokenizer::new(&Vocabulary::from_gguf(&gguf)?)?;
    let specials = if args.plain { Specials::Plain } else { Specials::Parsed };
    let ends = if args.add_special { Ends::Added } else { Ends::Bare };
    let ids = tokenizer.encode(&text, specials, ends)?;
    if args.json {
        let tokens: Vec<_> = ids.iter().map(|id| Token { id: *id, text: tokenizer.token_text(*id) }).collect();
        return super::print_json(&tokens);
    }
    let mut out = std::io::stdout().lock();
    for id in ids {
        writeln!(out, "{id:>7}  {}", tokenizer.token_text(id).unwrap_or_default())?;
    }
    Ok(())
}
