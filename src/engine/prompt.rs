//! The prompt pass: a wave's tokens go through a layer together before the next layer starts, so that an expert crosses
//! the link at most once a wave.

use std::ops::Range;
use std::sync::Arc;

use super::experts::ring::{Arriving, Ring, RingParts, RoutedRing, StreamedRing};
use super::job::Wave;
use super::kv::Streamed;
use super::kv::staging::{Staging, StagingParts};
use super::layer::{F32, Part};
use super::stage::Stage;
use super::ticket::Running;
use super::weights::{Layer, LayerFfn};
use super::{EngineError, waits};
use crate::card::command::{ExpertsInto, HeldExpert, Phase, Route, Routing, RunExperts};
use crate::card::{Command, Event, Span, Stream};
use crate::ops::ExpertSet;
use crate::plan::Use;
use crate::units::ExpertId;

/// One layer's experts over a wave.
struct Pass<'a> {
    /// Place of the layer in the stage.
    place: usize,
    layer: &'a Layer,
    experts: usize,
    routing: Routing,
    hidden: Span,
    /// The routed set, where it is known on the host.
    routed: Option<ExpertSet>,
}

impl Stage {
    /// What a wave needs no hidden states for: the prompt's staging pool and ring are lent, and the first copies begin.
    pub(super) fn begin_wave(&mut self, wave: &Wave) -> Result<(), EngineError> {
        if wave.number == 0 {
            self.start_staging(wave)?;
            self.start_ring(wave)?;
        }
        if let Some(pool) = &mut self.pool {
            pool.wait_for_residents()?;
        }
        let Self { card, counters, layouts, streamed, .. } = self;
        let Some(Streamed { host, written, staging: Some(staging), .. }) = streamed else { return Ok(()) };
        staging.begin(&StagingParts { card, counters, host, written, layouts }, wave.sequence, wave.first)
    }

    /// Queues all layers of a wave over the hidden states in `hidden`.
    pub(super) fn wave(&mut self, wave: &Wave, hidden: Span, request: &Running) -> Result<(), EngineError> {
        let layers = Arc::clone(&self.layers);
        let result = self.layers(&layers, wave, hidden, request);
        self.counters.wave();
        result
    }

    fn layers(&mut self, layers: &[Layer], wave: &Wave, hidden: Span, request: &Running) -> Result<(), EngineError> {
        let mut last: Option<Event> = None;
        for (place, layer) in layers.iter().enumerate() {
            if request.stops() {
                return Err(EngineError::Cancelled);
            }
            for rows in blocks(wave.rows, self.attention_rows) {
                let part = Part { sequence: wave.sequence, rows: rows.clone(), first: wave.first + rows.start };
                self.attend(Phase::Prompt, place, layer, hidden, &rows, &[part])?;
            }
            // A router's logits are few: their product takes the wave at once. A dense FFN's hidden units are kept for
            // a block of rows.
            let block = match layer.ffn {
                LayerFfn::Dense { .. } => self.row_block,
                LayerFfn::Experts { .. } => wave.rows,
            };
            for rows in blocks(wave.rows, block) {
                self.feed_forward(Phase::Prompt, layer, hidden, &rows)?;
            }
            if let LayerFfn::Experts { .. } = &layer.ffn {
                self.experts(place, layer, wave, hidden)?;
            }
            let end = self.card.record(Stream::Compute)?;
            if let Some(before) = last.replace(end) {
                self.card.sync(&before, waits::ONE_LAYER_AHEAD)?;
            }
        }
        Ok(())
    }

    /// Lends the staging pool, if a wave of the prompt has a cached prefix in host memory.
    fn start_staging(&mut self, wave: &Wave) -> Result<(), EngineError> {
        let Some(streamed) = &mut self.streamed else { return Ok(()) };
        if wave.end - wave.waves.shortest <= self.kv.resident() {
            return Ok(());
        }
        let (span, refilled) = match &mut self.pool {
            None => (self.buffers.whole(Use::Staging)?, None),
            Some(pool) => (pool.lend_staging(), pool.refilled()),
        };
        streamed.staging = Some(Staging::start(&self.card, span, self.kv_plan, refilled)?);
        Ok(())
    }

