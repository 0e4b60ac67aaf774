//! Cells in two tiers: where they live, how they are staged and whether they are copied ahead changes time, never
//! results.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::ops::ControlFlow;
use std::sync::Arc;

use aqueduct::engine::{Cancel, Counts, Engine};
use aqueduct::model::Model;
use aqueduct::ops::KvType;
use aqueduct::synth::{Overrides, Shape, Topics, write_model};
use aqueduct::topology::{ResidentCells, Ring, RunSettings, Share, Staging, Switch, Wave};
use aqueduct::units::Bytes;
use proptest::prelude::*;
use support::stories::{deep, open};
use support::{ROOMY, least_of_each, plan_for, rig, runner};

/// Cases of a run.
const CASES: u32 = 60;

/// Tokens of a sequence.
const CONTEXT: u32 = 448;

/// A generated way to keep cells.
#[derive(Clone, Debug)]
struct Way {
    cards: usize,
    /// Memory above the least that runs, in experts.
    extra: u64,
    kv: KvType,
    resident: u32,
    staging: Option<u32>,
    prefetch: bool,
    /// Of the host in decode, in percent.
    share: Option<u32>,
    wave: u32,
    floor: u32,
    gated: bool,
    /// Tokens of the prompt's turns.
    turns: Vec<usize>,
}

/// What happened in all cases together.
#[derive(Default)]
struct Seen {
    counts: Counts,
    cases: u64,
    none_resident: u64,
    tiled: u64,
    untiled: u64,
    across: u64,
    displaced: u64,
    dense: u64,
    four_cards: u64,
    shared: u64,
}

fn ways() -> impl Strategy<Value = Way> {
    let kv = prop_oneof![Just(KvType::F32), Just(KvType::F16), Just(KvType::Int8)];
    let resident = prop_oneof![Just(0_u32), Just(64), Just(128), 1_u32..200];
    let staging =
        prop_oneof![Just(None), Just(Some(64)), Just(Some(64)), Just(Some(CONTEXT)), (65_u32..300).prop_map(Some)];
    let share = prop_oneof![Just(None), Just(Some(0)), Just(Some(100)), (1_u32..100).prop_map(Some)];
    let wave = prop_oneof![2 => 9_u32..40, 1 => 40_u32..200];
    let turns = proptest::collection::vec(1_usize..140, 2..=3);
    (
        prop_oneof![1_usize..=4, Just(4)],
        0_u64..12,
        kv,
        resident,
        staging,
        (any::<bool>(), share),
        wave,
        prop_oneof![Just(1_u32), Just(1024)],
        any::<bool>(),
        turns,
    )
        .prop_map(|(cards, extra, kv, resident, staging, (prefetch, share), wave, floor, gated, turns)| Way {
            cards,
            extra,
            kv,
            resident,
            staging,
            prefetch,
            share,
            wave,
            floor,
            gated,
            turns,
        })
}

fn settings(way: &Way) -> RunSettings {
    let mut settings = RunSettings { context: CONTEXT, sequences: 2, ..RunSettings::default() };
    settings.kv.kind = way.kv;
    settings.kv.resident_cells = ResidentCells::First(way.resident);
    settings.kv.staging = way.staging.map_or(Staging::Auto, Staging::Cells);
    settings.kv.prefetch = way.prefetch.into();
    settings.kv.host_share = way.share.map_or(Share::Auto, Share::Percent);
    settings.prompt.wave = Wave::Tokens(way.wave);
    settings.prompt.floor = way.floor;
    settings.prompt.routed_stream = way.gated.into();
    settings
}

