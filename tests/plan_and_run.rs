//! What is planned is run: buffers that a plan sizes are enough for every request that it allows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::Arc;

use aqueduct::engine::{Cancel, Engine};
use aqueduct::model::Model;
use aqueduct::plan::{PlanError, Waves};
use aqueduct::quant::QuantType;
use aqueduct::synth::{Overrides, Shape, write_model};
use aqueduct::topology::{ResidentCells, Ring, RunSettings, Wave};
use aqueduct::units::Bytes;
use proptest::prelude::*;
use support::stories::open;
use support::{ROOMY, least_of_each, plan_for, rig, runner};

#[derive(Clone, Debug)]
struct Case {
    floor: u32,
    wave: u32,
    context: u32,
    tokens: usize,
    sequences: u32,
    host_pool: bool,
    /// Cells that stay on the card; `None` is all.
    resident: Option<u32>,
    ring: Option<u32>,
    /// Above the smallest legal budget, in thousandths of what all experts take.
    room: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    // Floors from below the wave to above twice the wave, where waves of unequal rows lie on both sides of it.
    let sizes = (2_u32..40).prop_flat_map(|wave| (1..=2 * wave + 2, Just(wave)));
    let tokens = (1_usize..200, any::<bool>());
    let ring = prop_oneof![Just(None), (1_u32..6).prop_map(Some)];
    let resident = prop_oneof![Just(None), Just(None), (0_u32..130).prop_map(Some)];
    (sizes, tokens, 1_u32..4, proptest::bool::weighted(0.7), resident, ring, prop_oneof![Just(0_u64), 0..1200_u64])
        .prop_map(|((floor, wave), (tokens, edge), sequences, host_pool, resident, ring, room)| {
            // Often just below a whole number of floors: some waves have a row more than the shortest.
            let twice = 2 * floor as usize;
            let near = [twice - 1, twice - 1, twice - 1, twice, twice - 2, floor as usize - 1];
            let tokens = if edge { near[tokens % near.len()].clamp(1, 199) } else { tokens };
            let context = (tokens as u32 + 3).max(wave);
            Case { floor, wave, context, tokens, sequences, host_pool, resident, ring, room }
        })
}

fn settings(case: &Case) -> RunSettings {
    let mut settings = RunSettings { context: case.context, sequences: case.sequences, ..RunSettings::default() };
    settings.prompt.wave = Wave::Tokens(case.wave);
    settings.prompt.floor = case.floor;
    settings.prompt.host_pool = case.host_pool;
    settings.prompt.ring = case.ring.map_or(Ring::Auto, Ring::Slots);
    settings.kv.resident_cells = case.resident.map_or(ResidentCells::All, ResidentCells::First);
    settings
}

/// Logits of a prompt, and of a step of all sequences.
fn logits(engine: &mut Engine, case: &Case) -> Vec<u32> {
    let cancel = Cancel::new();
    let tokens: Vec<u32> = (0..case.tokens as u32).map(|i| (i * 37 + case.floor) % 500).collect();
    let mut all = Vec::new();
    let mut sequences: Vec<_> = (0..case.sequences).map(|_| engine.sequence().unwrap()).collect();
    let mut sink = |_: usize, logits: &[f32]| all.extend(logits.iter().map(|x| x.to_bits()));
    engine.prompt_all(&mut sequences[0], &tokens, &cancel, &mut sink).unwrap();
    for token in [3, 8] {
        let mut rows: Vec<_> = sequences.iter_mut().map(|sequence| (sequence, token)).collect();
        engine.step(&mut rows, &cancel).unwrap().iter().for_each(|logits| sink(0, logits));
    }
    all
}

#[derive(Default)]
struct Seen {
    cases: u64,
    refused: u64,
    by_host: u64,
    /// By the host pool, with a wave of all the rows that stay below the floor.
    at_the_floor: u64,
    uneven: u64,
    streamed: u64,
    cells: u64,
    several_sequences: u64,
}

fn check(model: &Arc<Model>, case: &Case, seen: &mut Seen) -> Result<(), TestCaseError> {
    let settings = settings(case);
    let least = least_of_each(model, 1, &settings);
    let memory = [Bytes(least.0 + model.spec.expert_bytes().0 * case.room / 1000)];
    seen.cases += 1;
    let plan = match plan_for(model, &memory, &settings) {
        Ok(plan) => plan,
        Err(PlanError::Pin { .. }) if case.ring.is_some() => {
            seen.refused += 1;
            return Ok(());
        }
        Err(error) => return Err(TestCaseError::fail(format!("{case:?}: {error}"))),
    };
    let waves = Waves::of(case.tokens, plan.wave);
    let streams = plan.stages[0].experts.as_ref().is_some_and(|experts| experts.ring > 0);
    let by_host = streams && case.host_pool && !waves.reach(plan.prompt.floor);
    seen.by_host += u64::from(by_host);
    seen.at_the_floor += u64::from(by_host && waves.rows(0) == plan.prompt.floor);
    seen.uneven += u64::from(waves.rows(0) > waves.shortest);
    seen.cells += u64::from(plan.kv.streams());
    seen.several_sequences += u64::from(case.sequences > 1);

    let mut plain = RunSettings { context: case.context, sequences: case.sequences, ..RunSettings::default() };
    plain.prompt.wave = Wave::Tokens(200);
    let reference = plan_for(model, &[ROOMY], &plain).unwrap();
    let one = rig(&[ROOMY], 1);
    let wanted = logits(&mut Engine::load(Arc::clone(model), reference, &one.rig, &|_| {}).unwrap(), case);
    let test = rig(&memory, 2);
    let mut engine = Engine::load(Arc::clone(model), plan, &test.rig, &|_| {}).unwrap();
    let found = logits(&mut engine, case);
    prop_assert_eq!(test.ledger.violations(), Vec::<String>::new());
    prop_assert!(found == wanted, "other bits: {case:?}\n{}", engine.plan());
    seen.streamed += u64::from(engine.counts()[0].streamed > 0);
    Ok(())
}

