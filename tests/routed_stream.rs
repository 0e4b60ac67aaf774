//! The routed prompt stream skips exactly what its rules say: a replay from the recorded publications finds the same
//! copies.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use aqueduct::card::CardError;
use aqueduct::engine::experts::feed::{Link, feed};
use aqueduct::engine::experts::gate::{Decision, Gate, Published};
use aqueduct::engine::experts::handshake::{Handshake, Outcome};
use aqueduct::engine::experts::walk::{Entry, Walk};
use aqueduct::engine::{Cancel, Counts, Engine};
use aqueduct::model::Model;
use aqueduct::ops::ExpertSet;
use aqueduct::plan::{Plan, PlanError, StagePlan};
use aqueduct::synth::{Overrides, Shape, write_model};
use aqueduct::topology::{Ring, RunSettings, Switch, Wave};
use aqueduct::units::{Bytes, ExpertId};
use proptest::prelude::*;
use support::watchdog::Watchdog;
use support::{least_of_each, plan_for, rig, runner};

/// Cases of a run.
const CASES: u32 = 60;

#[derive(Clone, Debug)]
struct Way {
    cards: usize,
    /// Memory above the smallest, in thousandths of what all experts take.
    room: u32,
    wave: u32,
    ring: u32,
    depth: u32,
    tokens: usize,
}

fn ways() -> impl Strategy<Value = Way> {
    let cards = prop_oneof![Just(1_usize), Just(2), Just(4)];
    let depth = prop_oneof![Just(1_u32), 1_u32..=64, Just(64)];
    (cards, 0_u32..700, 2_u32..24, 1_u32..48, depth, 1_usize..40)
        .prop_map(|(cards, room, wave, ring, depth, tokens)| Way { cards, room, wave, ring, depth, tokens })
}

/// What the rules make of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Replay {
    issued: u64,
    issued_bytes: u64,
    skipped: u64,
    skipped_bytes: u64,
    /// Issued although nothing routes to it: nobody knew yet.
    ahead: u64,
}

/// One entry of the list: its pass, expert and bytes.
struct Listed {
    pass: usize,
    expert: ExpertId,
    bytes: u64,
}

/// The experts of a stage that are not on its card during the prompt, in layer order, then id order, once a wave.
fn list(model: &Model, stage: &StagePlan, waves: usize) -> Vec<Listed> {
    let experts = stage.experts.as_ref().unwrap();
    let stay = &experts.residents[..experts.residents.len() - experts.displaced];
    let mut listed = Vec::new();
    for wave in 0..waves {
        for (layer, spec) in model.spec.expert_layers() {
            let layer = layer.0 as usize;
            if !stage.layers.contains(&layer) {
                continue;
            }
            let pass = wave * stage.layers.len() + (layer - stage.layers.start);
            for expert in 0..spec.experts {
                if !stay.iter().any(|at| (at.layer, at.expert) == (layer, expert)) {
                    let bytes = spec.blob().bytes as u64;
                    listed.push(Listed { pass, expert: ExpertId(expert as u32), bytes });
                }
            }
        }
    }
    listed
}

/// An entry whose layer is not known when its turn comes is issued; one that is known to be unrouted is skipped.
fn replay(listed: &[Listed], published: &[Published]) -> Replay {
    let mut found = Replay::default();
    for (turn, entry) in listed.iter().enumerate() {
        let known = published.iter().find(|known| known.pass == entry.pass).expect("every pass is published");
        let routed = known.routed.contains(entry.expert);
        let before_its_turn = known.position <= turn;
        if before_its_turn && !routed {
            found.skipped += 1;
            found.skipped_bytes += entry.bytes;
        } else {
            found.issued += 1;
            found.issued_bytes += entry.bytes;
            found.ahead += u64::from(!routed);
        }
    }
    found
}

/// Passes are published in order, once each; a pass's own slots bound how far the issuer may be by then.
fn check_positions(listed: &[Listed], published: &[Published], ring: usize) -> Result<(), TestCaseError> {
    let passes: Vec<usize> = published.iter().map(|known| known.pass).collect();
    prop_assert!(passes.windows(2).all(|pair| pair[0] < pair[1]), "published in this order: {:?}", passes);
    for known in published {
        let first = listed.iter().position(|entry| entry.pass >= known.pass).unwrap_or(listed.len());
        prop_assert!(known.position >= first, "pass {} was published before the one before it ended", known.pass);
        prop_assert!(
            known.position <= first + ring,
            "pass {} begins at {first}, its ring has {ring} slots, but {} entries were decided on",
            known.pass,
            known.position
        );
    }
    Ok(())
}

fn settings(way: &Way) -> RunSettings {
    let mut settings = RunSettings { context: 64, ..RunSettings::default() };
    settings.prompt.wave = Wave::Tokens(way.wave);
    settings.prompt.floor = 1;
    settings.prompt.depth = way.depth;
    settings.prompt.ring = Ring::Slots(way.ring);
    settings.prompt.routed_stream = Switch::On;
    settings
}

