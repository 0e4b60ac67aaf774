//! Random programs: the ledger complains exactly where a graph of happens-before says that an order is missing.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock};

use aqueduct::card::command::{CopyIn, CopyOut, CopyWithin};
use aqueduct::card::ledger::Ledger;
use aqueduct::card::{Card, CardError, Command, Event, HostBuf, Region, Stamp, Stream, Watch, Why};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::Rig;

const THREADS: usize = 3;
const STREAMS: [Stream; 3] = [Stream::Compute, Stream::Experts, Stream::KvOut];
const CARDS: usize = 2;
/// Bytes of every region and buffer that programs use.
const SIZE: usize = 32;

/// Two regions of each card, then two host buffers.
const PLACES: usize = CARDS * 2 + 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StreamAt {
    card: usize,
    stream: usize,
}

/// What a test asks for; orders are added where it needs them.
#[derive(Clone, Debug)]
struct Intent {
    thread: usize,
    action: Action,
    /// How a missing order is made, by turns.
    taste: u8,
}

#[derive(Clone, Debug)]
enum Action {
    Copy { on: StreamAt, from: usize, to: usize, bytes: Range<usize> },
    Host { place: usize, bytes: Range<usize>, writes: bool },
}

/// A step of a program, carried out by a host thread.
#[derive(Clone, Debug)]
enum Step {
    Do(Action),
    Record { on: StreamAt, event: usize },
    Wait { on: StreamAt, event: usize },
    Sync { event: usize },
    Drain { on: StreamAt },
    Send { message: usize },
    Receive { message: usize },
}

/// The steps in the one order in which they are made, each with its thread.
#[derive(Clone, Debug, Default)]
struct Program {
    steps: Vec<(usize, Step)>,
    events: usize,
    messages: usize,
}

static NAMES: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| (0..2_000).map(|i| &*Box::leak(format!("step {i}").into_boxed_str())).collect());

fn why(step: usize) -> Why {
    Why(NAMES[step])
}

impl Step {
    /// The kind of order that this step makes, if it makes one.
    fn order(&self) -> Option<&'static str> {
        match self {
            Self::Wait { .. } => Some("wait"),
            Self::Sync { .. } => Some("sync"),
            Self::Drain { .. } => Some("drain"),
            Self::Receive { .. } => Some("message"),
            Self::Do(_) | Self::Record { .. } | Self::Send { .. } => None,
        }
    }
}

/// What a step touches: place, bytes, whether it writes.
fn touches(step: &Step) -> Vec<(usize, Range<usize>, bool)> {
    match step {
        Step::Do(Action::Copy { from, to, bytes, .. }) => {
            vec![(*from, bytes.clone(), false), (*to, bytes.clone(), true)]
        }
        Step::Do(Action::Host { place, bytes, writes }) => vec![(*place, bytes.clone(), *writes)],
        _ => Vec::new(),
    }
}

fn conflict(a: &Step, b: &Step) -> bool {
    touches(a).iter().any(|(place, bytes, writes)| {
        touches(b).iter().any(|(other, others, other_writes)| {
            place == other && bytes.start < others.end && others.start < bytes.end && (*writes || *other_writes)
        })
    })
}

/// The graph of happens-before, grown step by step: for each step the set of steps that its effect (`done`) is after,
/// and for each thread and stream the set that its next step is after.
struct Graph {
    done: Vec<Vec<bool>>,
    threads: Vec<Vec<bool>>,
    streams: BTreeMap<(usize, usize), Vec<bool>>,
    events: BTreeMap<usize, Vec<bool>>,
    messages: BTreeMap<usize, Vec<bool>>,
}

fn unite(into: &mut Vec<bool>, other: &[bool]) {
    into.resize(into.len().max(other.len()), false);
    into.iter_mut().zip(other).for_each(|(a, b)| *a |= b);
}

impl Graph {
    fn new() -> Self {
        Self {
            done: Vec::new(),
            threads: vec![Vec::new(); THREADS],
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            messages: BTreeMap::new(),
        }
    }

