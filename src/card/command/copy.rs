//! Copies between host and card, inside a card, and from another card.

use super::{Access, Cost, Operation};
use crate::card::{CardKind, HostSpan, Span};

/// Host to card. Both sides have the same length.
#[derive(Clone, Debug)]
pub struct CopyIn {
    /// Source.
    pub from: HostSpan,
    /// Target.
    pub to: Span,
}

/// Card to host. Both sides have the same length.
#[derive(Clone, Debug)]
pub struct CopyOut {
    /// Source.
    pub from: Span,
    /// Target.
    pub to: HostSpan,
}

/// Inside the card. Both sides have the same length.
#[derive(Clone, Debug)]
pub struct CopyWithin {
    /// Source.
    pub from: Span,
    /// Target.
    pub to: Span,
}

/// From another card's memory, which [`crate::card::Card::reach`] opened, to this card's. Both sides have the same
/// length.
#[derive(Clone, Debug)]
pub struct CopyAcross {
    /// Source, on the other card.
    pub from: Span,
    /// Target.
    pub to: Span,
}

fn same_length(from: usize, to: usize) -> Result<(), String> {
    if from == to {
        return Ok(());
    }
    Err(format!("the source has {from} bytes, the target {to}"))
}

impl Operation for CopyIn {
    fn name(&self) -> &'static str {
        "copy in"
    }

    fn accesses(&self) -> Vec<Access> {
        vec![Access::HostRead(self.from.clone()), Access::Write(self.to)]
    }

    fn check(&self, _: CardKind) -> Result<(), String> {
        same_length(self.from.bytes(), self.to.bytes)
    }

    fn cost(&self) -> Cost {
        let bytes = self.to.bytes as u64;
        Cost { host_read: bytes, card_written: bytes, ..Cost::default() }
    }

    fn copied(&self) -> Option<usize> {
        Some(self.to.bytes)
    }
}

impl Operation for CopyOut {
    fn name(&self) -> &'static str {
        "copy out"
    }

    fn accesses(&self) -> Vec<Access> {
        vec![Access::Read(self.from), Access::HostWrite(self.to.clone())]
    }

    fn check(&self, _: CardKind) -> Result<(), String> {
        same_length(self.from.bytes, self.to.bytes())
    }

    fn cost(&self) -> Cost {
        let bytes = self.from.bytes as u64;
        Cost { card_read: bytes, host_written: bytes, ..Cost::default() }
    }

    fn copied(&self) -> Option<usize> {
        Some(self.from.bytes)
    }
}

impl Operation for CopyWithin {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn accesses(&self) -> Vec<Access> {
        vec![Access::Read(self.from), Access::Write(self.to)]
    }

    fn check(&self, _: CardKind) -> Result<(), String> {
        same_length(self.from.bytes, self.to.bytes)
    }

    fn cost(&self) -> Cost {
        let bytes = self.to.bytes as u64;
        Cost { card_read: bytes, card_written: bytes, ..Cost::default() }
    }

    fn copied(&self) -> Option<usize> {
        Some(self.to.bytes)
    }
}

impl Operation for CopyAcross {
    fn name(&self) -> &'static str {
        "copy across"
    }

    fn accesses(&self) -> Vec<Access> {
        vec![Access::Read(self.from), Access::Write(self.to)]
    }

    fn check(&self, _: CardKind) -> Result<(), String> {
        if self.from.card == self.to.card {
            return Err(format!("both spans lie on {}", self.to.card));
        }
        same_length(self.from.bytes, self.to.bytes)
    }

    fn cost(&self) -> Cost {
        let bytes = self.to.bytes as u64;
        Cost { received: bytes, card_written: bytes, ..Cost::default() }
    }

    fn copied(&self) -> Option<usize> {
        Some(self.to.bytes)
    }
}
