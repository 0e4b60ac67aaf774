//! The issuer's loop, the gate and the slot handshake in every order in which two threads can take their steps (up to a
//! bound on preemptions): the crate's own sources, compiled here over the model checker's locks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![allow(dead_code, reason = "each source offers more than the model uses")]

/// What the sources below use of the crate.
mod card {
    pub use aqueduct::card::CardError;
}
mod ops {
    pub use aqueduct::ops::ExpertSet;
}
mod units {
    pub use aqueduct::units::ExpertId;
}

#[path = "../src/engine/experts/feed.rs"]
mod feed;
#[path = "../src/engine/experts/gate.rs"]
mod gate;
#[path = "../src/engine/experts/handshake.rs"]
mod handshake;
#[path = "support/lines.rs"]
mod lines;
#[path = "handshake_model/sync.rs"]
mod sync;
#[path = "../src/engine/experts/walk.rs"]
mod walk;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use aqueduct::card::CardError;
use aqueduct::ops::ExpertSet;
use aqueduct::units::{CardId, ExpertId};
use feed::{Link, feed};
use gate::Gate;
use handshake::{Handshake, Outcome};
use loom::thread;
use walk::{Entry, Walk};

/// Two layers of two streamed experts; the first layer's tokens want expert 1, the second layer's expert 0.
const ROUTED: [u32; 2] = [1, 0];

/// What a model does, beside the order of its steps.
#[derive(Clone, Copy, Debug)]
struct Story {
    ring: usize,
    /// Copies ahead; without the gate none are counted.
    depth: Option<usize>,
    /// A routed entry whose copy is refused.
    refused: Option<usize>,
    /// Compute leaves before this entry.
    leaves: Option<usize>,
    /// Copies never arrive.
    stuck: bool,
    /// Experts that are read together.
    group: usize,
    /// Groups are read only when they are full.
    careless: bool,
}

const PLAIN: Story =
    Story { ring: 2, depth: Some(2), refused: None, leaves: None, stuck: false, group: 1, careless: false };

/// Events: a copy's arrival or the end of a reader, with the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Arrived(usize),
    Read(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Issued,
    Skipped,
}

/// A link that checks what it is asked for. Its own records are no part of the model.
struct CheckedLink {
    story: Story,
    walk: Arc<Walk>,
    outcomes: Arc<Mutex<Vec<Told>>>,
    /// Copies that were asked for once: they arrive before the second look.
    looked_at: Mutex<BTreeSet<usize>>,
}

impl CheckedLink {
    /// The reader that the copy of entry `k` has to wait for.
    fn last_reader(&self, k: usize, outcomes: &[Told]) -> Option<Event> {
        let before = self.walk.before(k)?;
        match outcomes[before] {
            Told::Skipped => self.last_reader(before, outcomes),
            Told::Issued => wanted(&self.walk, before).then_some(Event::Read(before)),
        }
    }
}

impl Link for CheckedLink {
    type Event = Event;

    fn copy(&self, k: usize, _: Entry, last_reader: Option<&Event>) -> Result<Event, CardError> {
        if self.story.refused == Some(k) {
            return Err(CardError::Device { card: CardId(0), reason: "refused".to_owned() });
        }
        let mut outcomes = self.outcomes.lock().unwrap();
        assert_eq!(outcomes.len(), k, "entries are decided on in order");
        assert_eq!(last_reader.copied(), self.last_reader(k, &outcomes), "entry {k} waits for its slot's last reader");
        outcomes.push(Told::Issued);
        Ok(Event::Arrived(k))
    }

    fn skipped(&self, _: Entry) -> Result<(), CardError> {
        self.outcomes.lock().unwrap().push(Told::Skipped);
        Ok(())
    }

    fn finished(&self, arrived: &Event) -> Result<bool, CardError> {
        let Event::Arrived(k) = arrived else { panic!("{arrived:?} is no copy") };
        Ok(!self.story.stuck && !self.looked_at.lock().unwrap().insert(*k))
    }
}

