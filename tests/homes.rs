//! Where experts live: on a card only, in the host's arena, or in the model's file. It changes what is promised, never
//! a result.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::Arc;

use aqueduct::engine::{Cancel, Engine};
use aqueduct::model::Model;
use aqueduct::plan::{self, Home, HostBudget, Plan, PlanError, Request};
use aqueduct::synth::{Overrides, Shape, write_model};
use aqueduct::topology::{ResidentCells, Ring, RunSettings, Switch, Wave};
use aqueduct::units::Bytes;
use proptest::prelude::*;
use support::{ROOMY, budgets, host, least, rig, runner};

/// Many small experts: nine tenths of the file.
fn model(layers: usize) -> Arc<Model> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many.gguf");
    let sizes = Overrides { layers: Some(layers), experts: Some(48), ff: Some(96), ..Overrides::default() };
    let shape = Shape::named("tiny-qwen3moe").unwrap().with(&sizes).unwrap();
    write_model(&shape, &path, &mut |_, _| ControlFlow::Continue(())).unwrap();
    Arc::new(Model::open(&path).unwrap())
}

fn planned(model: &Model, memory: &[Bytes], on: HostBudget, settings: &RunSettings) -> Result<Plan, PlanError> {
    plan::plan(&Request { spec: &model.spec, cards: budgets(memory), host: on, settings })
}

fn settings() -> RunSettings {
    let mut settings = RunSettings { context: 64, sequences: 2, ..RunSettings::default() };
    settings.prompt.wave = Wave::Tokens(16);
    settings.prompt.floor = 8;
    settings
}

/// Logits of a prompt at the floor, of one below it, and of steps of two sequences.
fn logits(engine: &mut Engine) -> Vec<u32> {
    let cancel = Cancel::new();
    let mut all = Vec::new();
    let mut sink = |_: usize, logits: &[f32]| all.extend(logits.iter().map(|x| x.to_bits()));
    let (mut first, mut second) = (engine.sequence().unwrap(), engine.sequence().unwrap());
    let tokens: Vec<u32> = (0..29).map(|i| (i * 37) % 200).collect();
    engine.prompt_all(&mut first, &tokens[..24], &cancel, &mut sink).unwrap();
    engine.prompt_all(&mut second, &tokens[24..], &cancel, &mut sink).unwrap();
    for token in [5, 9, 11] {
        let rows = engine.step(&mut [(&mut first, token), (&mut second, token + 1)], &cancel).unwrap();
        rows.iter().for_each(|logits| sink(0, logits));
    }
    all
}

fn run(model: &Arc<Model>, plan: Plan, memory: &[Bytes]) -> (Vec<u32>, u64) {
    let test = rig(memory, 2);
    let mut engine = Engine::load(Arc::clone(model), plan, &test.rig, &|_| {}).unwrap();
    let found = logits(&mut engine);
    assert_eq!(test.ledger.violations(), Vec::<String>::new());
    assert_eq!(engine.taken(), (0, 0));
    (found, engine.counts().iter().map(|counts| counts.streamed).sum())
}

fn reference(model: &Arc<Model>) -> Vec<u32> {
    run(model, planned(model, &[ROOMY], host(ROOMY), &settings()).unwrap(), &[ROOMY]).0
}

#[test]
fn a_host_with_a_tenth_of_the_model_holds_none_of_what_lives_on_cards() {
    let model = model(6);
    let all = model.spec.expert_bytes();
    let small = Bytes(all.0 / 10);
    for memory in [vec![ROOMY], vec![ROOMY; 2]] {
        let plan = planned(&model, &memory, host(small), &settings()).unwrap();
        assert_eq!((plan.host.arena, plan.host.file_experts), (Bytes(0), 0), "{plan}");
        assert!(plan.host.taken() <= small, "{plan}");
        assert_eq!(plan.host.homes.count(&model.spec, Home::Card), (6 * 48, all));
        assert_eq!(run(&model, plan, &memory), (reference(&model), 0));
    }
}

#[test]
fn residents_that_stay_have_no_second_place() {
    let model = model(4);
    let all = model.spec.expert_bytes();
    let bytes = least(|bytes| planned(&model, &[bytes], host(ROOMY), &settings()).is_ok());
    let memory = [Bytes(bytes.0 + all.0 / 2)];
    let plan = planned(&model, &memory, host(ROOMY), &settings()).unwrap();
    let experts = plan.stages[0].experts.as_ref().unwrap();
    let (kept, kept_bytes) = plan.host.homes.count(&model.spec, Home::Card);
    assert_eq!((kept, plan.host.file_experts), (experts.stays(), 0));
    assert!(kept > 0 && experts.displaced > 0, "{plan}");
    assert_eq!(plan.host.arena, Bytes(all.0 - kept_bytes.0));
    let (found, streamed) = run(&model, plan, &memory);
    assert!(streamed > 0);
    assert_eq!(found, reference(&model));
}

