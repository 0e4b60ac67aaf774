//! Wires: a way of bytes from one card to another that each of them enters by a command of its own, as NCCL's are.

use std::any::Any;
use std::sync::Arc;

/// One end of a wire. Each [`super::Command::WireSend`] at one end meets one [`super::Command::WireReceive`] at the
/// other, in their order; neither may end without the other. Clones are the same end.
#[derive(Clone)]
pub struct Wire(Arc<dyn WireEnd>);

/// A card's own side of an end.
pub trait WireEnd: Send + Sync {
    /// Cuts the wire at both ends: what waits there ends with a failure or without the bytes, later commands are
    /// refused. A second cut does nothing.
    fn cut(&self);

    /// Whether it was cut.
    fn is_cut(&self) -> bool;

    /// Whether it was cut, and first at the other end.
    fn cut_from_afar(&self) -> bool;

    /// For the card that made it.
    fn as_any(&self) -> &dyn Any;
}

impl Wire {
    /// Wraps a card's end.
    pub fn new(end: Arc<dyn WireEnd>) -> Self {
        Self(end)
    }

    /// The card's own side.
    pub fn end(&self) -> &dyn WireEnd {
        self.0.as_ref()
    }
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_cut() { "cut wire" } else { "wire" })
    }
}
