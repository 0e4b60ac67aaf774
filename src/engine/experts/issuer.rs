//! The issuer: the thread that feeds the prompt ring over the card's own copy stream.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::arena::Arena;
use super::gate::{Decision, Gate};
use super::handshake::{Fate, Handshake};
use super::walk::{Entry, Walk};
use crate::card::{Card, CardError, Command, Event, HostSpan, Span, Stream};
use crate::engine::counters::Counters;
use crate::engine::{EngineError, waits};

/// How long the issuer sleeps between two looks at the oldest queued copy.
const POLL: Duration = Duration::from_micros(20);

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
        let thread = std::thread::Builder::new()
            .name(format!("issuer of {}", job.card.id()))
            .spawn(move || {
                let ended = catch_unwind(AssertUnwindSafe(|| job.run()));
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
        let mut queued: VecDeque<Event> = VecDeque::new();
        for (k, entry) in self.walk.entries().iter().enumerate() {
            let last_reader = match self.walk.before(k) {
                None => None,
                Some(before) => match self.handshake.released(before) {
                    Some(last_reader) => last_reader,
                    None => return Ok(()),
                },
            };
            if let Some((_, depth)) = &self.gate
                && !self.wait_for_room(&mut queued, *depth)?
            {
                return Ok(());
            }
            let blob = self.blob(*entry)?;
            if let Some((gate, _)) = &self.gate
                && gate.decide(&self.walk, k) == Decision::Skip
            {
                self.counters.skipped(blob.bytes());
                // The slot's last reader stands for the next entry of the slot, too.
                self.handshake.release(k, last_reader);
                self.handshake.tell(Fate::Skipped);
                continue;
            }
            let arrived = self.copy(k, blob, last_reader.as_ref())?;
            if self.gate.is_some() {
                queued.push_back(arrived.clone());
            }
            self.handshake.tell(Fate::Issued(arrived));
        }
        Ok(())
    }

    /// Waits until fewer than `depth` copies are queued; `false` means stop.
    fn wait_for_room(&self, queued: &mut VecDeque<Event>, depth: usize) -> Result<bool, CardError> {
        loop {
            while let Some(oldest) = queued.front()
                && self.card.finished(oldest)?
            {
                queued.pop_front();
            }
            if queued.len() < depth {
                return Ok(true);
            }
            if self.handshake.pause(POLL) {
                return Ok(false);
            }
        }
    }

    fn blob(&self, entry: Entry) -> Result<HostSpan, CardError> {
        self.arena.blob(self.first_layer + entry.pass % self.layers, entry.expert)
    }

    fn copy(&self, k: usize, from: HostSpan, last_reader: Option<&Event>) -> Result<Event, CardError> {
        if let Some(released) = last_reader {
            self.card.wait(Stream::Experts, released, waits::SLOT_RELEASED)?;
        }
        let bytes = from.bytes();
        let to = super::ring_slot(&self.ring, self.walk.slot(k), bytes, self.card.id())?;
        self.card.submit(Stream::Experts, Command::CopyIn { from, to })?;
        self.counters.streamed(bytes, self.walk.before(k).is_some());
        self.card.record(Stream::Experts)
    }
}
