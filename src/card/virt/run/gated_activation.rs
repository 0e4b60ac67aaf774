//! The gate of an FFN.

use super::{Bound, same};
use crate::card::command::GatedActivation;
use crate::cpu;

pub(super) fn run(of: &GatedActivation, at: &Bound<'_>) -> Result<(), String> {
    let GatedActivation { gate, up, activation, out, .. } = of;
    let up = at.read(up)?;
    if same(gate, out) {
        cpu::gated_activation_in_place(at.team(), *activation, at.write(out)?, up);
    } else {
        cpu::gated_activation(at.team(), *activation, at.read(gate)?, up, at.write(out)?);
    }
    Ok(())
}
