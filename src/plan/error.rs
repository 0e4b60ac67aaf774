//! Why there is no plan.

use thiserror::Error;

use crate::units::Bytes;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A card is too small for any split of the layers.
    #[error("{card}: layers, cache and work memory need at least {wanted}, {available} is there; {}", .fixes.join(", or "))]
    TooSmall {
        /// The card's name.
        card: String,
        /// The least that would do.
        wanted: Bytes,
        /// The card's memory less its reserve.
        available: Bytes,
        /// Changes that would make the model fit, smallest first.
        fixes: Vec<String>,
    },
    /// The pins leave no split of the layers.
    #[error(
        "run.pins.layers leave no way to run all {layers} layers on the cards in their order; remove a pin or widen it"
    )]
    Pins {
        /// Layers of the model.
        layers: usize,
    },
    /// A pinned amount does not fit.
    #[error("{card}: {what} need {wanted}, {free} is free; {fix}")]
    Pin {
        /// The card's name.
        card: String,
        /// What was pinned.
        what: String,
        /// Its bytes.
        wanted: Bytes,
        /// What is free for it.
        free: Bytes,
        /// What to do.
        fix: String,
    },
    /// The host's memory is too small.
    #[error("host memory: buffers and streamed cells need {wanted}, {available} is declared; lower run.context or run.prompt.wave, or raise rig.host.memory by {}", Bytes(.wanted.0 - .available.0))]
    Host {
        /// Bytes of all that cannot be read from the model's file instead.
        wanted: Bytes,
        /// What the topology declares.
        available: Bytes,
    },
    /// A setting asks for something this version cannot do.
    #[error("{setting}: {why}")]
    Unsupported {
        /// The setting's path in the topology.
        setting: &'static str,
        /// Why, and what to do.
        why: String,
    },
}
