//! The handshake over ring slots: the issuer tells what became of each entry, compute tells when it is done with it.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::Duration;

use super::sync::{Condvar, Mutex, MutexGuard};
use crate::card::CardError;

/// What became of an entry.
#[derive(Clone, Debug)]
pub enum Outcome<E> {
    /// Its copy is queued; the event ends when it has arrived.
    Issued(E),
    /// It was not copied.
    Skipped,
}

/// Both sides' view of a walk, entry by entry, in order. `E` is the card's event. An event is let go of as soon as the
/// other side has taken it: a long prompt has hundreds of thousands of entries, and cards use events again.
#[derive(Debug)]
pub struct Handshake<E> {
    state: Mutex<State<E>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<E> {
    /// Entries whose outcome compute has taken.
    taken: usize,
    /// Outcomes of the entries after them.
    outcomes: VecDeque<Outcome<E>>,
    /// Entries whose release the issuer has taken.
    passed: usize,
    /// Releases of the entries after them, with their last readers.
    released: VecDeque<Option<Option<E>>>,
    failed: Option<CardError>,
    stopped: bool,
}

impl<E: Clone> Default for Handshake<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: Clone> Handshake<E> {
    /// A handshake of which nothing has happened.
    pub fn new() -> Self {
        let state = State {
            taken: 0,
            outcomes: VecDeque::new(),
            passed: 0,
            released: VecDeque::new(),
            failed: None,
            stopped: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<E>>) -> MutexGuard<'a, State<E>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Issuer: the next entry's outcome; entries are told in order.
    pub fn tell(&self, outcome: Outcome<E>) {
        self.state().outcomes.push_back(outcome);
        self.changed.notify_all();
    }

    /// Issuer: a copy was refused; compute learns it at the next entry.
    pub fn fail(&self, error: CardError) {
        self.state().failed = Some(error);
        self.changed.notify_all();
    }

    /// Issuer: waits until compute has released entry `k`; entries are asked for in ascending order, each at most once.
    /// `Ok` holds the event of its last reader (`None` when there was no reader); `None` means stop.
    pub fn released(&self, k: usize) -> Option<Option<E>> {
        let mut state = self.state();
        loop {
            if state.stopped {
                return None;
            }
            let at = k.checked_sub(state.passed)?;
            if let Some(Some(released)) = state.released.get(at).cloned() {
                state.released.drain(..=at);
                state.passed = k + 1;
                return Some(released);
            }
            state = self.wait(state);
        }
    }

    /// Issuer: sleeps at most `limit`, less when the other side moves; tells whether to stop.
    pub fn pause(&self, limit: Duration) -> bool {
        let state = self.state();
        if state.stopped {
            return true;
        }
        let (state, _) = self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner);
        state.stopped
    }

    /// Compute: waits for the outcome of entry `k`; entries are asked for in order, each once.
    ///
    /// # Errors
    /// The refusal that ended the issuer's walk.
    pub fn outcome(&self, k: usize) -> Result<Outcome<E>, CardError> {
        let mut state = self.state();
        loop {
            debug_assert_eq!(k, state.taken, "entries are taken in order");
            if let Some(outcome) = state.outcomes.pop_front() {
                state.taken += 1;
                return Ok(outcome);
            }
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            state = self.wait(state);
        }
    }

    /// How many entries that compute has not taken are queued or have arrived.
    pub fn issued(&self) -> usize {
        self.state().outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Issued(_))).count()
    }

    /// Compute, and the issuer for what it skips: entry `k` is done with; the event ends when its last reader has,
    /// `None` when nothing read it.
    pub fn release(&self, k: usize, last_reader: Option<E>) {
        let mut state = self.state();
        if let Some(at) = k.checked_sub(state.passed) {
            let length = state.released.len().max(at + 1);
            state.released.resize(length, None);
            if let Some(released) = state.released.get_mut(at) {
                *released = Some(last_reader);
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Ends the issuer's walk at its next wait.
    pub fn stop(&self) {
        self.state().stopped = true;
        self.changed.notify_all();
    }
}
