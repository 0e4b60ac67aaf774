//! The plan: what each card holds and what streams over which link.
//!
//! [`for_topology`] plans a model on a declared rig; [`plan`] does the same for a [`Request`] with the rates filled in.
//! Both make a [`Plan`], or say what does not fit and the smallest change that would make it fit. Nothing is allocated;
//! the engine allocates exactly what [`memory`] lists.

pub mod memory;

mod cost;
mod error;
mod explain;
mod handoff;
mod home;
mod kv;
mod needs;
mod notes;
mod parts;
mod pool;
mod refuse;
mod request;
mod share;
mod split;
mod stages;
mod switches;
mod wave;
mod waves;

pub use error::PlanError;
pub use handoff::{HandOffPlan, HandOffWay};
pub use home::{Home, Homes};
pub use kv::KvPlan;
pub use memory::{Buffer, Use};
pub use parts::{HostPlan, Plan, PromptPlan, StagePlan};
pub use pool::{ExpertsPlan, Placement};
pub use request::{CardBudget, Crossing, HostBudget, Request};
pub use share::HostShare;
pub use waves::Waves;

use crate::model::ModelSpec;
use crate::topology::Topology;

/// Streamed experts that one command computes: few launches, while at least half of a small ring and three quarters of
/// a larger one go on receiving. A ring that holds a large layer has time for halves.
fn group(ring: usize) -> usize {
    if ring >= 128 { 64 } else { (ring / 2).min(8).max(ring / 4).max(1) }
}

/// The plan of a model on a rig.
///
/// # Errors
/// As [`plan`].
pub fn for_topology(spec: &ModelSpec, topology: &Topology) -> Result<Plan, PlanError> {
    plan(&Request::new(spec, topology))
}

/// Makes the plan of a request.
///
/// # Errors
/// [`PlanError`] with the card, the bytes and the smallest change when it cannot fit, or the setting that cannot act.
pub fn plan(request: &Request<'_>) -> Result<Plan, PlanError> {
    refuse::check_settings(request)?;
    let placed = stages::place(request)?;
    let request = &Request { cards: placed.cards, ..request.clone() };
    let (wave, stages, host) = (placed.wave, placed.stages, placed.host);
    let mut kv = KvPlan::choose(request);
    let streams = switches::Streams { request, kv: &kv, stages: &stages, homes: &host.homes };
    let prefetch = streams.prefetch(wave);
    let routed_stream = streams.routed(wave);
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
        hand_offs: handoff::choose(request, stages.len()),
        notes: Vec::new(),
        stages,
    };
    plan.notes = notes::of(request, &plan);
    let hand_off = handoff::note(request, plan.stages.len());
    plan.notes.extend([routed_stream.note, prefetch.note, hand_off].into_iter().flatten());
    Ok(plan)
}
