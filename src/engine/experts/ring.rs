//! The prompt ring: pool slots lent during a prompt, through which streamed experts pass.

use std::sync::Arc;

use super::arena::Arena;
use super::gate::Gate;
use super::handshake::{Handshake, Outcome};
use super::issuer::{Issuer, Job};
use super::latest_gate::LatestGate;
use super::pool::Pool;
use super::walk::Walk;
use crate::card::{Card, Event, Lease, Span, Stream, Watcher};
use crate::engine::counters::Counters;
use crate::engine::{EngineError, waits};
use crate::ops::ExpertSet;
use crate::units::ExpertId;

/// Streams that use ring slots, drained when the lease ends.
const USERS: [Stream; 2] = [Stream::Experts, Stream::Compute];

/// What a ring needs of its stage.
pub(in crate::engine) struct RingParts<'a> {
    pub card: &'a Arc<dyn Card>,
    pub arena: &'a Arc<Arena>,
    pub counters: &'a Arc<Counters>,
    pub watcher: &'a Watcher,
    pub latest_gate: &'a LatestGate,
}

/// A prompt at or above the floor: an issuer walks all experts that do not stay on the card, ahead of the routers.
/// Fields are dropped in order: the issuer stops before the lease drains.
pub(in crate::engine) struct StreamedRing {
    issuer: Issuer,
    lease: Lease,
    walk: Arc<Walk>,
    gate: Option<Arc<Gate>>,
    handshake: Arc<Handshake<Event>>,
    counters: Arc<Counters>,
}

/// A prompt below the floor: routed experts are copied once their router has run, through the slots that no resident
/// takes.
pub(in crate::engine) struct RoutedRing {
    lease: Lease,
    last_readers: Vec<Option<Event>>,
    next: usize,
}

/// The ring of the prompt that a stage is reading.
pub(in crate::engine) enum Ring {
    Streamed(StreamedRing),
    Routed(RoutedRing),
    /// None: below the floor the host pool computes what the card does not hold, as in decode.
    HostPool,
}

/// An expert on its way: the event of its arrival, and what to release after its last reader.
pub(in crate::engine) struct Arriving {
    pub arrived: Event,
    pub blob: Span,
    k: usize,
}

impl StreamedRing {
    /// Lends the pool's ring, and starts the issuer on `waves` waves over the stage's layers (`streamed` of each,
    /// ascending).
    pub fn start(
        parts: &RingParts<'_>,
        pool: &mut Pool,
        first_layer: usize,
        streamed: &[Vec<ExpertId>],
        waves: usize,
        depth: Option<usize>,
    ) -> Result<Self, EngineError> {
        let lease = lend(parts.card, pool.ring());
        pool.lend();
        let walk = Arc::new(Walk::new(waves, streamed, pool.ring().len()));
        let gate = depth.map(|_| Arc::new(Gate::new(walk.passes())));
        parts.latest_gate.set(gate.clone());
        let handshake = Arc::new(Handshake::new());
        let issuer = Issuer::start(Job {
            card: Arc::clone(parts.card),
            arena: Arc::clone(parts.arena),
            first_layer,
            layers: streamed.len(),
            walk: Arc::clone(&walk),
            gate: gate.clone().zip(depth),
            handshake: Arc::clone(&handshake),
            ring: lease.spans().to_vec(),
            counters: Arc::clone(parts.counters),
            watcher: parts.watcher.clone(),
        })?;
        Ok(Self { issuer, lease, walk, gate, handshake, counters: Arc::clone(parts.counters) })
    }

    /// Stops the issuer, then drains and ends the lease.
    pub fn end(self) -> Result<(), EngineError> {
        drop(self.issuer);
        Ok(self.lease.end()?)
    }

    /// Whether the issuer wants to know routed sets.
    pub fn gated(&self) -> bool {
        self.gate.is_some()
    }

