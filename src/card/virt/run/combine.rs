//! The weighted sum over experts.

use super::Bound;
use crate::card::command::Combine;
use crate::cpu;

pub(super) fn run(of: &Combine, at: &Bound<'_>) -> Result<(), String> {
    let routing = at.routing(&of.routing, &[])?;
    let host_slots = of.host_slots.as_ref().map(|slots| at.read(slots)).transpose()?;
    cpu::combine(at.team(), &routing, at.read(&of.slots)?, host_slots, &of.held, of.width, at.write(&of.out)?);
    Ok(())
}
