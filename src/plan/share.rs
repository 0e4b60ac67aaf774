//! Which streamed cells the host pool attends in a decode step, and which the card reads over its link: both work at
//! once.

use std::ops::Range;

use serde::Serialize;

use super::cost;
use super::kv::KvPlan;
use super::request::{CardBudget, Request};
use crate::model::LayerSpec;
use crate::ops::{ATTENTION_TILE, AttentionShape};
use crate::topology::Share;

/// The host pool's share of a sequence's streamed cells in a decode step: the newest, in whole attention tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HostShare {
    /// Of a hundred cells.
    pub percent: u32,
    /// Where it is fewer cells than this, the card attends them too, and no step waits for the host.
    pub least: usize,
}

/// Fewer cells are never worth the way to the host.
const LEAST: usize = 1024;

impl HostShare {
    /// Every streamed cell: for cards that cannot read the host's memory.
    pub const ALL: Self = Self { percent: 100, least: 0 };

    /// The share that the settings name, or that lets link and host pool end at the same time.
    pub(super) fn choose(request: &Request<'_>, kv: &KvPlan, card: &CardBudget, layers: &Range<usize>) -> Self {
        match request.settings.kv.host_share {
            Share::Percent(percent) => Self { percent, least: 0 },
            Share::Auto => Self::automatic(request, kv, card, layers),
        }
    }

    fn automatic(request: &Request<'_>, kv: &KvPlan, card: &CardBudget, layers: &Range<usize>) -> Self {
        let own = request.spec.layers.get(layers.clone()).unwrap_or_default();
        let shapes: Vec<&AttentionShape> = own.iter().filter_map(LayerSpec::attention).map(|of| &of.shape).collect();
        // Seconds for one cell of every layer.
        let (mut host, mut link) = (0.0, 0.0);
        for shape in &shapes {
            let (of_host, of_link) = cost::attending(&request.host, card, kv, shape);
            host += of_host;
            link += of_link;
        }
        if link <= 0.0 || !link.is_finite() {
            return Self::ALL;
        }
        let least = cost::ROUND_TRIP / (link / shapes.len() as f64);
        Self { percent: (100.0 * link / (link + host)).round() as u32, least: LEAST.max(least.ceil() as usize) }
    }

    /// The first cell that the host pool attends of these streamed ones, which begin at an attention tile's edge; their
    /// end where the card attends all.
    pub fn first(&self, streamed: Range<usize>) -> usize {
        let tiles = streamed.len().div_ceil(ATTENTION_TILE);
        let of_host = (tiles * self.percent as usize + 50) / 100;
        let first = (streamed.start + tiles.saturating_sub(of_host) * ATTENTION_TILE).min(streamed.end);
        if streamed.end - first < self.least { streamed.end } else { first }
    }

    /// In words, for a card.
    pub(super) fn describe(&self, card: &str) -> String {
        let Self { percent, least } = *self;
        match percent {
            100 => format!("in decode the host pool attends all streamed cells of {card}"),
            0 => format!("in decode {card} attends all streamed cells over its link"),
            _ if least == 0 => format!(
                "in decode the host pool attends the newest {percent}% of streamed cells, {card} the others over its link"
            ),
            _ => format!(
                "in decode the host pool attends the newest {percent}% of streamed cells where these are at least {least}, {card} the \
                 others over its link"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_whole_tiles_of_the_newest_cells() {
        let share = |percent, least| HostShare { percent, least };
        assert_eq!(share(100, 0).first(64..200), 64);
        assert_eq!(share(0, 0).first(64..200), 200);
        // Three tiles, of which the last holds eight cells.
        assert_eq!(share(30, 0).first(64..200), 192);
        assert_eq!(share(50, 0).first(64..200), 128);
        assert_eq!(share(30, 9).first(64..200), 200, "eight cells are too few");
        assert_eq!(share(30, 8).first(64..200), 192);
        assert_eq!(share(1, 0).first(0..65), 65, "no whole tile");
        assert_eq!(share(50, 0).first(128..128), 128);
    }
}
