//! How many tokens pass through a layer together.

use super::kv::KvPlan;
use super::needs::Needs;
use super::request::{CardBudget, Request};
use super::split::{Split, stage_needs};
use crate::card::CardKind;
use crate::topology::Wave;

/// Waves the planner tries, largest first, when the settings leave the size to it.
const WAVES: [usize; 10] = [8192, 4096, 2048, 1024, 512, 256, 128, 64, 32, 16];

/// A wave's buffers may take one part in this many of a card's memory when the planner chooses.
const WAVE_SHARE: usize = 4;

/// The smallest wave the planner chooses.
const SMALLEST_WAVE: usize = 16;

/// From this size on, larger waves are no faster where nothing streams and the CPU computes.
const MIDDLING_WAVE: usize = 512;

/// The most tokens that pass through a layer together: the largest size whose buffers take no more than their share of
/// each card, else the smallest one.
pub(super) fn choose(request: &Request<'_>) -> usize {
    let context = request.settings.context as usize;
    if let Wave::Tokens(tokens) = request.settings.prompt.wave {
        return (tokens as usize).clamp(1, context);
    }
    let needs_at = |wave: usize| -> Option<Vec<(&CardBudget, Needs)>> {
        let split = Split::new(request, wave);
        let ranges = split.best()?;
        let stages = request.cards.iter().zip(ranges);
        Some(stages.map(|(card, range)| (card, stage_needs(request, card, range, wave, split.cards()))).collect())
    };
    let streams = |(card, needs): &(&CardBudget, Needs)| {
        card.memory.len().saturating_sub(needs.total()) < needs.experts * needs.slot_bytes + needs.staging
    };
    let spare = |(card, needs): &(&CardBudget, Needs)| needs.work() <= card.memory.len() / WAVE_SHARE;
    // A large wave spares the link, for experts and streamed cells alike, and fills the tiles of a GPU; where neither
    // counts it only takes memory. Where every expert fits beside a wave of middling size, a larger one must not
    // push any out.
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