    /// Adds the next step; with `ordering` off it happens but orders nothing.
    fn add(&mut self, thread: usize, step: &Step, ordering: bool) {
        let me = self.done.len();
        let mut before = self.threads[thread].clone();
        match step {
            Step::Do(Action::Copy { on, .. }) | Step::Record { on, .. } | Step::Wait { on, .. } => {
                let queue = self.streams.entry((on.card, on.stream)).or_default();
                unite(&mut before, queue);
                if let Step::Wait { event, .. } = step
                    && ordering
                {
                    unite(&mut before, &self.events[event]);
                }
                let mut after = before.clone();
                after.resize(me + 1, false);
                after[me] = true;
                if let Step::Record { event, .. } = step {
                    self.events.insert(*event, after.clone());
                }
                *queue = after;
            }
            Step::Do(Action::Host { .. }) => {
                self.threads[thread].resize(me + 1, false);
                self.threads[thread][me] = true;
            }
            Step::Sync { event } if ordering => unite(&mut self.threads[thread], &self.events[event]),
            Step::Drain { on } if ordering => {
                let queue = self.streams.get(&(on.card, on.stream)).cloned().unwrap_or_default();
                unite(&mut self.threads[thread], &queue);
            }
            Step::Send { message } => {
                self.messages.insert(*message, before.clone());
            }
            Step::Receive { message } if ordering => unite(&mut self.threads[thread], &self.messages[message]),
            Step::Sync { .. } | Step::Drain { .. } | Step::Receive { .. } => {}
        }
        self.done.push(before);
    }

    fn ordered(&self, earlier: usize, later: usize) -> bool {
        self.done[later].get(earlier).copied().unwrap_or(false)
    }
}

impl Program {
    fn push(&mut self, graph: &mut Graph, thread: usize, step: Step) {
        graph.add(thread, &step, true);
        self.steps.push((thread, step));
    }

    /// A program in which everything is ordered.
    fn ordered(intents: &[Intent]) -> Self {
        let mut program = Self::default();
        let mut graph = Graph::new();
        for intent in intents {
            let step = Step::Do(intent.action.clone());
            while let Some(earlier) = program.missing(&intent_graph(&graph, intent, &step), &step) {
                program.order(&mut graph, earlier, intent);
            }
            program.push(&mut graph, intent.thread, step);
        }
        program
    }

    /// The first step that conflicts with a new one and is not before it, given what is before the new one.
    fn missing(&self, before: &[bool], new: &Step) -> Option<usize> {
        (0..self.steps.len()).find(|i| !before.get(*i).copied().unwrap_or(false) && conflict(&self.steps[*i].1, new))
    }

    /// Adds an order from step `earlier` to what `intent` does next.
    fn order(&mut self, graph: &mut Graph, earlier: usize, intent: &Intent) {
        let (owner, step) = self.steps[earlier].clone();
        let thread = intent.thread;
        match step {
            Step::Do(Action::Copy { on, .. }) => {
                let own = match intent.action {
                    Action::Copy { on, .. } => Some(on),
                    Action::Host { .. } => None,
                };
                match (intent.taste % 3, own) {
                    (0, _) => self.push(graph, thread, Step::Drain { on }),
                    (1, Some(own)) | (2, Some(own)) => {
                        let event = self.record(graph, thread, on);
                        self.push(graph, thread, Step::Wait { on: own, event });
                    }
                    _ => {
                        let event = self.record(graph, thread, on);
                        self.push(graph, thread, Step::Sync { event });
                    }
                }
            }
            _ => {
                let message = self.messages;
                self.messages += 1;
                self.push(graph, owner, Step::Send { message });
                self.push(graph, thread, Step::Receive { message });
            }
        }
    }

    fn record(&mut self, graph: &mut Graph, thread: usize, on: StreamAt) -> usize {
        self.events += 1;
        self.push(graph, thread, Step::Record { on, event: self.events });
        self.events
    }

