//! `aqueduct run`: answers one prompt.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;

use super::interrupt::Interrupt;
use super::machine::MachineArgs;
use super::prompt::{self, PromptArgs};
use super::sampling::SamplingArgs;
use crate::card::timeline::Timeline;
use crate::engine::sampler::Sampler;
use crate::engine::{Counts, Engine};
use crate::generate::{Answer, Asked, Conversation, Finish};
use crate::text::{StopStrings, Tokenizer, Vocabulary};

/// Arguments of `run`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    /// Puts the prompt into the model's chat template.
    #[arg(long)]
    chat: bool,
    /// The system message of the chat template.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// Most tokens of the answer.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 256)]
    tokens: usize,
    /// Text that ends the answer; may be given several times.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Goes on after the model's own end token.
    #[arg(long)]
    ignore_end: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Writes what ran when on each stream, for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Prints the answer with its figures as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    answer: &'a Answer,
    prefill_tokens_per_second: f64,
    decode_tokens_per_second: f64,
    stages: Vec<Counts>,
}

/// Entries of a trace before it is cut.
const TRACE_LIMIT: usize = 2_000_000;

/// Answers the prompt.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let text = args.prompt.text()?;
    let interrupt = Interrupt::install()?;
    let timeline = args.trace.as_ref().map(|_| Timeline::new(TRACE_LIMIT));
    let mut engine = args.machine.load(timeline.clone())?;
    let vocabulary = Vocabulary::from_gguf(engine.model().gguf())?;
    let tokenizer = Arc::new(Tokenizer::new(&vocabulary)?);
    let tokens = prompt::tokens(&tokenizer, &vocabulary, &text, args.chat, args.system.as_deref())?;
    let mut sampler = Sampler::new(args.sampling.settings(), engine.model().spec.vocab)?;
    let mut conversation = Conversation::new(&engine)?;
    let mut out = std::io::stdout();
    let mut written = Ok(());
    let cancel = interrupt.begin();
    let asked = Asked {
        prompt: &tokens,
        limit: args.tokens,
        stops: StopStrings::new(args.stop.clone())?,
        ignore_end: args.ignore_end,
        cancel: cancel.clone(),
    };
    let answer = conversation.answer(&mut engine, &tokenizer, &mut sampler, asked, &mut |piece| {
        if !args.json && written.is_ok() {
            written = out.write_all(piece.as_bytes()).and_then(|()| out.flush());
            if written.is_err() {
                cancel.cancel();
            }
        }
    })?;
    interrupt.end();
    written?;
    drop(conversation);
    finish(args, &answer, &engine)?;
    if let (Some(timeline), Some(path)) = (&timeline, &args.trace) {
        timeline.write_trace(path)?;
    }
    Ok(())
}

fn finish(args: &Args, answer: &Answer, engine: &Engine) -> anyhow::Result<()> {
    if args.json {
        return super::print_json(&Report {
            answer,
            prefill_tokens_per_second: answer.prefill_rate(),
            decode_tokens_per_second: answer.decode_rate(),
            stages: engine.counts(),
        });
    }
    writeln!(std::io::stdout())?;
    writeln!(std::io::stderr(), "{}", summary(answer, &engine.counts()))?;
    Ok(())
}

/// One line of figures under an answer.
pub fn summary(answer: &Answer, stages: &[Counts]) -> String {
    let mut line = format!(
        "[prompt {} tokens at {:.1}/s, answer {} tokens at {:.1}/s",
        answer.prompt_tokens,
        answer.prefill_rate(),
        answer.tokens.len(),
        answer.decode_rate()
    );
    let streamed: u64 = stages.iter().map(|stage| stage.streamed).sum();
    let skipped: u64 = stages.iter().map(|stage| stage.skipped).sum();
    let host: u64 = stages.iter().map(|stage| stage.host_experts).sum();
    if streamed + skipped > 0 {
        line += &format!(", {streamed} experts streamed");
    }
    if skipped > 0 {
        line += &format!(", {skipped} skipped");
    }
    if host > 0 {
        line += &format!(", {host} expert products on the host");
    }
    match answer.finish {
        Finish::Stop => {}
        Finish::Length => line += ", cut at its length",
        Finish::Cancelled => line += ", cancelled",
    }
    line + "]"
}
