//! Refusals: what does not fit, where, by how much, and the smallest change that would make it fit.

use super::error::PlanError;
use super::handoff;
use super::parts::HostPlan;
use super::request::Request;
use super::split::Split;
use crate::ops::{ATTENTION_TILE, KvType};
use crate::topology::{ResidentCells, RunSettings};
use crate::units::Bytes;

/// Refuses settings that cannot act.
pub(super) fn check_settings(request: &Request<'_>) -> Result<(), PlanError> {
    let settings = request.settings;
    let unsupported = |setting, why: String| Err(PlanError::Unsupported { setting, why });
    if request.cards.is_empty() {
        return unsupported("rig.cards", "there is no card; declare one, `kind: virtual` for the CPU".to_owned());
    }
    let context = settings.context as usize;
    if context == 0 || context > request.spec.context.max(1) {
        let trained = request.spec.context;
        return unsupported(
            "run.context",
            format!("{context} tokens asked for, the model was made for 1 to {trained}"),
        );
    }
    if settings.sequences == 0 {
        return unsupported("run.sequences", "at least one sequence is needed".to_owned());
    }
    check_pins(request)?;
    handoff::check(request)
}

/// Refuses pins of layers and experts that the model does not have.
fn check_pins(request: &Request<'_>) -> Result<(), PlanError> {
    let (spec, pins) = (request.spec, &request.settings.pins);
    let unsupported = |setting, why: String| Err(PlanError::Unsupported { setting, why });
    let name = |id| request.cards.iter().find(|card| card.id == id).map_or("a card", |card| card.name.as_str());
    let layers = spec.layers.len();
    for pin in &pins.layers {
        let last = pin.last.unwrap_or(pin.first);
        if last.max(pin.first) as usize >= layers {
            let named = if last > pin.first { format!("{} to {last}", pin.first) } else { pin.first.to_string() };
            let why = format!(
                "{} is given layer {named}, but the model has layers 0 to {}; name layers that it has",
                name(pin.card),
                layers.saturating_sub(1)
            );
            return unsupported("run.pins.layers", why);
        }
    }
    let of_layers: Vec<usize> = spec.expert_layers().map(|(_, experts)| experts.experts).collect();
    let all: usize = of_layers.iter().sum();
    for pin in &pins.experts {
        let (name, slots) = (name(pin.card), pin.slots);
        if all == 0 {
            let why = format!("{name} is given {slots} expert slots, but the model has no experts; remove the pin");
            return unsupported("run.pins.experts", why);
        }
        if slots == 0 {
            let why = format!(
                "{name} is given no expert slot, but prompts need a ring of at least one; pin 1 slot, and every expert is streamed"
            );
            return unsupported("run.pins.experts", why);
        }
        if slots as usize > all {
            let most = of_layers.iter().max().copied().unwrap_or(0);
            let why = format!(
                "{name} is given {slots} expert slots, but the model has {all} experts ({} layers of {most}); pin at most {all}",
                of_layers.len()
            );
            return unsupported("run.pins.experts", why);
        }
    }
    Ok(())
}

/// Refuses a host that is too small.
pub(super) fn check_host(host: &HostPlan) -> Result<(), PlanError> {
    let wanted = host.taken();
    if wanted > host.budget {
        return Err(PlanError::Host { wanted, available: host.budget });
    }
    Ok(())
}

/// The refusal when no split fits.
pub(super) fn too_small(request: &Request<'_>, wave: usize) -> PlanError {
    let layers = request.spec.layers.len();
    let mut roomy = request.clone();
    for card in &mut roomy.cards {
        card.memory = Bytes(1 << 60);
    }
    let split = Split::new(request, wave);
    if !split.resized(&roomy).fits() {
        return PlanError::Pins { layers };
    }
    let (alone, every) = (smallest_growth(request, &split), || smallest_of_every(request, &split));
    let one = alone.is_some();
    let grown = alone.or_else(every);
    let Some((card, wanted)) = grown.and_then(|(index, wanted)| Some((request.cards.get(index)?, wanted))) else {
        return PlanError::Pins { layers };
    };
    let mut fixes = vec![match one {
        true => format!("raise its memory by {}", Bytes(wanted.0.saturating_sub(card.memory.0))),
        false => format!("give every card as much, the reserve not counted: {} bytes", wanted.0),
    }];
    fixes.extend(settings_that_fit(request, wave));
    PlanError::TooSmall { card: card.name.clone(), wanted, available: card.memory, fixes }
}