/// Logits of the turns' last rows, then of steps beside a short sequence.
fn logits(engine: &mut Engine, way: &Way) -> Vec<u32> {
    let cancel = Cancel::new();
    let mut all: Vec<u32> = Vec::new();
    let mut keep = |logits: &[f32]| all.extend(logits.iter().map(|x| x.to_bits()));
    let mut sequence = engine.sequence().unwrap();
    let mut other = engine.sequence().unwrap();
    let mut position = 0;
    keep(&engine.prompt(&mut other, &[7, 3, 12], &cancel).unwrap());
    for turn in &way.turns {
        let tokens: Vec<u32> = (position..position + *turn as u32).map(|i| (i * 37 + way.wave * 11) % 500).collect();
        keep(&engine.prompt(&mut sequence, &tokens, &cancel).unwrap());
        position += *turn as u32;
        let rows = [(&mut sequence, 5), (&mut other, 9)];
        engine.step(&mut rows.map(|row| row), &cancel).unwrap().iter().for_each(|logits| keep(logits));
        position += 1;
    }
    // A shorter sequence overwrites cells that were in host memory before.
    sequence.truncate(sequence.tokens() / 2).unwrap();
    keep(&engine.prompt(&mut sequence, &[11, 13, 17], &cancel).unwrap());
    keep(&engine.step(&mut [(&mut sequence, 19)], &cancel).unwrap()[0]);
    all
}

fn check(model: &Arc<Model>, way: &Way, seen: &mut Seen) -> Result<(), TestCaseError> {
    let settings = settings(way);
    let cards = way.cards.min(model.spec.layers.len());
    let blob = model.spec.expert_layers().map(|(_, experts)| experts.blob().bytes as u64).max().unwrap_or(0);
    let memory = vec![Bytes(least_of_each(model, cards, &settings).0 + way.extra * blob); cards];
    let plan = plan_for(model, &memory, &settings).map_err(|error| TestCaseError::fail(format!("{way:?}: {error}")))?;
    let kv = plan.kv;

    let mut plain = settings.clone();
    plain.kv.resident_cells = ResidentCells::All;
    plain.kv.prefetch = Switch::Off;
    plain.prompt.wave = Wave::Tokens(CONTEXT);
    plain.prompt.ring = Ring::Auto;
    plain.kv.host_share = Share::Auto;
    let reference = plan_for(model, &[ROOMY], &plain).unwrap();
    let wanted = logits(&mut Engine::load(Arc::clone(model), reference, &rig(&[ROOMY], 1).rig, &|_| {}).unwrap(), way);

    let test = rig(&memory, 1);
    let staged = plan.stages.iter().filter_map(|stage| stage.experts.as_ref()).map(|experts| experts.staged);
    seen.displaced += u64::from(staged.sum::<usize>() > 0);
    let mut engine = Engine::load(Arc::clone(model), plan, &test.rig, &|_| {}).unwrap();
    let found = logits(&mut engine, way);
    prop_assert_eq!(test.ledger.violations(), Vec::<String>::new());
    prop_assert_eq!(engine.taken(), (0, 0));
    prop_assert!(found == wanted, "other bits: {:?}\n{}", way, engine.plan());
    for counts in engine.counts() {
        prop_assert!(way.prefetch || counts.kv_prefetched_bytes == 0, "off means nothing of it runs");
        prop_assert!(!way.prefetch || counts.kv_staged_bytes == 0, "on means every tile is copied ahead");
        prop_assert!(way.share != Some(0) || counts.kv_host_cells == 0, "the card attends all");
        prop_assert!(way.share != Some(100) || counts.kv_link_cells == 0, "the host attends all");
        seen.shared += u64::from(counts.kv_host_cells > 0 && counts.kv_link_cells > 0);
        seen.counts = seen.counts.plus(&counts);
    }
    let longest = way.turns.iter().sum::<usize>();
    seen.cases += 1;
    seen.none_resident += u64::from(kv.resident == 0);
    seen.tiled += u64::from(longest.saturating_sub(way.wave as usize + kv.resident) > kv.staging);
    seen.untiled += u64::from(kv.staging >= kv.streamed);
    seen.across += u64::from(kv.resident > 0 && longest > kv.resident);
    seen.dense += u64::from(blob == 0);
    seen.four_cards += u64::from(cards == 4);
    Ok(())
}

