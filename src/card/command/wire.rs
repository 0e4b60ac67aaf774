//! The two halves of a transfer over a wire.

use super::{Access, Cost, Operation};
use crate::card::{CardKind, Span, Wire};

/// Into a wire; it ends when the bytes have left the source.
#[derive(Clone, Debug)]
pub struct WireSend {
    /// Source.
    pub from: Span,
    /// The sending end.
    pub over: Wire,
}

/// Out of a wire, what the other end's next [`WireSend`] gives, which has the same length.
#[derive(Clone, Debug)]
pub struct WireReceive {
    /// Target.
    pub to: Span,
    /// The receiving end.
    pub over: Wire,
}

impl Operation for WireSend {
    fn name(&self) -> &'static str {
        "send"
    }

    fn accesses(&self) -> Vec<Access> {
        vec![Access::Read(self.from)]
    }

    fn check(&self, _: CardKind) -> Result<(), String> {
        Ok(())
    }

    fn cost(&self) -> Cost {
        let bytes = self.from.bytes as u64;
        Cost { card_read: bytes, sent: bytes, ..Cost::default() }
    }

    fn copied(&self) -> Option<usize> {
        Some(self.from.bytes)
    }
}

impl Operation for WireReceive {
    fn name(&self) -> &'static str {
        "receive"
    }

    fn accesses(&self) -> Vec<Access> {
        vec![Access::Write(self.to)]
    }

    fn check(&self, _: CardKind) -> Result<(), String> {
        Ok(())
    }

    fn cost(&self) -> Cost {
        let bytes = self.to.bytes as u64;
        Cost { received: bytes, card_written: bytes, ..Cost::default() }
    }

    fn copied(&self) -> Option<usize> {
        Some(self.to.bytes)
    }
}
