//! `aqueduct kernels`: compiles GPU kernels ahead, into the cache that cards read, or as PTX into a folder for machines
//! without the compiler.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use serde::Serialize;

use super::machine::KernelArgs;
use crate::card::cuda::{Built, Compiler, CompilerSettings, Form, Module, PACKAGED, Target, driver_version, probe};
use crate::units::Bytes;

/// Arguments of `kernels`.
#[derive(clap::Args)]
pub struct Args {
    /// Compute capabilities to build for, such as `86,120` [default: those of the GPUs that are present].
    #[arg(long, value_name = "ARCHS", value_delimiter = ',', value_parser = arch)]
    arch: Vec<u32>,
    /// Writes PTX, which the driver compiles, into this folder. A program with the folder `aqueduct-kernels` beside it
    /// needs no compiler. Without --arch for 75, 80, 86, 89, 90 and 120; the driver must be at least as new as the
    /// compiler is here.
    #[arg(long, value_name = "FOLDER")]
    ptx: Option<PathBuf>,
    #[command(flatten)]
    kernels: KernelArgs,
    /// Prints what was built as JSON.
    #[arg(long)]
    json: bool,
}

/// Takes `86`, `8.6` and `sm_86`.
pub fn arch(text: &str) -> Result<u32, String> {
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
    let mut archs: BTreeSet<u32> = args.arch.iter().copied().collect();
    let (form, folder) = match &args.ptx {
        Some(folder) => (Form::Ptx, folder.clone()),
        None => {
            let none = "there is no home folder for the kernels; name one with --kernel-cache";
            (Form::Cubin, settings.cache.clone().context(none)?)
        }
    };
    match form {
        Form::Ptx if archs.is_empty() => archs.extend(PACKAGED),
        Form::Cubin if archs.is_empty() => {
            archs.extend(probe()?.iter().map(|device| device.arch));
            ensure!(!archs.is_empty(), "no NVIDIA GPU is present; name what to build for, such as --arch 86");
        }
        _ => {}
    }
    // PTX is for other machines: this one's driver does not bound its version.
    let driver = if form == Form::Ptx { (driver_version().0, u32::MAX) } else { driver_version() };
    let compiler = Compiler::new(CompilerSettings { cache: Some(folder.clone()), ..settings }, driver);
    let mut rows = Vec::new();
    for arch in archs {
        let begin = Instant::now();
        let target = Target { arch, form };
        let built = compiler.build(target, &Module::all(arch))?;
        if let Some(reason) = compiler.unkept() {
            bail!("the kernels were compiled but cannot be kept: {reason}");
        }
        let seconds = begin.elapsed().as_secs_f64();
        let row = Row { arch, modules: built.iter().map(|built| module_row(built, arch)).collect(), seconds };
        if !args.json {
            print(target, &row, &folder)?;
        }
        rows.push(row);
    }
    if args.json { super::print_json(&rows) } else { Ok(()) }
}

fn module_row(built: &Built, arch: u32) -> ModuleRow {
    ModuleRow {
        module: built.module.to_string(),
        kernels: built.module.kernels(arch).len(),
        bytes: built.code.len(),
        cached: built.cached,
    }
}

fn print(target: Target, row: &Row, folder: &Path) -> anyhow::Result<()> {
    let made: Vec<&str> =
        row.modules.iter().filter(|module| !module.cached).map(|module| module.module.as_str()).collect();
    let bytes: usize = row.modules.iter().map(|module| module.bytes).sum();
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{target}: {} modules, {} in {}; {} built in {:.1} s{}{}",
        row.modules.len(),
        Bytes(bytes as u64),
        folder.display(),
        made.len(),
        row.seconds,
        if made.is_empty() { "" } else { ": " },
        made.join(" ")
    )?;
    Ok(())
}
