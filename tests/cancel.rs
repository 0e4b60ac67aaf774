//! Cancelling anywhere leaves nothing taken, keeps what was complete, and the next answer is right.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use aqueduct::card::Card;
use aqueduct::engine::{Cancel, Engine, EngineError, waits};
use aqueduct::topology::HandOff;
use support::stories::{Dice, Request, Story, Way, answer, boundaries, deep, open, story};
use support::tap::{Call, Listen, Tap};
use support::watchdog::Watchdog;
use support::{ROOMY, plan_for, rig};

/// Cancels in all.
const CANCELS: usize = 2_000;

/// When to cancel.
struct Target {
    /// Which calls count; `None` for all.
    call: Option<Call>,
    /// At how many of them.
    n: usize,
    /// After the card has answered instead of before it is asked.
    after: bool,
    cancel: Cancel,
}

/// Counts calls and cancels at one of them.
#[derive(Default)]
struct Trigger(Mutex<State>);

#[derive(Default)]
struct State {
    heard: BTreeMap<Call, usize>,
    target: Option<Target>,
    answering: Option<(ThreadId, Call)>,
    landed: Option<Call>,
}

impl Trigger {
    fn aim(&self, target: Option<Target>) {
        *self.0.lock().unwrap() = State { target, ..State::default() };
    }
}

impl Listen for Trigger {
    fn before(&self, _: &dyn Card, call: Call) {
        let mut state = self.0.lock().unwrap();
        *state.heard.entry(call).or_default() += 1;
        let heard: usize = match &state.target {
            Some(Target { call: Some(one), .. }) if *one == call => state.heard[&call],
            Some(Target { call: None, .. }) => state.heard.values().sum(),
            _ => return,
        };
        if let Some(target) = state.target.take_if(|target| target.n == heard) {
            if target.after {
                state.answering = Some((std::thread::current().id(), call));
                state.target = Some(Target { n: 0, ..target });
            } else {
                target.cancel.cancel();
                state.landed = Some(call);
            }
        }
    }

    fn after(&self, _: &dyn Card, call: Call) {
        let mut state = self.0.lock().unwrap();
        if state.answering == Some((std::thread::current().id(), call)) {
            state.answering = None;
            state.landed = Some(call);
            if let Some(target) = state.target.take() {
                target.cancel.cancel();
            }
        }
    }
}

/// What was seen at each kind of call.
type Seen = Mutex<BTreeMap<Call, Outcomes>>;

/// How requests ended after a cancel that landed at one kind of call.
#[derive(Default)]
struct Outcomes {
    nothing_kept: usize,
    waves_kept: usize,
    step: usize,
    finished: usize,
}

fn stories() -> Vec<Story> {
    let (qwen, mixtral) = (open("qwen3moe-f32"), open("mixtral-q4_0"));
    vec![
        story("resident, 1 card", &qwen, 1, Way::Resident, 0, 5),
        story("resident, 3 cards, 7 waves", &qwen, 3, Way::Resident, 0, 2),
        story("gated, 1 card, smallest", &qwen, 1, Way::Gated, 0, 5),
        story("gated, 2 cards, displaced residents", &qwen, 2, Way::Gated, 1, 5),
        story("ungated, 1 card, displaced residents", &qwen, 1, Way::Ungated, 6, 13),
        story("ungated, 2 cards, smallest", &qwen, 2, Way::Ungated, 0, 4),
        story("below the floor, 2 cards", &qwen, 2, Way::BelowFloor, 1, 5),
        story("below the floor, 1 card, smallest", &mixtral, 1, Way::BelowFloor, 0, 5),
        story("gated, 3 cards", &qwen, 3, Way::Gated, 1, 4),
        story("ungated, 2 cards, 7 waves", &mixtral, 2, Way::Ungated, 0, 2),
        story("prefetch, 1 card, displaced residents", &qwen, 1, Way::Prefetched, 6, 5),
        story("prefetch, 2 cards, 7 waves", &mixtral, 2, Way::Prefetched, 0, 2),
        story("outgrown, 2 cards", &qwen, 2, Way::Outgrown, 0, 60),
        story("prefetch, 4 cards", &deep(10), 4, Way::Prefetched, 0, 4),
        story("", &qwen, 3, Way::Gated, 1, 2).across("peer copies, 3 cards, 7 waves", HandOff::Peer),
        story("", &qwen, 2, Way::Resident, 0, 2).across("peer copies, 2 cards, 7 waves", HandOff::Peer),
        story("", &qwen, 3, Way::Gated, 1, 2).across("wires, 3 cards, 7 waves", HandOff::Nccl),
        story("staged, 2 cards, displaced residents", &qwen, 2, Way::Staged, 1, 5),
    ]
}

