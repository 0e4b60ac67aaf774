//! Same bits: how experts, cells and layers are spread, streamed and cut changes time, never results.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::sync::Arc;

use aqueduct::card::Stream;
use aqueduct::card::ledger::Ledger;
use aqueduct::engine::{Cancel, Counts, Engine};
use aqueduct::model::Model;
use aqueduct::ops::KvType;
use aqueduct::plan::PlanError;
use aqueduct::topology::{HandOff, Ring, RunSettings, Switch, Wave};
use aqueduct::units::{Bytes, CardId};
use proptest::prelude::*;
use support::stories::{deep, open};
use support::{ROOMY, least_of_each, plan_for, rig, runner};

/// Cases of a run.
const CASES: u32 = 80;

/// A generated way to run a model.
#[derive(Clone, Debug)]
struct Way {
    cards: usize,
    /// How far above the smallest legal budget, in thousandths of what all experts take.
    room: Vec<u32>,
    kv: KvType,
    wave: u32,
    floor: u32,
    ring: Option<u32>,
    depth: u32,
    gated: bool,
    hand_off: HandOff,
    host_pool: bool,
    workers: usize,
    tokens: usize,
}

/// The commands of each way of hidden states from card to card.
const WAYS_ACROSS: [&str; 3] = ["copy out", "copy across", "receive"];

/// How often they were given.
fn crossed(ledger: &Ledger) -> [u64; 3] {
    let counts = ledger.counts();
    WAYS_ACROSS.map(|name| (0..4).map(|card| counts.on(CardId(card), Stream::HandOff, name).commands).sum())
}

/// What happened in all cases together.
#[derive(Default)]
struct Seen {
    cases: u64,
    refused: u64,
    counts: Counts,
    tight: u64,
    several_waves: u64,
    by_host: u64,
    crossed: [u64; 3],
    four_cards: u64,
}

fn ways() -> impl Strategy<Value = Way> {
    let kv = prop_oneof![Just(KvType::F32), Just(KvType::F16), Just(KvType::Int8)];
    let ring = prop_oneof![Just(None), (1_u32..12).prop_map(Some)];
    let room = proptest::collection::vec(prop_oneof![Just(0_u32), 0..1000_u32, Just(1000)], 4);
    let hand_off = prop_oneof![Just(HandOff::Host), Just(HandOff::Peer), Just(HandOff::Nccl)];
    // Only the deepest model has layers for four cards.
    let cards = prop_oneof![1_usize..=4, Just(4)];
    (
        cards,
        room,
        kv,
        3_u32..24,
        prop_oneof![Just(1_u32), Just(1024)],
        ring,
        prop_oneof![1_u32..20, 1_u32..=64],
        (any::<bool>(), any::<bool>(), hand_off),
        1_usize..3,
        1_usize..30,
    )
        .prop_map(|(cards, room, kv, wave, floor, ring, depth, (gated, host_pool, hand_off), workers, tokens)| {
            Way { cards, room, kv, wave, floor, ring, depth, gated, hand_off, host_pool, workers, tokens }
        })
}

fn settings(way: &Way) -> RunSettings {
    let mut settings = RunSettings { context: 64, sequences: 2, ..RunSettings::default() };
    settings.hand_off = way.hand_off;
    settings.kv.kind = way.kv;
    settings.prompt.wave = Wave::Tokens(way.wave);
    settings.prompt.floor = way.floor;
    settings.prompt.depth = way.depth;
    settings.prompt.host_pool = way.host_pool;
    settings.prompt.ring = way.ring.map_or(Ring::Auto, Ring::Slots);
    settings.prompt.routed_stream = if way.gated { Switch::On } else { Switch::Off };
    settings
}

/// Logits of a prompt in two turns, then of three decode steps beside another sequence.
fn logits(engine: &mut Engine, tokens: &[u32]) -> Vec<u32> {
    let cancel = Cancel::new();
    let mut all = Vec::new();
    let mut sink = |_: usize, logits: &[f32]| all.extend(logits.iter().map(|x| x.to_bits()));
    let mut sequence = engine.sequence().unwrap();
    let mut other = engine.sequence().unwrap();
    let (first, second) = tokens.split_at(tokens.len() / 2);
    if !first.is_empty() {
        engine.prompt_all(&mut sequence, first, &cancel, &mut sink).unwrap();
    }
    engine.prompt_all(&mut other, &[7, 3], &cancel, &mut sink).unwrap();
    engine.prompt_all(&mut sequence, second, &cancel, &mut sink).unwrap();
    for token in [5, 9, 11] {
        let rows = engine.step(&mut [(&mut sequence, token), (&mut other, token + 1)], &cancel).unwrap();
        rows.iter().enumerate().for_each(|(row, logits)| sink(row, logits));
    }
    all
}