/// The card that needs the least more memory, and how much it then has.
fn smallest_growth(request: &Request<'_>, split: &Split<'_>) -> Option<(usize, Bytes)> {
    let gaps = split.gaps();
    let fits = |index: usize, memory: u64| {
        let mut trial = request.clone();
        if let Some(card) = trial.cards.get_mut(index) {
            card.memory = Bytes(memory);
        }
        match gaps.get(index).filter(|_| split.has_cells_of(&trial)) {
            Some(gap) => split.closes(index, Bytes(memory), gap),
            None => split.resized(&trial).fits(),
        }
    };
    let alone = (0..split.cards()).filter_map(|index| {
        let before = request.cards.get(index)?.memory.0;
        let memory = least(before, |memory| fits(index, memory))?;
        Some((memory - before, index, Bytes(memory)))
    });
    let best = alone.min()?;
    Some((best.1, best.2))
}

/// Where more for one card does not help: the card that has least, and what every card must have.
fn smallest_of_every(request: &Request<'_>, split: &Split<'_>) -> Option<(usize, Bytes)> {
    let memory = least(0, |memory| {
        let mut trial = request.clone();
        for card in &mut trial.cards {
            card.memory = card.memory.max(Bytes(memory));
        }
        split.resized(&trial).fits()
    })?;
    let smallest = request.cards.iter().take(split.cards()).enumerate().min_by_key(|(_, card)| card.memory)?;
    Some((smallest.0, Bytes(memory)))
}

/// The least memory above `low` that fits, to 1 KiB.
fn least(low: u64, fits: impl Fn(u64) -> bool) -> Option<u64> {
    const MOST: u64 = 1 << 50;
    // By doubled steps first: what is missing is mostly little.
    let (mut low, mut step) = (low, 1 << 20);
    while !fits(low + step) {
        (low, step) = (low + step, step * 4);
        if low > MOST {
            return None;
        }
    }
    let mut high = low + step;
    while high - low > 1024 {
        let middle = low + (high - low) / 2;
        if fits(middle) { high = middle } else { low = middle }
    }
    Some(high)
}

/// Changes of the settings that make the model fit as the cards are.
fn settings_that_fit(request: &Request<'_>, wave: usize) -> Vec<String> {
    let fits = |settings: &RunSettings| {
        let trial = Request { settings, ..request.clone() };
        Split::new(&trial, wave.min(settings.context as usize)).fits()
    };
    let mut fixes = Vec::new();
    let mut smaller = request.settings.clone();
    let (mut low, mut high) = (0, request.settings.context);
    while high - low > 1 {
        smaller.context = low + (high - low) / 2;
        if fits(&smaller) { low = smaller.context } else { high = smaller.context }
    }
    if low > 0 {
        fixes.push(format!("lower run.context to {low}"));
    }
    let resident = request.settings.kv.resident_cells.of(request.settings.context) as usize / ATTENTION_TILE;
    let mut streamed = request.settings.clone();
    let mut with = |tiles: usize| {
        streamed.kv.resident_cells = ResidentCells::First((tiles * ATTENTION_TILE) as u32);
        fits(&streamed)
    };
    if resident > 0 && with(0) {
        let (mut low, mut high) = (0, resident);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if with(middle) { low = middle } else { high = middle }
        }
        fixes.push(format!("set run.kv.resident_cells to {}", low * ATTENTION_TILE));
    }
    if request.settings.kv.kind != KvType::Int8 {
        let mut packed = request.settings.clone();
        packed.kv.kind = KvType::Int8;
        if fits(&packed) {
            fixes.push("set run.kv.type to int8".to_owned());
        }
    }
    fixes
}