fn wanted(walk: &Walk, k: usize) -> bool {
    let entry = walk.entries()[k];
    entry.expert.0 == ROUTED[entry.pass]
}

/// How often each outcome came up, over all orders.
#[derive(Default)]
struct Seen {
    orders: AtomicUsize,
    skipped: AtomicUsize,
    ahead: AtomicUsize,
}

/// One run: an issuer thread, and compute on this one.
fn run(story: Story, seen: &Seen) {
    let both = vec![ExpertId(0), ExpertId(1)];
    let walk = Arc::new(Walk::new(1, &[both.clone(), both], story.ring));
    let gate = story.depth.map(|_| Arc::new(Gate::new(walk.passes())));
    let handshake = Arc::new(Handshake::new());
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let link = CheckedLink { story, walk: walk.clone(), outcomes: outcomes.clone(), looked_at: Mutex::default() };
    let issuer = thread::spawn({
        let (walk, gate, handshake) = (walk.clone(), gate.clone(), handshake.clone());
        move || {
            if let Err(error) = feed(&walk, gate.as_deref().zip(story.depth), &handshake, &link) {
                handshake.fail(error);
            }
        }
    });
    let complete = compute(story, &walk, gate.as_deref(), &handshake);
    if complete.is_err() || story.leaves.is_some() {
        handshake.stop();
    }
    issuer.join().unwrap();

    let outcomes = outcomes.lock().unwrap();
    seen.orders.fetch_add(1, Ordering::Relaxed);
    if let Some(refused) = story.refused {
        assert!(complete.is_err(), "compute learns of the refusal");
        assert!(outcomes.len() <= refused);
    } else if story.leaves.is_none() {
        assert_eq!(outcomes.len(), walk.entries().len());
        check_replay(&walk, gate.as_deref(), &outcomes, seen);
    }
}

/// The prompt's side of the stream, as a stage does it.
fn compute(story: Story, walk: &Walk, gate: Option<&Gate>, handshake: &Handshake<Event>) -> Result<(), CardError> {
    let read = |arriving: &mut Vec<usize>| arriving.drain(..).for_each(|k| handshake.release(k, Some(Event::Read(k))));
    for (pass, routed) in ROUTED.iter().enumerate() {
        if let Some(gate) = gate {
            gate.publish(pass, ExpertSet::new(2, [ExpertId(*routed)]));
        }
        let mut arriving: Vec<usize> = Vec::new();
        for k in walk.pass(pass) {
            if story.leaves == Some(k) {
                return Ok(());
            }
            if !story.careless && arriving.first().is_some_and(|first| walk.must_be_read_before(*first, k)) {
                read(&mut arriving);
            }
            match handshake.outcome(k)? {
                Outcome::Skipped => assert!(!wanted(walk, k), "entry {k} is routed, but was skipped"),
                Outcome::Issued(arrived) => {
                    assert_eq!(arrived, Event::Arrived(k));
                    if wanted(walk, k) { arriving.push(k) } else { handshake.release(k, None) }
                }
            }
            if arriving.len() == story.group {
                read(&mut arriving);
            }
        }
        read(&mut arriving);
    }
    Ok(())
}

/// What was skipped is what the publications say.
fn check_replay(walk: &Walk, gate: Option<&Gate>, outcomes: &[Told], seen: &Seen) {
    let published = gate.map(Gate::published).unwrap_or_default();
    for (k, outcome) in outcomes.iter().enumerate() {
        let pass = walk.entries()[k].pass;
        let known = published.iter().any(|known| known.pass == pass && known.position <= k);
        let skipped = known && !wanted(walk, k);
        assert_eq!(*outcome == Told::Skipped, skipped, "entry {k}: {outcomes:?}, {published:?}");
        seen.skipped.fetch_add(usize::from(skipped), Ordering::Relaxed);
        seen.ahead.fetch_add(usize::from(!skipped && !wanted(walk, k)), Ordering::Relaxed);
    }
}

