//! `aqueduct chat`: talks with the model, turn by turn. Only the new tokens of a turn are read.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use super::interrupt::Interrupt;
use super::machine::MachineArgs;
use super::output::PartFile;
use super::run::summary;
use super::sampling::SamplingArgs;
use crate::engine::Counts;
use crate::engine::sampler::Sampler;
use crate::generate::{Asked, Conversation, Finish};
use crate::text::{ChatMessage, ChatRequest, ChatTemplate, StopStrings, Tokenizer, Vocabulary};

/// Arguments of `chat`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    /// The system message.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Most tokens of an answer.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1024)]
    tokens: usize,
    /// Keeps the lines you type in this file.
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Prints each answer with its figures as one line of JSON.
    #[arg(long)]
    json: bool,
}

const HELP: &str = "/new starts over, /quit or Ctrl-D ends, Ctrl-C stops an answer";

/// Talks until the input ends.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let interrupt = Interrupt::install()?;
    let model = args.machine.open_model()?;
    let (tokenizer, template) = {
        let vocabulary = Vocabulary::from_gguf(model.gguf())?;
        (Arc::new(Tokenizer::new(&vocabulary)?), ChatTemplate::of(&vocabulary)?)
    };
    let mut editor = DefaultEditor::new().context("opening the terminal")?;
    if let Some(path) = &args.history {
        PartFile::check(path)?;
        if path.exists() {
            editor.load_history(path).with_context(|| format!("reading the history {}", path.display()))?;
        }
    }
    let mut engine = args.machine.load(model, None)?;
    let mut conversation = Conversation::new(&engine)?;
    let system: Vec<_> = args.system.iter().map(|text| ChatMessage::new("system", text)).collect();
    let mut messages = system.clone();
    if !args.json {
        writeln!(std::io::stderr(), "{HELP}")?;
    }
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(error).context("reading a line"),
        };
        match line.trim() {
            "" => continue,
            "/quit" | "/exit" => break,
            "/new" => {
                messages.clone_from(&system);
                continue;
            }
            "/help" => {
                writeln!(std::io::stderr(), "{HELP}")?;
                continue;
            }
            // A slash may begin a path or a comment; only one lone word that looks like a command is held back.
            word if word.strip_prefix('/').is_some_and(|rest| rest.chars().all(|c| c.is_ascii_alphabetic())) => {
                writeln!(std::io::stderr(), "there is no command {word}; {HELP}")?;
                continue;
            }
            _ => {}
        }
        editor.add_history_entry(&line).context("keeping the line")?;
        messages.push(ChatMessage::new("user", line));
        let rendered = template.render(&ChatRequest::of(&messages))?;
        let prompt = tokenizer.encode_chat(&rendered)?;
        let mut sampler = Sampler::new(args.sampling.settings(), engine.model().spec.vocab)?;
        let asked = Asked {
            prompt: &prompt,
            limit: args.tokens,
            stops: StopStrings::new(Vec::new())?,
            ignore_end: false,
            cancel: interrupt.begin(),
        };
        let before = engine.counts();
        let mut out = std::io::stdout();
        let result = conversation.answer(&mut engine, &tokenizer, &mut sampler, asked, &mut |piece| {
            if !args.json {
                // A terminal that went away ends the next read of a line.
                let _ = out.write_all(piece.as_bytes()).and_then(|()| out.flush());
            }
        });
        interrupt.end();
        let answer = match result {
            Ok(answer) => answer,
            Err(error) => {
                writeln!(std::io::stderr(), "error: {:#}", anyhow::Error::from(error))?;
                messages.pop();
                continue;
            }
        };
        if args.json {
            super::print_json(&answer)?;
        } else {
            writeln!(std::io::stdout())?;
            writeln!(std::io::stderr(), "{}", summary(&answer, &since(&before, &engine.counts())))?;
        }
        if answer.finish == Finish::Cancelled && answer.tokens.is_empty() {
            // Stopped before the first word: as if it had not been asked.
            messages.pop();
        } else {
            messages.push(ChatMessage::new("assistant", answer.text));
        }
    }
    if let Some(path) = &args.history {
        let (part, _) = PartFile::create(path)?;
        editor.save_history(part.path()).with_context(|| format!("keeping the history {}", path.display()))?;
        part.keep()?;
    }
    Ok(())
}

fn since(before: &[Counts], now: &[Counts]) -> Vec<Counts> {
    now.iter().zip(before).map(|(now, before)| now.since(before)).collect()
}
