//! Refusals: what does not fit, where, by how much, and the smallest change that would make it fit.

use thiserror::Error;

use super::{HostPlan, Request, handoff, split};
use crate::ops::{ATTENTION_TILE, KvType};
use crate::topology::{ResidentCells, RunSettings};
use crate::units::Bytes;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A card is too small for any split of the layers.
    #[error("{card}: layers, cache and work memory need at least {wanted}, {available} is there; {}", .fixes.join(", or "))]
    TooSmall {
        /// The card's name.
        card: String,
        /// The least that would do.
        wanted: Bytes,
        /// The card's memory less its reserve.
        available: Bytes,
        /// Changes that would make the model fit, smallest first.
        fixes: Vec<String>,
    },
    /// The pins leave no split of the layers.
    #[error(
        "run.pins.layers leave no way to run all {layers} layers on the cards in their order; remove a pin or widen it"
    )]
    Pins {
        /// Layers of the model.
        layers: usize,
    },
    /// A pinned amount does not fit.
    #[error("{card}: {what} need {wanted}, {free} is free; {fix}")]
    Pin {
        /// The card's name.
        card: String,
        /// What was pinned.
        what: String,
        /// Its bytes.
        wanted: Bytes,
        /// What is free for it.
        free: Bytes,
        /// What to do.
        fix: String,
    },
    /// The host's memory is too small.
    #[error("host memory: experts and buffers need {wanted}, {available} is declared; raise rig.host.memory by {}", Bytes(.wanted.0 - .available.0))]
    Host {
        /// Bytes of arena and buffers.
        wanted: Bytes,
        /// What the topology declares.
        available: Bytes,
    },
    /// A setting asks for something this version cannot do.
    #[error("{setting}: {why}")]
    Unsupported {
        /// The setting's path in the topology.
        setting: &'static str,
        /// Why, and what to do.
        why: String,
    },
}

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
    handoff::check(request)
}

/// Refuses a host that is too small.
pub(super) fn check_host(request: &Request<'_>, host: &HostPlan) -> Result<(), PlanError> {
    let wanted = host.arena + host.buffers;
    if wanted > request.host.memory {
        return Err(PlanError::Host { wanted, available: request.host.memory });
    }
    Ok(())
}

/// The refusal when no split fits.
pub(super) fn too_small(request: &Request<'_>, cards: usize, wave: usize) -> PlanError {
    let layers = request.spec.layers.len();
    let mut roomy = request.clone();
    for card in &mut roomy.cards {
        card.memory = Bytes(1 << 60);
    }
    if split::best_split(&roomy, cards, wave).is_none() {
        return PlanError::Pins { layers };
    }
    let (alone, every) = (smallest_growth(request, cards, wave), || smallest_of_every(request, cards, wave));
    let one = alone.is_some();
    let grown = alone.or_else(every);
    let Some((card, wanted)) = grown.and_then(|(index, wanted)| Some((request.cards.get(index)?, wanted))) else {
        return PlanError::Pins { layers };
    };
    let mut fixes = vec![match one {
        true => format!("raise its memory by {}", Bytes(wanted.0.saturating_sub(card.memory.0))),
        false => format!("give every card as much, the reserve not counted: {} bytes", wanted.0),
    }];
    fixes.extend(settings_that_fit(request, cards, wave));
    PlanError::TooSmall { card: card.name.clone(), wanted, available: card.memory, fixes }
}

/// The card that needs the least more memory, and how much it then has.
fn smallest_growth(request: &Request<'_>, cards: usize, wave: usize) -> Option<(usize, Bytes)> {
    let fits = |index: usize, memory: u64| {
        let mut trial = request.clone();
        if let Some(card) = trial.cards.get_mut(index) {
            card.memory = Bytes(memory);
        }
        split::best_split(&trial, cards, wave).is_some()
    };
    let alone = (0..cards).filter_map(|index| {
        let before = request.cards.get(index)?.memory.0;
        let memory = least(before, |memory| fits(index, memory))?;
        Some((memory - before, index, Bytes(memory)))
    });
    let best = alone.min()?;
    Some((best.1, best.2))
}

/// Where more for one card does not help: the card that has least, and what every card must have.
fn smallest_of_every(request: &Request<'_>, cards: usize, wave: usize) -> Option<(usize, Bytes)> {
    let memory = least(0, |memory| {
        let mut trial = request.clone();
        for card in &mut trial.cards {
            card.memory = card.memory.max(Bytes(memory));
        }
        split::best_split(&trial, cards, wave).is_some()
    })?;
    let smallest = request.cards.iter().take(cards).enumerate().min_by_key(|(_, card)| card.memory)?;
    Some((smallest.0, Bytes(memory)))
}

/// The least memory above `low` that fits, to 1 KiB.
fn least(mut low: u64, fits: impl Fn(u64) -> bool) -> Option<u64> {
    let mut high = 1 << 50;
    if !fits(high) {
        return None;
    }
    while high - low > 1024 {
        let middle = low + (high - low) / 2;
        if fits(middle) { high = middle } else { low = middle }
    }
    Some(high)
}

/// Changes of the settings that make the model fit as the cards are.
fn settings_that_fit(request: &Request<'_>, cards: usize, wave: usize) -> Vec<String> {
    let fits = |settings: &RunSettings| {
        let trial = Request { settings, ..request.clone() };
        split::best_split(&trial, cards, wave.min(settings.context as usize)).is_some()
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