    /// The first step whose order is missing when `removed` orders nothing.
    fn first_unordered(&self, removed: Option<usize>) -> Option<usize> {
        let mut graph = Graph::new();
        for (i, (thread, step)) in self.steps.iter().enumerate() {
            graph.add(*thread, step, removed != Some(i));
            if (0..i).any(|earlier| conflict(&self.steps[earlier].1, step) && !graph.ordered(earlier, i)) {
                return Some(i);
            }
        }
        None
    }
}

/// What would be before a step that `intent` makes now.
fn intent_graph(graph: &Graph, intent: &Intent, step: &Step) -> Vec<bool> {
    let mut before = graph.threads[intent.thread].clone();
    if let Step::Do(Action::Copy { on, .. }) = step
        && let Some(queue) = graph.streams.get(&(on.card, on.stream))
    {
        unite(&mut before, queue);
    }
    before
}

/// Carries programs out on real virtual cards with real host threads.
struct Stage {
    cards: Vec<Arc<dyn Card>>,
    regions: Vec<Region>,
    bufs: Vec<HostBuf>,
    ledger: Arc<Ledger>,
    removed: Option<usize>,
}

/// What the driver gives a host thread and gets back: events and message stamps by number.
struct Hands {
    events: BTreeMap<usize, Event>,
    stamps: BTreeMap<usize, Stamp>,
}

impl Stage {
    fn carry_out(&self, index: usize, step: &Step, hands: &mut Hands) -> Result<(), CardError> {
        let card = |on: &StreamAt| (&self.cards[on.card], STREAMS[on.stream]);
        match step {
            Step::Do(Action::Copy { on, from, to, bytes }) => {
                let (card, stream) = card(on);
                card.submit(stream, self.copy(*from, *to, bytes))
            }
            Step::Do(Action::Host { place, bytes, writes }) => {
                let span = self.bufs[*place - CARDS * 2].span(bytes.start, bytes.len()).unwrap();
                if *writes { span.write(|bytes| bytes.fill(1)) } else { span.read(|bytes| assert_ne!(bytes.len(), 0)) }
            }
            Step::Record { on, event } => {
                let (card, stream) = card(on);
                card.record(stream).map(|made| drop(hands.events.insert(*event, made)))
            }
            Step::Wait { on, event } => {
                let (card, stream) = card(on);
                card.wait(stream, &hands.events[event], why(index))
            }
            Step::Sync { event } => self.cards[0].sync(&hands.events[event], why(index)),
            Step::Drain { on } => {
                let (card, stream) = card(on);
                card.drain(stream, why(index))
            }
            Step::Send { message } => {
                hands.stamps.insert(*message, self.ledger.stamp());
                Ok(())
            }
            Step::Receive { message } => {
                if self.removed != Some(index) {
                    self.ledger.join(&hands.stamps[message]);
                }
                Ok(())
            }
        }
    }

    fn copy(&self, from: usize, to: usize, bytes: &Range<usize>) -> Command {
        let card = |place: usize| self.regions[place].span(bytes.start, bytes.len());
        let host = |place: usize| self.bufs[place - CARDS * 2].span(bytes.start, bytes.len()).unwrap();
        match (from < CARDS * 2, to < CARDS * 2) {
            (true, true) => Command::CopyWithin(CopyWithin { from: card(from), to: card(to) }),
            (true, false) => Command::CopyOut(CopyOut { from: card(from), to: host(to) }),
            _ => Command::CopyIn(CopyIn { from: host(from), to: card(to) }),
        }
    }
}

