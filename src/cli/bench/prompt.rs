//! `aqueduct bench prompt`: prompts and follow-ups with the streams' switches off and on.

use std::io::Write as _;

use anyhow::{Context as _, bail, ensure};

use crate::bench::Text;
use crate::bench::prompt::{Arm, Case, CaseError, HEADER, Row, Task, Varied, measure, refused, row};
use crate::cli::interrupt::Interrupt;
use crate::cli::machine::{MachineArgs, load_engine, make_plan};
use crate::model::Model;
use crate::plan::Plan;
use crate::topology::{ResidentCells, Topology, Wave};

/// Arguments of `bench prompt`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    /// Prompt lengths in tokens; `8K` is 8,192.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "1K", value_parser = Case::prompt)]
    prompts: Vec<Case>,
    /// Follow-ups: new tokens behind cached ones, such as `2K@32K`.
    #[arg(long, value_name = "NEW@CACHED", value_delimiter = ',', value_parser = str::parse::<Case>)]
    follow_up: Vec<Case>,
    /// Cells of a sequence that stay on the card, `all` or a number; one table part for each [default: what the
    /// topology says].
    #[arg(long, value_name = "CELLS", value_delimiter = ',', value_parser = resident)]
    resident: Vec<ResidentCells>,
    /// The arms, first and second: `off,on` or `on,off`.
    #[arg(long, value_name = "ARMS", value_delimiter = ',', default_value = "off,on", value_enum)]
    arms: Vec<State>,
    /// The switches that the arms set: kv.prefetch, prompt.routed_stream, or both.
    #[arg(long, value_enum, default_value_t = Vary::Both)]
    vary: Vary,
    /// Times each arm is measured, in the order first, second, second, first.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Uncounted runs of each arm before every row.
    #[arg(long, value_name = "N", default_value_t = 1)]
    warm_up: u32,
    /// Tokens that pass through a layer together; overrides prompt.wave.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    wave: Option<u32>,
    /// Tokens decoded after each prompt.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 32)]
    tokens: usize,
    /// Tokens decoded before each prompt: behind 32 tokens, or behind the cached ones of a follow-up.
    #[arg(long, value_name = "N", default_value_t = 16)]
    before: usize,
    /// Seed of the prompts' tokens.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Prints every observation as JSON.
    #[arg(long)]
    json: bool,
}

/// How an arm sets the switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum State {
    Off,
    On,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Vary {
    Prefetch,
    Routed,
    Both,
}

fn resident(text: &str) -> Result<ResidentCells, String> {
    match text {
        "all" => Ok(ResidentCells::All),
        "0" => Ok(ResidentCells::First(0)),
        cells => crate::bench::prompt::tokens(cells)
            .map(|cells| ResidentCells::First(u32::try_from(cells).unwrap_or(u32::MAX)))
            .map_err(|error: CaseError| format!("{error}, or `all`")),
    }
}

fn name(resident: ResidentCells) -> String {
    match resident {
        ResidentCells::All => "all".to_owned(),
        ResidentCells::First(cells) => cells.to_string(),
    }
}

/// Measures and prints, row by row.
pub fn run(args: &Args, interrupt: &Interrupt) -> anyhow::Result<()> {
    if !matches!(args.arms[..], [State::Off, State::On] | [State::On, State::Off]) {
        return Err(crate::cli::Mistake::of("--arms", "both arms are measured, once each; say off,on or on,off"));
    }
    let model = args.machine.open_model()?;
    let cases: Vec<&Case> = args.prompts.iter().chain(&args.follow_up).collect();
    let topology = base(args, &model, &cases)?;
    let text = Text::of(&model)?;
    let cancel = interrupt.begin();
    let mut shown = Shown { json: args.json, rows: Vec::new(), refused: 0 };
    shown.line(HEADER)?;
    let given = [topology.run.kv.resident_cells];
    let residents = if args.resident.is_empty() { &given[..] } else { &args.resident };
    for resident in residents {
        let mut own = topology.clone();
        own.run.kv.resident_cells = *resident;
        let resident = name(*resident);
        let arms = match arms(args, &model, &own) {
            Ok(arms) => arms,
            Err(error) => {
                shown.refused(&resident, &cases, &error)?;
                continue;
            }
        };
        let options = args.machine.rig_options(None);
        let [plan, _] = arms.each_ref().map(|arm| arm.plan.clone());
        let mut engine = load_engine(model.clone(), plan, &own, &options)?;
        for case in &cases {
            let task = Task {
                resident: &resident,
                case,
                tokens: &text.tokens(args.seed, case.total()),
                varied: args.vary.into(),
                pairs: args.pairs as usize,
                warm_up: args.warm_up as usize,
                before: args.before,
                after: args.tokens,
            };
            let measured = measure(&mut engine, &arms, &task, &cancel);
            shown.row(measured.with_context(|| format!("{} with {resident} resident cells", case.name))?)?;
        }
    }
    shown.end()
}

