//! `aqueduct bench`: alternating arms, medians, pair ratios.

mod prompt;

use std::io::Write as _;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use clap::{ArgMatches, Command};
use serde::Serialize;

use super::interrupt::Interrupt;
use super::machine::{MachineArgs, load_engine, make_plan};
use crate::bench::{self, Comparison, Observation, Text, Verdict, compare, greedy, median, order};
use crate::engine::{Cancel, Engine};
use crate::topology::{Ring, Share, Topology, Wave};
use crate::units::TokenId;

/// Arguments of `bench`: its own, or those of a measurement with a table of its own.
pub enum Args {
    /// `bench` itself.
    Arms(Arms),
    /// `bench prompt`.
    Prompt(prompt::Args),
}

/// Arguments of `bench` itself.
#[derive(clap::Args)]
pub struct Arms {
    #[command(flatten)]
    machine: MachineArgs,
    /// Arms to compare: `name=setting=value+setting=value,...`; settings are routed_stream (0|1), ring, wave, depth,
    /// floor, workers, host_share (percent); a bare name changes nothing.
    #[arg(long, value_name = "ARMS", value_delimiter = ',', default_value = "a,b")]
    arms: Vec<String>,
    /// Times each arm is measured.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Prompt lengths in tokens; `8K` is 8,192.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "512", value_parser = bench::prompt::tokens)]
    prompts: Vec<usize>,
    /// Tokens decoded after each prompt.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64)]
    tokens: usize,
    /// Seed of the prompts' tokens.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Prints every observation as JSON.
    #[arg(long)]
    json: bool,
}

struct Arm {
    name: String,
    engine: Engine,
}

#[derive(Serialize)]
struct Row {
    prompt_tokens: usize,
    decoded_tokens: usize,
    arms: Vec<ArmRow>,
    prefill: Option<Comparison>,
    decode: Option<Comparison>,
    same_tokens: bool,
}

#[derive(Serialize)]
struct ArmRow {
    name: String,
    observations: Vec<Observation>,
    prefill_tokens_per_second: f64,
    decode_tokens_per_second: f64,
}

/// Measures and prints.
pub fn run(args: &Args, interrupt: &Interrupt) -> anyhow::Result<()> {
    match args {
        Args::Arms(args) => run_arms(args, interrupt),
        Args::Prompt(args) => prompt::run(args, interrupt),
    }
}

