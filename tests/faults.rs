//! What fails on a card is the error of its request, by name; the process serves the next request, with the right bits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};

use aqueduct::card::{Card, CardError};
use aqueduct::engine::{Cancel, Engine, EngineError};
use aqueduct::topology::HandOff;
use aqueduct::units::CardId;
use support::stories::{Bits, Dice, Request, Story, Way, answer, open, story};
use support::tap::{Call, Listen, Tap};
use support::watchdog::Watchdog;
use support::{ROOMY, TestRig, plan_for, rig};

/// One test at a time: they count the threads of the process.
static ALONE: Mutex<()> = Mutex::new(());

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Waits a little for threads that have been joined but are still listed.
fn assert_threads(wanted: usize, case: &str) {
    for _ in 0..200 {
        if threads() <= wanted {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(threads() <= wanted, "{} threads after {case}, {wanted} before", threads());
}

/// Counts calls by card; panics at one of them.
#[derive(Default)]
struct Breaker(Mutex<State>);

#[derive(Default)]
struct State {
    heard: BTreeMap<(CardId, Call), usize>,
    target: Option<(CardId, Call, usize)>,
    /// The thread that panicked.
    broke: Option<String>,
}

impl Breaker {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn aim(&self, target: Option<(CardId, Call, usize)>) {
        *self.state() = State { target, ..State::default() };
    }
}

impl Listen for Breaker {
    fn before(&self, card: &dyn Card, call: Call) {
        let at = (card.id(), call);
        let mut state = self.state();
        let heard = state.heard.entry(at).or_default();
        *heard += 1;
        let heard = *heard;
        if state.target.take_if(|(card, call, n)| (*card, *call) == at && *n == heard).is_some() {
            state.broke = Some(std::thread::current().name().unwrap_or("").to_owned());
            drop(state);
            // Past the panic hook: the panic is wanted, nobody needs to read about it.
            resume_unwind(Box::new("injected"));
        }
    }
}

/// An engine on two cards whose prompts stream experts and displace residents, and whose steps use the host pool.
struct Bench {
    story: Story,
    engine: Engine,
    rig: TestRig,
    breaker: Arc<Breaker>,
    wanted: Bits,
    heard: BTreeMap<(CardId, Call), usize>,
    threads: usize,
}

impl Bench {
    fn new((way, hand_off): (Way, HandOff)) -> Self {
        let story = story("", &open("qwen3moe-f32"), 2, way, 1, 5).across("two cards", hand_off);
        let resident = plan_for(&story.model, &[ROOMY], &story.settings).unwrap();
        let mut one = Engine::load(Arc::clone(&story.model), resident, &rig(&[ROOMY], 1).rig, &|_| {}).unwrap();
        let wanted = answer(&mut one, &story.tokens).unwrap();
        drop(one);
        let breaker = Arc::new(Breaker::default());
        let mut rig = rig(&story.memory, 1);
        Tap::all(&mut rig, &breaker);
        let plan = plan_for(&story.model, &story.memory, &story.settings).unwrap();
        let mut engine = Engine::load(Arc::clone(&story.model), plan, &rig.rig, &|_| {}).unwrap();
        answer(&mut engine, &story.tokens).unwrap();
        breaker.aim(None);
        assert!(answer(&mut engine, &story.tokens).unwrap() == wanted, "other bits without a fault");
        let heard = breaker.state().heard.clone();
        Self { story, engine, rig, breaker, wanted, heard, threads: threads() }
    }

    /// Occurrences of a command on a card during a request.
    fn commands(&self, card: usize, is: impl Fn(&str) -> bool) -> usize {
        let counted = self.heard.iter().filter(|((id, call), _)| match call {
            Call::Submit(_, name) => id.0 as usize == card && is(name),
            _ => false,
        });
        counted.map(|(_, count)| count).sum()
    }

    /// Runs a request into the fault that was set; then the next one. Returns the error and whether an answer was
    /// begun.
    fn case(&mut self, case: &str, watchdog: &Watchdog) -> Option<EngineError> {
        let Self { story, engine, rig, breaker, wanted, .. } = self;
        let mut request = Request::new(engine, &story.tokens);
        let outcome = watchdog.watch(case, || request.run(engine, &Cancel::new()));
        breaker.state().target = None;
        rig.faults.iter().for_each(|faults| faults.clear());
        assert_eq!(engine.taken(), (0, 1), "{case}");
        let parts = request.done.len();
        let held = if parts == 0 { 0 } else { story.tokens.len() + parts - 1 };
        assert_eq!(request.sequence.tokens(), held, "{case}: an error leaves the sequence as it was");
        // The same sequence goes on where it stood, and a fresh one is right as well.
        watchdog.watch(&format!("going on after {case}"), || request.run(engine, &Cancel::new())).unwrap();
        assert!(request.done == *wanted, "other bits going on after {case}");
        drop(request);
        let next = watchdog.watch(&format!("the next after {case}"), || answer(engine, &story.tokens)).unwrap();
        assert!(next == *wanted, "other bits after {case}");
        assert_eq!(engine.taken(), (0, 0), "{case}");
        assert_eq!(rig.ledger.violations(), Vec::<String>::new(), "{case}");
        assert_threads(self.threads, case);
        outcome.err()
    }
}

fn assert_names(error: &EngineError, card: usize, command: &str, case: &str) {
    let text = error.to_string();
    let named = text.contains(&format!("card {card}")) && text.contains(&format!("`{command}"));
    assert!(named && text.contains("stream"), "{case}: {text}");
}

const COPIES: [&str; 4] = ["copy in", "copy out", "copy", "copy across"];

/// Ways of prompts and of hidden states. Wires have tests of their own: a failure cuts them.
const WAYS: [(Way, HandOff); 6] = [
    (Way::Gated, HandOff::Host),
    (Way::Ungated, HandOff::Host),
    (Way::BelowFloor, HandOff::Peer),
    (Way::Prefetched, HandOff::Host),
    (Way::Staged, HandOff::Host),
    (Way::Gated, HandOff::Peer),
];

#[test]
fn copies_that_fail_and_kernels_that_panic_end_their_request_only() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let watchdog = Watchdog::start();
    let mut dice = Dice(3);
    let mut tally: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for way in WAYS {
        let mut bench = Bench::new(way);
        for card in 0..2 {
            let kernels: BTreeSet<&'static str> = bench
                .heard
                .keys()
                .filter_map(|(_, call)| match call {
                    Call::Submit(_, name) if !COPIES.contains(name) => Some(*name),
                    _ => None,
                })
                .collect();
            for name in kernels {
                let all = bench.commands(card, |command| command == name);
                if all == 0 {
                    continue;
                }
                for n in [1 + dice.below(all), all] {
                    let case = format!("{way:?}: panic in `{name}` number {n} of {all} on card {card}");
                    bench.rig.faults[card].panic_in(name, n);
                    let before = bench.rig.faults[card].fired();
                    let error = bench.case(&case, &watchdog);
                    let fired = bench.rig.faults[card].fired() - before;
                    assert_eq!(error.is_some(), fired > 0, "{case}: {error:?}");
                    let count = tally.entry(format!("panic in `{name}` on card {card}")).or_default();
                    *count = (count.0 + 1, count.1 + fired);
                    error.iter().for_each(|error| assert_names(error, card, name, &case));
                }
            }
            let copies = bench.commands(card, |command| COPIES.contains(&command));
            for turn in 0..12 {
                let refuse = turn % 2 == 0;
                let n = 1 + dice.below(copies);
                let what = if refuse { "refused copy" } else { "failing copy" };
                let case = format!("{way:?}: {what} {n} of {copies} on card {card}");
                let faults = bench.rig.faults[card].clone();
                if refuse {
                    faults.refuse_copy(n)
                } else {
                    faults.fail_copy(n)
                }
                let before = faults.fired();
                let error = bench.case(&case, &watchdog);
                let fired = faults.fired() - before;
                assert_eq!(error.is_some(), fired > 0, "{case}: {error:?}");
                let count = tally.entry(format!("{what} on card {card}")).or_default();
                *count = (count.0 + 1, count.1 + fired);
                error.iter().for_each(|error| assert_names(error, card, "copy", &case));
            }
        }
    }
    println!("{:40} {:>6} {:>6}", "fault", "cases", "struck");
    for (what, (cases, struck)) in &tally {
        println!("{what:40} {cases:6} {struck:6}");
        assert!(struck * 2 > *cases, "{what} struck in {struck} of {cases} cases");
    }
}

#[test]
fn threads_that_panic_end_their_request_only() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let watchdog = Watchdog::start();
    let mut dice = Dice(4);
    let mut broke: BTreeMap<String, usize> = BTreeMap::new();
    for way in WAYS {
        let mut bench = Bench::new(way);
        for ((card, call), all) in bench.heard.clone() {
            // A drain that panics is no way in which a card fails.
            if matches!(call, Call::Drain(..)) {
                continue;
            }
            let n = 1 + dice.below(all);
            let case = format!("{way:?}: panic at {call}, {n} of {all}, {card}");
            bench.breaker.aim(Some((card, call, n)));
            let error = bench.case(&case, &watchdog);
            let Some(thread) = bench.breaker.state().broke.take() else { continue };
            let error = error.unwrap_or_else(|| panic!("{case}: no error")).to_string();
            assert!(error.contains("panicked") && error.contains(&card.to_string()), "{case}: {error}");
            *broke.entry(thread).or_default() += 1;
        }
    }
    println!("panics by thread: {broke:?}");
    for card in 0..2 {
        for thread in ["stage on", "issuer of"] {
            assert!(broke.contains_key(&format!("{thread} card {card}")), "none in `{thread} card {card}`");
        }
    }
}

