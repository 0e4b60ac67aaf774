//! What each card holds, and the host for it.

use super::error::PlanError;
use super::home::{Home, Homes};
use super::kv::KvPlan;
use super::memory::{self, Buffer, Use};
use super::parts::{HostPlan, StagePlan};
use super::pool::{self, ExpertsPlan};
use super::request::{CardBudget, Request};
use super::share::HostShare;
use super::split::{Split, stage_needs};
use super::{refuse, wave};
use crate::card::CardKind;
use crate::units::Bytes;

/// What lives where.
pub(super) struct Placed {
    /// The cards, whose memory is less than was asked for where virtual ones share the host's.
    pub cards: Vec<CardBudget>,
    pub wave: usize,
    pub stages: Vec<StagePlan>,
    pub host: HostPlan,
}

/// How often virtual cards are made smaller until they and the host's buffers share its memory: buffers depend on the
/// wave, and that on the card's memory.
const SHRINKS: usize = 6;

/// Places layers, cells and experts.
///
/// # Errors
/// Where a card's memory or the host's is too small.
pub(super) fn place(request: &Request<'_>) -> Result<Placed, PlanError> {
    let mut request = request.clone();
    for _ in 0..SHRINKS {
        let wave = wave::choose(&request);
        let (stages, host) = with_host(&request, wave)?;
        let over = host.taken().0.saturating_sub(host.budget.0);
        if over == 0 || !host.shared {
            refuse::check_host(&host)?;
            return Ok(Placed { cards: request.cards, wave, stages, host });
        }
        let each = over.div_ceil(stages.len().max(1) as u64);
        for (card, stage) in request.cards.iter_mut().zip(&stages) {
            card.memory = Bytes(stage.total().0.saturating_sub(each));
        }
    }
    let wave = wave::choose(&request);
    let (stages, host) = with_host(&request, wave)?;
    refuse::check_host(&host)?;
    Ok(Placed { cards: request.cards, wave, stages, host })
}

/// Stages and host. Where the host has no room for all experts that residents make way for, residents stay.
fn with_host(request: &Request<'_>, wave: usize) -> Result<(Vec<StagePlan>, HostPlan), PlanError> {
    let stages = lay_out(request, wave, true)?;
    let host = host(request, &stages);
    if host.file_experts == 0 {
        return Ok((stages, host));
    }
    let staying = lay_out(request, wave, false)?;
    let kept = self::host(request, &staying);
    Ok(if kept.file_bytes < host.file_bytes { (staying, kept) } else { (stages, host) })
}

/// The stages of all cards for waves of at most `wave` tokens. With `give_way` off, the planner's ring takes no
/// resident's slot.
fn lay_out(request: &Request<'_>, wave: usize, give_way: bool) -> Result<Vec<StagePlan>, PlanError> {
    let layers = request.spec.layers.len();
    let split = Split::new(request, wave);
    let cards = split.cards();
    let ranges = split.best().ok_or_else(|| refuse::too_small(request, wave))?;
    let kv = KvPlan::choose(request);
    let mut stages = Vec::with_capacity(cards);
    for (card, range) in request.cards.iter().zip(ranges) {
        let needs = stage_needs(request, card, range.clone(), wave, cards);
        let free = card.memory.len().saturating_sub(needs.total());
        let experts = pool::lay_out(request, card, range.clone(), &needs, free, give_way)?;
        let mut buffers = needs.buffers();
        if let Some(experts) = &experts {
            buffers.push(Buffer { of: Use::Pool, bytes: Bytes((experts.slots * experts.slot_bytes) as u64) });
        }
        stages.push(StagePlan {
            card: card.id,
            name: card.name.clone(),
            kind: card.kind,
            head: range.end == layers,
            budget: card.memory,
            host: memory::host_stage(request, range.clone(), wave),
            host_share: kv.streams().then(|| HostShare::choose(request, &kv, card, &range)),
            layers: range,
            buffers,
            experts,
        });
    }
    Ok(stages)
}

/// What the host holds for these stages.
fn host(request: &Request<'_>, stages: &[StagePlan]) -> HostPlan {
    let buffers = stages.iter().map(|stage| stage.host.total()).sum::<usize>();
    let virtual_cards = || stages.iter().filter(|stage| stage.kind == CardKind::Virtual);
    let weights = |stage: &StagePlan| Bytes((stage.bytes(Use::Weights) + stage.bytes(Use::Head)) as u64);
    let in_place: Bytes = virtual_cards().map(weights).sum();
    // A head that is the embedding table is counted with its card's weights.
    let spec = request.spec;
    let counted = spec.is_tied() && stages.last().is_some_and(|stage| stage.kind == CardKind::Virtual);
    let embedding = if counted { 0 } else { spec.embedding.bytes };
    let mut host = HostPlan {
        budget: request.host.memory,
        arena: Bytes(0),
        buffers: Bytes(buffers as u64),
        cards: virtual_cards().map(|stage| Bytes(stage.total().0 - weights(stage).0)).sum(),
        in_place: in_place + Bytes(embedding as u64),
        shared: request.host.shared,
        file_experts: 0,
        file_bytes: Bytes(0),
        disk: request.host.disk,
        homes: Homes::default(),
    };
    let pools: Vec<&ExpertsPlan> = stages.iter().filter_map(|stage| stage.experts.as_ref()).collect();
    let room = host.budget.0.saturating_sub(host.taken().0);
    host.homes = Homes::choose(spec, &pools, Bytes(room).len());
    host.arena = host.homes.count(spec, Home::Arena).1;
    (host.file_experts, host.file_bytes) = host.homes.count(spec, Home::File);
    host
}
