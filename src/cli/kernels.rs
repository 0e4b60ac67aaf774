//! `aqueduct kernels`: compiles GPU kernels ahead, into the cache that cards read.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use serde::Serialize;

use super::machine::KernelArgs;
use crate::card::cuda::{Built, Compiler, Module, driver_major, probe};
use crate::units::Bytes;

/// Arguments of `kernels`.
#[derive(clap::Args)]
pub struct Args {
    /// Compute capabilities to build for, such as `86,120` [default: those of the GPUs that are present].
    #[arg(long, value_name = "ARCHS", value_delimiter = ',', value_parser = arch)]
    arch: Vec<u32>,
    #[command(flatten)]
    kernels: KernelArgs,
    /// Prints what was built as JSON.
    #[arg(long)]
    json: bool,
}

/// Takes `86`, `8.6` and `sm_86`.
fn arch(text: &str) -> Result<u32, String> {
    let digits: String = text.trim_start_matches("sm_").chars().filter(|c| *c != '.').collect();
    match digits.parse() {
        Ok(number) if (75..1000).contains(&number) => Ok(number),
        Ok(_) => Err(format!("`{text}` is too old or not real: kernels exist from compute capability 7.5 on")),
        Err(_) => Err(format!("`{text}` is no compute capability, such as 86 or 8.6")),
    }
}

/// What was done for one architecture.
#[derive(Serialize)]
struct Row {
    arch: u32,
    modules: Vec<ModuleRow>,
    seconds: f64,
}

#[derive(Serialize)]
struct ModuleRow {
    module: String,
    kernels: usize,
    bytes: usize,
    cached: bool,
}

/// Builds and prints.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let settings = args.kernels.compiler();
    let cache =
        settings.cache.clone().context("there is no home folder for the kernels; name one with --kernel-cache")?;
    let mut archs: BTreeSet<u32> = args.arch.iter().copied().collect();
    if archs.is_empty() {
        archs.extend(probe()?.iter().map(|device| device.arch));
        ensure!(!archs.is_empty(), "no NVIDIA GPU is present; name what to build for, such as --arch 86");
    }
    let compiler = Compiler::new(settings, driver_major());
    let mut rows = Vec::new();
    for arch in archs {
        let begin = Instant::now();
        let built = compiler.build(arch, &Module::all(arch))?;
        let seconds = begin.elapsed().as_secs_f64();
        let row = Row { arch, modules: built.iter().map(|built| module_row(built, arch)).collect(), seconds };
        if !args.json {
            print(&row, &cache)?;
        }
        rows.push(row);
    }
    if args.json { super::print_json(&rows) } else { Ok(()) }
}

fn module_row(built: &Built, arch: u32) -> ModuleRow {
    ModuleRow {
        module: built.module.to_string(),
        kernels: built.module.kernels(arch).len(),
        bytes: built.cubin.len(),
        cached: built.cached,
    }
}

fn print(row: &Row, cache: &std::path::Path) -> anyhow::Result<()> {
    let made: Vec<&str> =
        row.modules.iter().filter(|module| !module.cached).map(|module| module.module.as_str()).collect();
    let bytes: usize = row.modules.iter().map(|module| module.bytes).sum();
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "sm_{}: {} modules, {} in {}; {} built in {:.1} s{}{}",
        row.arch,
        row.modules.len(),
        Bytes(bytes as u64),
        cache.display(),
        made.len(),
        row.seconds,
        if made.is_empty() { "" } else { ": " },
        made.join(" ")
    )?;
    Ok(())
}
