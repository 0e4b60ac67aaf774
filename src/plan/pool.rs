//! The expert pool of a stage: how many slots, which experts live in them, which of those give way to the prompt ring.

use std::ops::Range;

use serde::Serialize;

use super::error::PlanError;
use super::needs::Needs;
use super::request::{CardBudget, Request};
use crate::model::{ExpertsSpec, Ffn, ModelSpec};
use crate::topology::Ring;
use crate::units::Bytes;

/// An expert of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Placement {
    /// The layer.
    pub layer: usize,
    /// The expert.
    pub expert: usize,
}

impl Placement {
    /// What a table by layer and expert says of it.
    pub(super) fn of_mut<T>(self, table: &mut [Vec<T>]) -> Option<&mut T> {
        table.get_mut(self.layer)?.get_mut(self.expert)
    }
}

/// The expert pool of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExpertsPlan {
    /// Slots of the pool.
    pub slots: usize,
    /// Bytes of a slot: the largest blob of the stage.
    pub slot_bytes: usize,
    /// Experts that live on the card, slot by slot from slot 0. The last `displaced` of them give way to the ring
    /// during a streamed prompt, and the `staged` before those to the staging pool during a prompt with streamed
    /// cells; both are copied back after it.
    #[serde(skip)]
    pub residents: Vec<Placement>,
    /// Slots of the staging pool, which are lent during prompts with streamed cells.
    pub staging: usize,
    /// How many residents give way to the staging pool.
    pub staged: usize,
    /// How many residents give way to the ring during a streamed prompt.
    pub displaced: usize,
    /// Slots of the ring that no resident takes: the last of the pool.
    pub minimum: usize,
    /// Slots of the prompt ring, zero when every expert lives on the card at all times.
    pub ring: usize,
    /// Experts of the stage.
    pub experts: usize,
    /// Bytes of the stage's experts that do not live on the card during a streamed prompt.
    pub streamed: Bytes,
}

impl ExpertsPlan {
    /// Residents that never give way: the first so many.
    pub fn stays(&self) -> usize {
        self.residents.len() - self.displaced - self.staged
    }
}

/// The planner's ring holds the experts of a layer, so that they cross the link while the layer before is computed. It
/// takes at most half of the pool, but at least these slots.
const LEAST_AUTO_RING: usize = 8;

/// Slots that are kept free of residents when the settings leave them to the planner.
const MINIMUM: usize = 4;

/// Experts of the layers with their specs.
fn layers_of(spec: &ModelSpec, layers: Range<usize>) -> impl Iterator<Item = (usize, &ExpertsSpec)> {
    spec.layers.iter().enumerate().skip(layers.start).take(layers.len()).filter_map(|(i, layer)| match &layer.ffn {
        Ffn::Dense(_) => None,
        Ffn::Experts(experts) => Some((i, experts)),
    })
}

/// The fewest pool bytes with which the layers can run.
pub(super) fn smallest(request: &Request<'_>, card: &CardBudget, needs: &Needs) -> usize {
    if needs.experts == 0 {
        return 0;
    }
    let pinned =
        request.settings.pins.experts.iter().find(|pin| pin.card == card.id).map_or(0, |pin| pin.slots as usize);
    let ring = match request.settings.prompt.ring {
        Ring::Auto => 1,
        Ring::Slots(n) => n as usize,
        Ring::Bytes(bytes) => bytes.len() / needs.slot_bytes,
    };
    let staging = staging_slots(needs);
    ring.saturating_add(staging).max(pinned).clamp(1 + staging, needs.experts + staging) * needs.slot_bytes
}

/// Slots that the staging pool is lent.
fn staging_slots(needs: &Needs) -> usize {
    needs.staging.div_ceil(needs.slot_bytes.max(1))
}

