//! What a plan consists of.

use std::ops::Range;

use serde::Serialize;

use super::handoff::HandOffPlan;
use super::home::Homes;
use super::kv::KvPlan;
use super::memory::{self, Buffer, Use};
use super::pool::ExpertsPlan;
use super::share::HostShare;
use crate::card::CardKind;
use crate::units::{Bytes, CardId, Rate};

/// What runs where. Everything the engine allocates and decides follows from it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The stages, in layer order.
    pub stages: Vec<StagePlan>,
    /// The host's share.
    pub host: HostPlan,
    /// Tokens of one sequence.
    pub context: usize,
    /// Sequences kept at the same time.
    pub sequences: usize,
    /// The KV cache.
    pub kv: KvPlan,
    /// Most tokens that pass through a layer together.
    pub wave: usize,
    /// Rows of a wave that attention takes at a time.
    pub attention_rows: usize,
    /// Rows of a wave that dense FFNs take at a time.
    pub row_block: usize,
    /// How prompts are read.
    pub prompt: PromptPlan,
    /// How hidden states cross between stages, in their order.
    pub hand_offs: Vec<HandOffPlan>,
    /// Decisions that deserve a sentence.
    pub notes: Vec<String>,
}

/// What one card does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StagePlan {
    /// The card.
    pub card: CardId,
    /// Its name in the topology.
    pub name: String,
    /// What it is.
    #[serde(skip)]
    pub kind: CardKind,
    /// Its layers.
    pub layers: Range<usize>,
    /// Whether it holds the final norm and the output head.
    pub head: bool,
    /// Memory the engine may use.
    pub budget: Bytes,
    /// Every buffer.
    pub buffers: Vec<Buffer>,
    /// What it needs of the host.
    pub host: memory::HostBuffers,
    /// Who attends streamed cells in decode; `None` when every cell lives on a card.
    pub host_share: Option<HostShare>,
    /// The expert pool; `None` for layers without experts.
    pub experts: Option<ExpertsPlan>,
}

/// What host memory holds. [`HostPlan::taken`] is what programs must have; pages of the model's file can be dropped and
/// read again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostPlan {
    /// Memory the engine may use.
    pub budget: Bytes,
    /// The expert arena, page-locked where a card can lock it.
    pub arena: Bytes,
    /// Hand-off and staging buffers.
    pub buffers: Bytes,
    /// Memory of virtual cards, what they use in place not counted.
    pub cards: Bytes,
    /// Pages of the model's file that are used in place: the embedding table, and dense weights of virtual cards.
    pub in_place: Bytes,
    /// Whether virtual cards have no memory of their own, but share the budget.
    pub shared: bool,
    /// Experts that are read from the model's file whenever they are wanted.
    pub file_experts: usize,
    /// Their bytes.
    pub file_bytes: Bytes,
    /// Rate at which the file is read.
    pub disk: Rate,
    /// Where each expert lives.
    #[serde(skip)]
    pub homes: Homes,
}

impl HostPlan {
    /// Memory that the engine takes of the budget.
    pub fn taken(&self) -> Bytes {
        let cards = if self.shared { self.cards + self.in_place } else { Bytes(0) };
        self.arena + self.buffers + cards
    }
}

/// How prompts are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PromptPlan {
    /// Tokens of a wave up to which the stream skips experts that no token routes to: 0 never, [`Plan::wave`] always.
    pub routed_upto: usize,
    /// Copies kept queued ahead of the link.
    pub depth: usize,
    /// Tokens of a wave from which on experts stream ahead of the router.
    pub floor: usize,
    /// Streamed experts that one command computes at most.
    pub group: usize,
    /// Whether the host pool computes, below the floor, what the card does not hold; else it is copied.
    pub host_pool: bool,
}

impl StagePlan {
    /// All bytes of the card.
    pub fn total(&self) -> Bytes {
        self.buffers.iter().map(|buffer| buffer.bytes).sum()
    }

    /// Bytes of one buffer, zero when the stage has none of it.
    pub fn bytes(&self, of: Use) -> usize {
        self.buffers.iter().filter(|buffer| buffer.of == of).map(|buffer| buffer.bytes.len()).sum()
    }
}
