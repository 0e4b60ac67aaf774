//! The cache of keys and values: which cells live on the cards, and how the others reach them.

use std::ops::Range;

use serde::Serialize;

use super::request::Request;
use crate::model::LayerSpec;
use crate::ops::{ATTENTION_TILE, CellLayout, KvType};
use crate::topology::Staging;

/// Where the cells of each sequence live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KvPlan {
    /// Element type.
    #[serde(rename = "type")]
    pub kind: KvType,
    /// The first cells of each sequence, which live on the card: the whole context, or whole attention tiles.
    pub resident: usize,
    /// Cells of each sequence that live in host memory: those after the resident ones.
    pub streamed: usize,
    /// Cells of one layer that the staging pool holds; 0 when every cell lives on a card.
    pub staging: usize,
    /// Cells of a tile, for a prefix that is larger than the staging pool.
    pub tile: usize,
    /// Whether the next layer's streamed cells are copied ahead.
    pub prefetch: bool,
}

/// The planner's staging pool takes at most one part in this many of the smallest card.
const STAGING_SHARE: usize = 16;

/// Tiles that a staging pool holds: while one is read, others arrive.
const TILES: usize = 4;

impl KvPlan {
    /// Where cells live; prefetch is off until it is decided.
    pub(super) fn choose(request: &Request<'_>) -> Self {
        let settings = &request.settings;
        let context = settings.context as usize;
        let wanted = settings.kv.resident_cells.of(settings.context) as usize;
        let resident = if wanted < context { wanted / ATTENTION_TILE * ATTENTION_TILE } else { context };
        let streamed = context - resident;
        let staging = match settings.kv.staging {
            _ if streamed == 0 => 0,
            Staging::Cells(cells) => (cells as usize).clamp(1, streamed).next_multiple_of(ATTENTION_TILE),
            Staging::Auto => automatic(request, streamed),
        };
        let tile = (staging / TILES / ATTENTION_TILE * ATTENTION_TILE).max(ATTENTION_TILE).min(staging);
        Self { kind: settings.kv.kind, resident, streamed, staging, tile, prefetch: false }
    }

    /// Cells of each sequence that host memory has room for: whole attention tiles, so that each tile begins at a line
    /// of the link.
    pub fn host_cells(&self) -> Range<usize> {
        self.resident..self.resident + self.streamed.next_multiple_of(ATTENTION_TILE)
    }

    /// Whether some cells live in host memory.
    pub fn streams(&self) -> bool {
        self.streamed > 0
    }
}

/// Cells that need no tiles, or as many as the smallest card's share holds.
fn automatic(request: &Request<'_>, streamed: usize) -> usize {
    let smallest = request.cards.iter().map(|card| card.memory.len()).min().unwrap_or(0);
    let cell = cell_bytes(request).max(1);
    let share = smallest / STAGING_SHARE / cell / ATTENTION_TILE * ATTENTION_TILE;
    streamed.next_multiple_of(ATTENTION_TILE).min(share.max(TILES * ATTENTION_TILE))
}

/// Bytes of the model's largest cell.
fn cell_bytes(request: &Request<'_>) -> usize {
    let layers = request.spec.layers.iter().filter_map(LayerSpec::attention);
    layers.map(|layer| CellLayout::new(request.settings.kv.kind, &layer.shape).cell_bytes()).max().unwrap_or(0)
}
