//! Same bits: how experts, cells and layers are spread, streamed and cut changes time, never results.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::sync::Arc;

use aqueduct::card::Stream;
use aqueduct::card::ledger::Ledger;
use aqueduct::engine::{Cancel, Counts, Engine};
use aqueduct::model::Model;
use aqueduct::ops::KvType;
use aqueduct::plan::{Plan, PlanError, Use};
use aqueduct::topology::{HandOff, ResidentCells, Ring, RunSettings, Share, Staging, Switch, Wave};
use aqueduct::units::{Bytes, CardId};
use proptest::prelude::*;
use support::stories::{boundaries, deep, open};
use support::tap::{Listen, Tap};
use support::{ROOMY, TestRig, gpu, least, plan_for, rig, runner};

/// Cases of a run.
const CASES: u32 = 120;

/// Tokens of a sequence: several attention tiles.
const CONTEXT: u32 = 320;

/// A generated way to run a model.
#[derive(Clone, Debug)]
struct Way {
    cards: usize,
    /// How far above the smallest legal budget, in thousandths of what all experts take.
    room: Vec<u32>,
    kv: Kv,
    prompt: Prompt,
    hand_off: HandOff,
    workers: usize,
    sequences: usize,
    /// Cards copy all weights to memory of their own and lock no host memory.
    unlocked: bool,
    /// Tokens of the prompt's two turns.
    turns: [usize; 2],
}

/// Where cells live.
#[derive(Clone, Debug)]
struct Kv {
    kind: KvType,
    resident: Option<u32>,
    staging: Option<u32>,
    prefetch: bool,
    /// Of the host in decode, in percent.
    share: u32,
}

/// How prompts are read.
#[derive(Clone, Debug)]
struct Prompt {
    wave: u32,
    floor: u32,
    ring: Option<u32>,
    depth: u32,
    gated: bool,
    host_pool: bool,
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
    several_tiles: u64,
    by_host: u64,
    floor_between: u64,
    mixed: u64,
    crossed: [u64; 3],
    four_cards: u64,
    four_sequences: u64,
    two_tiers: u64,
    unlocked: u64,
    kinds: [u64; 3],
}

const KINDS: [KvType; 3] = [KvType::F32, KvType::F16, KvType::Int8];

fn kvs() -> impl Strategy<Value = Kv> {
    let resident = prop_oneof![2 => Just(None), 1 => (0_u32..200).prop_map(Some)];
    let staging = prop_oneof![Just(None), (1_u32..CONTEXT).prop_map(Some)];
    let share = prop_oneof![Just(0_u32), Just(100), 0_u32..=100];
    (0..KINDS.len(), resident, staging, any::<bool>(), share).prop_map(|(kind, resident, staging, prefetch, share)| {
        Kv { kind: KINDS[kind], resident, staging, prefetch, share }
    })
}

fn prompts() -> impl Strategy<Value = Prompt> {
    let wave = prop_oneof![3 => 3_u32..24, 1 => 24_u32..150];
    let ring = prop_oneof![Just(None), (1_u32..12).prop_map(Some)];
    // Floors about the length of a wave, above it by less than a wave, and far from it.
    let floor = prop_oneof![Just(1_i64), Just(1024), -3_i64..4, 4_i64..30];
    let depth = prop_oneof![1_u32..20, 1_u32..=64];
    (wave, floor, ring, depth, any::<bool>(), any::<bool>()).prop_map(|(wave, floor, ring, depth, gated, host_pool)| {
        let floor = if floor == 1 || floor == 1024 { floor } else { (i64::from(wave) + floor).max(1) } as u32;
        Prompt { wave, floor, ring, depth, gated, host_pool }
    })
}

fn ways() -> impl Strategy<Value = Way> {
    let room = proptest::collection::vec(prop_oneof![Just(0_u32), 0..1000_u32, Just(1000)], 4);
    let hand_off = prop_oneof![Just(HandOff::Host), Just(HandOff::Peer), Just(HandOff::Nccl)];
    // Only the deepest model has layers for four cards.
    let cards = prop_oneof![1_usize..=4, Just(4)];
    let unlocked = prop_oneof![3 => Just(false), 1 => Just(true)];
    let turn = || prop_oneof![3 => 0_usize..30, 1 => 30_usize..130];
    let turns = (turn(), turn(), prop_oneof![Just(None), (2_usize..4, 1_usize..3).prop_map(Some)]);
    (cards, room, kvs(), prompts(), hand_off, 1_usize..3, 1_usize..=4, unlocked, turns).prop_map(
        |(cards, room, kv, mut prompt, hand_off, workers, sequences, unlocked, (first, second, about_floor))| {
            let second = about_floor.map_or(second + 1, |(waves, longer)| about_the_floor(&mut prompt, waves, longer));
            Way { cards, room, kv, prompt, hand_off, workers, sequences, unlocked, turns: [first, second] }
        },
    )
}