    /// Lends slots for the prompt, if any of its experts are not on the card.
    fn start_ring(&mut self, wave: &Wave) -> Result<(), EngineError> {
        self.latest_gate.set(None);
        let streamed = match &self.pool {
            Some(pool) if !pool.ring().is_empty() => self.streamed_experts(pool),
            _ => return Ok(()),
        };
        let first = self.layers.first().map_or(0, |layer| layer.index);
        let depth = (wave.waves.shortest <= self.prompt.routed_upto).then_some(self.prompt.depth);
        let Self { card, arena, counters, latest_gate, watcher, pool: Some(pool), .. } = self else { return Ok(()) };
        self.ring = Some(if wave.waves.reach(self.prompt.floor) {
            let parts = RingParts { card, arena, counters, latest_gate, watcher };
            Ring::Streamed(StreamedRing::start(&parts, pool, first, &streamed, wave.waves.count, depth)?)
        } else if self.prompt.host_pool {
            Ring::HostPool
        } else {
            Ring::Routed(RoutedRing::start(card, pool))
        });
        Ok(())
    }

    fn experts(&mut self, place: usize, layer: &Layer, wave: &Wave, hidden: Span) -> Result<(), EngineError> {
        if let Some(Ring::HostPool) = self.ring {
            return self.shared_experts(layer, wave.rows, hidden);
        }
        let LayerFfn::Experts { experts, rule, .. } = &layer.ffn else { return Ok(()) };
        let routing = self.routing(wave.rows, *experts, rule.top_k)?;
        let ask = match &self.ring {
            Some(Ring::HostPool) | None => false,
            Some(Ring::Streamed(ring)) => ring.gated(),
            Some(Ring::Routed(_)) => true,
        };
        let set = self.host.routed.span(0, ExpertSet::bytes(*experts)).filter(|_| ask);
        let logits = self.buffers.get(Use::RouterLogits, wave.rows * experts * F32)?;
        self.compute(Command::Route(Route { logits, rule: *rule, routing, routed: set.clone() }))?;
        let routed = match set {
            None => None,
            Some(set) => {
                let known = self.card.record(Stream::Compute)?;
                self.card.sync(&known, waits::ROUTED)?;
                Some(set.read(ExpertSet::from_bytes)?)
            }
        };
        let pass = Pass { place, layer, experts: *experts, routing, hidden, routed };
        match self.ring.take() {
            Some(Ring::HostPool) | None => self.resident_pass(&pass),
            Some(Ring::Streamed(ring)) => {
                let result = self.streamed_pass(&ring, wave, &pass);
                self.ring = Some(Ring::Streamed(ring));
                result
            }
            Some(Ring::Routed(mut ring)) => {
                let result = self.routed_pass(&mut ring, &pass);
                self.ring = Some(Ring::Routed(ring));
                result
            }
        }
    }

    fn run(&self, pass: &Pass<'_>, experts: Vec<HeldExpert>) -> Result<(), EngineError> {
        let LayerFfn::Experts { layout, .. } = &pass.layer.ffn else { return Ok(()) };
        if experts.is_empty() {
            return Ok(());
        }
        self.compute(Command::RunExperts(RunExperts {
            x: self.normed(&(0..pass.routing.rows))?,
            routing: pass.routing,
            layout: Arc::clone(layout),
            experts,
            into: ExpertsInto::Accumulate(pass.hidden.part(0, pass.routing.rows * self.width * F32)),
            scratch: self.buffers.whole(Use::Scratch)?,
        }))
    }

    fn resident(&self, pass: &Pass<'_>, expert: ExpertId) -> Option<HeldExpert> {
        let blob = self.pool.as_ref()?.get(pass.layer.index, expert)?;
        Some(HeldExpert { id: expert, blob })
    }

    fn blob_bytes(pass: &Pass<'_>) -> usize {
        match &pass.layer.ffn {
            LayerFfn::Experts { layout, .. } => layout.bytes,
            LayerFfn::Dense { .. } => 0,
        }
    }

    /// Every expert is on the card.
    fn resident_pass(&self, pass: &Pass<'_>) -> Result<(), EngineError> {
        let held = (0..pass.experts as u32).filter_map(|id| self.resident(pass, ExpertId(id))).collect();
        self.run(pass, held)
    }

