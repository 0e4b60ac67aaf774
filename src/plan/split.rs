//! Which layers each card runs: contiguous ranges that fit by bytes and keep the slowest card's work smallest.

use std::ops::Range;

use super::memory::{self, Buffer, Use};
use super::needs::Needs;
use super::{CardBudget, HostShare, KvPlan, PlanError, Request, StagePlan, pool};
use crate::card::CardKind;
use crate::topology::Wave;
use crate::units::Bytes;

/// Waves the planner tries, largest first, when the settings leave the size to it.
const WAVES: [usize; 10] = [8192, 4096, 2048, 1024, 512, 256, 128, 64, 32, 16];

/// A wave's buffers may take one part in this many of a card's memory when the planner chooses.
const WAVE_SHARE: usize = 4;

/// The smallest wave the planner chooses.
const SMALLEST_WAVE: usize = 16;

/// From this size on, larger waves are no faster where nothing streams and the CPU computes.
const MIDDLING_WAVE: usize = 512;

/// The most tokens that pass through a layer together: the largest size whose buffers take no more than their share of each
/// card, else the smallest one.
pub(super) fn choose_wave(request: &Request<'_>) -> usize {
    let context = request.settings.context as usize;
    if let Wave::Tokens(tokens) = request.settings.prompt.wave {
        return (tokens as usize).clamp(1, context);
    }
    let cards = request.cards.len().min(request.spec.layers.len());
    let needs_at = |wave: usize| -> Option<Vec<(&CardBudget, Needs)>> {
        let stages = request.cards.iter().zip(best_split(request, cards, wave)?);
        Some(stages.map(|(card, range)| (card, needs(request, card, range, wave, cards))).collect())
    };
    let streams = |(card, needs): &(&CardBudget, Needs)| {
        card.memory.len().saturating_sub(needs.total()) < needs.experts * needs.slot_bytes + needs.staging
    };
    let spare = |(card, needs): &(&CardBudget, Needs)| needs.work() <= card.memory.len() / WAVE_SHARE;
    // A large wave spares the link, for experts and streamed cells alike, and fills the tiles of a GPU; where neither counts it only takes memory. Where every expert fits
    // beside a wave of middling size, a larger one must not push any out.
    let resident = !KvPlan::choose(request).streams();
    let all_fits = resident && needs_at(MIDDLING_WAVE.min(context)).is_some_and(|all| !all.iter().any(streams));
    let gpus = request.cards.iter().all(|card| card.kind == CardKind::Cuda);
    let serves = |wave: &usize| {
        let Some(all) = needs_at(*wave) else { return false };
        let large = *wave > MIDDLING_WAVE && all_fits;
        all.iter().all(spare) && (!large || gpus && !all.iter().any(streams))
    };
    WAVES.into_iter().filter(|wave| *wave <= context).find(serves).unwrap_or(context.min(SMALLEST_WAVE))
}

/// What a card needs to run these layers.
fn needs(request: &Request<'_>, card: &CardBudget, range: Range<usize>, wave: usize, cards: usize) -> Needs {
    let layers = Needs::of_layers(request, card, wave);
    let head = (range.end == layers.len()).then(|| Needs::of_head(request, card, wave));
    let own = layers.get(range).unwrap_or_default().iter().chain(&head);
    own.fold(Needs::of_stage(request, card, wave, cards), |sum, layer| sum.and(layer)).stage()
}

/// The stages of all cards for waves of at most `wave` tokens.
pub(super) fn stages(request: &Request<'_>, wave: usize) -> Result<Vec<StagePlan>, PlanError> {
    let layers = request.spec.layers.len();
    let cards = request.cards.len().min(layers);
    let ranges = best_split(request, cards, wave).ok_or_else(|| super::refuse::too_small(request, cards, wave))?;
    let kv = KvPlan::choose(request);
    let mut stages = Vec::with_capacity(cards);
    for (card, range) in request.cards.iter().zip(ranges) {
        let needs = needs(request, card, range.clone(), wave, cards);
        let free = card.memory.len().saturating_sub(needs.total());
        let experts = pool::lay_out(request, card, range.clone(), &needs, free)?;
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

/// A card's time for a wave through the layers in `needs`, in seconds: what streams crosses the link, all is read once from the card's
/// memory. `None` when they do not fit.
fn cost(request: &Request<'_>, card: &CardBudget, needs: &Needs) -> Option<f64> {
    let fixed = needs.total();
    let free = card.memory.len().checked_sub(fixed)?;
    if free < pool::smallest(request, card, needs) {
        return None;
    }
    let streamed = needs.expert_bytes.saturating_sub(free) as f64;
    Some(streamed / card.link.0 + (fixed + needs.expert_bytes) as f64 / card.rate.0)
}

/// Whether the pins let the card run exactly this range.
fn allowed(request: &Request<'_>, card: &CardBudget, range: &Range<usize>) -> bool {
    request.settings.pins.layers.iter().all(|pin| {
        let mut covered = (0..request.spec.layers.len()).filter(|layer| pin.covers(*layer as u32));
        if pin.card == card.id {
            covered.all(|layer| range.contains(&layer))
        } else {
            !covered.any(|layer| range.contains(&layer))
        }
    })
}

/// The first cards' best way to run the first layers, and where the last of them starts.
#[derive(Clone, Copy)]
struct Best {
    slowest: f64,
    start: usize,
}

/// Exact search: the contiguous split whose slowest card is fastest; `None` when nothing fits.
pub(super) fn best_split(request: &Request<'_>, cards: usize, wave: usize) -> Option<Vec<Range<usize>>> {
    let layers = request.spec.layers.len();
    // Row c holds, for each end, the best way in which the first c cards run the layers before it.
    let mut rows = vec![vec![None; layers + 1]];
    if let Some(nothing) = rows.first_mut().and_then(|row| row.first_mut()) {
        *nothing = Some(Best { slowest: 0.0, start: 0 });
    }
    for card in request.cards.iter().take(cards) {
        let row = extend(request, card, rows.last()?, wave, cards);
        rows.push(row);
    }
    let mut ranges = Vec::with_capacity(cards);
    let mut end = layers;
    for row in rows.iter().skip(1).rev() {
        let best = (*row.get(end)?)?;
        ranges.push(best.start..end);
        end = best.start;
    }
    ranges.reverse();
    Some(ranges)
}

/// The best ways with one more card.
fn extend(
    request: &Request<'_>,
    card: &CardBudget,
    before: &[Option<Best>],
    wave: usize,
    cards: usize,
) -> Vec<Option<Best>> {
    let layers = Needs::of_layers(request, card, wave);
    let head = Needs::of_head(request, card, wave);
    let mut row: Vec<Option<Best>> = vec![None; before.len()];
    for (start, best) in before.iter().enumerate() {
        let Some(best) = best else { continue };
        let mut needs = Needs::of_stage(request, card, wave, cards);
        for (last, layer) in layers.iter().enumerate().skip(start) {
            needs = needs.and(layer);
            let end = last + 1;
            let all = if end == layers.len() { needs.and(&head) } else { needs }.stage();
            if !allowed(request, card, &(start..end)) {
                continue;
            }
            let Some(own) = cost(request, card, &all) else { continue };
            let slowest = own.max(best.slowest);
            if let Some(place) = row.get_mut(end)
                && place.is_none_or(|found| slowest < found.slowest)
            {
                *place = Some(Best { slowest, start });
            }
        }
    }
    row
}
