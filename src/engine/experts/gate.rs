//! The gate: what the issuer asks before it issues an entry.

use std::sync::PoisonError;

use super::sync::{Mutex, MutexGuard};
use super::walk::Walk;
use crate::ops::ExpertSet;

/// What becomes of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is copied: its expert is routed, or nobody knows yet.
    Issue,
    /// It is not copied: no token of the wave routes to its expert.
    Skip,
}

/// Holds the routed sets of a prompt's passes as they become known. Deciding on an entry and publishing a set are one
/// atomic step each, so the two sides never disagree about an entry.
#[derive(Debug)]
pub struct Gate {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    routed: Vec<Option<ExpertSet>>,
    position: usize,
    published: Vec<Published>,
}

/// A publication, as it happened: enough to replay which entries were skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The pass.
    pub pass: usize,
    /// Entries decided on before it.
    pub position: usize,
    /// The experts routed to.
    pub routed: ExpertSet,
}

impl Gate {
    /// A gate that knows nothing yet.
    pub fn new(passes: usize) -> Self {
        Self { state: Mutex::new(State { routed: vec![None; passes], position: 0, published: Vec::new() }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides on entry `k`; entries are asked for in order.
    pub fn decide(&self, walk: &Walk, k: usize) -> Decision {
        let mut state = self.state();
        state.position = k + 1;
        let Some(entry) = walk.entries().get(k) else { return Decision::Skip };
        match state.routed.get(entry.pass) {
            Some(Some(routed)) if !routed.contains(entry.expert) => Decision::Skip,
            _ => Decision::Issue,
        }
    }

    /// Makes a pass's routed set known.
    pub fn publish(&self, pass: usize, routed: ExpertSet) {
        let mut state = self.state();
        let position = state.position;
        state.published.push(Published { pass, position, routed: routed.clone() });
        if let Some(known) = state.routed.get_mut(pass) {
            *known = Some(routed);
        }
    }

    /// All publications so far.
    pub fn published(&self) -> Vec<Published> {
        self.state().published.clone()
    }
}
