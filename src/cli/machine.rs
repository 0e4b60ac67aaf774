//! The arguments that say what runs where, and the way from them to a loaded engine.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};

use crate::card::cuda::CompilerSettings;
use crate::card::timeline::Timeline;
use crate::engine::{Engine, Presence, Rig, RigOptions};
use crate::gguf::Gguf;
use crate::model::Model;
use crate::plan::{self, HandOffPlan, HandOffWay, Plan};
use crate::topology::{CardAddress, Topology};
use crate::units::{Bytes, Rate};

/// What runs where.
#[derive(clap::Args)]
pub struct MachineArgs {
    /// The model: a GGUF file, or the first part of a split one.
    #[arg(short, long, value_name = "FILE")]
    pub model: PathBuf,
    /// The rig and how to run on it. Without it: one virtual card with this machine's memory.
    #[arg(short, long, value_name = "FILE")]
    pub topology: Option<PathBuf>,
    /// Tokens of a sequence, prompt and answer together [default: what the topology says, at most what the model was
    /// made for].
    #[arg(short, long, value_name = "TOKENS", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub context: Option<u32>,
    /// Whether streamed KV cells are copied ahead (0 or 1); overrides kv.prefetch.
    #[arg(long, env = "STRATA_KV_PREFETCH", value_name = "0|1", value_parser = kv_prefetch, hide_short_help = true)]
    pub kv_prefetch: Option<bool>,
    /// Whether the prompt stream skips unrouted experts (0 or 1); overrides prompt.routed_stream.
    #[arg(long, env = "STRATA_PREFILL_ROUTED_STREAM", value_name = "0|1", value_parser = routed_stream, hide_short_help = true)]
    pub routed_stream: Option<bool>,
    /// CPU workers; overrides rig.host.workers.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: Option<u32>,
    /// GPUs that may be used, by index, UUID or PCI address; indices of the topology count among them. `none`: the CPU
    /// computes.
    #[arg(long, value_name = "GPUS", value_parser = devices, hide_short_help = true)]
    pub devices: Option<Devices>,
    /// Refuses to run where a declared GPU is missing, or hidden states cannot cross as run.hand_off asks.
    #[arg(long, hide_short_help = true)]
    pub strict: bool,
    #[command(flatten)]
    pub kernels: KernelArgs,
    /// Runs the kernels, limits and launches of an earlier compute capability (75, 80, 86, 89) on a newer GPU, for
    /// tests and measurements.
    #[arg(long, env = "AQUEDUCT_KERNELS_FOR", value_name = "ARCH", value_parser = super::kernels::arch, hide = true)]
    pub kernels_for: Option<u32>,
    /// Puts guard bands around each region of a GPU and looks at them at the end (slow).
    #[arg(long, hide = true)]
    pub guard_regions: bool,
    /// Proves while running that everything is ordered (slow).
    #[arg(long, hide_short_help = true)]
    pub check_order: bool,
}

/// Where GPU kernels come from.
#[derive(clap::Args)]
pub struct KernelArgs {
    /// Keeps compiled GPU kernels in this folder [default: ~/.cache/aqueduct].
    #[arg(long, value_name = "FOLDER", env = "AQUEDUCT_KERNEL_CACHE", hide_short_help = true)]
    pub kernel_cache: Option<PathBuf>,
    /// The CUDA run-time compiler: libnvrtc.so or the folder that holds it [default: the usual places].
    #[arg(long, value_name = "PATH", env = "AQUEDUCT_NVRTC", hide_short_help = true)]
    pub nvrtc: Option<PathBuf>,
    /// A folder of kernels as PTX, for machines without the compiler [default: aqueduct-kernels beside the program].
    #[arg(long, value_name = "FOLDER", env = "AQUEDUCT_KERNEL_PTX", hide_short_help = true)]
    pub kernel_ptx: Option<PathBuf>,
}

impl KernelArgs {
    /// The compiler, its cache, and what the release carries.
    pub fn compiler(&self) -> CompilerSettings {
        let home = || Some(std::env::home_dir()?.join(".cache/aqueduct"));
        CompilerSettings {
            nvrtc: self.nvrtc.clone(),
            cache: self.kernel_cache.clone().or_else(home),
            packaged: self.kernel_ptx.clone().or_else(packaged),
            kernels_for: None,
        }
    }
}

/// The folder of PTX that a release has beside its program, or where programs are installed.
fn packaged() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?;
    let places = [folder.join("aqueduct-kernels"), folder.join("../share/aqueduct/kernels")];
    places.into_iter().find(|place| place.is_dir())
}

/// A list of GPUs.
#[derive(Clone, Debug)]
pub struct Devices(Vec<CardAddress>);

fn devices(text: &str) -> Result<Devices, String> {
    if text == "none" {
        return Ok(Devices(Vec::new()));
    }
    text.split(',').map(str::parse).collect::<Result<_, _>>().map(Devices)
}

fn kv_prefetch(text: &str) -> Result<bool, String> {
    switch(text, "STRATA_KV_PREFETCH")
}

fn routed_stream(text: &str) -> Result<bool, String> {
    switch(text, "STRATA_PREFILL_ROUTED_STREAM")
}

/// clap names only the option, wherever the value came from.
fn switch(text: &str, variable: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        other => Err(format!("`{other}` is neither 0 nor 1; if you gave no such option, look at {variable}")),
    }
}