/// Runs a model in every order, on a thread of its own; tells what went wrong, and which lines woke others.
fn explore(lost: Option<u32>, model: impl Fn() + Send + Sync + 'static) -> (Result<(), String>, BTreeSet<u32>) {
    let explored = std::thread::spawn(move || {
        lines::take(lost);
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.check(model)));
        (ran.map_err(|panic| text(panic.as_ref())), lines::seen())
    });
    explored.join().unwrap()
}

fn text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

fn stories() -> Vec<Story> {
    let mut all = vec![
        PLAIN,
        Story { ring: 1, depth: Some(1), ..PLAIN },
        Story { ring: 3, depth: Some(1), ..PLAIN },
        Story { depth: None, ..PLAIN },
        Story { ring: 1, group: 2, ..PLAIN },
        Story { group: 2, ..PLAIN },
        Story { refused: Some(1), ..PLAIN },
        Story { refused: Some(2), ..PLAIN },
        Story { leaves: Some(1), depth: Some(1), stuck: true, ..PLAIN },
    ];
    all.extend((0..4).map(|k| Story { leaves: Some(k), ..PLAIN }));
    all
}

#[test]
fn every_order_ends_and_agrees_with_the_gate() {
    let seen = Arc::new(Seen::default());
    for story in stories() {
        let before = seen.orders.load(Ordering::Relaxed);
        let (result, _) = explore(None, {
            let seen = seen.clone();
            move || run(story, &seen)
        });
        println!("{} orders: {story:?}", seen.orders.load(Ordering::Relaxed) - before);
        assert_eq!(result, Ok(()), "{story:?}");
    }
    let [skipped, ahead] = [&seen.skipped, &seen.ahead].map(|count| count.load(Ordering::Relaxed));
    println!("{skipped} entries skipped, {ahead} issued ahead of a router that did not want them");
    assert!(skipped > 0 && ahead > 0);
}

#[test]
fn each_wake_up_that_gets_lost_is_a_deadlock() {
    let seen = Arc::new(Seen::default());
    let model = |story: Story, lost: Option<u32>| {
        let seen = seen.clone();
        explore(lost, move || run(story, &seen))
    };
    let lines: BTreeSet<u32> = stories().into_iter().flat_map(|story| model(story, None).1).collect();
    assert_eq!(lines.len(), 4, "tell, fail, release and stop wake the other side");
    for line in lines {
        let found = stories().into_iter().find_map(|story| model(story, Some(line)).0.err());
        let found = found.unwrap_or_else(|| panic!("nothing misses the wake-up of handshake.rs, line {line}"));
        assert!(found.contains("deadlock"), "line {line}: {found}");
    }
}

#[test]
fn reading_full_groups_only_is_a_deadlock() {
    let story = Story { ring: 1, group: 2, careless: true, ..PLAIN };
    let (result, _) = explore(None, move || run(story, &Seen::default()));
    assert!(result.as_ref().is_err_and(|found| found.contains("deadlock")), "{result:?}");
}

/// A gate that publishes in two steps: the position first, the set later.
struct TornGate {
    routed: sync::Mutex<bool>,
    position: sync::Mutex<usize>,
}

#[test]
fn a_publication_in_two_steps_is_found() {
    let (result, _) = explore(None, || {
        let gate = Arc::new(TornGate { routed: sync::Mutex::new(false), position: sync::Mutex::new(0) });
        let issuer = thread::spawn({
            let gate = gate.clone();
            move || {
                *gate.position.lock().unwrap() = 1;
                *gate.routed.lock().unwrap()
            }
        });
        let position = *gate.position.lock().unwrap();
        *gate.routed.lock().unwrap() = true;
        let skipped = issuer.join().unwrap();
        assert_eq!(skipped, position == 0, "the replay differs");
    });
    assert!(result.is_err_and(|found| found.contains("the replay differs")));
}