/// Runs a program and returns the first step that the ledger complained about.
fn first_complaint(program: &Program, removed: Option<usize>) -> Option<usize> {
    let rig = Rig::new();
    let regions = (0..CARDS * 2).map(|place| rig.region(place / 2, &format!("region {place}"))).collect();
    let bufs = (0..2).map(|i| rig.buf(&format!("buffer {i}"))).collect();
    if let Some(step) = removed {
        rig.ledger.leave_out(why(step));
    }
    let stage = Stage { cards: rig.cards.clone(), regions, bufs, ledger: rig.ledger.clone(), removed };

    // One step at a time, each by its own thread: the driver's channels are none of the ledger's business.
    type Turn = (usize, Hands);
    type Back = (Result<(), CardError>, Hands);
    let mut first = None;
    std::thread::scope(|scope| {
        let (back, returns): (Sender<Back>, Receiver<Back>) = channel();
        let turns: Vec<Sender<Turn>> = (0..THREADS)
            .map(|_| {
                let (send, turns): (Sender<Turn>, Receiver<Turn>) = channel();
                let (back, stage, program) = (back.clone(), &stage, &program);
                scope.spawn(move || {
                    for (index, mut hands) in turns {
                        let result = stage.carry_out(index, &program.steps[index].1, &mut hands);
                        back.send((result, hands)).unwrap();
                    }
                });
                send
            })
            .collect();
        let mut hands = Hands { events: BTreeMap::new(), stamps: BTreeMap::new() };
        for (index, (thread, _)) in program.steps.iter().enumerate() {
            turns[*thread].send((index, hands)).unwrap();
            let (result, returned) = returns.recv().unwrap();
            hands = returned;
            match result {
                Ok(()) => {}
                Err(CardError::Unordered(_)) => {
                    first = Some(index);
                    break;
                }
                Err(other) => panic!("{other}"),
            }
        }
    });
    assert_eq!(rig.ledger.violations().len(), usize::from(first.is_some()));
    first
}

fn bytes() -> impl Strategy<Value = Range<usize>> {
    (0..SIZE, 1..=SIZE / 2).prop_map(|(start, len)| start..(start + len).min(SIZE))
}

fn action() -> impl Strategy<Value = Action> {
    let copy = (0..CARDS, 0..STREAMS.len(), 0..5usize, bytes()).prop_map(|(card, stream, kind, bytes)| {
        let (a, b, host) = (card * 2, card * 2 + 1, CARDS * 2);
        let (from, to) = [(a, b), (b, a), (a, host), (host, a), (b, host + 1)][kind];
        Action::Copy { on: StreamAt { card, stream }, from, to, bytes }
    });
    let host = (CARDS * 2..PLACES, bytes(), any::<bool>()).prop_map(|(place, bytes, writes)| Action::Host {
        place,
        bytes,
        writes,
    });
    prop_oneof![3 => copy, 1 => host]
}

fn intents() -> impl Strategy<Value = Vec<Intent>> {
    let intent =
        (0..THREADS, action(), any::<u8>()).prop_map(|(thread, action, taste)| Intent { thread, action, taste });
    prop::collection::vec(intent, 2..24)
}

#[test]
fn random_programs_are_judged_as_the_graph_judges_them() {
    let counts: RefCell<BTreeMap<(&str, bool), usize>> = RefCell::default();
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    let result = runner.run(&(intents(), any::<prop::sample::Index>()), |(intents, pick)| {
        let program = Program::ordered(&intents);
        prop_assert_eq!(program.first_unordered(None), None);
        prop_assert_eq!(first_complaint(&program, None), None);
        *counts.borrow_mut().entry(("clean", true)).or_default() += 1;

        let orders: Vec<usize> = (0..program.steps.len()).filter(|i| program.steps[*i].1.order().is_some()).collect();
        if orders.is_empty() {
            return Ok(());
        }
        let removed = orders[pick.index(orders.len())];
        let wanted = program.first_unordered(Some(removed));
        prop_assert_eq!(first_complaint(&program, Some(removed)), wanted);
        let kind = program.steps[removed].1.order().unwrap();
        *counts.borrow_mut().entry((kind, wanted.is_some())).or_default() += 1;
        Ok(())
    });
    println!("programs by (removed order, whether it was necessary): {:?}", counts.borrow());
    result.unwrap();
    for kind in ["wait", "sync", "drain", "message"] {
        assert!(counts.borrow().contains_key(&(kind, true)), "no necessary {kind} was removed");
    }
    assert!(counts.borrow().iter().any(|((_, necessary), _)| !necessary), "no redundant order was removed");
}