    /// Residents and streamed experts, ascending; a command takes at most a group of streamed ones, so that the ring
    /// moves on.
    fn streamed_pass(&self, ring: &StreamedRing, wave: &Wave, pass: &Pass<'_>) -> Result<(), EngineError> {
        let number = wave.number * self.layers_of_stage() + pass.place;
        if let Some(routed) = &pass.routed {
            ring.publish(number, routed);
        }
        let wanted = |expert: ExpertId| pass.routed.as_ref().is_none_or(|routed| routed.contains(expert));
        let mut entries = ring.pass(number).peekable();
        let mut listed = Vec::new();
        let mut arriving: Vec<Arriving> = Vec::new();
        for expert in (0..pass.experts as u32).map(ExpertId) {
            if let Some((k, _)) = entries.next_if(|(_, streamed)| *streamed == expert) {
                if ring.must_be_read_before(&arriving, k) {
                    let read = self.run_arriving(pass, &arriving, std::mem::take(&mut listed))?;
                    arriving.drain(..).for_each(|arrives| ring.release(&arrives, &read));
                }
                if let Some(arrives) = ring.arrive(k, Self::blob_bytes(pass), wanted(expert), &self.card)? {
                    listed.push(HeldExpert { id: expert, blob: arrives.blob });
                    arriving.push(arrives);
                }
            } else if wanted(expert) {
                listed.extend(self.resident(pass, expert));
            }
            if arriving.len() == self.prompt.group {
                let read = self.run_arriving(pass, &arriving, std::mem::take(&mut listed))?;
                arriving.drain(..).for_each(|arrives| ring.release(&arrives, &read));
            }
        }
        let read = self.run_arriving(pass, &arriving, listed)?;
        arriving.iter().for_each(|arrives| ring.release(arrives, &read));
        Ok(())
    }

    /// Residents and routed experts, ascending; copies run ahead as far as the slots go.
    fn routed_pass(&self, ring: &mut RoutedRing, pass: &Pass<'_>) -> Result<(), EngineError> {
        let routed = pass.routed.clone().unwrap_or_default();
        let members: Vec<ExpertId> =
            (0..pass.experts as u32).map(ExpertId).filter(|expert| routed.contains(*expert)).collect();
        let missing: Vec<ExpertId> =
            members.iter().copied().filter(|expert| self.resident(pass, *expert).is_none()).collect();
        let group = self.prompt.group.min(ring.slots().div_ceil(2)).max(1);
        let mut copies: std::collections::VecDeque<Arriving> = std::collections::VecDeque::new();
        let mut uncopied = missing.iter();
        let mut listed = Vec::new();
        let mut arriving: Vec<Arriving> = Vec::new();
        for expert in members {
            match self.resident(pass, expert) {
                Some(held) => listed.push(held),
                None => {
                    while copies.len() + arriving.len() < ring.slots()
                        && let Some(next) = uncopied.next()
                    {
                        copies.push_back(ring.copy(&self.ring_parts(), pass.layer.index, *next)?);
                    }
                    if let Some(arrives) = copies.pop_front() {
                        listed.push(HeldExpert { id: expert, blob: arrives.blob });
                        arriving.push(arrives);
                    }
                }
            }
            if arriving.len() == group {
                let read = self.run_arriving(pass, &arriving, std::mem::take(&mut listed))?;
                arriving.drain(..).for_each(|arrives| ring.release(&arrives, &read));
            }
        }
        let read = self.run_arriving(pass, &arriving, listed)?;
        arriving.iter().for_each(|arrives| ring.release(arrives, &read));
        Ok(())
    }

    /// Runs the listed experts after the arriving ones of them are there; the event ends after they were read.
    fn run_arriving(
        &self,
        pass: &Pass<'_>,
        arriving: &[Arriving],
        listed: Vec<HeldExpert>,
    ) -> Result<Event, EngineError> {
        for arrives in arriving {
            self.card.wait(Stream::Compute, &arrives.arrived, waits::EXPERT_ARRIVED)?;
        }
        self.run(pass, listed)?;
        Ok(self.card.record(Stream::Compute)?)
    }

    fn layers_of_stage(&self) -> usize {
        self.kv.layers()
    }
}

/// `rows` cut into blocks of at most `block`.
fn blocks(rows: usize, block: usize) -> impl Iterator<Item = Range<usize>> {
    let block = block.max(1);
    (0..rows.div_ceil(block)).map(move |i| i * block..rows.min((i + 1) * block))
}
