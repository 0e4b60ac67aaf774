//! `aqueduct completions`: a completion script for a shell.

use std::io::Write as _;

use clap::CommandFactory as _;

/// Arguments of `completions`.
#[derive(clap::Args)]
pub struct Args {
    /// The shell.
    shell: clap_complete::Shell,
}

/// Prints the script.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Cli::command(), "aqueduct", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(())
}