#[test]
fn what_is_planned_runs_over_floors_waves_and_pools() {
    let models = ["qwen3moe-f32", "mixtral-q4_0"].map(open);
    let seen = RefCell::new(Seen::default());
    runner(160)
        .run(&(cases(), 0..models.len()), |(case, model)| check(&models[model], &case, &mut seen.borrow_mut()))
        .unwrap();
    let seen = seen.into_inner();
    let counts = [
        ("refused", seen.refused),
        ("prompts by the host pool", seen.by_host),
        ("of these with as many rows as stay below the floor", seen.at_the_floor),
        ("with waves of unequal rows", seen.uneven),
        ("with streamed experts", seen.streamed),
        ("with streamed cells", seen.cells),
        ("with several sequences", seen.several_sequences),
    ];
    println!("{} cases: {counts:?}", seen.cases);
    for (what, count) in counts.into_iter().skip(1) {
        assert!(count > 0, "no case {what}");
    }
}

/// The case of the rule: two waves, of which one has a row more than the other and as many as the floor.
#[test]
fn two_waves_on_both_sides_of_the_floor_are_read() {
    let model = open("qwen3moe-f32");
    let mut seen = Seen::default();
    for wave in 8..17 {
        let case = Case {
            floor: 8,
            wave,
            context: 64,
            tokens: 15,
            sequences: 1,
            host_pool: true,
            resident: None,
            ring: None,
            room: 100,
        };
        check(&model, &case, &mut seen).unwrap();
    }
    assert!(seen.uneven > 0);
}

/// Dense models whose rows are shorter than a block of the quantised formats.
#[test]
fn narrow_dense_models_run_as_planned() {
    let folder = tempfile::tempdir().unwrap();
    let mut ran = 0;
    for (width, ff) in [(16, 16), (16, 24), (16, 64), (32, 16), (64, 31), (64, 1), (8, 8)] {
        let f32 = Some(QuantType::F32);
        let sizes = Overrides {
            width: Some(width),
            ff: Some(ff),
            heads: Some(2),
            kv_heads: Some(1),
            ffn_type: f32,
            down_type: f32,
            attention_type: f32,
            embedding_type: f32,
            ..Overrides::default()
        };
        let Ok(shape) = Shape::named("tiny-llama").unwrap().with(&sizes) else {
            println!("no shape of width {width} and ff {ff}");
            continue;
        };
        let path = folder.path().join(format!("narrow-{width}-{ff}.gguf"));
        write_model(&shape, &path, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let model = Arc::new(Model::open(&path).unwrap());
        let settings = RunSettings { context: 64, ..RunSettings::default() };
        let plan = plan_for(&model, &[ROOMY], &settings).unwrap();
        let test = rig(&[ROOMY], 1);
        let mut engine = Engine::load(Arc::clone(&model), plan, &test.rig, &|_| {}).unwrap();
        let mut sequence = engine.sequence().unwrap();
        engine.prompt(&mut sequence, &[1, 2, 3], &Cancel::new()).unwrap();
        engine.step(&mut [(&mut sequence, 4)], &Cancel::new()).unwrap();
        ran += 1;
    }
    assert!(ran >= 4, "only {ran} models could be written");
}

/// The program: a model whose tokenizer cannot be built is refused by both, with the same words.
#[test]
fn what_run_refuses_plan_refuses_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write_model(&Shape::named("tiny-qwen3moe").unwrap(), &path, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let program = |command: &str, more: &[&str]| {
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_aqueduct"));
        let output = program.args([command, "-c", "64", "-m"]).arg(&path).args(more).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(program("plan", &[]).0, Some(0));
    // The same length, so that nothing else of the file moves.
    let mut bytes = fs_err::read(&path).unwrap();
    let key = b"tokenizer.ggml.pre";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap();
    let value = bytes[at..].windows(5).position(|window| window == b"qwen2").unwrap() + at;
    bytes[value..value + 5].copy_from_slice(b"other");
    fs_err::write(&path, bytes).unwrap();
    let (planned, ran) = (program("plan", &[]), program("run", &["-p", "hello", "-n", "2"]));
    assert_eq!((planned.0, ran.0), (Some(1), Some(1)), "{} {}", planned.1, ran.1);
    assert!(planned.1.contains("other"), "{}", planned.1);
    assert_eq!(planned.1, ran.1);
}
