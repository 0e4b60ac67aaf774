//! Sentences about decisions that are not visible in the numbers, and about settings that have nothing to act on.

use super::parts::{Plan, StagePlan};
use super::request::Request;
use crate::card::CardKind;
use crate::ops::ATTENTION_TILE;
use crate::topology::{PromptSettings, ResidentCells, Ring, Share, Staging, Wave};

/// What deserves a sentence.
pub(super) fn of(request: &Request<'_>, plan: &Plan) -> Vec<String> {
    let mut notes = Vec::new();
    let spare = request.cards.len() - plan.stages.len();
    if spare > 0 {
        notes.push(format!(
            "{spare} of {} cards stay idle: the model has only {} layers",
            request.cards.len(),
            request.spec.layers.len()
        ));
    }
    cells(request, plan, &mut notes);
    prompts(request, plan, &mut notes);
    for pin in &request.settings.pins.experts {
        notes.extend(plan.stages.iter().find(|stage| stage.card == pin.card).and_then(|at| pinned(at, pin.slots)));
    }
    if request.settings.throttle && request.cards.iter().all(|card| card.kind != CardKind::Virtual) {
        notes.push("run.throttle is on, but only virtual cards slow their links, and there is none".to_owned());
    }
    notes
}

/// Settings of the cache.
fn cells(request: &Request<'_>, plan: &Plan, notes: &mut Vec<String>) {
    let (settings, context) = (&request.settings.kv, request.settings.context);
    match (settings.host_share, plan.kv.streams()) {
        (Share::Percent(percent), false) => notes.push(format!(
            "kv.host_share is {percent}%, but every cell lives on a card: there is nothing to share in decode"
        )),
        (Share::Percent(_) | Share::Auto, _) => {}
    }
    let wanted = settings.resident_cells.of(context) as usize;
    if plan.kv.streams() && plan.kv.resident != wanted {
        notes.push(format!(
            "run.kv.resident_cells {wanted}: {} cells stay on a card, since attention takes whole tiles of {ATTENTION_TILE}",
            plan.kv.resident
        ));
    }
    if let ResidentCells::First(cells) = settings.resident_cells
        && cells > context
    {
        notes
            .push(format!("run.kv.resident_cells {cells}: a sequence has {context} cells, all of them stay on a card"));
    }
    match settings.staging {
        Staging::Cells(cells) if !plan.kv.streams() => notes.push(format!(
            "run.kv.staging is {cells} cells, but every cell lives on a card: nothing passes through a staging pool"
        )),
        Staging::Cells(cells) if cells as usize > plan.kv.staging => {
            notes.push(format!("run.kv.staging {cells}: only {} cells of a sequence are streamed", plan.kv.streamed));
        }
        Staging::Cells(_) | Staging::Auto => {}
    }
}

/// Settings of prompts.
fn prompts(request: &Request<'_>, plan: &Plan, notes: &mut Vec<String>) {
    let (settings, usual) = (&request.settings.prompt, PromptSettings::default());
    if let Wave::Tokens(tokens) = settings.wave
        && tokens as usize > plan.wave
    {
        notes.push(format!("run.prompt.wave {tokens}: a context has only {} tokens", plan.wave));
    }
    let streams = plan.stages.iter().any(|stage| stage.experts.as_ref().is_some_and(|experts| experts.ring > 0));
    let (floor, depth) = (settings.floor, settings.depth);
    if !streams {
        let mut idle = |what: String| {
            notes.push(format!("run.prompt.{what}, but no expert is streamed: it has nothing to act on"));
        };
        match settings.ring {
            Ring::Auto => {}
            Ring::Slots(slots) => idle(format!("ring is {slots} slots")),
            Ring::Bytes(bytes) => idle(format!("ring is {bytes}")),
        }
        if settings.host_pool {
            idle("host_pool is on".to_owned());
        }
        if floor != usual.floor {
            idle(format!("floor is {floor} tokens"));
        }
        if depth != usual.depth {
            idle(format!("depth is {depth} copies"));
        }
        return;
    }
    if settings.host_pool && floor <= 1 {
        notes.push(format!(
            "run.prompt.host_pool is on, but no prompt is shorter than run.prompt.floor, {floor} tokens"
        ));
    }
    if depth != usual.depth && plan.prompt.routed_upto == 0 {
        notes
            .push(format!("run.prompt.depth is {depth} copies, but only the routed stream counts them, and it is off"));
    }
}

/// What to say of a pin of more slots than the card's layers have experts.
fn pinned(stage: &StagePlan, slots: u32) -> Option<String> {
    let name = &stage.name;
    let Some(experts) = &stage.experts else {
        return Some(format!("run.pins.experts: {name} is given {slots} slots, but its layers have no experts"));
    };
    (slots as usize > experts.slots).then(|| {
        format!("run.pins.experts: {name} is given {slots} slots, but its layers have {} experts", experts.experts)
    })
}