/// What happened in all cases together.
#[derive(Default)]
struct Seen {
    cases: u64,
    refused: u64,
    several_cards: u64,
    several_waves: u64,
    found: Replay,
}

fn check(model: &Arc<Model>, way: &Way, seen: &mut Seen) -> Result<(), TestCaseError> {
    let settings = settings(way);
    let room = model.spec.expert_bytes().0 * u64::from(way.room) / 1000 / way.cards as u64;
    let memory = vec![Bytes(least_of_each(model, way.cards, &settings).0 + room); way.cards];
    seen.cases += 1;
    let plan = match plan_for(model, &memory, &settings) {
        Ok(plan) => plan,
        Err(PlanError::Pin { .. }) => {
            seen.refused += 1;
            return Ok(());
        }
        Err(error) => return Err(TestCaseError::fail(format!("{way:?}: {error}"))),
    };
    let waves = way.tokens.div_ceil(plan.wave);
    let rig = rig(&memory, 1);
    let mut engine = Engine::load(Arc::clone(model), plan, &rig.rig, &|_| {}).unwrap();
    let tokens: Vec<u32> = (0..way.tokens as u32).map(|i| (i * 37 + way.ring * 11) % 500).collect();
    let mut sequence = engine.sequence().unwrap();
    engine.prompt(&mut sequence, &tokens, &Cancel::new()).unwrap();
    let plan: &Plan = engine.plan();
    let publications = engine.publications();
    prop_assert_eq!(publications.len(), plan.stages.len());
    for ((stage, published), counts) in plan.stages.iter().zip(publications).zip(engine.counts()) {
        let ring = stage.experts.as_ref().map_or(0, |experts| experts.ring);
        if ring == 0 {
            prop_assert!(published.is_empty(), "nothing streams, but something was published");
            continue;
        }
        let listed = list(model, stage, waves);
        check_positions(&listed, &published, ring)?;
        let wanted = replay(&listed, &published);
        let Counts { streamed, streamed_bytes, skipped, skipped_bytes, .. } = counts;
        let found =
            Replay { issued: streamed, issued_bytes: streamed_bytes, skipped, skipped_bytes, ahead: wanted.ahead };
        prop_assert_eq!(found, wanted, "{:?} on {}", way, stage.name);
        let sum = &mut seen.found;
        sum.issued += wanted.issued;
        sum.skipped += wanted.skipped;
        sum.ahead += wanted.ahead;
    }
    seen.several_cards += u64::from(plan.stages.len() > 1);
    seen.several_waves += u64::from(waves > 1);
    Ok(())
}

/// A small model with more experts than its ring has slots.
fn many_experts(folder: &Path) -> Arc<Model> {
    let path = folder.join("many-experts.gguf");
    let sizes =
        Overrides { layers: Some(5), experts: Some(24), experts_used: Some(2), ff: Some(32), ..Overrides::default() };
    let shape = Shape::named("tiny-qwen3moe").unwrap().with(&sizes).unwrap();
    write_model(&shape, &path, &mut |_, _| ControlFlow::Continue(())).unwrap();
    Arc::new(Model::open(path).unwrap())
}

#[test]
fn a_prompt_of_longer_waves_than_the_plan_says_copies_everything() {
    let folder = tempfile::tempdir().unwrap();
    let model = many_experts(folder.path());
    let way = Way { cards: 1, room: 300, wave: 12, ring: 6, depth: 4, tokens: 0 };
    let settings = settings(&way);
    let room = model.spec.expert_bytes().0 * u64::from(way.room) / 1000;
    let memory = [Bytes(least_of_each(&model, way.cards, &settings).0 + room)];
    let mut never = plan_for(&model, &memory, &settings).unwrap();
    never.prompt.routed_upto = 0;
    let mut some = never.clone();
    some.prompt.routed_upto = 8;
    let rig = rig(&memory, 1);
    let mut engine = Engine::load(Arc::clone(&model), never.clone(), &rig.rig, &|_| {}).unwrap();
    // Of 17 tokens one wave has nine and one eight; of 18, both have nine.
    for (length, acts) in [(1, true), (8, true), (9, false), (12, false), (16, true), (17, true), (18, false)] {
        let tokens: Vec<u32> = (0..length).map(|i| (i * 37 + 5) % 500).collect();
        let mut read = |plan: &Plan| {
            engine.read_prompts_by(plan).unwrap();
            let skipped = engine.counts()[0].skipped;
            let mut sequence = engine.sequence().unwrap();
            let logits = engine.prompt(&mut sequence, &tokens, &Cancel::new()).unwrap();
            let bits: Vec<u32> = logits.iter().map(|logit| logit.to_bits()).collect();
            (bits, !engine.publications()[0].is_empty(), engine.counts()[0].skipped - skipped)
        };
        let (wanted, gated, skipped) = read(&never);
        assert_eq!((gated, skipped), (false, 0), "{length} tokens, never");
        let (bits, gated, skipped) = read(&some);
        assert_eq!((gated, skipped > 0), (acts, acts), "{length} tokens, waves of up to 8");
        assert!(bits == wanted, "{length} tokens: skipping changed the logits");
    }
}

