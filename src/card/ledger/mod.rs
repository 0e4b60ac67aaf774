//! The ledger: proves that every access is ordered after those it conflicts with.
//!
//! Every card's stream and every host thread is a line of actions with a vector clock. A command knows what its stream
//! knows, and what the host thread that submitted it knew; recording an event takes a snapshot, and whoever waits for
//! it, syncs, drains or sees it finished learns that snapshot; a message between host threads carries the sender's
//! clock. Each read must know the last write of its bytes, each write also the reads since. What must be known but is
//! not is a violation, whether or not the accesses met this time: a missing wait needs no bad luck to be found.

mod card;
mod clock;
mod count;
mod history;

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use card::LedgerCard;
pub use count::{Count, Counts};

use self::clock::{Clock, Line};
use self::history::{Conflict, History, Mark};
use super::command::Access;
use super::{CardError, HostAccess, HostSpan, RegionId, Span, Stamp, Stream, Watch, Why};
use crate::units::CardId;

/// The ledger of a rig: one for all its cards and host memory.
///
/// [`LedgerCard`] reports what cards do; as a [`Watch`] it hears of host threads. A violation is returned as
/// [`CardError::Unordered`] to whoever made it, and kept in [`Ledger::violations`], since that error may be swallowed.
#[derive(Default)]
pub struct Ledger {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    lines: Vec<Lane>,
    places: HashMap<Place, Line>,
    regions: HashMap<RegionId, Seen>,
    left_out: HashSet<Why>,
    counts: Counts,
    violations: Vec<String>,
}

/// Where a line's actions happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Stream(CardId, Stream),
    Thread(u64),
}

struct Lane {
    name: String,
    clock: Clock,
}

/// A region or host buffer.
struct Seen {
    what: Arc<str>,
    /// Never written: nothing to order.
    fixed: bool,
    history: History,
}

/// An access in the ledger's terms.
struct Touch {
    region: RegionId,
    bytes: Range<usize>,
    writes: bool,
}

static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