fn storm(story: &Story, cancels: usize, dice: &mut Dice, watchdog: &Watchdog, seen: &Seen) {
    let resident = plan_for(&story.model, &[ROOMY], &story.settings).unwrap();
    let mut one = Engine::load(Arc::clone(&story.model), resident, &rig(&[ROOMY], 1).rig, &|_| {}).unwrap();
    let wanted = answer(&mut one, &story.tokens).unwrap();

    let plan = plan_for(&story.model, &story.memory, &story.settings).unwrap();
    let trigger = Arc::new(Trigger::default());
    let mut rig = rig(&story.memory, 1);
    Tap::all(&mut rig, &trigger);
    let mut engine = Engine::load(Arc::clone(&story.model), plan, &rig.rig, &|_| {}).unwrap();
    let waves = boundaries(engine.plan(), story.tokens.len());
    // The second request is heard: it finds what the first one left behind.
    answer(&mut engine, &story.tokens).unwrap();
    trigger.aim(None);
    assert!(answer(&mut engine, &story.tokens).unwrap() == wanted, "{}: other bits without a cancel", story.name);
    let heard = trigger.0.lock().unwrap().heard.clone();
    let (kinds, all): (Vec<Call>, usize) = (heard.keys().copied().collect(), heard.values().sum());

    for turn in 0..cancels {
        // Half over all calls alike, half over the kinds of calls in turn, so that rare ones are hit as well.
        let call = (turn % 2 == 0).then(|| kinds[turn / 2 % kinds.len()]);
        let n = 1 + dice.below(call.map_or(all, |call| heard[&call]));
        let cancel = Cancel::new();
        let after = dice.below(2) == 1;
        trigger.aim(Some(Target { call, n, after, cancel: cancel.clone() }));
        let mut request = Request::new(&engine, &story.tokens);
        let aimed = format!("{}, to be cancelled at call {n} of {call:?}", story.name);
        let outcome = watchdog.watch(&aimed, || request.run(&mut engine, &cancel));
        let landed = trigger.0.lock().unwrap().landed;
        trigger.aim(None);
        let case = || format!("{}, cancelled {after} after call {n} of {call:?}, landed at {landed:?}", story.name);

        let (parts, kept) = (request.done.len(), request.sequence.tokens());
        let mut seen = seen.lock().unwrap();
        let outcomes = landed.map(|call| seen.entry(call).or_default());
        match outcome {
            Ok(()) => outcomes.into_iter().for_each(|outcomes| outcomes.finished += 1),
            Err(EngineError::Cancelled) => {
                let outcomes = outcomes.unwrap_or_else(|| panic!("cancelled by nobody: {}", case()));
                if parts > 0 {
                    assert_eq!(kept, story.tokens.len() + parts - 1, "{}", case());
                    outcomes.step += 1;
                } else {
                    assert!(kept < story.tokens.len() && waves.contains(&kept), "{kept} tokens kept: {}", case());
                    outcomes.nothing_kept += usize::from(kept == 0);
                    outcomes.waves_kept += usize::from(kept > 0);
                }
            }
            Err(error) => panic!("{error}: {}", case()),
        }
        drop(seen);
        assert_eq!(engine.taken(), (0, 1), "{}", case());
        if dice.below(4) == 0 {
            drop(request);
            assert!(answer(&mut engine, &story.tokens).unwrap() == wanted, "other bits: {}", case());
        } else {
            request.run(&mut engine, &Cancel::new()).unwrap();
            assert!(request.done == wanted, "other bits after going on: {}", case());
            drop(request);
        }
        assert_eq!(engine.taken(), (0, 0), "{}", case());
        assert_eq!(rig.ledger.violations(), Vec::<String>::new(), "{}", case());
    }
}

#[test]
fn two_thousand_cancels_leave_nothing_behind() {
    let stories = stories();
    let seen = Seen::default();
    // Two at a time: a request mostly waits for the threads of its cards.
    std::thread::scope(|scope| {
        for (seed, part) in stories.chunks(stories.len() / 2).enumerate() {
            let (seen, each) = (&seen, CANCELS / stories.len());
            scope.spawn(move || {
                let (mut dice, watchdog) = (Dice(seed as u64), Watchdog::start());
                part.iter().for_each(|story| storm(story, each, &mut dice, &watchdog, seen));
            });
        }
    });
    let seen = seen.into_inner().unwrap();
    let mut landed = 0;
    println!("{:45} {:>8} {:>8} {:>8} {:>8}", "landed at", "none", "waves", "step", "finished");
    for (call, Outcomes { nothing_kept, waves_kept, step, finished }) in &seen {
        println!("{call:45} {nothing_kept:8} {waves_kept:8} {step:8} {finished:8}");
        landed += nothing_kept + waves_kept + step + finished;
    }
    println!("{landed} of {CANCELS} cancels landed");
    assert!(landed * 100 >= CANCELS * 95, "only {landed} of {CANCELS} cancels landed");
    let total = |of: fn(&Outcomes) -> usize| seen.values().map(of).sum::<usize>();
    assert!(total(|o| o.nothing_kept) > 0 && total(|o| o.waves_kept) > 0 && total(|o| o.step) > 0);
    // Loading is over before there is a request.
    let reachable = waits::ALL.into_iter().filter(|why| *why != waits::LOADED);
    let missed: Vec<_> = reachable.filter(|why| !seen.keys().any(|call| call.why() == Some(*why))).collect();
    assert!(missed.is_empty(), "no cancel landed at {missed:?}");
}