/// Lays out the pool of a stage in `free` bytes of its card; `give_way` says whether residents may make way for the
/// planner's ring.
pub(super) fn lay_out(
    request: &Request<'_>,
    card: &CardBudget,
    layers: Range<usize>,
    all: &Needs,
    free: usize,
    give_way: bool,
) -> Result<Option<ExpertsPlan>, PlanError> {
    if all.experts == 0 {
        return Ok(None);
    }
    let pinned = request.settings.pins.experts.iter().find(|pin| pin.card == card.id).map(|pin| pin.slots as usize);
    let fitting = free / all.slot_bytes;
    if let Some(pinned) = pinned
        && pinned > fitting
    {
        return Err(PlanError::Pin {
            card: card.name.clone(),
            what: format!("{pinned} expert slots"),
            wanted: Bytes((pinned * all.slot_bytes) as u64),
            free: Bytes(free as u64),
            fix: format!("pin at most {fitting} slots"),
        });
    }
    let staging = staging_slots(all);
    let slots = pinned.unwrap_or(fitting).min(all.experts + staging);
    if slots <= staging {
        return Err(PlanError::Pin {
            card: card.name.clone(),
            what: format!("a staging pool of {staging} slots and the smallest prompt ring (1 slot)"),
            wanted: Bytes(((staging + 1) * all.slot_bytes) as u64),
            free: Bytes(free as u64),
            fix: "give the card more memory".to_owned(),
        });
    }
    let everything = slots == all.experts + staging;
    let layer = layers_of(request.spec, layers.clone()).map(|(_, experts)| experts.experts).max().unwrap_or(0);
    let (ring, minimum) =
        if everything { (0, 0) } else { ring(request, card, layer, slots - staging, all.slot_bytes, give_way)? };
    let own = slots - staging - ring;
    let residents = spread(request.spec, layers, if everything { all.experts } else { slots - minimum });
    let staged = (residents.len() - own).min(staging);
    let displaced = residents.len() - own - staged;
    let kept = residents.iter().take(own);
    let kept: usize = kept.map(|at| blob_bytes(request.spec, at.layer)).sum();
    Ok(Some(ExpertsPlan {
        slots,
        slot_bytes: all.slot_bytes,
        residents,
        staging,
        staged,
        displaced,
        minimum,
        ring,
        experts: all.experts,
        streamed: Bytes((all.expert_bytes - kept) as u64),
    }))
}

fn blob_bytes(spec: &ModelSpec, layer: usize) -> usize {
    match spec.layers.get(layer).map(|layer| &layer.ffn) {
        Some(Ffn::Experts(experts)) => experts.blob().bytes,
        _ => 0,
    }
}

/// Slots of the ring, and how many of them no resident takes.
fn ring(
    request: &Request<'_>,
    card: &CardBudget,
    layer: usize,
    slots: usize,
    slot_bytes: usize,
    give_way: bool,
) -> Result<(usize, usize), PlanError> {
    let wanted = match request.settings.prompt.ring {
        Ring::Auto if !give_way => MINIMUM.min(slots),
        Ring::Auto => layer.min((slots / 2).max(LEAST_AUTO_RING)).min(slots),
        Ring::Slots(n) => n as usize,
        Ring::Bytes(bytes) => (bytes.len() / slot_bytes).max(1),
    };
    if wanted > slots || wanted == 0 {
        return Err(PlanError::Pin {
            card: card.name.clone(),
            what: format!("a prompt ring of {wanted} slots"),
            wanted: Bytes((wanted * slot_bytes) as u64),
            free: Bytes((slots * slot_bytes) as u64),
            fix: format!("set prompt.ring to 1 to {slots} slots"),
        });
    }
    Ok((wanted, MINIMUM.min(wanted)))
}

/// `count` residents spread evenly over the layers, the lowest ids of each, ordered so that those of the last rank come
/// last: a ring displaces them from all layers alike.
fn spread(spec: &ModelSpec, layers: Range<usize>, count: usize) -> Vec<Placement> {
    let mut all: Vec<Placement> = layers_of(spec, layers)
        .flat_map(|(layer, experts)| (0..experts.experts).map(move |expert| Placement { layer, expert }))
        .collect();
    all.sort_by_key(|at| (at.expert, at.layer));
    all.truncate(count);
    all
}
