//! Which layers each card runs: contiguous ranges that fit by bytes and keep the slowest card's work smallest.

use std::ops::Range;

use super::memory::{self, Buffer, Use};
use super::{CardBudget, PlanError, Request, StagePlan, pool};
use crate::topology::{Switch, Wave};
use crate::units::Bytes;

/// Waves the planner tries, largest first, when the settings leave the size to it.
const WAVES: [usize; 10] = [8192, 4096, 2048, 1024, 512, 256, 128, 64, 32, 16];

/// A wave's buffers may take one part in this many of a card's memory when the planner chooses.
const WAVE_SHARE: usize = 4;

/// Bytes a card reads from its own memory in the time in which this fraction of them crosses the link; only to break ties between
/// splits that stream alike.
const LOCAL_SPEEDUP: f64 = 40.0;

/// The most tokens that pass through a layer together.
pub(super) fn choose_wave(request: &Request<'_>) -> Result<usize, PlanError> {
    let context = request.settings.context as usize;
    if let Wave::Tokens(tokens) = request.settings.prompt.wave {
        return Ok((tokens as usize).min(context));
    }
    let smallest = request.cards.iter().map(|card| card.memory.len()).min().unwrap_or(0);
    let mut last = None;
    for wave in WAVES.into_iter().filter(|wave| *wave <= context).chain([context.min(16)]) {
        match stages(request, wave) {
            Ok(stages) => {
                let work = stages.iter().map(work_bytes).max().unwrap_or(0);
                if work <= smallest / WAVE_SHARE || wave <= 16 {
                    return Ok(wave);
                }
                last = Some(Ok(wave));
            }
            Err(error) => last = Some(last.and_then(Result::ok).map_or(Err(error), Ok)),
        }
    }
    last.unwrap_or(Ok(context))
}

fn work_bytes(stage: &StagePlan) -> usize {
    let kept = [Use::Weights, Use::Head, Use::Kv, Use::Pool];
    stage.buffers.iter().filter(|buffer| !kept.contains(&buffer.of)).map(|buffer| buffer.bytes.len()).sum()
}

/// Whether the stream skips unrouted experts: `auto` waits for measurements on real cards and is off until then.
pub(super) fn routed_stream(wanted: Switch) -> bool {
    matches!(wanted, Switch::On)
}

/// The stages of all cards for waves of at most `wave` tokens.
pub(super) fn stages(request: &Request<'_>, wave: usize) -> Result<Vec<StagePlan>, PlanError> {
    let layers = request.spec.layers.len();
    let cards = request.cards.len().min(layers);
    let ranges = best_split(request, cards, layers, wave)?;
    let mut stages = Vec::with_capacity(cards);
    for (card, range) in request.cards.iter().zip(ranges) {
        let mut buffers = memory::stage(request, card, range.clone(), wave, cards);
        let fixed = total(&buffers);
        let experts = pool::lay_out(request, card, range.clone(), card.memory.len().saturating_sub(fixed))?;
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
            layers: range,
            buffers,
            experts,
        });
    }
    Ok(stages)
}

fn total(buffers: &[Buffer]) -> usize {
    buffers.iter().map(|buffer| buffer.bytes.len()).sum()
}

/// A card's time for a range of layers, in seconds of its link; `None` when it does not fit or a pin forbids it.
fn cost(request: &Request<'_>, card: &CardBudget, range: Range<usize>, wave: usize, cards: usize) -> Option<f64> {
    if !allowed(request, card, &range) {
        return None;
    }
    let fixed = total(&memory::stage(request, card, range.clone(), wave, cards));
    let free = card.memory.len().checked_sub(fixed)?;
    if free < pool::smallest(request, card, range.clone()) {
        return None;
    }
    let experts = pool::totals(request.spec, range);
    let bytes = experts.count * experts.slot_bytes;
    let streamed = bytes.saturating_sub(free) as f64;
    Some((streamed + (fixed + bytes) as f64 / LOCAL_SPEEDUP) / card.link.0)
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

/// Exact search: the contiguous split whose slowest card is fastest; the first cards get the shorter ranges on ties.
pub(super) fn best_split(
    request: &Request<'_>,
    cards: usize,
    layers: usize,
    wave: usize,
) -> Result<Vec<Range<usize>>, PlanError> {
    // best[c][end]: the slowest time of the first c cards running layers 0..end, and where the last of them starts.
    let mut best: Vec<Vec<Option<(f64, usize)>>> = vec![vec![None; layers + 1]; cards + 1];
    let at = |best: &Vec<Vec<Option<(f64, usize)>>>, c: usize, end: usize| {
        best.get(c).and_then(|row| row.get(end)).copied().flatten()
    };
    if let Some(start) = best.get_mut(0).and_then(|row| row.get_mut(0)) {
        *start = Some((0.0, 0));
    }
    for (c, card) in request.cards.iter().take(cards).enumerate() {
        for end in c + 1..=layers {
            let mut found: Option<(f64, usize)> = None;
            for start in c..end {
                let Some((before, _)) = at(&best, c, start) else { continue };
                if let Some(cost) = cost(request, card, start..end, wave, cards) {
                    let slowest = before.max(cost);
                    if found.is_none_or(|(least, _)| slowest < least) {
                        found = Some((slowest, start));
                    }
                }
            }
            if let Some(cell) = best.get_mut(c + 1).and_then(|row| row.get_mut(end)) {
                *cell = found;
            }
        }
    }
    let mut ranges = Vec::with_capacity(cards);
    let mut end = layers;
    for c in (1..=cards).rev() {
        let Some((_, start)) = at(&best, c, end) else {
            return Err(super::refuse::too_small(request, cards, wave));
        };
        ranges.push(start..end);
        end = start;
    }
    ranges.reverse();
    Ok(ranges)
}