/// Tokens of a prompt with `longer` waves as long as the floor and the others, of `waves`, a token shorter.
fn about_the_floor(prompt: &mut Prompt, waves: usize, longer: usize) -> usize {
    let floor = prompt.floor.clamp(2, 40) as usize;
    let tokens = waves * (floor - 1) + longer.min(waves - 1);
    prompt.floor = floor as u32;
    prompt.wave = prompt.wave.clamp(floor as u32, (tokens - 1).div_euclid(waves - 1).max(floor) as u32);
    tokens
}

fn settings(way: &Way) -> RunSettings {
    let mut settings = RunSettings { context: CONTEXT, sequences: way.sequences as u32, ..RunSettings::default() };
    settings.hand_off = way.hand_off;
    settings.kv.kind = way.kv.kind;
    settings.kv.resident_cells = way.kv.resident.map_or(ResidentCells::All, ResidentCells::First);
    settings.kv.staging = way.kv.staging.map_or(Staging::Auto, Staging::Cells);
    settings.kv.prefetch = (way.kv.prefetch && way.kv.resident.is_some()).into();
    settings.kv.host_share = Share::Percent(way.kv.share);
    settings.prompt.wave = Wave::Tokens(way.prompt.wave);
    settings.prompt.floor = way.prompt.floor;
    settings.prompt.depth = way.prompt.depth;
    settings.prompt.host_pool = way.prompt.host_pool;
    settings.prompt.ring = way.prompt.ring.map_or(Ring::Auto, Ring::Slots);
    settings.prompt.routed_stream = way.prompt.gated.into();
    settings
}

/// A card that passes for a GPU: it uses no host memory in place.
struct Gpu;

/// More work memory than a GPU's kernels want: here those of the CPU run.
const SCRATCH: Bytes = Bytes(4 << 20);

impl Listen for Gpu {
    fn is_gpu(&self) -> bool {
        true
    }
}

impl Way {
    fn plan(&self, model: &Model, memory: &[Bytes], settings: &RunSettings) -> Result<Plan, PlanError> {
        if !self.unlocked {
            return plan_for(model, memory, settings);
        }
        // Only the host's way crosses between cards that are not told apart from GPUs.
        let settings = RunSettings { hand_off: HandOff::Host, ..settings.clone() };
        let mut plan = gpu::plan_for(model, memory, &settings)?;
        let buffers = plan.stages.iter_mut().flat_map(|stage| &mut stage.buffers);
        buffers.filter(|buffer| buffer.of == Use::Scratch).for_each(|buffer| buffer.bytes.0 += SCRATCH.0);
        Ok(plan)
    }

    fn rig(&self, memory: &[Bytes]) -> TestRig {
        if !self.unlocked {
            return rig(memory, self.workers);
        }
        let with_scratch: Vec<Bytes> = memory.iter().map(|memory| Bytes(memory.0 + SCRATCH.0)).collect();
        let mut test = rig(&with_scratch, self.workers);
        Tap::all(&mut test, &Arc::new(Gpu));
        test
    }

    fn tokens(&self) -> Vec<u32> {
        (0..self.turns.iter().sum::<usize>() as u32).map(|i| (i * 37 + self.prompt.depth * 11) % 500).collect()
    }

    /// Rows of the shortest and the longest wave of each turn.
    fn waves<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = (usize, usize)> + 'a {
        self.turns.into_iter().filter(|turn| *turn > 0).map(|turn| {
            let ends = boundaries(plan, turn);
            let rows = || ends.windows(2).map(|ends| ends[1] - ends[0]);
            (rows().min().unwrap(), rows().max().unwrap())
        })
    }
}

/// Logits of a prompt in two turns, then of three decode steps beside other sequences.
fn logits(engine: &mut Engine, way: &Way) -> Vec<u32> {
    let cancel = Cancel::new();
    let mut all = Vec::new();
    let mut sink = |_: usize, logits: &[f32]| all.extend(logits.iter().map(|x| x.to_bits()));
    let mut sequences: Vec<_> = (0..way.sequences).map(|_| engine.sequence().unwrap()).collect();
    let (sequence, others) = sequences.split_first_mut().unwrap();
    let tokens = way.tokens();
    let (first, second) = tokens.split_at(way.turns[0]);
    if !first.is_empty() {
        engine.prompt_all(sequence, first, &cancel, &mut sink).unwrap();
    }
    for (other, tokens) in others.iter_mut().zip([[7, 3], [8, 4], [9, 5]]) {
        engine.prompt_all(other, &tokens, &cancel, &mut sink).unwrap();
    }
    engine.prompt_all(sequence, second, &cancel, &mut sink).unwrap();
    for token in [5, 9, 11] {
        let mut rows: Vec<_> = sequences.iter_mut().zip(token..).collect();
        let logits = engine.step(&mut rows, &cancel).unwrap();
        logits.iter().enumerate().for_each(|(row, logits)| sink(row, logits));
    }
    all
}

