//! The hand-off in its three ways: which one is used and why, tested before it is, with the same bits, and what follows
//! when it fails. Wires, which NCCL makes between GPUs, are the virtual cards' own here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct::card::Stream;
use aqueduct::engine::{Engine, EngineError};
use aqueduct::plan::HandOffWay;
use aqueduct::topology::HandOff;
use aqueduct::units::CardId;
use support::stories::{Bits, Dice, Story, Way, answer, deep, open, story};
use support::watchdog::Watchdog;
use support::{ROOMY, TestRig, plan_for, rig};

const ALL: [HandOff; 3] = [HandOff::Host, HandOff::Peer, HandOff::Nccl];

fn load(story: &Story, rig: &TestRig) -> Result<Engine, EngineError> {
    let plan = plan_for(&story.model, &story.memory, &story.settings).unwrap();
    Engine::load(Arc::clone(&story.model), plan, &rig.rig, &|_| {})
}

fn on_one_card(story: &Story) -> Bits {
    let plan = plan_for(&story.model, &[ROOMY], &story.settings).unwrap();
    let mut one = Engine::load(Arc::clone(&story.model), plan, &rig(&[ROOMY], 1).rig, &|_| {}).unwrap();
    answer(&mut one, &story.tokens).unwrap()
}

/// Commands of this name on all cards' hand-off streams.
fn handed(rig: &TestRig, name: &str) -> u64 {
    let counts = rig.ledger.counts();
    rig.rig.cards.iter().map(|card| counts.on(card.id(), Stream::HandOff, name).commands).sum()
}

fn two(way: HandOff) -> Story {
    story("", &open("qwen3moe-f32"), 2, Way::Gated, 1, 5).across("two cards", way)
}

#[test]
fn every_way_gives_the_same_bits_on_two_to_four_cards() {
    let watchdog = Watchdog::start();
    for cards in 2..=4 {
        for how in [Way::Resident, Way::Prefetched] {
            let plain = story("", &deep(10), cards, how, 0, 4);
            let wanted = on_one_card(&plain);
            for way in ALL {
                let story = plain.clone().across("ten layers", way);
                let case = format!("{cards} cards, {how:?}, {way:?}");
                let rig = rig(&story.memory, 1);
                let mut engine = load(&story, &rig).unwrap();
                let boundaries = engine.plan().hand_offs.iter();
                assert_eq!(boundaries.filter(|at| HandOffWay::asked(way) == Some(at.way)).count(), cards - 1, "{case}");
                let before = ["copy across", "receive"].map(|name| handed(&rig, name));
                for _ in 0..3 {
                    let found = watchdog.watch(&case, || answer(&mut engine, &story.tokens)).unwrap();
                    assert!(found == wanted, "other bits: {case}\n{}", engine.plan());
                }
                let used = ["copy across", "receive"].map(|name| handed(&rig, name));
                assert_eq!(used[0] > before[0], way == HandOff::Peer, "{case}: {used:?}");
                assert_eq!(used[1] > before[1], way == HandOff::Nccl, "{case}: {used:?}");
                assert_eq!(rig.ledger.violations(), Vec::<String>::new(), "{case}");
            }
        }
    }
}

#[test]
fn a_way_that_brings_wrong_bytes_is_not_used_and_the_plan_says_why() {
    for way in [HandOff::Peer, HandOff::Nccl] {
        let story = two(way);
        let wanted = on_one_card(&story);
        // Each round of the test notices.
        for n in 1..=4 {
            let rig = rig(&story.memory, 1);
            rig.faults[1].corrupt_arrival(n);
            let mut engine = load(&story, &rig).unwrap();
            assert_eq!(rig.faults[1].fired(), 1);
            let hand_off = &engine.plan().hand_offs[0];
            assert_eq!(hand_off.way, HandOffWay::Host);
            assert!(hand_off.why.contains("arrived wrong"), "{}", hand_off.why);
            assert!(answer(&mut engine, &story.tokens).unwrap() == wanted, "{way:?}, round {n}: other bits");
            assert_eq!(rig.ledger.violations(), Vec::<String>::new());
        }
    }
}

