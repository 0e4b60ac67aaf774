//! The gate of an FFN.

use super::cost::count;
use super::sizes::{WORD, exactly};
use super::{Access, Cost, Operation};
use crate::card::{CardKind, Span};
use crate::ops::Activation;

/// `out = activation(gate) * up`, elementwise. `out` may be `gate`.
#[derive(Clone, Debug)]
pub struct GatedActivation {
    /// f32 `[elements]`.
    pub gate: Span,
    /// f32 `[elements]`.
    pub up: Span,
    /// Number of elements.
    pub elements: usize,
    /// The function.
    pub activation: Activation,
    /// f32 `[elements]`.
    pub out: Span,
}

impl Operation for GatedActivation {
    fn name(&self) -> &'static str {
        "gated activation"
    }

    fn accesses(&self) -> Vec<Access> {
        vec![Access::Read(self.gate), Access::Read(self.up), Access::Write(self.out)]
    }

    fn check(&self, _: CardKind) -> Result<(), String> {
        exactly("the gate", self.gate.bytes, &[self.elements, WORD])?;
        exactly("up", self.up.bytes, &[self.elements, WORD])?;
        exactly("the output", self.out.bytes, &[self.elements, WORD])
    }

    fn cost(&self) -> Cost {
        Cost {
            card_read: self.gate.bytes as u64 + self.up.bytes as u64,
            card_written: self.out.bytes as u64,
            float: count(&[self.elements, gate_operations(self.activation)]),
            ..Cost::default()
        }
    }

    fn in_place(&self) -> Option<(Span, Span)> {
        Some((self.gate, self.out))
    }
}

/// Operations of a gated element.
pub(super) const fn gate_operations(activation: Activation) -> usize {
    match activation {
        // The exponential, the sum, the division and the product with up.
        Activation::Silu => 4,
    }
}
