//! What a ledger has seen, for assertions.

use std::collections::BTreeMap;

use crate::card::{Stream, Why};
use crate::units::CardId;

/// Commands of one name on one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many were accepted.
    pub commands: u64,
    /// Bytes they copied, or read from host memory; 0 for other kernels.
    pub bytes: u64,
}

/// All that was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accepted commands by card, stream and name.
    pub commands: BTreeMap<(CardId, Stream, &'static str), Count>,
    /// Waits, syncs and drains by their reason.
    pub waits: BTreeMap<Why, u64>,
    /// Of these, those that were left out of the order on purpose ([`super::Ledger::leave_out`]).
    pub left_out: BTreeMap<Why, u64>,
    /// Accesses of host threads to host buffers.
    pub host_accesses: u64,
}

impl Counts {
    /// Commands of this name on all cards and streams.
    pub fn named(&self, name: &str) -> Count {
        self.sum(|(_, _, other)| *other == name)
    }

    /// Commands of this name on a card's stream.
    pub fn on(&self, card: CardId, stream: Stream, name: &str) -> Count {
        self.sum(|(at, on, other)| (*at, *on, *other) == (card, stream, name))
    }

    /// All commands.
    pub fn all(&self) -> Count {
        self.sum(|_| true)
    }

    fn sum(&self, counts: impl Fn(&(CardId, Stream, &'static str)) -> bool) -> Count {
        let chosen = self.commands.iter().filter(|(key, _)| counts(key)).map(|(_, count)| count);
        chosen.fold(Count::default(), |sum, count| Count {
            commands: sum.commands + count.commands,
            bytes: sum.bytes + count.bytes,
        })
    }
}
