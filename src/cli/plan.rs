//! `aqueduct plan`: what each card would hold and what would stream.

use std::io::Write as _;

use super::machine::{MachineArgs, open_model};
use crate::text::Tokenizer;

/// Arguments of `plan`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    /// Prints the plan as JSON.
    #[arg(long)]
    json: bool,
}

/// Makes the plan and prints it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let model = open_model(&args.machine.model)?;
    // What cannot be run is not planned.
    Tokenizer::check(model.gguf())?;
    let topology = args.machine.topology(&model)?;
    let plan = args.machine.plan(&model, &topology)?;
    if args.json {
        return super::print_json(&plan);
    }
    write!(std::io::stdout(), "{plan}")?;
    Ok(())
}