/// By hand, because what `bench` itself cannot do without must not be asked for by `bench prompt`.
impl clap::FromArgMatches for Args {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        match matches.subcommand() {
            Some((PROMPT, matches)) => prompt::Args::from_arg_matches(matches).map(Self::Prompt),
            _ => Arms::from_arg_matches(matches).map(Self::Arms),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for Args {
    fn augment_args(command: Command) -> Command {
        let about = "Measures prompts and follow-ups with the streams' switches off and on";
        Arms::augment_args(command)
            .args_conflicts_with_subcommands(true)
            .subcommand_negates_reqs(true)
            .subcommand(prompt::Args::augment_args(Command::new(PROMPT).about(about)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

const PROMPT: &str = "prompt";

fn run_arms(args: &Arms, interrupt: &Interrupt) -> anyhow::Result<()> {
    for text in &args.arms {
        arm(text, &Topology::cpu_only()).map_err(|error| super::Mistake::of("--arms", error))?;
    }
    let model = args.machine.open_model()?;
    let topology = args.machine.present(&model)?;
    let longest = args.prompts.iter().max().copied().unwrap_or(0) + args.tokens;
    let mut arms = Vec::new();
    for text in &args.arms {
        let (name, mut own) = arm(text, &topology)?;
        own.run.context = own.run.context.max(u32::try_from(longest)?);
        let plan = make_plan(&model, &own).with_context(|| format!("arm {name}"))?;
        let options = args.machine.rig_options(None);
        arms.push(Arm { name, engine: load_engine(model.clone(), plan, &own, &options)? });
    }
    let cancel = interrupt.begin();
    let text = Text::of(&model)?;
    let mut rows = Vec::new();
    for prompt in &args.prompts {
        let tokens = text.tokens(args.seed, *prompt);
        rows.push(measure(args, &mut arms, &tokens, &cancel)?);
        if !args.json {
            print(rows.last().into_iter())?;
        }
    }
    if args.json { super::print_json(&rows) } else { Ok(()) }
}

/// An arm's name, and the topology with its settings.
fn arm(text: &str, base: &Topology) -> anyhow::Result<(String, Topology)> {
    let (name, settings) = text.split_once('=').unwrap_or((text, ""));
    let mut own = base.clone();
    let prompt = &mut own.run.prompt;
    for setting in settings.split('+').filter(|setting| !setting.is_empty()) {
        let (key, value) =
            setting.split_once('=').with_context(|| format!("arm {name}: `{setting}` is no setting=value"))?;
        let number: u32 = value.parse().with_context(|| format!("arm {name}: {key}: `{value}` is no number"))?;
        let allowed = match key {
            "routed_stream" => 0..=1,
            "host_share" => 0..=100,
            "depth" => 1..=64,
            "floor" => 0..=1 << 20,
            "workers" => 1..=1024,
            _ => 1..=u32::MAX,
        };
        ensure!(
            allowed.contains(&number),
            "arm {name}: {key} is {number}, but must be between {} and {}",
            allowed.start(),
            allowed.end()
        );
        match key {
            "routed_stream" => prompt.routed_stream = (number != 0).into(),
            "ring" => prompt.ring = Ring::Slots(number),
            "wave" => prompt.wave = Wave::Tokens(number),
            "depth" => prompt.depth = number,
            "floor" => prompt.floor = number,
            "workers" => own.host.workers = number,
            "host_share" => own.run.kv.host_share = Share::Percent(number),
            _ => bail!(
                "arm {name}: there is no setting `{key}`; there are routed_stream, ring, wave, depth, floor, workers, host_share"
            ),
        }
    }
    Ok((name.to_owned(), own))
}

fn measure(args: &Arms, arms: &mut [Arm], tokens: &[TokenId], cancel: &Cancel) -> anyhow::Result<Row> {
    let mut all: Vec<Vec<Observation>> = vec![Vec::new(); arms.len()];
    let mut texts: Vec<Vec<TokenId>> = Vec::new();
    for arm in arms.iter_mut() {
        // The first run of an arm touches memory for the first time; it is not counted.
        observe(&mut arm.engine, tokens, args.tokens, cancel).with_context(|| format!("arm {}", arm.name))?;
    }
    for pair in 0..args.pairs as usize {
        for i in order(arms.len(), pair) {
            let (Some(arm), Some(seen)) = (arms.get_mut(i), all.get_mut(i)) else { continue };
            let (observation, text) =
                observe(&mut arm.engine, tokens, args.tokens, cancel).with_context(|| format!("arm {}", arm.name))?;
            seen.push(observation);
            texts.push(text);
        }
    }
    let times = |of: fn(&Observation) -> f64| {
        all.iter().map(|seen| seen.iter().map(of).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let compared = |times: &[Vec<f64>]| match times {
        [first, second] => Some(compare(first, second)),
        _ => None,
    };
    let (prefill, decode) = (times(|o| o.prefill_seconds), times(|o| o.decode_seconds));
    let rate = |tokens: usize, times: Option<&Vec<f64>>| tokens as f64 / median(times.map_or(&[][..], Vec::as_slice));
    Ok(Row {
        prompt_tokens: tokens.len(),
        decoded_tokens: args.tokens,
        prefill: compared(&prefill),
        decode: compared(&decode),
        same_tokens: texts.iter().all(|text| Some(text) == texts.first()),
        arms: arms
            .iter()
            .enumerate()
            .map(|(i, arm)| ArmRow {
                name: arm.name.clone(),
                observations: all.get(i).cloned().unwrap_or_default(),
                prefill_tokens_per_second: rate(tokens.len(), prefill.get(i)),
                decode_tokens_per_second: rate(args.tokens, decode.get(i)),
            })
            .collect(),
    })
}

/// One prompt and its greedy answer in a fresh sequence.
fn observe(
    engine: &mut Engine,
    tokens: &[TokenId],
    answer: usize,
    cancel: &Cancel,
) -> anyhow::Result<(Observation, Vec<TokenId>)> {
    let before = engine.counts();
    let mut sequence = engine.sequence()?;
    let begin = Instant::now();
    let mut logits = engine.prompt(&mut sequence, tokens, cancel)?;
    let prefill_seconds = begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    let mut text = Vec::with_capacity(answer);
    for _ in 0..answer {
        let next = greedy(&logits);
        text.push(next);
        logits = engine.step(&mut [(&mut sequence, next)], cancel)?.pop().unwrap_or_default();
    }
    let decode_seconds = begin.elapsed().as_secs_f64();
    let counts: Vec<_> = engine.counts().iter().zip(&before).map(|(now, before)| now.since(before)).collect();
    let observation = Observation {
        prefill_seconds,
        decode_seconds,
        streamed_bytes: counts.iter().map(|stage| stage.streamed_bytes).sum(),
        streamed: counts.iter().map(|stage| stage.streamed).sum(),
        skipped: counts.iter().map(|stage| stage.skipped).sum(),
    };
    Ok((observation, text))
}

fn print<'a>(rows: impl Iterator<Item = &'a Row>) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for row in rows {
        writeln!(
            out,
            "prompt {} tokens, {} decoded, replies {}",
            row.prompt_tokens,
            row.decoded_tokens,
            if row.same_tokens { "the same" } else { "DIFFER" }
        )?;
        for arm in &row.arms {
            let last = arm.observations.last();
            writeln!(
                out,
                "  {:16} prefill {:>9.1} tok/s   decode {:>8.2} tok/s   streamed {} experts, skipped {}",
                arm.name,
                arm.prefill_tokens_per_second,
                arm.decode_tokens_per_second,
                last.map_or(0, |o| o.streamed),
                last.map_or(0, |o| o.skipped)
            )?;
        }
        for (what, compared) in [("prefill", &row.prefill), ("decode", &row.decode)] {
            if let Some(compared) = compared {
                let (least, most) = compared.range();
                let verdict = match compared.verdict {
                    Verdict::Faster => "the second arm is faster",
                    Verdict::Slower => "the second arm is slower",
                    Verdict::InsideNoise => "inside the noise",
                    Verdict::TooFewPairs => "too few pairs to say",
                };
                writeln!(
                    out,
                    "  {what:8} first/second {:.3} ({least:.3} to {most:.3} over {} pairs): {verdict}",
                    compared.ratio,
                    compared.ratios.len()
                )?;
            }
        }
    }
    Ok(())
}
