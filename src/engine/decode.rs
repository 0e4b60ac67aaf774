//! The decode step: one token of each of several sequences goes through all layers of a stage. Experts that the card
//! does not hold are computed by the host pool at the same time.

use super::buffers::part_of;
use super::experts::host_pool::HostLayer;
use super::job::Row;
use super::layer::{F32, Part};
use super::stage::Stage;
use super::ticket::Running;
use super::weights::{Layer, LayerFfn};
use super::{EngineError, waits};
use crate::card::command::{Combine, CopyIn, CopyOut, ExpertsInto, HeldExpert, Phase, Route, Routing, RunExperts};
use crate::card::{Command, HostSpan, Span, Stream};
use crate::ops::ExpertSet;
use crate::plan::Use;
use crate::units::ExpertId;

impl Stage {
    /// Queues all layers of a step over the hidden states in `hidden`.
    pub(super) fn step(&mut self, rows: &[Row], hidden: Span, request: &Running) -> Result<(), EngineError> {
        if let Some(pool) = &mut self.pool {
            pool.wait_for_residents()?;
        }
        let part = |(r, row): (usize, &Row)| Part { sequence: row.sequence, rows: r..r + 1, first: row.position };
        let parts: Vec<Part> = rows.iter().enumerate().map(part).collect();
        let layers = std::sync::Arc::clone(&self.layers);
        self.step_layers(&layers, &parts, hidden, request)
    }

    fn step_layers(
        &mut self,
        layers: &[Layer],
        parts: &[Part],
        hidden: Span,
        request: &Running,
    ) -> Result<(), EngineError> {
        let rows = 0..parts.len();
        for (place, layer) in layers.iter().enumerate() {
            if request.stops() {
                return Err(EngineError::Cancelled);
            }
            self.attend(Phase::Decode, place, layer, hidden, &rows, parts)?;
            self.feed_forward(Phase::Decode, layer, hidden, &rows)?;
            if let LayerFfn::Experts { .. } = &layer.ffn {
                self.shared_experts(layer, rows.len(), hidden)?;
            }
        }
        Ok(())
    }

    /// The experts of rows that card and host pool share: each computes what the card holds or does not hold, at the
    /// same time.
    pub(super) fn shared_experts(&mut self, layer: &Layer, rows: usize, hidden: Span) -> Result<(), EngineError> {
        let LayerFfn::Experts { experts, rule, layout, .. } = &layer.ffn else { return Ok(()) };
        let Some(pool) = &self.pool else { return Ok(()) };
        let routing = self.routing(rows, *experts, rule.top_k)?;
        let logits = self.buffers.get(Use::RouterLogits, rows * experts * F32)?;
        self.compute(Command::Route(Route { logits, rule: *rule, routing, routed: None }))?;

        let held = pool.held(layer.index, *experts);
        let normed = self.normed(&(0..rows))?;
        let elements = rows * rule.top_k * self.width;
        let slots = self.buffers.get(Use::Slots, elements * F32)?;
        let ask = held.len() < *experts;
        let chosen = if ask { Some(self.send_choice(&routing, normed)?) } else { None };
        if !held.is_empty() {
            let members = (0..*experts as u32).map(ExpertId);
            let on_card =
                members.filter_map(|id| pool.get(layer.index, id).map(|blob| HeldExpert { id, blob })).collect();
            self.compute(Command::RunExperts(RunExperts {
                x: normed,
                routing,
                layout: std::sync::Arc::clone(layout),
                experts: on_card,
                into: ExpertsInto::Slots(slots),
                scratch: self.buffers.whole(Use::Scratch)?,
            }))?;
        }
        let host_slots = match chosen {
            Some(choice) => Some(self.host_share(layer, *experts, &routing, &held, &choice)?),
            None => {
                self.counters.decoded(0, rows * rule.top_k);
                None
            }
        };
        let out = hidden.part(0, rows * self.width * F32);
        self.compute(Command::Combine(Combine { routing, slots, host_slots, held, width: self.width, out }))
    }

    /// Copies the choice and the rows to the host.
    fn send_choice(&self, routing: &Routing, normed: Span) -> Result<Choice, EngineError> {
        let ids = part_of(&self.host.ids, 0, routing.ids.bytes)?;
        let x = part_of(&self.host.normed, 0, normed.bytes)?;
        self.compute(Command::CopyOut(CopyOut { from: routing.ids, to: ids.clone() }))?;
        self.compute(Command::CopyOut(CopyOut { from: normed, to: x.clone() }))?;
        Ok(Choice { ids, normed: x, sent: self.card.record(Stream::Compute)? })
    }

    /// Lets the host pool compute what the card does not hold, and copies the results to the card.
    fn host_share(
        &mut self,
        layer: &Layer,
        experts: usize,
        routing: &Routing,
        held: &ExpertSet,
        choice: &Choice,
    ) -> Result<Span, EngineError> {
        let bytes = routing.rows * routing.top_k * self.width * F32;
        let slots = part_of(&self.host.slots, 0, bytes)?;
        self.card.sync(&choice.sent, waits::CHOSEN)?;
        let products = self.host_pool.run(&HostLayer {
            layer: layer.index,
            rows: routing.rows,
            experts,
            top_k: routing.top_k,
            ids: &choice.ids,
            normed: &choice.normed,
            slots: &slots,
            held,
        })?;
        self.counters.decoded(products, routing.rows * routing.top_k - products);
        let to = self.buffers.get(Use::HostSlots, bytes)?;
        self.compute(Command::CopyIn(CopyIn { from: slots, to }))?;
        Ok(to)
    }
}

/// A step's choice on its way to the host.
struct Choice {
    ids: HostSpan,
    normed: HostSpan,
    sent: crate::card::Event,
}
