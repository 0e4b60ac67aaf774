//! Every wait and drain of the engine is needed: left out, the ledger complains in at least one request.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use aqueduct::card::{Card, CardError, Event, Stream, Why};
use aqueduct::engine::{Cancel, Engine, EngineError, waits};
use aqueduct::topology::HandOff;
use support::stories::{Request, Story, Way, answer, open, story};
use support::tap::{Call, Held, Listen, Tap};
use support::watchdog::Watchdog;
use support::{TestRig, plan_for, rig};

/// Waits that are not about order, each with what it is for; other tests of this file check that.
const OTHER_PURPOSE: [(Why, &str); 2] = [
    (waits::LOADED, "loading ends with the error of its own copies; the first request waits for residents anyway"),
    (waits::ONE_LAYER_AHEAD, "a cancelled prompt ends within one layer's time; the stream itself keeps its order"),
];

fn stories() -> Vec<Story> {
    let (qwen, mixtral) = (open("qwen3moe-f32"), open("mixtral-q4_0"));
    vec![
        story("resident, 3 cards, 7 waves", &qwen, 3, Way::Resident, 0, 2),
        story("", &qwen, 3, Way::Resident, 0, 2).across("peer copies, 3 cards, 7 waves", HandOff::Peer),
        story("", &qwen, 3, Way::Resident, 0, 2).across("wires, 3 cards, 7 waves", HandOff::Nccl),
        story("resident, 1 card, 3 waves", &qwen, 1, Way::Resident, 0, 5),
        story("gated, 2 cards, displaced residents", &qwen, 2, Way::Gated, 1, 5),
        story("ungated, 1 card, displaced residents", &qwen, 1, Way::Ungated, 6, 5),
        story("ungated, 2 cards, 7 waves", &mixtral, 2, Way::Ungated, 0, 2),
        story("below the floor, 1 card", &mixtral, 1, Way::BelowFloor, 0, 13),
        story("prefetch, 1 card, displaced residents", &qwen, 1, Way::Prefetched, 6, 5),
        story("prefetch, 2 cards, 7 waves", &mixtral, 2, Way::Prefetched, 0, 2),
        story("outgrown, 1 card", &qwen, 1, Way::Outgrown, 0, 60),
        story("staged, 1 card, displaced residents", &qwen, 1, Way::Staged, 6, 5),
        story("staged, 2 cards, 7 waves", &mixtral, 2, Way::Staged, 0, 2),
    ]
}

/// How a wait is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    /// It is carried out, but the ledger takes no order from it.
    Unseen,
    /// The call is not made: the ledger does not even learn what the calling thread knew. Memory is safe all the same,
    /// since the ledger refuses what is not ordered before it runs.
    Removed,
}

/// Leaves out the calls with a reason, where there is one, and counts them. Cancels the request that is told to, as
/// soon as cells are copied ahead.
struct Remover {
    why: Option<Why>,
    removed: AtomicU64,
    cancel: Mutex<Option<Cancel>>,
}

impl Listen for Remover {
    fn before(&self, _: &dyn Card, call: Call) {
        if call == Call::Submit(Stream::KvIn, "copy in")
            && let Some(cancel) = self.cancel.lock().unwrap().take()
        {
            cancel.cancel();
        }
    }

    fn forwards(&self, call: Call) -> bool {
        let other = self.why.is_none() || call.why() != self.why;
        self.removed.fetch_add(u64::from(!other), Ordering::Relaxed);
        other
    }
}

/// What the ledger says first when a wait is left out, and how often the wait occurred.
fn complaint(story: &Story, why: Why, mutation: Mutation) -> (Option<String>, u64) {
    let plan = plan_for(&story.model, &story.memory, &story.settings).unwrap();
    let mut rig = rig(&story.memory, 1);
    let remover = Arc::new(Remover {
        why: (mutation == Mutation::Removed).then_some(why),
        removed: AtomicU64::new(0),
        cancel: Mutex::default(),
    });
    if mutation == Mutation::Unseen {
        rig.ledger.leave_out(why);
    }
    Tap::all(&mut rig, &remover);
    // What one request leaves behind meets the next. Their errors repeat what the ledger keeps.
    if let Ok(mut engine) = Engine::load(Arc::clone(&story.model), plan, &rig.rig, &|_| {}) {
        for _ in 0..2 {
            let _ = answer(&mut engine, &story.tokens);
        }
        let cancel = Cancel::new();
        *remover.cancel.lock().unwrap() = Some(cancel.clone());
        let _ = Request::new(&engine, &story.tokens).run(&mut engine, &cancel);
        let _ = answer(&mut engine, &story.tokens);
    }
    let seen = rig.ledger.counts().left_out.get(&why).copied().unwrap_or(0);
    let occurred = seen + remover.removed.load(Ordering::Relaxed);
    (rig.ledger.violations().into_iter().next(), occurred)
}

