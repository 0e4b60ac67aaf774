//! The command line: one thin file a subcommand.

mod bench;
mod chat;
mod completions;
mod inspect;
mod interrupt;
mod kernels;
mod logits;
mod machine;
mod perplexity;
mod plan;
mod prompt;
mod run;
mod sample;
mod sampling;
mod synth;
mod template;
mod tokenize;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use interrupt::Interrupt;

use crate::engine::EngineError;
use crate::synth::{SampleError, SynthError, WriteError};

/// Runs mixture-of-experts language models far larger than a card's memory, on one or more cards plus host RAM.
#[derive(Parser)]
#[command(name = "aqueduct", version, about, propagate_version = true, max_term_width = 110)]
struct Cli {
    /// What to log, as `level` or `target=level,...`.
    #[arg(long, global = true, value_name = "FILTER", env = "AQUEDUCT_LOG", default_value = "warn")]
    log: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Shows what each card would hold and what would stream.
    Plan(plan::Args),
    /// Answers one prompt.
    Run(run::Args),
    /// Talks with the model, turn by turn.
    Chat(chat::Args),
    /// Shows a model file: metadata, tensors by layer, expert sizes.
    Inspect(inspect::Args),
    /// Turns text into token ids.
    Tokenize(tokenize::Args),
    /// Writes a model of a named shape with random weights, for benches.
    Synth(synth::Args),
    /// Makes the sample mixture of experts from the dense SmolLM2 file.
    Sample(sample::Args),
    /// Measures alternating arms and compares them.
    Bench(bench::Args),
    /// Writes the logits of every position to a .npy file.
    Logits(logits::Args),
    /// Measures how well the model predicts a text.
    Perplexity(perplexity::Args),
    /// Compiles GPU kernels ahead of their first use; needs no GPU.
    Kernels(kernels::Args),
    /// Prints a completion script for a shell.
    Completions(completions::Args),
}

/// Parses the command line, runs the subcommand and turns an error into one readable message.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = match EnvFilter::try_new(&cli.log) {
        Ok(filter) => filter,
        Err(error) => {
            report(&format!("--log {}: {error}", cli.log));
            return ExitCode::from(2);
        }
    };
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).without_time().with_target(false);
    // As for clap's own messages: a terminal that has colours, and a user who wants them (NO_COLOR, TERM).
    log.with_ansi(anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never).init();
    let interrupt = match Interrupt::install() {
        Ok(interrupt) => interrupt,
        Err(error) => {
            report(&told(&error));
            return ExitCode::FAILURE;
        }
    };
    let result = match cli.command {
        Command::Plan(args) => plan::run(&args),
        Command::Run(args) => run::run(&args, &interrupt),
        Command::Chat(args) => chat::run(&args, &interrupt),
        Command::Inspect(args) => inspect::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Synth(args) => synth::run(&args, &interrupt),
        Command::Sample(args) => sample::run(&args, &interrupt),
        Command::Bench(args) => bench::run(&args, &interrupt),
        Command::Logits(args) => logits::run(&args, &interrupt),
        Command::Perplexity(args) => perplexity::run(&args, &interrupt),
        Command::Kernels(args) => kernels::run(&args),
        Command::Completions(args) => completions::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if error.is::<Interrupted>() => ExitCode::from(interrupt.exit_code()),
        Err(error) => {
            report(&told(&error));
            match () {
                () if is_cancelled(&error) => ExitCode::from(interrupt.exit_code()),
                () if error.is::<Mistake>() => ExitCode::from(2),
                () => ExitCode::FAILURE,
            }
        }
    }
}

/// A mistake on the command line that clap cannot see, such as one that shows only beside other options or the model
/// file. It is looked for before anything is loaded.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Mistake(String);

impl Mistake {
    /// A value of an option that is refused, told with the option's name.
    fn of(option: &str, why: impl std::fmt::Display) -> anyhow::Error {
        Self(format!("{option}: {why}")).into()
    }
}

/// A signal ended the work, and what there was has been shown.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
struct Interrupted;

/// Whether a write ended because a signal came.
fn is_interrupted(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Interrupted>())
}

fn is_cancelled(error: &anyhow::Error) -> bool {
    let stopped = matches!(error.downcast_ref(), Some(SynthError::Write(WriteError::Stopped { .. })))
        || matches!(error.downcast_ref(), Some(SampleError::Write(WriteError::Stopped { .. })));
    stopped || error.chain().any(|cause| matches!(cause.downcast_ref(), Some(EngineError::Cancelled)))
}

/// An error with its causes, in one line; a cause that the text already holds is not told twice.
fn told(error: &anyhow::Error) -> String {
    let mut text = match error.downcast_ref::<io::Error>() {
        // Errors of files carry their path and no number of the system; what is left is our own output.
        Some(bare) if bare.raw_os_error().is_some() => "cannot write to standard output".to_owned(),
        _ => String::new(),
    };
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text += ": ";
            text += &cause;
        }
    }
    text
}

/// Whether the reader of our output went away (`aqueduct inspect | head`): no mistake of anybody.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe))
}

fn report(message: &str) {
    // Diagnostics of a topology begin with `error[code]` themselves.
    let prefix = if message.starts_with("error[") { "" } else { "error: " };
    // Nothing can be done where even standard error is gone.
    let _ = writeln!(io::stderr(), "{prefix}{}", shown(message, MOST_OF_A_MESSAGE));
}

/// Characters of an error that are shown: more than any message of our own has, less than a name in a hostile file.
const MOST_OF_A_MESSAGE: usize = 20_000;

/// Text that may hold what a file says, as a terminal may have it: control characters but line ends and tabs escaped, and not
/// longer than `most` characters.
fn shown(text: &str, most: usize) -> String {
    let mut out = String::with_capacity(text.len().min(most));
    for c in text.chars().take(most) {
        match c {
            '\n' | '\t' => out.push(c),
            c if c.is_control() || is_invisible(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    let more = text.chars().skip(most).count();
    if more > 0 {
        out += &format!("... ({more} more characters)");
    }
    out
}

/// Marks that change the direction of text, or are not seen: they could make a name look like another one.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// A name of a file in one cell of a table.
fn cell(text: &str) -> String {
    const MOST: usize = 80;
    shown(text, MOST).replace('\n', "\\n")
}

/// Prints a value as JSON, one line.
fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}
