//! A stage: the contiguous layers that one card runs, with all it owns.

use std::sync::Arc;

use super::buffers::{Buffers, HostBuffers};
use super::counters::Counters;
use super::experts::arena::Arena;
use super::experts::host_pool::HostPool;
use super::experts::pool::Pool;
use super::experts::ring::{Ring, RingParts};
use super::kv::cells::KvCells;
use super::rig::Rig;
use super::weights::{Head, Layer, LayerFfn, Loader};
use super::{EngineError, waits};
use crate::card::{Card, Stream};
use crate::model::Model;
use crate::ops::Rope;
use crate::plan::{Plan, PromptPlan, StagePlan, Use};
use crate::units::{Bytes, ExpertId};

/// One card's share of the model, and its own streams.
pub(super) struct Stage {
    pub card: Arc<dyn Card>,
    pub width: usize,
    pub eps: f32,
    pub rope: Rope,
    pub row_block: usize,
    pub head_block: usize,
    pub prompt: PromptPlan,
    pub layers: Vec<Layer>,
    pub head: Option<Head>,
    pub buffers: Buffers,
    pub host: HostBuffers,
    pub kv: KvCells,
    pub arena: Arc<Arena>,
    pub pool: Option<Pool>,
    pub host_pool: HostPool,
    /// The ring of the prompt being read.
    pub ring: Option<Ring>,
    pub counters: Arc<Counters>,
}

impl Stage {
    /// Allocates and loads all that the plan gives the stage.
    pub fn load(
        model: &Model,
        plan: &Plan,
        stage: &StagePlan,
        rig: &Rig,
        arena: &Arc<Arena>,
        progress: &dyn Fn(Bytes),
    ) -> Result<Self, EngineError> {
        let wanted = || EngineError::Mismatch(format!("the rig has no {}", stage.card));
        let card = rig.cards.iter().find(|card| card.id() == stage.card).ok_or_else(wanted)?;
        let mut loader = Loader::new(card, model, &rig.host, stage, progress);
        let own = model.spec.layers.iter().enumerate().skip(stage.layers.start).take(stage.layers.len());
        let layers = own.map(|(i, layer)| loader.layer(i, layer, plan.kv)).collect::<Result<Vec<_>, _>>()?;
        let head = stage.head.then(|| loader.head()).transpose()?;
        let buffers = Buffers::alloc(card.as_ref(), stage)?;
        let host = HostBuffers::alloc(&rig.host, stage)?;
        let kv = KvCells::new(buffers.whole(Use::Kv)?, &layers, plan.context, plan.sequences);
        let pool = stage.experts.as_ref().map(|experts| Pool::load(card, arena, experts)).transpose()?;
        card.drain(Stream::Compute, waits::LOADED)?;
        card.drain(Stream::Experts, waits::LOADED)?;
        Ok(Self {
            card: Arc::clone(card),
            width: model.spec.width,
            eps: model.spec.eps,
            rope: model.spec.rope.clone(),
            row_block: plan.row_block,
            head_block: crate::plan::memory::head_block(plan.wave),
            prompt: plan.prompt,
            layers,
            head,
            buffers,
            host,
            kv,
            arena: Arc::clone(arena),
            pool,
            host_pool: HostPool::new(Arc::clone(&rig.team), Arc::clone(arena)),
            ring: None,
            counters: Arc::new(Counters::default()),
        })
    }

    pub(super) fn ring_parts(&self) -> RingParts<'_> {
        RingParts { card: &self.card, arena: &self.arena, counters: &self.counters }
    }

    /// The experts of each layer that a streamed prompt copies.
    pub(super) fn streamed(&self, pool: &Pool) -> Vec<Vec<ExpertId>> {
        let of = |layer: &Layer| match &layer.ffn {
            LayerFfn::Dense { .. } => Vec::new(),
            LayerFfn::Experts { experts, .. } => pool.streamed(layer.index, *experts),
        };
        self.layers.iter().map(of).collect()
    }

    /// Ends the prompt's ring, if there is one: the issuer stops, its slots drain, the residents come back. On a failed card
    /// the card is recovered in between.
    pub(super) fn end_prompt(&mut self, failed: bool) -> Result<(), EngineError> {
        let ended = match self.ring.take() {
            Some(Ring::Streamed(ring)) => ring.end(),
            Some(Ring::Routed(ring)) => ring.end(),
            None => Ok(()),
        };
        if failed {
            self.card.recover()?;
        } else {
            ended?;
        }
        if let Some(pool) = &mut self.pool {
            pool.take_back()?;
        }
        Ok(())
    }
}
