//! Sequences: texts in the making, each with its own state in every layer.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::EngineError;

/// A sequence's number: where its state lies among those of the plan's sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SequenceId(pub usize);

/// The numbers that nobody has.
#[derive(Debug)]
pub(super) struct FreeSequences(Mutex<Vec<SequenceId>>);

impl FreeSequences {
    /// `count` free numbers.
    pub fn new(count: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new((0..count).rev().map(SequenceId).collect())))
    }

    /// Takes a number.
    pub fn take(self: &Arc<Self>) -> Option<Sequence> {
        let id = self.free().pop()?;
        let place = Place { id, state: Mutex::default(), idle: Condvar::new(), free: Arc::clone(self) };
        Some(Sequence { place: Arc::new(place) })
    }

    /// Numbers that nobody has.
    pub fn count(&self) -> usize {
        self.free().len()
    }

    fn free(&self) -> MutexGuard<'_, Vec<SequenceId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a [`Sequence`] and the request that runs on it share. The number is free again when both have let go of it.
#[derive(Debug)]
pub(super) struct Place {
    pub id: SequenceId,
    state: Mutex<State>,
    idle: Condvar,
    free: Arc<FreeSequences>,
}

#[derive(Debug, Default)]
struct State {
    tokens: usize,
    /// A request runs on it.
    busy: bool,
}

impl Place {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The request that ran on it has ended and has appended `tokens`.
    pub fn release(&self, tokens: usize) {
        let mut state = self.state();
        state.tokens += tokens;
        state.busy = false;
        drop(state);
        self.idle.notify_all();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.free.free().push(self.id);
    }
}

/// A text in the making. Dropping it frees its place; where a request still runs on it, when that has ended.
#[derive(Debug)]
pub struct Sequence {
    place: Arc<Place>,
}

impl Sequence {
    /// Tokens whose state is kept.
    pub fn tokens(&self) -> usize {
        self.place.state().tokens
    }

    /// Forgets all tokens from position `tokens` on.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while a request runs on the sequence.
    pub fn truncate(&mut self, tokens: usize) -> Result<(), EngineError> {
        let mut state = self.place.state();
        if state.busy {
            return Err(EngineError::Busy);
        }
        state.tokens = state.tokens.min(tokens);
        Ok(())
    }

    /// Waits until no request runs on it.
    pub(super) fn wait(&self) {
        let state = self.place.state();
        drop(self.place.idle.wait_while(state, |state| state.busy).unwrap_or_else(PoisonError::into_inner));
    }

    /// Claims the sequence for a request: its place, and the tokens it holds. [`Place::release`] ends that.
    pub(super) fn claim(&self) -> Result<(Arc<Place>, usize), EngineError> {
        let mut state = self.place.state();
        if std::mem::replace(&mut state.busy, true) {
            return Err(EngineError::Busy);
        }
        Ok((Arc::clone(&self.place), state.tokens))
    }

    pub(super) fn belongs_to(&self, free: &Arc<FreeSequences>) -> bool {
        Arc::ptr_eq(&self.place.free, free)
    }
}