impl MachineArgs {
    /// Reads the topology with the arguments' overrides.
    pub fn topology(&self, model: &Model) -> anyhow::Result<Topology> {
        let mut topology = match &self.topology {
            Some(path) => Topology::load(path)?,
            None => Topology::cpu_only(),
        };
        let run = &mut topology.run;
        run.override_kv_prefetch(self.kv_prefetch);
        run.override_routed_stream(self.routed_stream);
        let most = u32::try_from(model.spec.context).unwrap_or(u32::MAX);
        let asked = self.context.unwrap_or(run.context);
        if asked > most {
            // What nobody asked for is lowered without a word.
            let who = match (self.context, &self.topology) {
                (Some(_), _) => Some("--context".to_owned()),
                (None, Some(path)) => Some(path.display().to_string()),
                (None, None) => None,
            };
            if let Some(who) = who {
                tracing::warn!("{who}: the context is {asked} tokens, the model was made for {most}: {most} are used");
            }
        }
        run.context = asked.min(most);
        if let Some(workers) = self.workers {
            topology.host.workers = workers;
        }
        Ok(topology)
    }

    /// As [`MachineArgs::topology`], cut down to the cards that are there; what is missing is said in one line.
    pub fn present(&self, model: &Model) -> anyhow::Result<Topology> {
        let devices = self.devices.as_ref().map(|devices| devices.0.clone());
        let present = Presence { devices, strict: self.strict }.of(&self.topology(model)?)?;
        if let Some(note) = &present.note {
            tracing::warn!("{note}");
        }
        Ok(present.topology)
    }

    /// The files that are read: all of the model's, and the topology.
    pub fn inputs(&self) -> Vec<PathBuf> {
        Gguf::files(&self.model).into_iter().chain(self.topology.clone()).collect()
    }

    /// Opens the model.
    pub fn open_model(&self) -> anyhow::Result<Arc<Model>> {
        open_model(&self.model)
    }

    /// Makes the plan.
    pub fn plan(&self, model: &Model, topology: &Topology) -> anyhow::Result<Plan> {
        make_plan(model, topology)
    }

    /// How the rig is opened.
    pub fn rig_options(&self, timeline: Option<Timeline>) -> RigOptions {
        let compiler = CompilerSettings { kernels_for: self.kernels_for, ..self.kernels.compiler() };
        RigOptions {
            timeline,
            check_order: self.check_order,
            strict: self.strict,
            compiler,
            guard_regions: self.guard_regions,
        }
    }

    /// Loads the engine, with a progress bar on a terminal.
    pub fn load(&self, model: Arc<Model>, timeline: Option<Timeline>) -> anyhow::Result<Engine> {
        let topology = self.present(&model)?;
        let plan = self.plan(&model, &topology)?;
        for note in &plan.notes {
            tracing::info!("{note}");
        }
        load_engine(model, plan, &topology, &self.rig_options(timeline))
    }
}

/// Opens a model file.
pub fn open_model(path: &Path) -> anyhow::Result<Arc<Model>> {
    Ok(Arc::new(Model::open(path)?))
}

/// The plan of a model on a rig.
pub fn make_plan(model: &Model, topology: &Topology) -> anyhow::Result<Plan> {
    plan::for_topology(&model.spec, topology).context("no plan fits")
}

/// Loads an engine with a progress bar.
pub fn load_engine(model: Arc<Model>, plan: Plan, topology: &Topology, options: &RigOptions) -> anyhow::Result<Engine> {
    let rig = Rig::open(topology, &model.spec, options)?;
    let planned = plan.hand_offs.clone();
    let (begin, bytes) = (Instant::now(), Engine::load_bytes(&model, &plan));
    let bar = progress("loading", bytes.0);
    let engine = Engine::load(model, plan, &rig, &|bytes: Bytes| bar.inc(bytes.0))?;
    bar.finish_and_clear();
    let seconds = begin.elapsed().as_secs_f64();
    let locking = rig.host.locking();
    if let Some(reason) = &locking.refused {
        let rest = Bytes(locking.wanted.0 - locking.locked.0);
        tracing::warn!(
            "{} of {} of host memory are page-locked, the other {rest} crosses links through page-locked staging buffers, more slowly: {reason}",
            locking.locked,
            locking.wanted
        );
    }
    tracing::info!("loaded {bytes} in {seconds:.2} s, {}", Rate(bytes.0 as f64 / seconds));
    tell_hand_offs(&engine, &planned, topology, options.strict)?;
    Ok(engine)
}

/// Says which way hidden states take and why: a warning where it is not the one that was asked for or planned. With
/// `strict`, one that was not asked for is refused.
fn tell_hand_offs(engine: &Engine, planned: &[HandOffPlan], topology: &Topology, strict: bool) -> anyhow::Result<()> {
    let plan = engine.plan();
    let asked = HandOffWay::asked(topology.run.hand_off);
    for (used, planned) in plan.hand_offs.iter().zip(planned) {
        let (from, to) = (plan.name_of(used.from), plan.name_of(used.to));
        let line = format!("hidden states go from {from} to {to} {}: {}", used.way.name(), used.why);
        if strict && asked.is_some_and(|asked| asked != used.way) {
            anyhow::bail!("{line}; run.hand_off asks for another way, and --strict for no less");
        }
        if used.way == asked.unwrap_or(planned.way) {
            tracing::info!("{line}");
        } else {
            tracing::warn!("{line}");
        }
    }
    Ok(())
}

/// A progress bar over bytes; quiet when standard error is no terminal.
pub fn progress(what: &'static str, bytes: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg:>10} [{bar:32}] {bytes}/{total_bytes} {bytes_per_sec} {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(bytes).with_style(style.progress_chars("=> ")).with_message(what)
}
