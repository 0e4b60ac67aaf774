//! `aqueduct run`: answers one prompt.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::interrupt::{Interrupt, UntilCancelled};
use super::machine::MachineArgs;
use super::prompt::{self, PromptArgs};
use super::sampling::{SamplingArgs, answer_tokens};
use super::template::TemplateArgs;
use crate::card::timeline::Timeline;
use crate::engine::{Counts, Engine};
use crate::files::Output;
use crate::generate::{Answer, Asked, Conversation, Finish};
use crate::sampler::Sampler;
use crate::text::{ChatMessage, StopStrings, Tokenizer, Vocabulary};

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
    #[command(flatten)]
    template: TemplateArgs,
    /// Most tokens of the answer; -1 until the model or the context ends.
    #[arg(short = 'n', long, value_name = "N", default_value = "256", allow_negative_numbers = true, value_parser = answer_tokens)]
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
pub fn run(args: &Args, interrupt: &Interrupt) -> anyhow::Result<()> {
    if !args.chat {
        args.template.without_chat()?;
    }
    let settings = args.sampling.settings()?;
    let stops = StopStrings::new(args.stop.clone()).map_err(|error| super::Mistake::of("--stop", error))?;
    let text = args.prompt.typed()?;
    let inputs: Vec<PathBuf> = args.machine.inputs().into_iter().chain(args.prompt.input()).collect();
    let inputs: Vec<&Path> = inputs.iter().map(PathBuf::as_path).collect();
    let trace = args.trace.as_ref().map(|path| Output::create(path, &inputs)).transpose()?;
    let timeline = args.trace.as_ref().map(|_| Timeline::new(TRACE_LIMIT));
    let model = args.machine.open_model()?;
    let (tokenizer, tokens) = {
        let vocabulary = Vocabulary::from_gguf(model.gguf())?;
        let tokenizer = Arc::new(Tokenizer::new(&vocabulary)?);
        let tokens = if args.chat {
            let mut messages: Vec<_> = args.system.iter().map(|text| ChatMessage::new("system", text)).collect();
            messages.push(ChatMessage::new("user", text));
            args.template.chat(&vocabulary)?.tokens(&tokenizer, &messages)?
        } else {
            prompt::tokens(&tokenizer, &text)?
        };
        (tokenizer, tokens)
    };
    let mut engine = args.machine.load(model, timeline.clone())?;
    let mut sampler = Sampler::new(settings, engine.model().spec.vocab)?;
    let mut conversation = Conversation::new(&engine)?;
    let mut out = std::io::stdout();
    let mut written = Ok(());
    let cancel = interrupt.begin();
    let asked =
        Asked { prompt: &tokens, limit: args.tokens, stops, ignore_end: args.ignore_end, cancel: cancel.clone() };
    let answer = conversation.answer(&mut engine, &tokenizer, &mut sampler, asked, &mut |piece| {
        if !args.json && written.is_ok() {
            written = out.write_all(piece.as_bytes()).and_then(|()| out.flush());
            if written.is_err() {
                cancel.cancel();
            }
        }
    })?;
    written?;
    drop(conversation);
    finish(args, &answer, &engine)?;
    // After Ctrl-C the trace shows what ran until then; who sends another signal waits for nothing more.
    if interrupt.ends_program() {
        return Err(super::Interrupted.into());
    }
    if let (Some(timeline), Some(mut trace)) = (&timeline, trace) {
        match timeline.write_trace(UntilCancelled::new(&mut trace, interrupt.begin())) {
            Ok(()) => trace.keep()?,
            Err(error) if super::is_interrupted(&error) => return Err(super::Interrupted.into()),
            Err(error) => return Err(trace.fault(error).into()),
        }
    }
    interrupt.end();
    if answer.finish == Finish::Cancelled { Err(super::Interrupted.into()) } else { Ok(()) }
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