/// The topology with room for every case.
fn base(args: &Args, model: &Model, cases: &[&Case]) -> anyhow::Result<Topology> {
    let mut topology = args.machine.present(model)?;
    let room = |case: &&&Case| Task::context(case, args.before, args.tokens);
    let longest =
        cases.iter().max_by_key(room).context("there is nothing to measure; give --prompts or --follow-up")?;
    let (wanted, most) = (room(&longest), model.spec.context);
    ensure!(wanted <= most, "{}: {wanted} tokens with its answer, the model was made for at most {most}", longest.name);
    topology.run.context = topology.run.context.max(u32::try_from(wanted)?);
    if let Some(wave) = args.wave {
        topology.run.prompt.wave = Wave::Tokens(wave);
    }
    Ok(topology)
}

/// Both arms' plans.
fn arms(args: &Args, model: &Model, topology: &Topology) -> anyhow::Result<[Arm; 2]> {
    let varied = Varied::from(args.vary);
    let plan = |state: &State| -> anyhow::Result<Arm> {
        let mut own = topology.clone();
        let on = *state == State::On;
        if varied.routed() {
            own.run.override_routed_stream(Some(on));
        }
        if varied.prefetch() {
            own.run.override_kv_prefetch(Some(on));
        }
        let name = if on { "on" } else { "off" }.to_owned();
        let plan: Plan = make_plan(model, &own).with_context(|| format!("arm {name}"))?;
        Ok(Arm { name, plan })
    };
    match &args.arms[..] {
        [first, second] => Ok([plan(first)?, plan(second)?]),
        _ => bail!("two arms are measured"),
    }
}

impl From<Vary> for Varied {
    fn from(vary: Vary) -> Self {
        match vary {
            Vary::Prefetch => Self::Prefetch,
            Vary::Routed => Self::Routed,
            Vary::Both => Self::Both,
        }
    }
}

/// What is printed while rows come, and what is left for the end.
struct Shown {
    json: bool,
    rows: Vec<Row>,
    refused: usize,
}

impl Shown {
    fn line(&self, text: &str) -> anyhow::Result<()> {
        if !self.json {
            writeln!(std::io::stdout().lock(), "{text}")?;
        }
        Ok(())
    }

    fn row(&mut self, measured: Row) -> anyhow::Result<()> {
        self.line(row(&measured).trim_end())?;
        self.rows.push(measured);
        Ok(())
    }

    fn refused(&mut self, resident: &str, cases: &[&Case], error: &anyhow::Error) -> anyhow::Result<()> {
        self.refused += cases.len();
        let why = crate::cli::told(error);
        if self.json {
            tracing::warn!("{resident} resident cells: {why}");
        }
        cases.iter().try_for_each(|case| self.line(refused(resident, &case.name, &why).trim_end()))
    }

    fn end(self) -> anyhow::Result<()> {
        if self.json {
            crate::cli::print_json(&self.rows)?;
        }
        let differ = self.rows.iter().filter(|row| !row.same_replies).count();
        ensure!(self.refused == 0, "{} rows were refused, with both arms", self.refused);
        ensure!(differ == 0, "{differ} rows have replies that differ");
        Ok(())
    }
}