/// Four turns that fill a context of 131,072 tokens, on a card that holds 32,768 of them and little else.
#[test]
#[ignore = "takes many minutes without optimisation: cargo test --release --test kv_tiers -- --ignored --nocapture"]
fn a_context_of_131072_tokens_on_a_card_that_holds_a_quarter_of_it() {
    const CONTEXT: u32 = 131_072;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.gguf");
    let sizes = Overrides { layers: Some(2), heads: Some(4), kv_heads: Some(1), ..Overrides::default() };
    let shape = Shape::named("qwen3moe-256").unwrap().with(&sizes).unwrap();
    write_model(&shape, &path, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let model = Arc::new(Model::open(&path).unwrap());

    let mut settings = RunSettings { context: CONTEXT, ..RunSettings::default() };
    settings.kv.resident_cells = ResidentCells::First(32_768);
    settings.kv.prefetch = Switch::On;
    settings.prompt.routed_stream = Switch::On;
    settings.prompt.wave = Wave::Tokens(4096);
    let memory = [least_of_each(&model, 1, &settings)];
    let mut all = settings.clone();
    all.kv.resident_cells = ResidentCells::All;
    all.kv.prefetch = Switch::Off;
    assert!(plan_for(&model, &memory, &all).is_err(), "the card would hold every cell");

    let topics = Topics::of_model(model.gguf().metadata()).unwrap().unwrap();
    let tokens = topics.text(3, CONTEXT as usize);
    let turns = [20_000, 60_000, 110_000, CONTEXT as usize - 8];
    let answer = |memory: &[Bytes], settings: &RunSettings| {
        let plan = plan_for(&model, memory, settings).unwrap();
        println!("{plan}");
        let promised = plan.stages[0].total();
        let test = rig(memory, 2);
        let mut engine = Engine::load(Arc::clone(&model), plan, &test.rig, &|_| {}).unwrap();
        let mut sequence = engine.sequence().unwrap();
        let mut found: Vec<u32> = Vec::new();
        for end in turns {
            let begin = std::time::Instant::now();
            let start = sequence.tokens();
            let logits = engine.prompt(&mut sequence, &tokens[start..end], &Cancel::new()).unwrap();
            println!("{start} to {end}: {:.1} s", begin.elapsed().as_secs_f64());
            found.extend(logits.iter().map(|x| x.to_bits()));
            let logits = engine.step(&mut [(&mut sequence, tokens[end])], &Cancel::new()).unwrap();
            found.extend(logits[0].iter().map(|x| x.to_bits()));
        }
        assert_eq!(test.ledger.violations(), Vec::<String>::new());
        // The card was given what the plan says: nothing was allocated beside it.
        let free = test.rig.cards[0].free_memory().unwrap();
        assert_eq!(memory[0].0 - free.0, promised.0);
        (found, engine.counts()[0])
    };
    let (found, counts) = answer(&memory, &settings);
    println!("{counts:?}");
    assert!(counts.kv_prefetched_bytes > 0 && counts.kv_staged_bytes == 0);
    assert!(counts.kv_host_cells > 0 && counts.kv_link_cells > 0);
    let (wanted, _) = answer(&[ROOMY], &all);
    assert!(found == wanted, "other bits with cells in host memory");
}

#[test]
fn logits_are_the_same_bits_wherever_cells_live() {
    let mut models: Vec<_> = ["qwen3moe-f32", "mixtral-q4_0", "llama-q8_0-linear2"].into_iter().map(open).collect();
    models.extend([deep(5), deep(6)]);
    let mut runner = runner(CASES);
    let seen = std::cell::RefCell::new(Seen::default());
    runner.run(&(ways(), 0..models.len()), |(way, model)| check(&models[model], &way, &mut seen.borrow_mut())).unwrap();
    let Seen { counts, cases, none_resident, tiled, untiled, across, displaced, dense, four_cards, shared } =
        seen.into_inner();
    let rows = [
        ("cases", cases),
        ("with no resident cell", none_resident),
        ("with a prefix larger than the pool", tiled),
        ("with a pool for every cell", untiled),
        ("with both resident and streamed cells", across),
        ("with residents that give way to the pool", displaced),
        ("without experts", dense),
        ("on four cards", four_cards),
        ("bytes written to the host", counts.kv_written_bytes),
        ("bytes staged", counts.kv_staged_bytes),
        ("bytes copied ahead", counts.kv_prefetched_bytes),
        ("cells attended by the host", counts.kv_host_cells),
        ("cells attended over the link", counts.kv_link_cells),
        ("steps shared by both", shared),
        ("experts streamed", counts.streamed),
        ("experts skipped", counts.skipped),
    ];
    for (what, count) in rows {
        println!("{count:>10} {what}");
    }
    for (what, count) in rows {
        assert!(count > 0, "nothing {what} in any case");
    }
}
