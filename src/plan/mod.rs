//! The plan: what each card holds and what streams over which link.
//!
//! [`plan`] turns a [`Request`] (a model, cards with budgets, settings) into a [`Plan`], or says what does not fit and the
//! smallest change that would make it fit. It allocates nothing; the engine allocates exactly what [`memory`] lists.

mod explain;
mod handoff;
mod kv;
pub mod memory;
mod needs;
mod pool;
mod refuse;
mod share;
mod split;
mod switches;

use std::ops::Range;

use serde::Serialize;

pub use handoff::{Crossing, HandOffPlan, HandOffWay};
pub use kv::KvPlan;
pub use memory::{Buffer, Use};
pub use pool::{ExpertsPlan, Placement};
pub use refuse::PlanError;
pub use share::HostShare;

use crate::card::CardKind;
use crate::model::ModelSpec;
use crate::topology::{Flops, RunSettings};
use crate::units::{Bytes, CardId, Rate};

/// One card as the planner sees it.
#[derive(Clone, Debug)]
pub struct CardBudget {
    /// Its place in the rig.
    pub id: CardId,
    /// Its name in the topology.
    pub name: String,
    /// What it is.
    pub kind: CardKind,
    /// Memory the engine may use: the card's memory less its reserve.
    pub memory: Bytes,
    /// Rate from host to card while all cards stream.
    pub link: Rate,
    /// Rate at which it reads its own memory.
    pub rate: Rate,
    /// Operations a second that prompts reach on it, where that is known.
    pub compute: Option<Flops>,
    /// What hidden states can have from the card before it.
    pub crossing: Crossing,
}

/// The host as the planner sees it.
#[derive(Clone, Copy, Debug)]
pub struct HostBudget {
    /// Memory the engine may use.
    pub memory: Bytes,
    /// CPU threads that compute.
    pub workers: usize,
    /// What its memory gives them while all cards stream.
    pub rate: Rate,
}

/// What a plan is made for.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The model.
    pub spec: &'a ModelSpec,
    /// The cards that are present, in stage order.
    pub cards: Vec<CardBudget>,
    /// The host.
    pub host: HostBudget,
    /// How the model is to run.
    pub settings: &'a RunSettings,
}

/// What runs where. Everything the engine allocates and decides follows from it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The stages, in layer order.
    pub stages: Vec<StagePlan>,
    /// The host's share.
    pub host: HostPlan,
    /// Tokens of one sequence.
    pub context: usize,
    /// Sequences kept at the same time.
    pub sequences: usize,
    /// The KV cache.
    pub kv: KvPlan,
    /// Most tokens that pass through a layer together.
    pub wave: usize,
    /// Rows of a wave that attention takes at a time.
    pub attention_rows: usize,
    /// Rows of a wave that dense FFNs take at a time.
    pub row_block: usize,
    /// How prompts are read.
    pub prompt: PromptPlan,
    /// How hidden states cross between stages, in their order.
    pub hand_offs: Vec<HandOffPlan>,
    /// Decisions that deserve a sentence.
    pub notes: Vec<String>,
}

/// What one card does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StagePlan {
    /// The card.
    pub card: CardId,
    /// Its name in the topology.
    pub name: String,
    /// What it is.
    #[serde(skip)]
    pub kind: CardKind,
    /// Its layers.
    pub layers: Range<usize>,
    /// Whether it holds the final norm and the output head.
    pub head: bool,
    /// Memory the engine may use.
    pub budget: Bytes,
    /// Every buffer.
    pub buffers: Vec<Buffer>,
    /// What it needs of the host.
    pub host: memory::HostBuffers,
    /// Who attends streamed cells in decode; `None` when every cell lives on a card.
    pub host_share: Option<HostShare>,
    /// The expert pool; `None` for layers without experts.
    pub experts: Option<ExpertsPlan>,
}

/// What host memory holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostPlan {
    /// Memory the engine may use.
    pub budget: Bytes,
    /// The expert arena, page-locked where a card can lock it.
    pub arena: Bytes,
    /// Hand-off and staging buffers.
    pub buffers: Bytes,
}

/// How prompts are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PromptPlan {
    /// Tokens of a wave up to which the stream skips experts that no token routes to: 0 never, [`Plan::wave`] always.
    pub routed_upto: usize,
    /// Copies kept queued ahead of the link.
    pub depth: usize,
    /// Tokens of a wave from which on experts stream ahead of the router.
    pub floor: usize,
    /// Streamed experts that one command computes at most.
    pub group: usize,
    /// Whether the host pool computes, below the floor, what the card does not hold; else it is copied.
    pub host_pool: bool,
}

impl StagePlan {
    /// All bytes of the card.
    pub fn total(&self) -> Bytes {
        self.buffers.iter().map(|buffer| buffer.bytes).sum()
    }

    /// Bytes of one buffer, zero when the stage has none of it.
    pub fn bytes(&self, of: Use) -> usize {
        self.buffers.iter().filter(|buffer| buffer.of == of).map(|buffer| buffer.bytes.len()).sum()
    }
}

/// Streamed experts that one command computes: few launches, while at least half of a small ring and three quarters of a larger one go on receiving.
/// A ring that holds a large layer has time for halves. (On an H200 four commands a layer of 128 took a quarter longer than one; with 64 slots
/// halves were slower.)
fn group(ring: usize) -> usize {
    if ring >= 128 { 64 } else { (ring / 2).min(8).max(ring / 4).max(1) }
}

/// Makes the plan of a request.
///
/// # Errors
/// [`PlanError`] with the card, the bytes and the smallest change when it cannot fit, or the setting that cannot act.
pub fn plan(request: &Request<'_>) -> Result<Plan, PlanError> {
    refuse::check_settings(request)?;
    let wave = split::choose_wave(request);
    let stages = split::stages(request, wave)?;
    let host = memory::host(request, &stages);
    refuse::check_host(request, &host)?;
    let mut kv = KvPlan::choose(request);
    let prefetch = switches::prefetch(request, &kv, &stages, wave);
    let routed_stream = switches::routed_stream(request, &kv, &stages, wave);
    kv.prefetch = prefetch.on && kv.streams();
    let settings = request.settings;
    let ring =
        stages.iter().filter_map(|stage| stage.experts.as_ref()).map(|experts| experts.ring).filter(|n| *n > 0).min();
    let mut plan = Plan {
        host,
        context: settings.context as usize,
        sequences: settings.sequences as usize,
        kv,
        wave,
        attention_rows: memory::attention_rows(&request.cards, &kv, wave),
        row_block: memory::row_block(&request.cards, wave),
        prompt: PromptPlan {
            routed_upto: routed_stream.upto,
            depth: settings.prompt.depth as usize,
            floor: settings.prompt.floor as usize,
            host_pool: settings.prompt.host_pool,
            group: ring.map_or(1, group),
        },
        hand_offs: handoff::choose(request, &stages),
        notes: Vec::new(),
        stages,
    };
    plan.notes = explain::notes(request, &plan);
    let hand_off = handoff::note(request, &plan.stages);
    plan.notes.extend([routed_stream.note, prefetch.note, hand_off].into_iter().flatten());
    Ok(plan)
}