#[test]
fn the_ledger_misses_every_wait_that_is_left_out() {
    let stories = stories();
    let watchdog = Watchdog::start();
    for story in &stories {
        let (complaint, _) = complaint(story, Why("nothing"), Mutation::Unseen);
        assert_eq!(complaint, None, "{}: with all waits in place", story.name);
    }
    let mut unmissed = Vec::new();
    for why in waits::ALL {
        let mut occurred = 0;
        let tries =
            [Mutation::Unseen, Mutation::Removed].into_iter().flat_map(|how| stories.iter().map(move |s| (s, how)));
        let found = tries.into_iter().find_map(|(story, how)| {
            let case = format!("{}, `{}` {how:?}", story.name, why.0);
            let (complaint, times) = watchdog.watch(&case, || complaint(story, why, how));
            occurred += times;
            complaint.map(|text| (format!("{how:?} in `{}`", story.name), text))
        });
        assert!(occurred > 0, "no request comes to `{}`", why.0);
        match (found, OTHER_PURPOSE.iter().find(|(other, _)| *other == why)) {
            (Some((story, text)), None) => println!("{:22} {story}: {text}", why.0),
            (None, Some((_, purpose))) => println!("{:22} (not about order: {purpose})", why.0),
            (None, None) => unmissed.push(why.0),
            (Some((story, _)), Some(_)) => panic!("`{}` is about order after all, see {story}", why.0),
        }
    }
    assert!(unmissed.is_empty(), "redundant in all requests: {unmissed:?}");
}

#[test]
fn each_way_of_the_hand_off_needs_its_own_waits() {
    let peer = [waits::HIDDEN_READY, waits::HIDDEN_COPIED, waits::HIDDEN_FREE, waits::HIDDEN_ARRIVED];
    let wire = [waits::STAGE_DONE, waits::HIDDEN_FREE, waits::HIDDEN_ARRIVED];
    let plain = story("", &open("qwen3moe-f32"), 3, Way::Resident, 0, 2);
    let watchdog = Watchdog::start();
    for (way, needed) in [(HandOff::Peer, &peer[..]), (HandOff::Nccl, &wire[..])] {
        let story = plain.clone().across("three cards", way);
        for why in needed {
            let (complaint, times) = watchdog.watch(why.0, || complaint(&story, *why, Mutation::Unseen));
            assert!(times > 0 && complaint.is_some(), "{way:?}: nobody misses `{}`, which came {times} times", why.0);
        }
    }
}

#[test]
fn loading_waits_for_its_copies_and_reports_the_one_that_failed() {
    let story = story("gated", &open("qwen3moe-f32"), 1, Way::Gated, 6, 5);
    let plan = plan_for(&story.model, &story.memory, &story.settings).unwrap();
    assert!(plan.stages[0].experts.as_ref().unwrap().displaced > 0, "no resident is copied");
    let rig = rig(&story.memory, 1);
    rig.faults[0].fail_copy(2);
    let Err(error) = Engine::load(Arc::clone(&story.model), plan, &rig.rig, &|_| {}) else {
        panic!("an engine whose residents were not copied")
    };
    assert_eq!(rig.faults[0].fired(), 1);
    assert!(matches!(error, EngineError::Card(CardError::Failed { stream: Stream::Experts, .. })), "{error}");
}