fn tokens(way: &Way) -> Vec<u32> {
    (0..way.tokens as u32 + 1).map(|i| (i * 37 + way.depth * 11) % 500).collect()
}

fn check(model: &Arc<Model>, way: &Way, seen: &mut Seen) -> Result<(), TestCaseError> {
    let settings = settings(way);
    let cards = way.cards.min(model.spec.layers.len());
    let least = least_of_each(model, cards, &settings);
    let all: u64 = model.spec.expert_bytes().0;
    let memory: Vec<Bytes> =
        way.room[..cards].iter().map(|room| Bytes(least.0 + all * u64::from(*room) / 1000)).collect();
    seen.cases += 1;
    let plan = match plan_for(model, &memory, &settings) {
        Ok(plan) => plan,
        Err(PlanError::Pin { .. }) if way.ring.is_some() => {
            seen.refused += 1;
            return Ok(());
        }
        Err(error) => return Err(TestCaseError::fail(format!("{way:?}: {error}"))),
    };
    let tokens = tokens(way);
    let mut reference_settings = settings.clone();
    reference_settings.prompt.wave = Wave::Tokens(64);
    reference_settings.prompt.ring = Ring::Auto;
    let reference = plan_for(model, &[ROOMY], &reference_settings).unwrap();
    prop_assert_eq!(
        reference.stages[0].experts.as_ref().map(|experts| experts.ring),
        Some(0),
        "the reference streams nothing"
    );
    let one = rig(&[ROOMY], 1);
    let wanted = logits(&mut Engine::load(Arc::clone(model), reference, &one.rig, &|_| {}).unwrap(), &tokens);

    let test = rig(&memory, way.workers);
    let mut engine = Engine::load(Arc::clone(model), plan, &test.rig, &|_| {}).unwrap();
    let loaded = crossed(&test.ledger);
    let found = logits(&mut engine, &tokens);
    prop_assert_eq!(test.ledger.violations(), Vec::<String>::new());
    prop_assert_eq!(engine.taken(), (0, 0));
    prop_assert!(found == wanted, "other bits: {:?}\n{}", way, engine.plan());
    for counts in engine.counts() {
        seen.counts = seen.counts.plus(&counts);
    }
    seen.tight += u64::from(way.room[..cards].contains(&0));
    seen.by_host += u64::from(
        way.host_pool && way.floor > 1 && engine.counts().iter().any(|c| c.streamed == 0 && c.host_experts > 12),
    );
    for ((sum, before), after) in seen.crossed.iter_mut().zip(loaded).zip(crossed(&test.ledger)) {
        *sum += after - before;
    }
    seen.four_cards += u64::from(cards == 4);
    seen.several_waves += u64::from(way.tokens / 2 > way.wave as usize);
    Ok(())
}

#[test]
fn logits_are_the_same_bits_on_every_plan() {
    let mut models = ["qwen3moe-f32", "qwen3moe-mxfp4", "mixtral-q4_0"].map(open).to_vec();
    models.push(deep(6));
    let mut runner = runner(CASES);
    let seen = std::cell::RefCell::new(Seen::default());
    runner.run(&(ways(), 0..models.len()), |(way, model)| check(&models[model], &way, &mut seen.borrow_mut())).unwrap();
    let seen = seen.into_inner();
    let Counts { streamed, skipped, slot_reuses, waves, hand_offs, host_experts, resident_experts, .. } = seen.counts;
    println!(
        "{} cases, {} refused, {} at the smallest budget, {} with several waves; {streamed} experts streamed, {skipped} skipped, \
         {slot_reuses} slots reused, {waves} waves, {hand_offs} hand-offs, {host_experts} decode products on the host, \
         {resident_experts} on cards",
        seen.cases, seen.refused, seen.tight, seen.several_waves
    );
    assert!(seen.refused * 10 <= seen.cases, "{} of {} cases were refused", seen.refused, seen.cases);
    for (what, count) in [
        ("streamed experts", streamed),
        ("skipped experts", skipped),
        ("slot reuses", slot_reuses),
        ("waves", waves),
        ("hand-offs", hand_offs),
        ("decode products on the host", host_experts),
        ("decode products on cards", resident_experts),
        ("smallest budgets", seen.tight),
        ("prompts in several waves", seen.several_waves),
        ("rigs of four cards", seen.four_cards),
        ("prompts by the host pool", seen.by_host),
        ("hand-offs through the host", seen.crossed[0]),
        ("peer copies", seen.crossed[1]),
        ("hand-offs over wires", seen.crossed[2]),
    ] {
        assert!(count > 0, "no {what} in any case");
    }
}
