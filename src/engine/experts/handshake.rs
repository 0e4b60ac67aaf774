//! The handshake over ring slots: the issuer tells what became of each entry, compute tells when it is done with it.

use std::sync::PoisonError;
use std::time::Duration;

use super::sync::{Condvar, Mutex, MutexGuard};
use crate::card::CardError;

/// What became of an entry.
#[derive(Clone, Debug)]
pub enum Fate<E> {
    /// Its copy is queued; the event ends when it has arrived.
    Issued(E),
    /// It was not copied.
    Skipped,
}

/// Both sides' view of a walk, entry by entry. `E` is the card's event.
#[derive(Debug)]
pub struct Handshake<E> {
    state: Mutex<State<E>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<E> {
    fates: Vec<Fate<E>>,
    released: Vec<Option<Option<E>>>,
    failed: Option<CardError>,
    stopped: bool,
}

impl<E: Clone> Handshake<E> {
    /// A handshake over `entries` entries.
    pub fn new(entries: usize) -> Self {
        let state = State { fates: Vec::new(), released: vec![None; entries], failed: None, stopped: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<E>>) -> MutexGuard<'a, State<E>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Issuer: the next entry's fate; entries are told in order.
    pub fn tell(&self, fate: Fate<E>) {
        self.state().fates.push(fate);
        self.changed.notify_all();
    }

    /// Issuer: a copy was refused; compute learns it at the next entry.
    pub fn fail(&self, error: CardError) {
        self.state().failed = Some(error);
        self.changed.notify_all();
    }

    /// Issuer: waits until compute has released entry `k`. `Ok` holds the event of its last reader (`None` when there was no reader);
    /// `None` means stop.
    pub fn released(&self, k: usize) -> Option<Option<E>> {
        let mut state = self.state();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(Some(released)) = state.released.get(k) {
                return Some(released.clone());
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

    /// Compute: waits for the fate of entry `k`.
    ///
    /// # Errors
    /// The refusal that ended the issuer's walk.
    pub fn fate(&self, k: usize) -> Result<Fate<E>, CardError> {
        let mut state = self.state();
        loop {
            if let Some(fate) = state.fates.get(k) {
                return Ok(fate.clone());
            }
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            state = self.wait(state);
        }
    }

    /// How many of the entries from `k` on are queued or have arrived.
    pub fn issued_from(&self, k: usize) -> usize {
        self.state().fates.iter().skip(k).filter(|fate| matches!(fate, Fate::Issued(_))).count()
    }

    /// Compute: entry `k` is done with; the event ends when its last reader has, `None` when nothing read it.
    pub fn release(&self, k: usize, last_reader: Option<E>) {
        if let Some(released) = self.state().released.get_mut(k) {
            *released = Some(last_reader);
        }
        self.changed.notify_all();
    }

    /// Ends the issuer's walk at its next wait.
    pub fn stop(&self) {
        self.state().stopped = true;
        self.changed.notify_all();
    }
}