    /// Tells the issuer the routed set of a pass.
    pub fn publish(&self, pass: usize, routed: &ExpertSet) {
        if let Some(gate) = &self.gate {
            gate.publish(pass, routed.clone());
        }
    }

    /// The experts of a pass with their places in the walk, ascending.
    pub fn pass(&self, pass: usize) -> impl Iterator<Item = (usize, ExpertId)> + '_ {
        let places = self.walk.pass(pass);
        places.filter_map(|k| self.walk.entries().get(k).map(|entry| (k, entry.expert)))
    }

    /// Whether these experts must be read before entry `k` is waited for: the issuer may be waiting for the slot of the
    /// first.
    pub fn must_be_read_before(&self, arriving: &[Arriving], k: usize) -> bool {
        arriving.first().is_some_and(|first| self.walk.must_be_read_before(first.k, k))
    }

    /// Waits until entry `k` is queued; `None` when it was skipped. An entry that nothing will read (`wanted` false) is
    /// released at once.
    pub fn arrive(
        &self,
        k: usize,
        bytes: usize,
        wanted: bool,
        card: &Arc<dyn Card>,
    ) -> Result<Option<Arriving>, EngineError> {
        match self.handshake.outcome(k)? {
            Outcome::Skipped => Ok(None),
            Outcome::Issued(_) if !wanted => {
                self.handshake.release(k, None);
                Ok(None)
            }
            Outcome::Issued(arrived) => {
                self.counters.arrived(!card.finished(&arrived)?, 1 + self.handshake.issued());
                let blob = super::ring_slot(self.lease.spans(), self.walk.slot(k), bytes, card.id())?;
                Ok(Some(Arriving { arrived, blob, k }))
            }
        }
    }

    /// The last reader of an arrived expert is queued; `read` ends after it.
    pub fn release(&self, arriving: &Arriving, read: &Event) {
        self.handshake.release(arriving.k, Some(read.clone()));
    }
}

impl RoutedRing {
    /// Lends the slots that no resident takes.
    pub fn start(card: &Arc<dyn Card>, pool: &Pool) -> Self {
        let lease = lend(card, pool.free());
        let slots = lease.spans().len();
        Self { lease, last_readers: vec![None; slots], next: 0 }
    }

    /// Drains and ends the lease.
    pub fn end(self) -> Result<(), EngineError> {
        Ok(self.lease.end()?)
    }

    /// Slots of the ring.
    pub fn slots(&self) -> usize {
        self.last_readers.len()
    }

    /// Copies an expert into the next slot, whose last reader must be queued already.
    pub fn copy(&mut self, parts: &RingParts<'_>, layer: usize, expert: ExpertId) -> Result<Arriving, EngineError> {
        let k = self.next;
        let slot = k % self.slots().max(1);
        let bytes = parts.arena.bytes(layer, expert)?;
        let reader = self.last_readers.get_mut(slot).and_then(Option::take);
        if let Some(reader) = &reader {
            parts.card.wait(Stream::Experts, reader, waits::SLOT_RELEASED)?;
        }
        let blob = super::ring_slot(self.lease.spans(), slot, bytes, parts.card.id())?;
        parts.arena.copy_in(parts.card, layer, expert, blob)?;
        parts.counters.streamed(bytes, k >= self.slots());
        self.next += 1;
        Ok(Arriving { arrived: parts.card.record(Stream::Experts)?, blob, k })
    }

    /// The last reader of an arrived expert is queued; `read` ends after it.
    pub fn release(&mut self, arriving: &Arriving, read: &Event) {
        let slot = arriving.k % self.slots().max(1);
        if let Some(reader) = self.last_readers.get_mut(slot) {
            *reader = Some(read.clone());
        }
    }
}

/// Borrows slots. Nothing reads them any more: every request ends with a drain of the compute stream.
fn lend(card: &Arc<dyn Card>, slots: &[Span]) -> Lease {
    Lease::new(Arc::clone(card), slots, &USERS, waits::RING_RETURNED)
}
