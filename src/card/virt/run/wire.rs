//! The halves of a transfer over a wire.

use super::Bound;
use crate::card::command::{WireReceive, WireSend};
use crate::card::virt::wire::end;

pub(super) fn send(of: &WireSend, at: &Bound<'_>) -> Result<(), String> {
    end(&of.over, true)?.send(at.read(&of.from)?)
}

pub(super) fn receive(of: &WireReceive, at: &Bound<'_>) -> Result<(), String> {
    end(&of.over, false)?.receive(at.write(&of.to)?)
}
