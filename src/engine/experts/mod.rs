//! Experts: where their blobs lie, which live on a card, and how the others get there.

pub(super) mod arena;
pub mod feed;
pub mod gate;
pub mod handshake;
pub(super) mod host_pool;
pub(super) mod issuer;
pub(super) mod latest_gate;
pub(super) mod pool;
pub(super) mod ring;
pub mod walk;

/// What gate and handshake lock and wait with. A model checker compiles their sources beside its own.
mod sync {
    pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
}

use crate::card::{CardError, Span};
use crate::units::CardId;

/// The first `bytes` of a ring slot.
fn ring_slot(ring: &[Span], slot: usize, bytes: usize, card: CardId) -> Result<Span, CardError> {
    let missing = || CardError::Device { card, reason: format!("the prompt ring has no slot {slot} of {bytes} bytes") };
    ring.get(slot).filter(|span| span.bytes >= bytes).map(|span| span.part(0, bytes)).ok_or_else(missing)
}
