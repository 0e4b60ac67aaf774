//! The gate of an FFN.

use super::super::kernels::{Grid, arguments};
use super::super::module::Module;
use super::Launch;
use crate::card::command::GatedActivation;
use crate::ops::Activation;

/// How kernels number the gate functions.
pub(super) fn activation_number(activation: Activation) -> i32 {
    match activation {
        Activation::Silu => 0,
    }
}

impl Launch<'_> {
    pub(super) fn gated_activation(&self, of: &GatedActivation) -> Result<(), String> {
        let GatedActivation { gate, up, elements, activation, out } = of;
        let elements = *elements;
        let gate = self.words(gate, elements, "gate")?;
        let up = self.words(up, elements, "up")?;
        let out = self.words(out, elements, "out")?;
        let activation = activation_number(*activation);
        let grid = Grid::row(elements.div_ceil(256), 256);
        let elements = elements as u64;
        // SAFETY: (const float*, const float*, u64, int, float*).
        unsafe { self.launch(Module::Base, "gated_activation", grid, arguments![gate, up, elements, activation, out]) }
    }
}
