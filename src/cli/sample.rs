//! `aqueduct sample`: the sample mixture of experts, made from the dense SmolLM2 file.

use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::PathBuf;

use super::interrupt::Interrupt;
use super::machine::progress;
use crate::synth::write_sample;

/// Arguments of `sample`.
#[derive(clap::Args)]
pub struct Args {
    /// `SmolLM2-135M-Instruct.Q4_1.gguf`; deploy/fetch-sample.sh gets it.
    #[arg(value_name = "DENSE.gguf")]
    dense: PathBuf,
    /// Experts a token uses, of 16: 12, 10 or 8.
    #[arg(short, long, value_name = "K", default_value_t = 12)]
    k: usize,
    /// The file to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Prints what was written as JSON.
    #[arg(long)]
    json: bool,
}

/// Writes the sample.
pub fn run(args: &Args, interrupt: &Interrupt) -> anyhow::Result<()> {
    let cancel = interrupt.begin();
    let bar = progress("writing", 0);
    let written = write_sample(&args.dense, args.k, &args.output, &mut |done, all| {
        bar.set_length(all.0);
        bar.set_position(done.0);
        if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    bar.finish_and_clear();
    if args.json {
        return super::print_json(
            &serde_json::json!({"path": written.path.display().to_string(), "bytes": written.bytes.0}),
        );
    }
    writeln!(std::io::stdout(), "wrote {} ({})", written.path.display(), written.bytes)?;
    Ok(())
}