#[test]
fn an_independent_replay_finds_the_same_skips() {
    let folder = tempfile::tempdir().unwrap();
    let model = many_experts(folder.path());
    let mut runner = runner(CASES);
    let seen = RefCell::new(Seen::default());
    let watchdog = Watchdog::start();
    let watched = |way: Way| watchdog.watch(&format!("{way:?}"), || check(&model, &way, &mut seen.borrow_mut()));
    runner.run(&ways(), watched).unwrap();
    let seen = seen.into_inner();
    let Replay { issued, skipped, ahead, .. } = seen.found;
    println!(
        "{} cases, {} refused, {} on several cards, {} with several waves; {issued} issued, \
         {ahead} of them unrouted, {skipped} skipped",
        seen.cases, seen.refused, seen.several_cards, seen.several_waves
    );
    assert!(seen.refused * 10 <= seen.cases, "{} of {} cases were refused", seen.refused, seen.cases);
    for (what, count) in [
        ("skipped entries", skipped),
        ("entries issued ahead of a router that did not want them", ahead),
        ("rigs of several cards", seen.several_cards),
        ("prompts in several waves", seen.several_waves),
    ] {
        assert!(count > 0, "no {what} in any case");
    }
}

#[test]
fn unknown_entries_are_issued_and_known_unrouted_ones_skipped() {
    let walk = Walk::new(1, &[vec![ExpertId(0), ExpertId(1)], vec![ExpertId(0), ExpertId(1)]], 3);
    let gate = Gate::new(walk.passes());
    assert_eq!(gate.decide(&walk, 0), Decision::Issue);
    gate.publish(0, ExpertSet::new(2, [ExpertId(0)]));
    assert_eq!(gate.decide(&walk, 1), Decision::Skip);
    gate.publish(1, ExpertSet::new(2, [ExpertId(1)]));
    assert_eq!(gate.decide(&walk, 2), Decision::Skip);
    assert_eq!(gate.decide(&walk, 3), Decision::Issue);
    let positions: Vec<_> = gate.published().iter().map(|published| published.position).collect();
    assert_eq!(positions, [1, 2]);
}

/// A link whose events know how many of them are alive.
struct CountedLink {
    alive: Arc<()>,
    most: AtomicUsize,
}

impl Link for CountedLink {
    type Event = Arc<()>;

    fn copy(&self, _: usize, _: Entry, _: Option<&Arc<()>>) -> Result<Arc<()>, CardError> {
        self.most.fetch_max(Arc::strong_count(&self.alive), Ordering::Relaxed);
        Ok(Arc::clone(&self.alive))
    }

    fn skipped(&self, _: Entry) -> Result<(), CardError> {
        Ok(())
    }

    fn finished(&self, _: &Arc<()>) -> Result<bool, CardError> {
        Ok(true)
    }
}

/// Events of copies and readers are let go of as the prompt moves on: what is alive depends on the ring, not on the
/// prompt's length.
#[test]
fn a_long_prompt_holds_no_more_events_than_its_ring_has_slots() {
    const RING: usize = 8;
    let experts: Vec<ExpertId> = (0..16).map(ExpertId).collect();
    for gated in [false, true] {
        let walk = Arc::new(Walk::new(200, &[experts.clone(), experts.clone()], RING));
        let gate = gated.then(|| Arc::new(Gate::new(walk.passes())));
        let handshake = Arc::new(Handshake::new());
        let link = Arc::new(CountedLink { alive: Arc::default(), most: AtomicUsize::new(0) });
        let issuer = std::thread::spawn({
            let (walk, gate, handshake, link) = (walk.clone(), gate.clone(), handshake.clone(), link.clone());
            move || feed(&walk, gate.as_deref().map(|gate| (gate, 4)), &handshake, link.as_ref())
        });
        let (mut issued, mut skipped) = (0, 0);
        for pass in 0..walk.passes() {
            if let Some(gate) = &gate {
                gate.publish(pass, ExpertSet::new(16, [ExpertId(3), ExpertId(11)]));
            }
            for k in walk.pass(pass) {
                match handshake.outcome(k).unwrap() {
                    Outcome::Issued(_) => {
                        issued += 1;
                        handshake.release(k, Some(Arc::clone(&link.alive)));
                    }
                    Outcome::Skipped => skipped += 1,
                }
            }
        }
        issuer.join().unwrap().unwrap();
        let most = link.most.load(Ordering::Relaxed);
        println!("gated {gated}: {issued} issued, {skipped} skipped, at most {most} events at a time");
        assert_eq!((issued + skipped, skipped > 0), (walk.entries().len(), gated));
        assert!(most <= 3 * RING + 4, "{most} events at a time for a ring of {RING}");
        assert!(Arc::strong_count(&link.alive) <= 2 * RING, "{} events are kept", Arc::strong_count(&link.alive));
    }
}
