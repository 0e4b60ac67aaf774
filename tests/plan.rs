//! Plans: of the ready topologies, within budgets, with pins as constraints, and refusals that say what would help.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use aqueduct::card::{CardKind, REGION_ALIGN};
use aqueduct::engine::Engine;
use aqueduct::model::{Model, ModelSpec};
use aqueduct::ops::KvType;
use aqueduct::plan::{self, CardBudget, Crossing, HandOffWay, HostBudget, Plan, PlanError, Request, Waves, plan};
use aqueduct::topology::{
    self, ExpertPin, Flops, HandOff, LayerPin, ResidentCells, Ring, RunSettings, Share, Staging, Switch, Topology, Wave,
};
use aqueduct::units::{Bytes, CardId, Rate};
use proptest::prelude::*;
use support::shapes::{QWEN3_30B, SAMPLE, spec};
use support::tap::{Listen, Tap};
use support::{ROOMY, host, oracle, rig};

fn planned(spec: &ModelSpec, topology: &Topology) -> Result<Plan, PlanError> {
    plan::for_topology(spec, topology)
}

/// Every layer on one card, every budget kept, no expert twice.
fn check(spec: &ModelSpec, plan: &Plan) {
    let mut layer = 0;
    for stage in &plan.stages {
        assert_eq!(stage.layers.start, layer, "{plan}");
        layer = stage.layers.end;
        assert!(stage.total() <= stage.budget, "{plan}");
        assert!(stage.buffers.iter().all(|buffer| buffer.bytes.len().is_multiple_of(REGION_ALIGN)), "{plan}");
        let Some(experts) = &stage.experts else { continue };
        let held: BTreeSet<_> = experts.residents.iter().collect();
        assert_eq!(held.len(), experts.residents.len(), "an expert has two slots");
        assert!(held.iter().all(|at| stage.layers.contains(&at.layer)), "an expert of another card's layer");
        let kept = experts.residents.len() - experts.displaced - experts.staged;
        assert!(experts.displaced + experts.minimum <= experts.ring && experts.staged <= experts.staging);
        assert_eq!(kept + experts.staging + experts.ring, experts.slots);
        let all = experts.slots == experts.experts + experts.staging;
        assert_eq!(experts.ring == 0, all, "a ring exactly where something streams");
    }
    assert_eq!(layer, spec.layers.len());
    assert!(plan.stages.last().unwrap().head);
}

#[test]
fn every_ready_topology_is_planned() {
    let big = spec(QWEN3_30B);
    let sample = spec(SAMPLE);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("topology");
    let mut files: Vec<_> = fs_err::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "yaml"));
    files.sort();
    assert!(files.len() >= 12, "only {} files", files.len());
    for path in files {
        let topology = Topology::load(&path).unwrap();
        let spec = if topology.cards()[0].kind == topology::CardKind::Virtual { &sample } else { &big };
        let plan = planned(spec, &topology).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        println!("{}\n{plan}", path.file_name().unwrap().display());
        assert_eq!(plan.stages.len(), topology.cards().len());
        check(spec, &plan);
    }
}

fn cards(memory: &[u64]) -> Vec<CardBudget> {
    let card = |(i, bytes): (usize, &u64)| CardBudget {
        id: CardId(i as u32),
        name: format!("gpu{i}"),
        kind: CardKind::Cuda,
        memory: Bytes(*bytes),
        link: Rate(12e9),
        rate: Rate(400e9),
        compute: None,
        crossing: Crossing { staged: Rate(6e9), peer: None },
    };
    memory.iter().enumerate().map(card).collect()
}

fn try_plan(spec: &ModelSpec, memory: &[u64], settings: &RunSettings) -> Result<Plan, PlanError> {
    plan(&Request { spec, cards: cards(memory), host: host(Bytes(64 << 30)), settings })
}

const GIB: u64 = 1 << 30;