#[test]
fn what_fits_nowhere_is_told_with_its_time() {
    let model = model(4);
    let bytes = least(|bytes| planned(&model, &[bytes], host(ROOMY), &settings()).is_ok());
    let memory = [Bytes(bytes.0 + model.spec.expert_bytes().0 / 4)];
    let ample = planned(&model, &memory, host(ROOMY), &settings()).unwrap();
    let tight = planned(&model, &memory, host(Bytes(ample.host.buffers.0 + 20_000)), &settings()).unwrap();
    assert!(tight.host.file_experts > 0 && tight.host.taken() <= tight.host.budget, "{tight}");
    let experts = tight.stages[0].experts.as_ref().unwrap();
    assert_eq!(experts.displaced, 0, "residents stay where the host has no place for them");
    let text = tight.to_string();
    assert!(text.contains("read from the model's file") && text.contains("1.0 GB/s"), "{text}");
    let json = serde_json::to_value(&tight).unwrap();
    assert_eq!(json["host"]["file_experts"], tight.host.file_experts);
    // Buffers have no other place.
    let error = planned(&model, &memory, host(Bytes(ample.host.buffers.0 - 1)), &settings()).unwrap_err();
    assert!(matches!(error, PlanError::Host { .. }), "{error}");
}

#[derive(Clone, Debug)]
struct Case {
    /// Card memory above the least, and host memory above the buffers, in thousandths of all experts.
    cards: Vec<u64>,
    host: u64,
    ring: Option<u32>,
    gated: bool,
    host_pool: bool,
    resident_cells: Option<u32>,
}

#[derive(Default)]
struct Seen {
    cases: u64,
    refused: u64,
    file: u64,
    part: u64,
    none: u64,
    refilled: u64,
    streamed: u64,
    by_host: u64,
}

fn check(model: &Arc<Model>, wanted: &[u32], case: &Case, seen: &mut Seen) -> Result<(), TestCaseError> {
    let mut settings = settings();
    settings.prompt.ring = case.ring.map_or(Ring::Auto, Ring::Slots);
    settings.prompt.routed_stream = if case.gated { Switch::On } else { Switch::Off };
    settings.prompt.host_pool = case.host_pool;
    settings.kv.resident_cells = case.resident_cells.map_or(ResidentCells::All, ResidentCells::First);
    let cards = case.cards.len();
    let bytes = least(|bytes| planned(model, &vec![bytes; cards], host(ROOMY), &settings).is_ok());
    let all = model.spec.expert_bytes().0;
    let memory: Vec<Bytes> = case.cards.iter().map(|room| Bytes(bytes.0 + all * room / 1000)).collect();
    seen.cases += 1;
    let Ok(ample) = planned(model, &memory, host(ROOMY), &settings) else {
        seen.refused += 1;
        return Ok(());
    };
    let small = Bytes(ample.host.buffers.0 + all * case.host / 1000);
    let plan =
        planned(model, &memory, host(small), &settings).map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert!(plan.host.taken() <= small, "{plan}");
    let (card, arena) =
        (plan.host.homes.count(&model.spec, Home::Card), plan.host.homes.count(&model.spec, Home::Arena));
    prop_assert_eq!(card.1 + arena.1 + plan.host.file_bytes, Bytes(all));
    prop_assert_eq!(plan.host.arena, arena.1);
    seen.file += u64::from(plan.host.file_experts > 0);
    seen.part += u64::from(plan.host.file_experts > 0 && arena.0 > 0);
    seen.none += u64::from(arena.0 == 0);
    for experts in plan.stages.iter().filter_map(|stage| stage.experts.as_ref()) {
        let gone = &experts.residents[experts.stays()..];
        let file = gone.iter().filter(|at| plan.host.homes.of_layer(at.layer)[at.expert] == Home::File);
        seen.refilled += file.count() as u64;
    }
    let in_file = plan.host.file_experts > 0;
    let (found, streamed) = run(model, plan, &memory);
    prop_assert!(found == wanted, "other bits: {:?}", case);
    seen.streamed += u64::from(in_file && streamed > 0);
    seen.by_host += u64::from(in_file && case.host_pool);
    Ok(())
}

#[test]
fn logits_are_the_same_bits_wherever_experts_live() {
    let model = model(3);
    let wanted = reference(&model);
    let room = || prop_oneof![Just(0_u64), 0..1100_u64];
    let ring = prop_oneof![Just(None), (1_u32..24).prop_map(Some)];
    let cells = prop_oneof![Just(None), Just(Some(0_u32))];
    let cards = proptest::collection::vec(room(), 1..3);
    let cases = (cards, room(), ring, any::<bool>(), any::<bool>(), cells).prop_map(
        |(cards, host, ring, gated, host_pool, resident_cells)| Case {
            cards,
            host,
            ring,
            gated,
            host_pool,
            resident_cells,
        },
    );
    let seen = RefCell::new(Seen::default());
    runner(40).run(&cases, |case| check(&model, &wanted, &case, &mut seen.borrow_mut())).unwrap();
    let seen = seen.into_inner();
    let counts = [
        ("with experts in the file", seen.file),
        ("with some in the arena and some in the file", seen.part),
        ("without an arena", seen.none),
        ("residents refilled from the file", seen.refilled),
        ("that stream from the file", seen.streamed),
        ("with the host pool on what lives in the file", seen.by_host),
    ];
    println!("{} cases, {} refused: {counts:?}", seen.cases, seen.refused);
    for (what, count) in counts {
        assert!(count > 0, "no case {what}");
    }
}