#[test]
fn memory_that_runs_out_while_loading_names_card_and_bytes() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let watchdog = Watchdog::start();
    let story = story("two cards", &open("qwen3moe-f32"), 2, Way::Gated, 1, 5);
    let load = |rig: &TestRig| {
        let plan = plan_for(&story.model, &story.memory, &story.settings).unwrap();
        Engine::load(Arc::clone(&story.model), plan, &rig.rig, &|_| {})
    };
    let wanted = {
        let rig = rig(&story.memory, 1);
        answer(&mut load(&rig).unwrap(), &story.tokens).unwrap()
    };
    let before = threads();
    for card in 0..2 {
        let mut struck = 0;
        for n in 1.. {
            let rig = rig(&story.memory, 1);
            rig.faults[card].refuse_alloc(n);
            let case = format!("allocation {n} of card {card} refused");
            let loaded = watchdog.watch(&case, || load(&rig));
            if rig.faults[card].fired() == 0 {
                break;
            }
            struck += 1;
            let Err(error) = loaded else { panic!("{case}: loaded") };
            let EngineError::Card(CardError::OutOfMemory { card: found, wanted, .. }) = &error else {
                panic!("{case}: {error}")
            };
            assert_eq!(found.0 as usize, card, "{case}");
            let text = error.to_string();
            assert!(text.contains(&format!("card {card}")) && text.contains(&wanted.to_string()), "{case}: {text}");
            assert!(rig.rig.cards.iter().all(|card| card.leases().live() == 0), "{case}");
            drop(rig);
            assert_threads(before, &case);
        }
        println!("card {card}: {struck} allocations refused, one after the other");
        assert!(struck > 5, "{struck} allocations");
        for refuse in [true, false] {
            let rig = rig(&story.memory, 1);
            let faults = &rig.faults[card];
            if refuse {
                faults.refuse_copy(1)
            } else {
                faults.fail_copy(1)
            }
            let Err(error) = load(&rig) else { panic!("loaded without a copy") };
            assert_names(&error, card, "copy in", "loading");
        }
    }
    let rig = rig(&story.memory, 1);
    assert!(answer(&mut load(&rig).unwrap(), &story.tokens).unwrap() == wanted, "other bits after failed loads");
}
