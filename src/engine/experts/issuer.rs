//! The issuer: the thread that feeds the prompt ring over the card's own copy stream.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::arena::Arena;
use super::feed::{Link, feed};
use super::gate::Gate;
use super::handshake::Handshake;
use super::walk::{Entry, Walk};
use crate::card::{Card, CardError, Event, Span, Stream, Watcher};
use crate::engine::counters::Counters;
use crate::engine::{EngineError, waits};

/// Entries of the walk that are read ahead of the one that is copied, where they live in the model's file.
const READ_AHEAD: usize = 16;

/// What an issuer walks.
pub(in crate::engine) struct Job {
    /// The card.
    pub card: Arc<dyn Card>,
    /// Where the blobs lie.
    pub arena: Arc<Arena>,
    /// First layer of the stage: passes count from it.
    pub first_layer: usize,
    /// Layers of the stage.
    pub layers: usize,
    /// The order.
    pub walk: Arc<Walk>,
    /// With the routed stream on: who says what is routed, and how many copies are kept ahead of the link.
    pub gate: Option<(Arc<Gate>, usize)>,
    /// The other side.
    pub handshake: Arc<Handshake<Event>>,
    /// Leased ring slots.
    pub ring: Vec<Span>,
    /// Where copies are counted.
    pub counters: Arc<Counters>,
    /// Learns that the issuer begins after what its starter has seen.
    pub watcher: Watcher,
}

/// A running issuer. Dropping it stops and joins the thread.
pub(in crate::engine) struct Issuer {
    handshake: Arc<Handshake<Event>>,
    thread: Option<JoinHandle<()>>,
}

impl Issuer {
    /// Starts the walk.
    ///
    /// # Errors
    /// When the system refuses the thread.
    pub fn start(job: Job) -> Result<Self, EngineError> {
        let handshake = Arc::clone(&job.handshake);
        let begun = job.watcher.stamp();
        let thread = std::thread::Builder::new()
            .name(format!("issuer of {}", job.card.id()))
            .spawn(move || {
                job.watcher.join(&begun);
                let ended = catch_unwind(AssertUnwindSafe(|| job.run()));
                job.counters.issued(cpu_time());
                let panicked =
                    || Err(CardError::Device { card: job.card.id(), reason: "the issuer panicked".to_owned() });
                if let Err(error) = ended.unwrap_or_else(|_| panicked()) {
                    job.handshake.fail(error);
                }
            })
            .map_err(|error| EngineError::Thread(format!("cannot start the issuer: {error}")))?;
        Ok(Self { handshake, thread: Some(thread) })
    }
}

/// What the calling thread has taken of a core so far.
fn cpu_time() -> Duration {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(spent.tv_sec.unsigned_abs(), u32::try_from(spent.tv_nsec).unwrap_or(0))
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.handshake.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the issuer panicked");
        }
    }
}

impl Job {
    fn run(&self) -> Result<(), CardError> {
        let gate = self.gate.as_ref().map(|(gate, depth)| (gate.as_ref(), *depth));
        feed(&self.walk, gate, &self.handshake, self)
    }

    fn layer(&self, entry: Entry) -> usize {
        self.first_layer + entry.pass % self.layers
    }

    /// What is wanted soon is read into the system's cache while what is wanted now crosses the link.
    fn read_ahead(&self, k: usize) {
        let from = if k == 0 { 1 } else { k + READ_AHEAD };
        for entry in self.walk.entries().iter().take(k + READ_AHEAD + 1).skip(from) {
            self.arena.read_ahead(self.layer(*entry), entry.expert);
        }
    }
}

impl Link for Job {
    type Event = Event;

    fn copy(&self, k: usize, entry: Entry, last_reader: Option<&Event>) -> Result<Event, CardError> {
        let layer = self.layer(entry);
        let bytes = self.arena.bytes(layer, entry.expert)?;
        self.read_ahead(k);
        if let Some(released) = last_reader {
            self.card.wait(Stream::Experts, released, waits::SLOT_RELEASED)?;
        }
        let to = super::ring_slot(&self.ring, self.walk.slot(k), bytes, self.card.id())?;
        self.arena.copy_in(&self.card, layer, entry.expert, to)?;
        self.counters.streamed(bytes, self.walk.before(k).is_some());
        self.card.record(Stream::Experts)
    }

    fn skipped(&self, entry: Entry) -> Result<(), CardError> {
        self.counters.skipped(self.arena.bytes(self.layer(entry), entry.expert)?);
        Ok(())
    }

    fn waited(&self, how_long: Duration) -> Result<(), CardError> {
        if how_long < self.card.patience() {
            return Ok(());
        }
        let reason = format!("a streamed expert has not arrived after {} s: the device hangs", how_long.as_secs());
        Err(CardError::Device { card: self.card.id(), reason })
    }

    fn finished(&self, arrived: &Event) -> Result<bool, CardError> {
        self.card.finished(arrived)
    }
}
