//! Leases: borrows of card memory that end only after every stream which may touch it has drained.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::{Card, CardError, Span, Stream, Why};

/// Identifies a lease; unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// The leases of one card that have not ended.
#[derive(Debug, Default)]
pub struct Leases {
    live: RwLock<HashSet<LeaseId>>,
}

static NEXT: AtomicU64 = AtomicU64::new(1);

impl Leases {
    /// Whether the lease has not ended.
    pub fn is_live(&self, lease: LeaseId) -> bool {
        self.live.read().unwrap_or_else(PoisonError::into_inner).contains(&lease)
    }

    /// How many leases have not ended.
    pub fn live(&self) -> usize {
        self.live.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn begin(&self) -> LeaseId {
        let id = LeaseId(NEXT.fetch_add(1, Ordering::Relaxed));
        self.live.write().unwrap_or_else(PoisonError::into_inner).insert(id);
        id
    }

    fn end(&self, lease: LeaseId) {
        self.live.write().unwrap_or_else(PoisonError::into_inner).remove(&lease);
    }
}

/// A borrow of spans of one card. Dropping it drains the streams that may still read or write them, then ends it: a
/// command that carries it afterwards is refused.
pub struct Lease {
    card: Arc<dyn Card>,
    id: LeaseId,
    spans: Vec<Span>,
    streams: &'static [Stream],
    why: Why,
    ended: bool,
}

impl Lease {
    /// Borrows `spans`; `streams` are those that will use them and are drained at the end, `why` names that drain.
    pub fn new(card: Arc<dyn Card>, spans: &[Span], streams: &'static [Stream], why: Why) -> Self {
        let id = card.leases().begin();
        let spans = spans.iter().map(|span| span.leased(id)).collect();
        Self { card, id, spans, streams, why, ended: false }
    }

    /// The borrowed spans, marked with this lease.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Drains and ends the lease, telling what a drain found.
    ///
    /// # Errors
    /// The first failure of a drained stream; the lease has ended all the same.
    pub fn end(mut self) -> Result<(), CardError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), CardError> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        let mut result = Ok(());
        for stream in self.streams {
            let drained = self.card.drain(*stream, self.why);
            if result.is_ok() {
                result = drained;
            }
        }
        self.card.leases().end(self.id);
        result
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::debug!(%error, "a lease ended on a failed card");
        }
    }
}
