//! What can go wrong on a card.

use std::time::Duration;

use thiserror::Error;

use super::Stream;
use crate::units::{Bytes, CardId};

/// An error of one card.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CardError {
    /// An allocation went past the card's budget.
    #[error("{card}: {what} needs {wanted}, {free} is free")]
    OutOfMemory {
        /// The card.
        card: CardId,
        /// What the memory was for.
        what: String,
        /// Bytes asked for.
        wanted: Bytes,
        /// Bytes left in the budget.
        free: Bytes,
    },
    /// Host memory could not be had.
    #[error("host memory: {what} needs {wanted}: {reason}")]
    HostMemory {
        /// What the memory was for.
        what: String,
        /// Bytes asked for.
        wanted: Bytes,
        /// What the system said.
        reason: String,
    },
    /// A command was refused at submission; nothing of it ran.
    #[error("{card}: `{command}` was refused on the {stream} stream: {reason}", stream = stream.name())]
    Refused {
        /// The card.
        card: CardId,
        /// The stream it was meant for.
        stream: Stream,
        /// The command's name.
        command: &'static str,
        /// Why.
        reason: String,
    },
    /// A queued command failed; what stood behind it on the card did not run.
    #[error("{card}: `{command}` failed on the {stream} stream: {reason}", stream = stream.name())]
    Failed {
        /// The card.
        card: CardId,
        /// Its stream.
        stream: Stream,
        /// The command's name.
        command: &'static str,
        /// What happened.
        reason: String,
    },
    /// What is queued on a stream does not end. The card may still read and write its memory, so nothing of it is used
    /// again.
    #[error(
        "{card}: `{command}` has not ended on the {stream} stream after {} s; the device hangs. Restart the program; if that does not help, \
         reset the device", waited.as_secs(), stream = stream.name()
    )]
    Hung {
        /// The card.
        card: CardId,
        /// Its stream.
        stream: Stream,
        /// The last command queued there.
        command: &'static str,
        /// How long the host has waited.
        waited: Duration,
    },
    /// A command, a wait or a host access was not ordered after one it conflicts with, or used an ended lease.
    #[error("{0}")]
    Unordered(String),
    /// The device itself reported an error outside a command.
    #[error("{card}: {reason}")]
    Device {
        /// The card.
        card: CardId,
        /// What the driver said.
        reason: String,
    },
}