#[test]
fn a_way_whose_commands_fail_in_the_test_is_not_used() {
    for way in [HandOff::Peer, HandOff::Nccl] {
        let story = two(way);
        let wanted = on_one_card(&story);
        let loading = {
            let rig = rig(&story.memory, 1);
            let plain = story.clone().across("host", HandOff::Host);
            load(&plain, &rig).unwrap();
            let copies = |card| {
                let names = ["copy in", "copy out", "copy"];
                Stream::ALL
                    .into_iter()
                    .flat_map(|on| names.map(|name| rig.ledger.counts().on(card, on, name).commands))
                    .sum::<u64>()
            };
            [0, 1].map(|card| copies(CardId(card)) as usize)
        };
        let watchdog = Watchdog::start();
        for (card, refuse, n) in [(0, true, 1), (0, false, 2), (1, true, 2), (1, false, 1), (0, false, 3), (1, true, 3)]
        {
            let case = format!("{way:?}: copy {n} of the test fails on card {card}, refused: {refuse}");
            let rig = rig(&story.memory, 1);
            let faults = &rig.faults[card];
            if refuse {
                faults.refuse_copy(loading[card] + n)
            } else {
                faults.fail_copy(loading[card] + n)
            }
            let mut engine = watchdog.watch(&case, || load(&story, &rig)).unwrap();
            assert_eq!(faults.fired(), 1, "{case}");
            let hand_off = &engine.plan().hand_offs[0];
            assert_eq!(hand_off.way, HandOffWay::Host, "{case}");
            assert!(hand_off.why.contains("injected"), "{case}: {}", hand_off.why);
            assert!(answer(&mut engine, &story.tokens).unwrap() == wanted, "{case}: other bits");
            assert_eq!(rig.ledger.violations(), Vec::<String>::new(), "{case}");
        }
    }
}

#[test]
fn a_test_that_does_not_end_is_an_error_in_time() {
    for way in [HandOff::Peer, HandOff::Nccl] {
        let story = two(way);
        let rig = rig(&story.memory, 1);
        rig.faults[1].hold_arrival(1);
        let begun = Instant::now();
        let Err(error) = load(&story, &rig) else { panic!("{way:?}: loaded over a card that stands still") };
        let text = error.to_string();
        assert!(matches!(error, EngineError::HandOff { .. }) && text.contains("did not arrive within 5 s"), "{text}");
        assert!(text.contains("card 0") && text.contains("card 1") && text.contains("run.hand_off to host"), "{text}");
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
        rig.faults[1].clear();
    }
}

#[test]
fn a_failure_on_a_wired_card_ends_its_request_by_name_and_the_next_goes_through_the_host() {
    let watchdog = Watchdog::start();
    let mut dice = Dice(7);
    let mut struck = 0;
    let plain = story("", &open("qwen3moe-f32"), 3, Way::Resident, 0, 2);
    let wanted = on_one_card(&plain);
    let story = plain.across("three cards", HandOff::Nccl);
    for card in 0..3 {
        for name in ["send", "receive", "attention", "copy in", "rms norm"] {
            for turn in 0..4 {
                let rig = rig(&story.memory, 1);
                let mut engine = load(&story, &rig).unwrap();
                let faults = &rig.faults[card];
                let n = 1 + dice.below(9);
                if name == "copy in" && turn % 2 == 0 {
                    faults.refuse_copy(n)
                } else {
                    faults.panic_in(name, n)
                }
                let case = format!("{name} number {n} on card {card}, turn {turn}");
                let outcome = watchdog.watch(&case, || answer(&mut engine, &story.tokens));
                let fired = faults.fired();
                faults.clear();
                assert_eq!(outcome.is_err(), fired > 0, "{case}: {:?}", outcome.err());
                if let Err(error) = outcome {
                    struck += 1;
                    assert!(error.to_string().contains(&format!("card {card}: ")), "{case}: {error}");
                }
                let before = handed(&rig, "receive");
                for _ in 0..2 {
                    let next = watchdog.watch(&format!("after {case}"), || answer(&mut engine, &story.tokens)).unwrap();
                    assert!(next == wanted, "other bits after {case}");
                }
                // The failed card's wires were cut; one between two others may live.
                let wired = handed(&rig, "receive") > before;
                assert!(wired || fired > 0, "no wire was used after {case}");
                assert_eq!(rig.ledger.violations(), Vec::<String>::new(), "{case}");
                assert_eq!(engine.taken(), (0, 0), "{case}");
            }
        }
    }
    assert!(struck > 20, "{struck} faults struck");
}
