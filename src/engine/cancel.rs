//! Cancelling a request from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Cancels the requests it was given to. Clones cancel the same requests.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels: running requests end within one layer's time.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