fn check(model: &Arc<Model>, way: &Way, seen: &mut Seen) -> Result<(), TestCaseError> {
    let settings = settings(way);
    let cards = way.cards.min(model.spec.layers.len());
    let least = least(|bytes| way.plan(model, &vec![bytes; cards], &settings).is_ok());
    let all: u64 = model.spec.expert_bytes().0;
    let memory: Vec<Bytes> =
        way.room[..cards].iter().map(|room| Bytes(least.0 + all * u64::from(*room) / 1000)).collect();
    seen.cases += 1;
    let plan = match way.plan(model, &memory, &settings) {
        Ok(plan) => plan,
        Err(PlanError::Pin { .. }) if way.prompt.ring.is_some() => {
            seen.refused += 1;
            return Ok(());
        }
        Err(error) => return Err(TestCaseError::fail(format!("{way:?}: {error}"))),
    };
    let mut plain = settings.clone();
    plain.prompt.wave = Wave::Tokens(CONTEXT);
    plain.prompt.ring = Ring::Auto;
    plain.prompt.host_pool = false;
    plain.kv.resident_cells = ResidentCells::All;
    plain.kv.prefetch = Switch::Off;
    let reference = plan_for(model, &[ROOMY], &plain).unwrap();
    prop_assert_eq!(
        reference.stages[0].experts.as_ref().map(|experts| experts.ring),
        Some(0),
        "the reference streams nothing"
    );
    let one = rig(&[ROOMY], 1);
    let wanted = logits(&mut Engine::load(Arc::clone(model), reference, &one.rig, &|_| {}).unwrap(), way);

    let test = way.rig(&memory);
    let mut engine = Engine::load(Arc::clone(model), plan, &test.rig, &|_| {}).unwrap();
    let loaded = crossed(&test.ledger);
    let found = logits(&mut engine, way);
    prop_assert_eq!(test.ledger.violations(), Vec::<String>::new());
    prop_assert_eq!(engine.taken(), (0, 0));
    prop_assert!(found == wanted, "other bits: {:?}\n{}", way, engine.plan());
    for counts in engine.counts() {
        seen.counts = seen.counts.plus(&counts);
    }
    for ((sum, before), after) in seen.crossed.iter_mut().zip(loaded).zip(crossed(&test.ledger)) {
        *sum += after - before;
    }
    seen.tight += u64::from(way.room[..cards].contains(&0));
    seen.by_host +=
        u64::from(way.prompt.host_pool && engine.counts().iter().any(|c| c.streamed == 0 && c.host_experts > 12));
    seen.four_cards += u64::from(cards == 4);
    seen.four_sequences += u64::from(way.sequences == 4);
    seen.two_tiers += u64::from(engine.plan().kv.streams() && way.tokens().len() > engine.plan().kv.resident);
    seen.unlocked += u64::from(way.unlocked);
    seen.kinds[KINDS.iter().position(|kind| *kind == way.kv.kind).unwrap()] += 1;
    seen.several_tiles += u64::from(way.tokens().len() > 128);
    let floor = way.prompt.floor as usize;
    let streams =
        engine.plan().stages.iter().any(|stage| stage.experts.as_ref().is_some_and(|experts| experts.ring > 0));
    for (shortest, longest) in way.waves(engine.plan()) {
        seen.several_waves += u64::from(longest < way.turns[0].max(way.turns[1]));
        seen.floor_between += u64::from(streams && shortest < floor && floor <= longest);
        seen.mixed += u64::from(streams && way.prompt.host_pool && shortest < floor && floor <= longest);
    }
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
    let rows = [
        ("cases", seen.cases),
        ("streamed experts", streamed),
        ("skipped experts", skipped),
        ("slot reuses", slot_reuses),
        ("waves", waves),
        ("hand-offs", hand_offs),
        ("decode products on the host", host_experts),
        ("decode products on cards", resident_experts),
        ("smallest budgets", seen.tight),
        ("prompts in several waves", seen.several_waves),
        ("sequences of several attention tiles", seen.several_tiles),
        ("rigs of four cards", seen.four_cards),
        ("engines of four sequences", seen.four_sequences),
        ("caches in two tiers", seen.two_tiers),
        ("cells in F32", seen.kinds[0]),
        ("cells in F16", seen.kinds[1]),
        ("cells in INT8", seen.kinds[2]),
        ("rigs without page-locked memory", seen.unlocked),
        ("prompts by the host pool", seen.by_host),
        ("prompts with waves on both sides of the floor", seen.floor_between),
        ("of them with the host pool", seen.mixed),
        ("hand-offs through the host", seen.crossed[0]),
        ("peer copies", seen.crossed[1]),
        ("hand-offs over wires", seen.crossed[2]),
    ];
    println!("{:>8} refused", seen.refused);
    for (what, count) in rows {
        println!("{count:>8} {what}");
    }
    assert!(seen.refused * 10 <= seen.cases, "{} of {} cases were refused", seen.refused, seen.cases);
    for (what, count) in rows {
        assert!(count > 0, "no {what} in any case");
    }
}
