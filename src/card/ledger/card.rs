//! A card under the eyes of a ledger.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::clock::Clock;
use super::{History, Ledger, Seen};
use crate::card::{
    Card, CardError, CardKind, Command, Event, EventState, HostSpan, Leases, Neighbour, Region, RegionId, Span, Stream,
    Why, Wire, check,
};
use crate::units::{Bytes, CardId};

/// Wraps a card and reports all that is done with it to a [`Ledger`].
pub struct LedgerCard {
    ledger: Arc<Ledger>,
    card: Arc<dyn Card>,
}

/// An event with what its stream knew when it was recorded.
struct Snapshot {
    event: Event,
    clock: Clock,
}

impl EventState for Snapshot {
    fn finished(&self) -> Result<bool, CardError> {
        self.event.state().finished()
    }

    fn block(&self) -> Result<(), CardError> {
        self.event.state().block()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The wrapped card's own event and the snapshot, if the event came from a watched card.
fn opened(event: &Event) -> (&Event, Option<&Clock>) {
    match event.state().as_any().downcast_ref::<Snapshot>() {
        Some(snapshot) => (&snapshot.event, Some(&snapshot.clock)),
        None => (event, None),
    }
}

/// Whether the device got to the end of what was waited for: what failed has ended too, since what stands behind it
/// never runs.
fn ended<T>(result: &Result<T, CardError>) -> bool {
    matches!(result, Ok(_) | Err(CardError::Failed { .. }))
}

impl LedgerCard {
    /// Watches `card`. All cards of a rig share one ledger.
    pub fn new(ledger: &Arc<Ledger>, card: Arc<dyn Card>) -> Self {
        Self { ledger: Arc::clone(ledger), card }
    }

    fn learn(&self, clock: &Clock) {
        let mut state = self.ledger.lock();
        let caller = state.thread();
        state.learn(caller, clock);
    }

    fn region(&self, region: &Region, fixed: bool) {
        let seen = Seen { what: Arc::clone(&region.what), fixed, history: History::default() };
        self.ledger.lock().regions.insert(region.id, seen);
    }

    fn stream_clock(&self, on: Stream) -> Clock {
        let mut state = self.ledger.lock();
        let line = state.stream_line(self.id(), on);
        state.clock(line)
    }
}

impl Card for LedgerCard {
    fn id(&self) -> CardId {
        self.card.id()
    }

    fn kind(&self) -> CardKind {
        self.card.kind()
    }

    fn name(&self) -> String {
        self.card.name()
    }

    fn alloc(&self, bytes: Bytes, what: &str) -> Result<Region, CardError> {
        let region = self.card.alloc(bytes, what)?;
        self.region(&region, false);
        Ok(region)
    }

    fn adopt(&self, host: &HostSpan, what: &str) -> Result<Option<Region>, CardError> {
        let region = self.card.adopt(host, what)?;
        if let Some(region) = &region {
            self.region(region, true);
        }
        Ok(region)
    }

    fn free_memory(&self) -> Result<Bytes, CardError> {
        self.card.free_memory()
    }

    fn submit(&self, on: Stream, command: Command) -> Result<(), CardError> {
        let (id, name) = (self.id(), command.name());
        let moved = command.copied().unwrap_or(command.read_over_link());
        let accesses = command.accesses();
        // Locked until the card has the command: the order here is the order of the queue.
        let mut state = self.ledger.lock();
        let named = |span: &Span| state.what(span.region);
        if let Err(error) = check::leases(self.card.leases(), (id, on, name), &accesses, named) {
            state.violations.push(error.to_string());
            return Err(error);
        }
        let line = state.stream(id, on);
        let touches = state.touches(&accesses);
        state.check(line, name, &touches)?;
        self.card.submit(on, command)?;
        state.note(line, name, touches);
        let count = state.counts.commands.entry((id, on, name)).or_default();
        count.commands += 1;
        count.bytes += moved as u64;
        Ok(())
    }

    fn record(&self, on: Stream) -> Result<Event, CardError> {
        let mut state = self.ledger.lock();
        let line = state.stream(self.id(), on);
        let event = self.card.record(on)?;
        let clock = state.clock(line);
        Ok(Event::new(self.id(), Arc::new(Snapshot { event, clock })))
    }

    fn wait(&self, on: Stream, event: &Event, why: Why) -> Result<(), CardError> {
        let (own, clock) = opened(event);
        let mut state = self.ledger.lock();
        let line = state.stream(self.id(), on);
        self.card.wait(on, own, why)?;
        let orders = state.orders(why);
        if let Some(clock) = clock.filter(|_| orders) {
            state.learn(line, clock);
        }
        Ok(())
    }

    fn finished(&self, event: &Event) -> Result<bool, CardError> {
        let (own, clock) = opened(event);
        let finished = self.card.finished(own);
        if let Some(clock) = clock
            && finished != Ok(false)
            && ended(&finished)
        {
            self.learn(clock);
        }
        finished
    }

    fn sync(&self, event: &Event, why: Why) -> Result<(), CardError> {
        let (own, clock) = opened(event);
        let result = self.card.sync(own, why);
        let orders = self.ledger.lock().orders(why);
        if let Some(clock) = clock.filter(|_| orders && ended(&result)) {
            self.learn(clock);
        }
        result
    }

    fn drain(&self, on: Stream, why: Why) -> Result<(), CardError> {
        let clock = self.stream_clock(on);
        let result = self.card.drain(on, why);
        let orders = self.ledger.lock().orders(why);
        if orders && ended(&result) {
            self.learn(&clock);
        }
        result
    }

    fn recover(&self) -> Result<(), CardError> {
        let clocks = Stream::ALL.map(|on| self.stream_clock(on));
        self.card.recover()?;
        clocks.iter().for_each(|clock| self.learn(clock));
        Ok(())
    }

    fn waited(&self, on: Stream) -> Duration {
        self.card.waited(on)
    }

    fn neighbour(&self) -> Neighbour {
        self.card.neighbour()
    }

    fn reach(&self, from: &Neighbour) -> Result<(), String> {
        self.card.reach(from)
    }

    fn join(&self, to: &Neighbour, limit: Duration) -> Result<[Wire; 2], String> {
        self.card.join(to, limit)
    }

    fn leases(&self) -> &Arc<Leases> {
        self.card.leases()
    }
}

impl super::State {
    fn what(&self, region: RegionId) -> String {
        self.regions.get(&region).map_or_else(|| format!("region {}", region.0), |seen| seen.what.to_string())
    }
}
