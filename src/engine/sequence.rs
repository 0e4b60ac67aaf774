//! Sequences: texts in the making, each with its own cells.

use std::sync::{Arc, Mutex, PoisonError};

use super::kv::cells::Slot;

/// The free places of the cache.
#[derive(Debug)]
pub(super) struct FreeSlots(Mutex<Vec<usize>>);

impl FreeSlots {
    /// `count` free places.
    pub fn new(count: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new((0..count).rev().collect())))
    }

    /// Takes a place.
    pub fn take(self: &Arc<Self>) -> Option<Sequence> {
        let slot = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(Sequence { slot: Slot(slot), tokens: 0, free: Arc::clone(self) })
    }

    /// Places that nobody has.
    pub fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// A text in the making: its place in the KV cache. Dropping it frees the place.
#[derive(Debug)]
pub struct Sequence {
    pub(super) slot: Slot,
    pub(super) tokens: usize,
    free: Arc<FreeSlots>,
}

impl Sequence {
    /// Tokens in the cache.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Forgets all tokens from position `tokens` on.
    pub fn truncate(&mut self, tokens: usize) {
        self.tokens = self.tokens.min(tokens);
    }

    pub(super) fn belongs_to(&self, free: &Arc<FreeSlots>) -> bool {
        Arc::ptr_eq(&self.free, free)
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        self.free.0.lock().unwrap_or_else(PoisonError::into_inner).push(self.slot.0);
    }
}