/// Holds compute back at a command; cancels at one call and lets compute go at another.
struct Stalled {
    /// The command, and how many of its name come before it.
    hold: Mutex<(&'static str, usize)>,
    /// The call, and how many like it come before it.
    cancel_at: Mutex<(Call, usize)>,
    let_go_at: Call,
    held: Arc<Held>,
    cancel: Cancel,
    attended: Mutex<usize>,
}

impl Listen for Stalled {
    fn before(&self, card: &dyn Card, call: Call) {
        if let Call::Submit(Stream::Compute, name) = call {
            if strikes(&mut self.hold.lock().unwrap(), name) {
                card.wait(Stream::Compute, &Event::new(card.id(), self.held.clone()), Why("the test")).unwrap();
            }
            *self.attended.lock().unwrap() += usize::from(name == "attention");
        }
        if strikes(&mut self.cancel_at.lock().unwrap(), call) {
            self.cancel.cancel();
        }
        if call == self.let_go_at {
            self.held.end();
        }
    }
}

/// Whether `now` is the one that `(what, before)` counts down to.
fn strikes<T: PartialEq>((what, before): &mut (T, usize), now: T) -> bool {
    let counts = *what == now;
    let strikes = counts && *before == 0;
    *before = before.wrapping_sub(usize::from(counts));
    strikes
}

/// An engine on one card that holds everything, and its rig, heard by `listener`.
fn stalled(story: &Story, listener: &Arc<Stalled>) -> (Engine, TestRig) {
    let plan = plan_for(&story.model, &story.memory, &story.settings).unwrap();
    let mut rig = rig(&story.memory, 1);
    Tap::all(&mut rig, listener);
    (Engine::load(Arc::clone(&story.model), plan, &rig.rig, &|_| {}).unwrap(), rig)
}

#[test]
fn a_wave_that_fails_after_a_cancellation_is_not_kept() {
    let story = story("resident, 3 waves", &open("qwen3moe-f32"), 1, Way::Resident, 0, 5);
    let layers = story.model.spec.layers.len();
    // The last layer's experts of the second wave fail, but not before the third wave was cancelled.
    let listener = Arc::new(Stalled {
        hold: Mutex::new(("experts", 2 * layers - 1)),
        cancel_at: Mutex::new((Call::Wait(Stream::Compute, waits::HIDDEN_ARRIVED), 2)),
        let_go_at: Call::Drain(Stream::Compute, waits::REQUEST_END),
        held: Arc::default(),
        cancel: Cancel::new(),
        attended: Mutex::default(),
    });
    let (mut engine, rig) = stalled(&story, &listener);
    rig.faults[0].panic_in("experts", 2 * layers);
    let mut sequence = engine.sequence().unwrap();
    let outcome = Watchdog::start()
        .watch("a failure after a cancel", || engine.prompt(&mut sequence, &story.tokens, &listener.cancel));
    assert!(matches!(outcome, Err(EngineError::Card(CardError::Failed { command: "experts", .. }))), "{outcome:?}");
    assert!(listener.cancel.is_cancelled());
    assert_eq!(sequence.tokens(), 0, "a wave that failed was kept");
    drop(sequence);
    assert!(answer(&mut engine, &story.tokens).is_ok());
}

#[test]
fn a_prompt_is_launched_at_most_one_layer_ahead_of_the_card() {
    let story = story("resident", &open("qwen3moe-f32"), 1, Way::Resident, 0, 13);
    let layers = story.model.spec.layers.len();
    assert!(layers > 2, "{layers} layers show nothing");
    let listener = Arc::new(Stalled {
        hold: Mutex::new(("rms norm", 0)),
        cancel_at: Mutex::new((Call::Sync(waits::ONE_LAYER_AHEAD), 0)),
        let_go_at: Call::Sync(waits::ONE_LAYER_AHEAD),
        held: Arc::default(),
        cancel: Cancel::new(),
        attended: Mutex::default(),
    });
    let (mut engine, rig) = stalled(&story, &listener);
    let mut sequence = engine.sequence().unwrap();
    let outcome = Watchdog::start()
        .watch("a card that stands still", || engine.prompt(&mut sequence, &story.tokens, &listener.cancel));
    assert!(matches!(outcome, Err(EngineError::Cancelled)), "{outcome:?}");
    assert_eq!(*listener.attended.lock().unwrap(), 2, "layers launched while the first one could not begin");
    assert_eq!(rig.ledger.violations(), Vec::<String>::new());
}
