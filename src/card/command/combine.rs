//! The weighted sum over experts.

use super::cost::count;
use super::sizes::{WORD, exactly};
use super::{Access, Cost, ExpertSet, Operation, Routing};
use crate::card::{CardKind, Span};

/// Decode: `out[row] = fma(weight, slot, out[row])` over the row's chosen experts in ascending id, taking each from the
/// card's own slots where `held` has it and from the host's otherwise.
#[derive(Clone, Debug)]
pub struct Combine {
    /// The choice.
    pub routing: Routing,
    /// f32 `[rows * top_k, width]` that [`super::ExpertsInto::Slots`] wrote.
    pub slots: Span,
    /// f32 `[rows * top_k, width]` that the host pool computed.
    pub host_slots: Option<Span>,
    /// Experts the card ran.
    pub held: ExpertSet,
    /// Elements of a row.
    pub width: usize,
    /// f32 `[rows, width]`.
    pub out: Span,
}

impl Operation for Combine {
    fn name(&self) -> &'static str {
        "combine"
    }

    fn accesses(&self) -> Vec<Access> {
        let Routing { ids, weights, .. } = self.routing;
        let mut all = vec![Access::Read(ids), Access::Read(weights), Access::Read(self.slots), Access::Write(self.out)];
        all.extend(self.host_slots.map(Access::Read));
        all
    }

    fn check(&self, _: CardKind) -> Result<(), String> {
        let Self { routing, slots, host_slots, held, width, out } = self;
        routing.check()?;
        exactly("the slots", slots.bytes, &[routing.rows, routing.top_k, *width, WORD])?;
        if let Some(slots) = host_slots {
            exactly("the host's slots", slots.bytes, &[routing.rows, routing.top_k, *width, WORD])?;
        }
        exactly("the set of held experts", held.0.len() * 8, &[ExpertSet::bytes(routing.experts)])?;
        exactly("the output", out.bytes, &[routing.rows, *width, WORD])
    }

    fn cost(&self) -> Cost {
        let Routing { rows, top_k, ids, weights, .. } = self.routing;
        let out = self.out.bytes as u64;
        Cost {
            // Each entry comes from one of the two places.
            card_read: ids.bytes as u64 + weights.bytes as u64 + count(&[rows, top_k, self.width, WORD]) + out,
            card_written: out,
            float: count(&[rows, top_k, self.width, 2]),
            ..Cost::default()
        }
    }
}
