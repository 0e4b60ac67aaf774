//! The gate of a stage's latest prompt, kept so that its publications can be replayed.

use std::sync::{Arc, Mutex, PoisonError};

use super::gate::{Gate, Published};

/// A place for one gate, shared by a stage and its engine.
#[derive(Debug, Default)]
pub(in crate::engine) struct LatestGate(Mutex<Option<Arc<Gate>>>);

impl LatestGate {
    /// A prompt begins, with this gate or without one.
    pub fn set(&self, gate: Option<Arc<Gate>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = gate;
    }

    /// What the gate was told; nothing where the prompt had none.
    pub fn published(&self) -> Vec<Published> {
        let gate = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        gate.map(|gate| gate.published()).unwrap_or_default()
    }
}