#[test]
fn pins_are_constraints_and_the_rest_is_planned() {
    let spec = spec(QWEN3_30B);
    let mut settings = RunSettings::default();
    settings.pins.layers = vec![LayerPin { card: CardId(0), first: 0, last: Some(9) }];
    settings.pins.experts = vec![ExpertPin { card: CardId(1), slots: 200 }];
    let plan = try_plan(&spec, &[10 * GIB, 10 * GIB], &settings).unwrap();
    check(&spec, &plan);
    assert!(plan.stages[0].layers.end >= 10);
    assert_eq!(plan.stages[1].experts.as_ref().unwrap().slots, 200);

    settings.pins.experts = vec![ExpertPin { card: CardId(1), slots: 6000 }];
    settings.pins.layers = vec![LayerPin { card: CardId(1), first: 0, last: Some(47) }];
    let error = try_plan(&spec, &[10 * GIB, 10 * GIB], &settings).unwrap_err();
    assert!(matches!(error, PlanError::Pins { .. }), "{error}");
}

#[test]
fn a_pin_of_what_the_model_does_not_have_is_refused_by_name() {
    let spec = spec(QWEN3_30B);
    let with = |layers: Vec<LayerPin>, experts: Vec<ExpertPin>| {
        let mut settings = RunSettings::default();
        settings.pins.layers = layers;
        settings.pins.experts = experts;
        try_plan(&spec, &[12 * GIB, 12 * GIB], &settings)
    };
    let layers = |first, last| with(vec![LayerPin { card: CardId(1), first, last }], Vec::new());
    assert!(layers(24, Some(47)).is_ok() && layers(47, None).is_ok());
    for (first, last) in [(24, Some(48)), (48, None), (60, Some(70)), (0, Some(u32::MAX))] {
        let error = layers(first, last).unwrap_err().to_string();
        assert!(error.contains("run.pins.layers: gpu1") && error.contains("layers 0 to 47"), "{error}");
    }
    let experts = |slots| with(Vec::new(), vec![ExpertPin { card: CardId(0), slots }]);
    let one = experts(1).unwrap();
    let held = one.stages[0].experts.as_ref().unwrap();
    assert_eq!((held.slots, held.ring, held.residents.len()), (1, 1, 0), "one slot is a ring, and nothing else");
    assert!(experts(0).unwrap_err().to_string().contains("pin 1 slot"));
    let error = experts(6145).unwrap_err().to_string();
    assert!(error.contains("6144 experts (48 layers of 128)"), "{error}");
    // More than its own layers have is told.
    let roomy = try_plan(&spec, &[40 * GIB, 40 * GIB], &{
        let mut settings = RunSettings::default();
        settings.pins.experts = vec![ExpertPin { card: CardId(0), slots: 6000 }];
        settings
    });
    let roomy = roomy.unwrap();
    assert!(roomy.notes.iter().any(|note| note.contains("gpu0 is given 6000 slots")), "{:?}", roomy.notes);
}

/// A setting that differs from what holds by itself, and a word of what must be said where it has nothing to act on.
#[test]
fn a_number_that_cannot_act_is_told() {
    let spec = spec(QWEN3_30B);
    type Set = fn(&mut RunSettings);
    let cases: [(&str, Set); 8] = [
        ("run.prompt.ring is 40 slots", |run| run.prompt.ring = Ring::Slots(40)),
        ("run.prompt.floor is 7 tokens", |run| run.prompt.floor = 7),
        ("run.prompt.depth is 3 copies", |run| run.prompt.depth = 3),
        ("run.prompt.host_pool is on", |run| run.prompt.host_pool = true),
        ("run.prompt.wave 9000", |run| run.prompt.wave = Wave::Tokens(9000)),
        ("run.kv.staging is 640 cells", |run| run.kv.staging = Staging::Cells(640)),
        ("run.kv.resident_cells 99999", |run| run.kv.resident_cells = ResidentCells::First(99_999)),
        ("run.throttle is on", |run| run.throttle = true),
    ];
    for (words, set) in cases {
        let mut settings = RunSettings::default();
        set(&mut settings);
        let plan = try_plan(&spec, &[40 * GIB], &settings).unwrap();
        assert!(plan.notes.iter().any(|note| note.starts_with(words)), "{words}: {:?}", plan.notes);
    }
    assert_eq!(try_plan(&spec, &[40 * GIB], &RunSettings::default()).unwrap().notes, Vec::<String>::new());
}

