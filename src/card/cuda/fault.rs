//! What failed on a card: the first failure stops every later command until the card is recovered.

use std::sync::{Mutex, PoisonError};

use cudarc::driver::result::DriverError;

use super::error::say;
use crate::card::{CardError, Stream};
use crate::units::CardId;

pub(super) struct Fault {
    card: CardId,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The last command queued on each stream, for messages.
    last: [&'static str; Stream::ALL.len()],
    failed: Option<CardError>,
}

impl Fault {
    pub(super) fn new(card: CardId) -> Self {
        Self { card, state: Mutex::default() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a command for later messages, or gives the failure that stops it.
    pub(super) fn begin(&self, on: Stream, command: &'static str) -> Result<(), CardError> {
        let mut state = self.lock();
        if let Some(failed) = &state.failed {
            return Err(failed.clone());
        }
        if let Some(last) = state.last.get_mut(on as usize) {
            *last = command;
        }
        Ok(())
    }

    /// The failure, if there is one.
    pub(super) fn check(&self) -> Result<(), CardError> {
        self.lock().failed.clone().map_or(Ok(()), Err)
    }

    /// The device reported an error that belongs to something queued earlier.
    pub(super) fn lose(&self, on: Stream, error: DriverError) -> CardError {
        let mut state = self.lock();
        let command = state.last.get(on as usize).copied().unwrap_or_default();
        let reason = format!("{}, in this or an earlier command", say(error));
        state.failed.get_or_insert(CardError::Failed { card: self.card, stream: on, command, reason }).clone()
    }

    /// A command was queued in part only.
    pub(super) fn broken(&self, on: Stream, command: &'static str, reason: String) -> CardError {
        let error = CardError::Failed { card: self.card, stream: on, command, reason };
        self.lock().failed.get_or_insert(error).clone()
    }

    /// Forgets the failure.
    pub(super) fn forget(&self) {
        self.lock().failed = None;
    }
}
