//! A stage: the contiguous layers that one card runs, with all it owns.

use std::sync::Arc;

use super::buffers::{Buffers, HostBuffers};
use super::counters::Counters;
use super::experts::arena::Arena;
use super::experts::host_pool::HostPool;
use super::experts::latest_gate::LatestGate;
use super::experts::pool::Pool;
use super::experts::ring::{Ring, RingParts};
use super::kv::Streamed;
use super::kv::cells::{HostCells, KvCells};
use super::kv::host::HostAttention;
use super::kv::staging::Staging;
use super::kv::tail::Tail;
use super::rig::Rig;
use super::weights::{Head, Layer, LayerFfn, Loader};
use super::{EngineError, waits};
use crate::card::{Card, CardKind, Stream, Watcher};
use crate::model::Model;
use crate::ops::{CellLayout, Rope};
use crate::plan::{HostShare, KvPlan, Plan, PromptPlan, StagePlan, Use};
use crate::units::{Bytes, ExpertId};

/// One card's share of the model, and its own streams.
pub(super) struct Stage {
    pub card: Arc<dyn Card>,
    pub width: usize,
    pub eps: f32,
    pub rope: Rope,
    pub attention_rows: usize,
    pub row_block: usize,
    pub head_block: usize,
    pub prompt: PromptPlan,
    pub layers: Arc<[Layer]>,
    pub head: Option<Head>,
    pub buffers: Buffers,
    pub host: HostBuffers,
    pub context: usize,
    pub kv_plan: KvPlan,
    /// Layouts of the layers' cells.
    pub layouts: Vec<CellLayout>,
    pub kv: KvCells,
    /// Cells in host memory; `None` when every cell lives on the card.
    pub streamed: Option<Streamed>,
    pub host_attention: HostAttention,
    /// What the host attends of streamed cells in a decode step.
    pub host_share: HostShare,
    pub arena: Arc<Arena>,
    pub pool: Option<Pool>,
    pub host_pool: HostPool,
    /// The ring of the prompt being read.
    pub ring: Option<Ring>,
    pub latest_gate: Arc<LatestGate>,
    pub counters: Arc<Counters>,
    pub watcher: Watcher,
}

impl Stage {
    /// Allocates and loads all that the plan gives the stage.
    pub fn load(
        model: &Model,
        plan: &Plan,
        stage: &StagePlan,
        rig: &Rig,
        arena: &Arc<Arena>,
        host: HostBuffers,
        progress: &dyn Fn(Bytes),
    ) -> Result<Self, EngineError> {
        let wanted = || EngineError::Mismatch(format!("the rig has no {}", stage.card));
        let card = rig.cards.iter().find(|card| card.id() == stage.card).ok_or_else(wanted)?;
        let mut loader = Loader::new(card, model, &rig.host, stage, progress);
        let own = model.spec.layers.iter().enumerate().skip(stage.layers.start).take(stage.layers.len());
        let layers = own.map(|(i, layer)| loader.layer(i, layer, plan.kv.kind)).collect::<Result<Vec<_>, _>>()?;
        let layouts = layers.iter().map(|layer| layer.attention.cells).collect();
        let head = stage.head.then(|| loader.head()).transpose()?;
        let buffers = Buffers::alloc(card.as_ref(), stage)?;
        let resident = plan.kv.resident;
        let kv = KvCells::new(buffers.or_nothing(card.as_ref(), Use::Kv)?, &layers, resident, plan.sequences);
        let streamed = match plan.kv.streams() {
            false => None,
            true => Some(Streamed {
                host: HostCells::new(host.cells.clone(), &layers, plan.kv.host_cells(), plan.sequences),
                tail: Tail::new(buffers.whole(Use::Tail)?),
                written: vec![None; layers.len()],
                staging: None,
            }),
        };
        let host_share = streamed.as_ref().map_or(HostShare::ALL, |streamed| share_of(stage, &streamed.host));
        let pool = stage.experts.as_ref().map(|experts| Pool::load(card, arena, experts, progress)).transpose()?;
        card.drain(Stream::Compute, waits::LOADED)?;
        card.drain(Stream::Experts, waits::LOADED)?;
        Ok(Self {
            card: Arc::clone(card),
            width: model.spec.width,
            eps: model.spec.eps,
            rope: model.spec.rope.clone(),
            attention_rows: plan.attention_rows,
            row_block: plan.row_block,
            head_block: crate::plan::memory::head_block(plan.wave),
            prompt: plan.prompt,
            layers: layers.into(),
            head,
            buffers,
            host,
            context: plan.context,
            kv_plan: plan.kv,
            layouts,
            kv,
            streamed,
            host_attention: HostAttention::new(Arc::clone(&rig.team)),
            host_share,
            arena: Arc::clone(arena),
            pool,
            host_pool: HostPool::new(Arc::clone(&rig.team), Arc::clone(arena)),
            ring: None,
            latest_gate: Arc::default(),
            counters: Arc::new(Counters::default()),
            watcher: rig.host.watcher().clone(),
        })
    }

    pub(super) fn ring_parts(&self) -> RingParts<'_> {
        RingParts {
            card: &self.card,
            arena: &self.arena,
            counters: &self.counters,
            latest_gate: &self.latest_gate,
            watcher: &self.watcher,
        }
    }

    /// The experts of each layer that a streamed prompt copies.
    pub(super) fn streamed_experts(&self, pool: &Pool) -> Vec<Vec<ExpertId>> {
        let of = |layer: &Layer| match &layer.ffn {
            LayerFfn::Dense { .. } => Vec::new(),
            LayerFfn::Experts { experts, .. } => pool.streamed(layer.index, *experts),
        };
        self.layers.iter().map(of).collect()
    }

    /// Ends the prompt's ring and staging pool, if there are any: the issuer stops, their slots drain, the residents
    /// come back. On a failed card the card is recovered in between, and residents whose last copy failed are
    /// copied again.
    pub(super) fn end_prompt(&mut self, failed: bool) -> Result<(), EngineError> {
        let mut staged = Ok(());
        if let Some(streamed) = &mut self.streamed {
            staged = streamed.staging.take().map_or(Ok(()), Staging::end);
            streamed.forget();
        }
        let ended = match self.ring.take() {
            Some(Ring::Streamed(ring)) => ring.end(),
            Some(Ring::Routed(ring)) => ring.end(),
            Some(Ring::HostPool) | None => Ok(()),
        };
        if failed {
            if let Some(pool) = &mut self.pool {
                pool.doubt();
            }
            self.card.recover()?;
            self.arena.recovered(self.card.id());
        } else {
            ended.and(staged)?;
        }
        if let Some(pool) = &mut self.pool {
            pool.take_back()?;
        }
        Ok(())
    }
}

/// The plan's share; all where the card cannot read the cells over its link, which is said.
fn share_of(stage: &StagePlan, cells: &HostCells) -> HostShare {
    let share = stage.host_share.unwrap_or(HostShare::ALL);
    if stage.kind == CardKind::Virtual || cells.is_locked() || share.percent == HostShare::ALL.percent {
        return share;
    }
    tracing::warn!(
        "{}: streamed cells are not page-locked, so it cannot read them over its link: in decode the host pool attends all of them",
        stage.name
    );
    HostShare::ALL
}