#[test]
fn a_thousand_layers_on_nine_cards_are_refused_and_planned_at_once() {
    let mut spec = spec(SAMPLE);
    spec.layers = vec![spec.layers[0].clone(); 1000];
    let settings = RunSettings::default();
    for (each, fits) in [(8 << 20, false), (300 << 20, false), (4 << 30, true)] {
        let begin = std::time::Instant::now();
        let plan = try_plan(&spec, &[each; 9], &settings);
        let took = begin.elapsed();
        println!("{each} bytes each: {took:?}");
        assert_eq!(plan.is_ok(), fits, "{:?}", plan.err());
        // The program takes less than a second; test builds are several times slower, on a busy machine more so.
        assert!(took.as_secs_f64() < 20.0, "{took:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// The search against all splits of few layers: the same answer whether there is one, and none is faster by bytes.
    #[test]
    fn what_fits_in_any_way_is_planned(
        layers in 1_usize..7,
        memory in proptest::collection::vec(6_u64..60, 1..4),
        pin in proptest::option::of((0_u32..3, 0_u32..7)),
    ) {
        let mut spec = spec(SAMPLE);
        spec.layers.truncate(layers);
        let mut settings = RunSettings { context: 64, ..RunSettings::default() };
        let memory: Vec<u64> = memory.iter().map(|mib| mib << 20).collect();
        let cards = memory.len().min(layers) as u32;
        if let Some((card, layer)) = pin {
            settings.pins.layers =
                vec![LayerPin { card: CardId(card % cards), first: layer % layers as u32, last: Some(layer % layers as u32) }];
        }
        let found = try_plan(&spec, &memory, &settings);
        // Every split by hand: all layers pinned to their cards.
        let mut any = false;
        for ends in splits(layers, cards as usize) {
            let mut pins = settings.clone();
            let fits_pin = settings.pins.layers.iter().all(|pin| ends[pin.card.0 as usize].contains(&(pin.first as usize)));
            pins.pins.layers = (0..).zip(&ends).map(|(card, range)| LayerPin {
                card: CardId(card), first: range.start as u32, last: Some(range.end as u32 - 1),
            }).collect();
            any |= fits_pin && try_plan(&spec, &memory, &pins).is_ok();
        }
        prop_assert_eq!(found.is_ok(), any, "{:?}", found.err());
    }
}

/// All ways to cut layers into ranges that are not empty.
fn splits(layers: usize, cards: usize) -> Vec<Vec<std::ops::Range<usize>>> {
    if cards == 1 {
        return vec![vec![0..layers]];
    }
    let with_last = |start: usize| {
        splits(start, cards - 1).into_iter().map(move |mut all| {
            all.push(start..layers);
            all
        })
    };
    (cards - 1..layers).flat_map(with_last).collect()
}

proptest! {
    /// A prompt is cut evenly, and below the floor no wave reaches it.
    #[test]
    fn waves_are_even_and_below_the_floor_none_passes_it(tokens in 1_usize..5000, wave in 1_usize..700, floor in 0_usize..700) {
        let waves = Waves::of(tokens, wave);
        let rows: Vec<usize> = (0..waves.count).map(|number| waves.rows(number)).collect();
        prop_assert_eq!(rows.iter().sum::<usize>(), tokens);
        prop_assert!(rows.iter().all(|rows| *rows <= wave && rows - waves.shortest <= 1), "{rows:?}");
        prop_assert_eq!(waves.count, tokens.div_ceil(wave));
        prop_assert_eq!(waves.reach(floor), rows.iter().all(|rows| *rows >= floor));
        prop_assert!(waves.reach(floor) || rows.iter().all(|rows| *rows <= floor.min(wave)), "{rows:?}");
    }
}

#[test]
fn a_refusal_names_card_bytes_and_the_smallest_change_and_that_change_helps() {
    let spec = spec(QWEN3_30B);
    let settings = RunSettings { context: 200_000, ..RunSettings::default() };
    let memory = [4 * GIB, 3 * GIB];
    let error = try_plan(&spec, &memory, &settings).unwrap_err();
    let PlanError::TooSmall { card, wanted, available, fixes } = &error else { panic!("{error}") };
    println!("{error}");
    let index = if card == "gpu0" { 0 } else { 1 };
    assert_eq!(available.0, memory[index]);
    let mut raised = memory;
    raised[index] = wanted.0;
    assert!(try_plan(&spec, &raised, &settings).is_ok(), "the wanted memory does not help");
    raised[index] = wanted.0 - (1 << 20);
    assert!(try_plan(&spec, &raised, &settings).is_err(), "less would have helped, too");
    let context = fixes.iter().find_map(|fix| fix.strip_prefix("lower run.context to ")).unwrap();
    let lower = RunSettings { context: context.parse().unwrap(), ..settings.clone() };
    assert!(try_plan(&spec, &memory, &lower).is_ok(), "the lower context does not help");
}

#[test]
fn where_every_card_is_too_small_the_refusal_says_what_each_must_have() {
    let settings = RunSettings { context: 256, ..RunSettings::default() };
    let model = Model::open(support::data("oracle/models/qwen3moe-iq2.gguf")).unwrap();
    // Two layers on two cards: one must run on each.
    let error = try_plan(&model.spec, &[1 << 16, 1 << 17], &settings).unwrap_err();
    let PlanError::TooSmall { card, wanted, available, .. } = &error else { panic!("{error}") };
    assert_eq!((card.as_str(), available.0), ("gpu0", 1 << 16));
    assert!(error.to_string().contains("give every card as much"), "{error}");
    assert!(try_plan(&model.spec, &[wanted.0, wanted.0], &settings).is_ok(), "that does not help: {error}");
    assert!(try_plan(&model.spec, &[wanted.0 - 2048, wanted.0 - 2048], &settings).is_err(), "less would have helped");
}

#[test]
fn cells_that_do_not_fit_go_to_the_host() {
    let spec = spec(QWEN3_30B);
    let context = 131_072;
    let settings = RunSettings { context, ..RunSettings::default() };
    let error = try_plan(&spec, &[8 * GIB], &settings).unwrap_err();
    let PlanError::TooSmall { fixes, .. } = &error else { panic!("{error}") };
    let cells = fixes.iter().find_map(|fix| fix.strip_prefix("set run.kv.resident_cells to "));
    let cells: u32 = cells.unwrap_or_else(|| panic!("{error}")).parse().unwrap();
    let with = |cells: u32| {
        let mut settings = settings.clone();
        settings.kv.resident_cells = ResidentCells::First(cells);
        try_plan(&spec, &[8 * GIB], &settings)
    };
    let plan = with(cells).unwrap();
    assert!(with(cells + 4096).is_err(), "more cells would have fitted");
    check(&spec, &plan);
    assert_eq!((plan.kv.resident, plan.kv.resident + plan.kv.streamed), (cells as usize, context as usize));
    let experts = plan.stages[0].experts.as_ref().unwrap();
    let cell = 2 * 4 * 128 * 2;
    assert!(experts.staging * experts.slot_bytes >= plan.kv.staging * cell, "{plan}");
    assert!(plan.kv.tile * 4 <= plan.kv.staging.next_multiple_of(256), "four tiles at a time");
    assert_eq!(plan.stages[0].host.cells, plan.kv.host_cells().len() * 48 * cell);

    // Resident cells are whole tiles, and that is said.
    let plan = with(1000).unwrap();
    assert_eq!(plan.kv.resident, 960);
    assert!(plan.notes.iter().any(|note| note.contains("960 cells stay")), "{:?}", plan.notes);
}

#[test]
fn auto_turns_a_switch_on_where_it_gains_and_says_why() {
    let spec = spec(QWEN3_30B);
    let mut settings = RunSettings { context: 65_536, ..RunSettings::default() };
    assert_eq!((settings.kv.prefetch, settings.prompt.routed_stream), (Switch::Auto, Switch::Auto), "the default");
    let noted = |plan: &Plan, words: &str| plan.notes.iter().any(|note| note.contains(words));
    let plan = try_plan(&spec, &[80 * GIB], &settings).unwrap();
    assert!(!plan.kv.prefetch && plan.prompt.routed_upto == 0);
    assert!(!noted(&plan, "auto"), "nothing to decide, nothing to say: {:?}", plan.notes);

    settings.kv.resident_cells = ResidentCells::First(8192);
    let plan = try_plan(&spec, &[8 * GIB], &settings).unwrap();
    assert!(plan.kv.prefetch && plan.prompt.routed_upto >= plan.prompt.floor, "{:?}", plan.notes);
    assert!(noted(&plan, "kv.prefetch auto: on, it is predicted to save"), "{:?}", plan.notes);
    assert!(noted(&plan, "routed_stream auto: on"), "{:?}", plan.notes);

    settings.kv.prefetch = Switch::On;
    settings.kv.resident_cells = ResidentCells::All;
    let plan = try_plan(&spec, &[80 * GIB], &settings).unwrap();
    assert!(!plan.kv.prefetch && noted(&plan, "kv.prefetch is on, but every cell lives on a card"));
}

/// An H200 that keeps 128 of 6,144 experts, where 2,048 and 4,096 tokens a wave were measured to gain by skipping and
/// 8,192 to lose.
#[test]
fn auto_skips_unrouted_experts_in_waves_that_the_link_limits() {
    let spec = spec(QWEN3_30B);
    let mut settings = RunSettings { context: 33_024, ..RunSettings::default() };
    settings.prompt.floor = 256;
    settings.prompt.wave = Wave::Tokens(8192);
    settings.pins.experts = vec![ExpertPin { card: CardId(0), slots: 256 }];
    let with = |settings: &RunSettings, compute: Option<f64>| {
        let mut cards = cards(&[60 * GIB]);
        (cards[0].link, cards[0].rate, cards[0].compute) = (Rate(52e9), Rate(4800e9), compute.map(Flops));
        plan(&Request { spec: &spec, cards, host: host(Bytes(64 << 30)), settings }).unwrap()
    };
    let plan = with(&settings, None);
    println!("{plan}");
    let upto = plan.prompt.routed_upto;
    assert!((4096..8192).contains(&upto), "{plan}");
    let text = plan.to_string();
    for words in
        ["from 256 tokens on", "16 copies ahead", &format!("in waves of up to {upto}"), "routed_stream auto: on"]
    {
        assert!(text.contains(words), "{words}\n{text}");
    }
    assert_eq!(serde_json::to_value(&plan).unwrap()["prompt"]["routed_upto"], upto);

    // It is the last wave that gains, whatever the first one is.
    for (floor, wanted) in [(upto, upto), (upto + 1, 0)] {
        let mut settings = settings.clone();
        settings.prompt.floor = floor as u32;
        assert_eq!(with(&settings, None).prompt.routed_upto, wanted, "from {floor} tokens on");
    }

    // The slower a card computes, the sooner the link is no limit; a fast one waits for it in every wave.
    let slower = with(&settings, Some(100e12)).prompt.routed_upto;
    assert!((256..upto).contains(&slower), "{slower}");
    let never = with(&settings, Some(4e12));
    assert_eq!(never.prompt.routed_upto, 0);
    let text = never.to_string();
    assert!(text.contains("routed_stream auto: off") && text.contains("from 256 tokens on"), "{text}");
    let always = with(&settings, Some(989e12));
    assert_eq!(always.prompt.routed_upto, always.wave);
    let text = always.to_string();
    assert!(text.contains("routed_stream auto: on") && !text.contains("in waves of up to"), "{text}");

    // What is asked for is no prediction.
    settings.prompt.routed_stream = Switch::On;
    let on = with(&settings, Some(4e12));
    assert_eq!((on.prompt.routed_upto, on.notes.is_empty()), (on.wave, true), "{on}");
    settings.prompt.floor = 8193;
    let text = with(&settings, None).to_string();
    assert!(text.contains("routed_stream is on, but") && text.contains("prompt.floor"), "{text}");
    settings.prompt.routed_stream = Switch::Auto;
    let below = with(&settings, None);
    assert_eq!((below.prompt.routed_upto, below.notes.is_empty()), (0, true), "{below}");
    settings.prompt.routed_stream = Switch::Off;
    settings.prompt.floor = 0;
    let off = with(&settings, None);
    assert_eq!((off.prompt.routed_upto, off.notes.is_empty()), (0, true), "{off}");
    assert!(off.to_string().contains("from 0 tokens on"), "{off}");
}

#[test]
fn the_host_attends_what_link_and_workers_end_together_with() {
    let spec = spec(QWEN3_30B);
    let mut settings = RunSettings { context: 65_536, ..RunSettings::default() };
    settings.kv.kind = KvType::Int8;
    settings.kv.resident_cells = ResidentCells::First(0);
    let share = |settings: &RunSettings, workers: usize, rate: f64, link: f64| {
        let mut cards = cards(&[8 * GIB]);
        cards[0].link = Rate(link);
        let host = HostBudget { workers, rate: Rate(rate), ..host(Bytes(64 << 30)) };
        let plan = plan(&Request { spec: &spec, cards, host, settings }).unwrap();
        println!("{plan}");
        plan.stages[0].host_share.unwrap()
    };
    let auto = |workers, rate, link| share(&settings, workers, rate, link);
    let usual = auto(16, 100e9, 50e9);
    assert!((1..50).contains(&usual.percent), "a fast link takes most: {usual:?}");
    assert!(auto(16, 5e9, 50e9).percent < usual.percent, "slow memory takes from the host's share");
    assert!(auto(8, 100e9, 50e9).percent < usual.percent, "so do fewer workers");
    assert!(auto(16, 100e9, 12e9).percent > usual.percent, "a slower link gives to it");
    assert!(auto(16, 100e9, 12e9).least < usual.least, "and asking the host pays sooner");
    assert!(auto(16, 100e9, 3e9).least > 0, "a few cells are never worth the way");
    settings.kv.host_share = Share::Percent(7);
    let set = share(&settings, 16, 100e9, 50e9);
    assert_eq!((set.percent, set.least), (7, 0), "what is asked for is no prediction");

    settings.kv.resident_cells = ResidentCells::All;
    let plan = try_plan(&spec, &[80 * GIB], &settings).unwrap();
    assert_eq!(plan.stages[0].host_share, None);
    assert!(plan.notes.iter().any(|note| note.contains("kv.host_share is 7%")), "{:?}", plan.notes);
}

#[test]
fn a_small_host_is_refused_before_anything_is_allocated() {
    let spec = spec(QWEN3_30B);
    let settings = RunSettings::default();
    let on = |memory| plan(&Request { spec: &spec, cards: cards(&[8 * GIB]), host: host(memory), settings: &settings });
    // Experts that have no place in memory are read from the file; buffers are not.
    let small = on(Bytes(8 << 30)).unwrap();
    assert!(small.host.file_experts > 0 && small.host.taken() <= Bytes(8 << 30), "{small}");
    let error = on(Bytes(32 << 20)).unwrap_err();
    assert!(matches!(error, PlanError::Host { .. }), "{error}");
    assert!(error.to_string().contains("raise rig.host.memory by"), "{error}");
}

/// Memory that an engine takes of its card, each region rounded up as a GPU's arena does.
#[derive(Default)]
struct Taken(AtomicUsize);

impl Listen for Taken {
    fn allocates(&self, bytes: Bytes) {
        self.0.fetch_add(bytes.len().next_multiple_of(REGION_ALIGN), Ordering::Relaxed);
    }

    fn is_gpu(&self) -> bool {
        true
    }
}

#[test]
fn an_engine_takes_of_a_gpu_exactly_what_its_plan_counts() {
    for oracle in oracle::all() {
        let model = Arc::new(Model::open(oracle.model_path()).unwrap());
        let settings = RunSettings { context: 77, ..RunSettings::default() };
        for memory in [64 << 20, 1 << 20] {
            let Ok(plan) = try_plan(&model.spec, &[memory], &settings) else { continue };
            let taken = Arc::new(Taken::default());
            let mut rig = rig(&[ROOMY], 1);
            Tap::all(&mut rig, &taken);
            let total = plan.stages[0].total().len();
            let engine = Engine::load(Arc::clone(&model), plan, &rig.rig, &|_| {}).unwrap();
            assert_eq!(taken.0.load(Ordering::Relaxed), total, "{}: {}", oracle.name, engine.plan());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_keeps_its_budgets(memory in proptest::collection::vec(1_u64..24, 1..5), context in 256_u32..65_536) {
        let spec = spec(QWEN3_30B);
        let settings = RunSettings { context, ..RunSettings::default() };
        let bytes: Vec<u64> = memory.iter().map(|gib| gib * GIB).collect();
        match try_plan(&spec, &bytes, &settings) {
            Ok(plan) => check(&spec, &plan),
            Err(error) => prop_assert!(matches!(error, PlanError::TooSmall { .. }), "{error}"),
        }
    }
}

#[test]
fn each_boundary_has_a_way_and_a_reason() {
    let spec = spec(QWEN3_30B);
    let mut all = cards(&[10 * GIB, 10 * GIB, 10 * GIB]);
    // NVLink between the first two, nothing between the others.
    all[1].crossing.peer = Some(Rate(200e9));
    let with = |hand_off, cards: &[CardBudget]| {
        let settings = RunSettings { hand_off, ..RunSettings::default() };
        plan(&Request { spec: &spec, cards: cards.to_vec(), host: host(Bytes(64 << 30)), settings: &settings })
    };
    use HandOffWay::{Host, Nccl, Peer};
    let ways = |hand_off| with(hand_off, &all).unwrap().hand_offs.iter().map(|at| at.way).collect::<Vec<_>>();
    assert_eq!(ways(HandOff::Auto), [Peer, Host]);
    assert_eq!(ways(HandOff::Host), [Host, Host]);
    assert_eq!(ways(HandOff::Peer), [Peer, Host]);
    assert_eq!(ways(HandOff::Nccl), [Nccl, Nccl]);
    let text = with(HandOff::Peer, &all).unwrap().to_string();
    for line in [
        "hand-off  gpu0 to gpu1 by peer copy, once its test has passed: run.hand_off asks for it",
        "hand-off  gpu1 to gpu2 through host memory: rig.peer does not name the two cards",
    ] {
        assert!(text.contains(line), "{text}");
    }
    all[2].kind = CardKind::Virtual;
    let error = with(HandOff::Nccl, &all).unwrap_err().to_string();
    assert!(error.starts_with("run.hand_off: NCCL joins NVIDIA GPUs, and gpu2 is a virtual card"), "{error}");
    let one = with(HandOff::Nccl, &cards(&[40 * GIB])).unwrap();
    assert!(one.hand_offs.is_empty() && one.notes.iter().any(|note| note.contains("nothing is handed off")), "{one}");
}
