//! A stage's buffers in card memory, by what they are for, and its buffers in host memory.

use std::collections::BTreeMap;

use super::EngineError;
use crate::card::{Card, HostBuf, HostMemory, HostSpan, Span};
use crate::plan::{StagePlan, Use};
use crate::units::Bytes;

/// Work memory of a stage.
pub(super) struct Buffers(BTreeMap<Use, Span>);

/// Uses that are allocated where their content is loaded.
const LOADED_ELSEWHERE: [Use; 3] = [Use::Weights, Use::Head, Use::Pool];

impl Buffers {
    /// Allocates what the plan lists, weights and pool excepted.
    pub fn alloc(card: &dyn Card, plan: &StagePlan) -> Result<Self, EngineError> {
        let mut all = BTreeMap::new();
        for buffer in plan.buffers.iter().filter(|buffer| !LOADED_ELSEWHERE.contains(&buffer.of)) {
            all.insert(buffer.of, card.alloc(buffer.bytes, buffer.of.name())?.whole());
        }
        Ok(Self(all))
    }

    /// All of a buffer.
    pub fn whole(&self, of: Use) -> Result<Span, EngineError> {
        let missing = || EngineError::Internal(format!("the plan lists no buffer for {}", of.name()));
        self.0.get(&of).copied().ok_or_else(missing)
    }

    /// All of a buffer; nothing where the plan lists none.
    pub fn or_nothing(&self, card: &dyn Card, of: Use) -> Result<Span, EngineError> {
        match self.0.get(&of) {
            Some(span) => Ok(*span),
            None => Ok(card.alloc(Bytes(0), of.name())?.whole()),
        }
    }

    /// The first `bytes` of a buffer.
    pub fn get(&self, of: Use, bytes: usize) -> Result<Span, EngineError> {
        self.part(of, 0, bytes)
    }

    /// `bytes` of a buffer from `offset`.
    pub fn part(&self, of: Use, offset: usize, bytes: usize) -> Result<Span, EngineError> {
        let whole = self.whole(of)?;
        if offset + bytes > whole.bytes {
            let (wanted, there) = (Bytes((offset + bytes) as u64), Bytes(whole.bytes as u64));
            return Err(EngineError::Internal(format!("{} needs {wanted}, the plan gives {there}", of.name())));
        }
        Ok(whole.part(offset, bytes))
    }
}

/// A stage's page-locked buffers beside the arena.
pub(super) struct HostBuffers {
    /// The routed set of a layer.
    pub routed: HostBuf,
    /// Chosen experts of a decode step.
    pub ids: HostBuf,
    /// Normalised hidden states of a decode step.
    pub normed: HostBuf,
    /// Results of the host pool.
    pub slots: HostBuf,
    /// Logits of one block of rows.
    pub logits: HostBuf,
    /// Streamed KV cells.
    pub cells: HostBuf,
    /// Queries of a decode step.
    pub queries: HostBuf,
    /// Their states after the card's cells.
    pub state: HostBuf,
    /// Partial results over the host's cells.
    pub partials: HostBuf,
    /// Attention results of a decode step.
    pub attended: HostBuf,
}

impl HostBuffers {
    /// Allocates what the plan lists.
    pub fn alloc(host: &HostMemory, plan: &StagePlan) -> Result<Self, EngineError> {
        let sizes = &plan.host;
        // What a kernel writes in place comes first and the largest last, in case not all can be page-locked.
        Ok(Self {
            routed: host.alloc(sizes.routed, "routed set")?,
            ids: host.alloc(sizes.ids, "chosen experts")?,
            normed: host.alloc(sizes.normed, "normalised hidden states")?,
            slots: host.alloc(sizes.slots, "host pool results")?,
            logits: host.alloc(sizes.logits, "logits")?,
            queries: host.alloc(sizes.queries, "queries")?,
            state: host.alloc(sizes.state, "attention state")?,
            partials: host.alloc(sizes.partials, "partial attention")?,
            attended: host.alloc(sizes.attended, "attention results")?,
            cells: host.alloc(sizes.cells, "streamed KV cells")?,
        })
    }
}

/// `bytes` of a host buffer from `offset`.
pub(super) fn part_of(buf: &HostBuf, offset: usize, bytes: usize) -> Result<HostSpan, EngineError> {
    let outside = || EngineError::Internal(format!("{buf:?} has no bytes {offset}..{}", offset + bytes));
    buf.span(offset, bytes).ok_or_else(outside)
}
