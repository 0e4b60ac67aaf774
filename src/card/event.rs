//! Events: marks in a stream that others can wait for.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::CardError;
use crate::units::CardId;

/// A mark in a card's stream. Clones are the same mark.
#[derive(Clone)]
pub struct Event {
    id: u64,
    card: CardId,
    state: Arc<dyn EventState>,
}

/// The card's own side of an event.
pub trait EventState: Send + Sync {
    /// Whether the mark has been passed.
    ///
    /// # Errors
    /// When a command before the mark failed.
    fn finished(&self) -> Result<bool, CardError>;

    /// Blocks until the mark has been passed.
    ///
    /// # Errors
    /// When a command before the mark failed.
    fn block(&self) -> Result<(), CardError>;

    /// For the card that made it.
    fn as_any(&self) -> &dyn Any;
}

static NEXT: AtomicU64 = AtomicU64::new(1);

impl Event {
    /// Wraps a card's mark under a process-wide unique id.
    pub fn new(card: CardId, state: Arc<dyn EventState>) -> Self {
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), card, state }
    }

    /// Unique in this process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The card that recorded it.
    pub fn card(&self) -> CardId {
        self.card
    }

    /// The card's own side.
    pub fn state(&self) -> &Arc<dyn EventState> {
        &self.state
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "event {} of {}", self.id, self.card)
    }
}