/// The calling thread's number, unique in the process.
fn this_thread() -> u64 {
    THREAD.with(|thread| {
        if thread.get() == 0 {
            thread.set(NEXT_THREAD.fetch_add(1, Ordering::Relaxed));
        }
        thread.get()
    })
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Every violation so far, in order.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        self.lock().counts.clone()
    }

    /// From now on waits, syncs and drains with this reason are carried out but left out of the order, as if they had
    /// been forgotten: a test sees whether the protocol needs them without harm to the memory.
    pub fn leave_out(&self, why: Why) {
        self.lock().left_out.insert(why);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn line(&mut self, place: Place, name: impl FnOnce() -> String) -> Line {
        if let Some(line) = self.places.get(&place) {
            return *line;
        }
        let line = self.lines.len();
        self.lines.push(Lane { name: name(), clock: Clock::default() });
        self.places.insert(place, line);
        line
    }

    fn thread(&mut self) -> Line {
        self.line(Place::Thread(this_thread()), || {
            let thread = std::thread::current();
            thread
                .name()
                .map_or_else(|| format!("host thread {}", this_thread()), |name| format!("host thread `{name}`"))
        })
    }

    /// The line of a stream, after it has learnt what the calling thread knows.
    fn stream(&mut self, card: CardId, on: Stream) -> Line {
        let caller = self.thread();
        let line = self.stream_line(card, on);
        let known = self.clock(caller);
        self.learn(line, &known);
        line
    }

    fn stream_line(&mut self, card: CardId, on: Stream) -> Line {
        self.line(Place::Stream(card, on), || format!("{card}'s {} stream", on.name()))
    }

    fn clock(&self, line: Line) -> Clock {
        self.lines.get(line).map(|lane| lane.clock.clone()).unwrap_or_default()
    }

    fn learn(&mut self, line: Line, told: &Clock) {
        if let Some(lane) = self.lines.get_mut(line) {
            lane.clock.join(told);
        }
    }

    /// Counts a wait; whether the order follows from it.
    fn orders(&mut self, why: Why) -> bool {
        *self.counts.waits.entry(why).or_default() += 1;
        let left_out = self.left_out.contains(&why);
        if left_out {
            *self.counts.left_out.entry(why).or_default() += 1;
        }
        !left_out
    }

    fn violation(&mut self, text: String) -> CardError {
        self.violations.push(text.clone());
        CardError::Unordered(text)
    }

    fn seen(&mut self, region: RegionId, what: impl FnOnce() -> Arc<str>) -> &mut Seen {
        self.regions.entry(region).or_insert_with(|| Seen { what: what(), fixed: false, history: History::default() })
    }

    /// The accesses that need an order.
    fn touches(&mut self, accesses: &[Access]) -> Vec<Touch> {
        let mut touches = Vec::with_capacity(accesses.len());
        for access in accesses {
            let touch = match access {
                Access::Read(span) => self.card_touch(span, false),
                Access::Write(span) => self.card_touch(span, true),
                Access::HostRead(span) => self.host_touch(span, false),
                Access::HostWrite(span) => self.host_touch(span, true),
            };
            touches.extend(touch);
        }
        touches
    }

    fn card_touch(&mut self, span: &Span, writes: bool) -> Option<Touch> {
        let seen = self.seen(span.region, || format!("region {}", span.region.0).into());
        let matters = span.bytes > 0 && !seen.fixed;
        let bytes = span.offset..span.offset.saturating_add(span.bytes);
        matters.then_some(Touch { region: span.region, bytes, writes })
    }

    fn host_touch(&mut self, span: &HostSpan, writes: bool) -> Option<Touch> {
        let buf = span.buf();
        self.seen(buf.id(), || Arc::clone(buf.what()));
        let matters = span.bytes() > 0 && !buf.is_sealed();
        matters.then(|| Touch { region: buf.id(), bytes: span.offset()..span.offset() + span.bytes(), writes })
    }

    /// Checks the next action of `line`.
    fn check(&mut self, line: Line, name: &'static str, touches: &[Touch]) -> Result<(), CardError> {
        let Some(clock) = self.lines.get(line).map(|lane| &lane.clock) else { return Ok(()) };
        let found = touches.iter().find_map(|touch| {
            let seen = self.regions.get(&touch.region)?;
            let conflict = seen.history.conflict(&touch.bytes, touch.writes, clock)?;
            Some(self.describe((line, name, clock.get(line) + 1), touch, &seen.what, &conflict))
        });
        found.map_or(Ok(()), |text| Err(self.violation(text)))
    }

    fn describe(&self, by: (Line, &str, u64), touch: &Touch, what: &str, conflict: &Conflict) -> String {
        let place = |line: Line| self.lines.get(line).map_or("", |lane| lane.name.as_str());
        let (line, name, time) = by;
        let Conflict { earlier, earlier_wrote } = conflict;
        format!(
            "`{name}` (action {time} of {}) {} bytes {}..{} of `{what}`, but nothing orders it after \
             `{}` (action {} of {}), which {} bytes {}..{}: a wait, a drain or a message between them is missing",
            place(line),
            if touch.writes { "writes" } else { "reads" },
            touch.bytes.start,
            touch.bytes.end,
            earlier.name,
            earlier.time,
            place(earlier.line),
            if *earlier_wrote { "wrote" } else { "read" },
            earlier.bytes.start,
            earlier.bytes.end,
        )
    }

    /// Notes an action of `line` that was checked and happens.
    fn note(&mut self, line: Line, name: &'static str, touches: Vec<Touch>) {
        let Some(lane) = self.lines.get_mut(line) else { return };
        let time = lane.clock.tick(line);
        // What the action reads first: it may write the same bytes.
        let (writes, reads): (Vec<_>, Vec<_>) = touches.into_iter().partition(|touch| touch.writes);
        for touch in reads.into_iter().chain(writes) {
            let Some(seen) = self.regions.get_mut(&touch.region) else { continue };
            let mark = Mark { line, time, name, bytes: touch.bytes };
            if touch.writes {
                seen.history.write(&mark);
            } else {
                seen.history.read(&mark, &lane.clock);
            }
        }
    }
}

impl Watch for Ledger {
    fn host_access(&self, span: &HostSpan, access: HostAccess) -> Result<(), CardError> {
        let mut state = self.lock();
        state.counts.host_accesses += 1;
        let (name, writes) = match access {
            HostAccess::Read => ("host read", false),
            HostAccess::Write => ("host write", true),
        };
        let line = state.thread();
        let touches: Vec<Touch> = state.host_touch(span, writes).into_iter().collect();
        state.check(line, name, &touches)?;
        state.note(line, name, touches);
        Ok(())
    }

    fn stamp(&self) -> Stamp {
        let mut state = self.lock();
        let line = state.thread();
        let clock = state.clock(line);
        Stamp(clock.entries().map(|(line, time)| (line as u64, time)).collect())
    }

    fn join(&self, stamp: &Stamp) {
        let mut state = self.lock();
        let line = state.thread();
        let mut told = Clock::default();
        for (line, time) in &stamp.0 {
            told.raise(*line as Line, *time);
        }
        state.learn(line, &told);
    }
}
