//! `aqueduct chat`: talks with the model, turn by turn. Only the new tokens of a turn are read.

use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use super::interrupt::Interrupt;
use super::machine::MachineArgs;
use super::run::summary;
use super::sampling::{SamplingArgs, answer_tokens};
use super::template::TemplateArgs;
use crate::engine::Counts;
use crate::files::Output;
use crate::generate::{Asked, Conversation, Finish};
use crate::sampler::Sampler;
use crate::text::{ChatMessage, StopStrings, Tokenizer, Vocabulary};

/// Arguments of `chat`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    /// The system message.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    template: TemplateArgs,
    /// Most tokens of an answer; -1 until the model or the context ends.
    #[arg(short = 'n', long, value_name = "N", default_value = "1024", allow_negative_numbers = true, value_parser = answer_tokens)]
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
pub fn run(args: &Args, interrupt: &Interrupt) -> anyhow::Result<()> {
    let settings = args.sampling.settings()?;
    let history = args.history.as_deref().map(|path| history_file(path, args)).transpose()?;
    let model = args.machine.open_model()?;
    let (tokenizer, chat) = {
        let vocabulary = Vocabulary::from_gguf(model.gguf())?;
        (Arc::new(Tokenizer::new(&vocabulary)?), args.template.chat(&vocabulary)?)
    };
    let mut editor = DefaultEditor::new().context("opening the terminal")?;
    if let Some(path) = &args.history {
        // A new file has nothing to read, and of a device there is no end.
        if path.is_file() {
            editor.load_history(path).with_context(|| format!("reading the history {}", path.display()))?;
        }
    }
    let mut engine = args.machine.load(model, None)?;
    // What only the model can refuse is refused before the first line is asked for.
    Sampler::new(settings.clone(), engine.model().spec.vocab)?;
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
        let prompt = chat.tokens(&tokenizer, &messages)?;
        let mut sampler = Sampler::new(settings.clone(), engine.model().spec.vocab)?;
        let asked = Asked {
            prompt: &prompt,
            limit: args.tokens,
            stops: StopStrings::new(Vec::new())?,
            ignore_end: false,
            cancel: interrupt.begin(),
        };
        let before = engine.counts();
        let mut out = std::io::stdout();
        let mut written = Ok(());
        let cancel = asked.cancel.clone();
        let result = conversation.answer(&mut engine, &tokenizer, &mut sampler, asked, &mut |piece| {
            if !args.json && written.is_ok() {
                written = out.write_all(piece.as_bytes()).and_then(|()| out.flush());
                if written.is_err() {
                    cancel.cancel();
                }
            }
        });
        interrupt.end();
        written?;
        let answer = match result {
            Ok(answer) => answer,
            Err(error) => {
                // Without its model no later answer can be right.
                engine.model().gguf().check()?;
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
        if interrupt.ends_program() {
            break;
        }
    }
    if let Some(history) = history {
        keep_history(history, &editor)?;
    }
    if interrupt.ends_program() { Err(super::Interrupted.into()) } else { Ok(()) }
}

/// What is typed may be private. The history is read as well, and may be no other file that is.
fn history_file(path: &Path, args: &Args) -> anyhow::Result<Output> {
    let inputs = args.machine.inputs();
    Ok(Output::private(path, &inputs.iter().map(PathBuf::as_path).collect::<Vec<_>>())?)
}

/// Writes the lines in the form that rustyline reads.
fn keep_history(history: Output, editor: &DefaultEditor) -> anyhow::Result<()> {
    let mut out = BufWriter::new(history);
    let mut write = || {
        writeln!(out, "#V2")?;
        for line in editor.history().iter() {
            writeln!(out, "{}", line.replace('\\', "\\\\").replace('\n', "\\n"))?;
        }
        out.flush()
    };
    write().map_err(|error| out.get_ref().fault(error))?;
    let (history, _) = out.into_parts();
    Ok(history.keep()?)
}

fn since(before: &[Counts], now: &[Counts]) -> Vec<Counts> {
    now.iter().zip(before).map(|(now, before)| now.since(before)).collect()
}
