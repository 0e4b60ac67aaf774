//! The order in which a prompt's experts cross the link: a pure list, known before anything runs.

use std::ops::Range;

use crate::units::ExpertId;

/// One copy of the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The pass it belongs to: wave times layers plus layer, counted inside the stage.
    pub pass: usize,
    /// The expert.
    pub expert: ExpertId,
}

/// All experts that a stage streams for one prompt: wave by wave, layer by layer, ascending ids. Entry `k` has ring
/// slot `k mod ring`.
#[derive(Clone, Debug)]
pub struct Walk {
    entries: Vec<Entry>,
    starts: Vec<usize>,
    ring: usize,
}

impl Walk {
    /// The walk of `waves` waves over layers that stream these experts (ascending; empty for a layer without).
    pub fn new(waves: usize, layers: &[Vec<ExpertId>], ring: usize) -> Self {
        let mut entries = Vec::new();
        let mut starts = Vec::with_capacity(waves * layers.len() + 1);
        for wave in 0..waves {
            for (layer, experts) in layers.iter().enumerate() {
                starts.push(entries.len());
                let pass = wave * layers.len() + layer;
                entries.extend(experts.iter().map(|expert| Entry { pass, expert: *expert }));
            }
        }
        starts.push(entries.len());
        Self { entries, starts, ring: ring.max(1) }
    }

    /// The entries in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Passes of the walk.
    pub fn passes(&self) -> usize {
        self.starts.len() - 1
    }

    /// Places of a pass's entries.
    pub fn pass(&self, pass: usize) -> Range<usize> {
        let at = |i: usize| self.starts.get(i).copied().unwrap_or(self.entries.len());
        at(pass)..at(pass + 1)
    }

    /// The ring slot of entry `k`.
    pub fn slot(&self, k: usize) -> usize {
        k % self.ring
    }

    /// Whether the readers of entry `first` must be queued before entry `k` is waited for. Its slot is needed one turn
    /// of the ring later, whatever becomes of the entries between them; half a turn leaves the issuer room to go on
    /// meanwhile.
    pub fn must_be_read_before(&self, first: usize, k: usize) -> bool {
        k - first >= (self.ring / 2).max(1)
    }

    /// The entry that had the slot of entry `k` before it.
    pub fn before(&self, k: usize) -> Option<usize> {
        k.checked_sub(self.ring)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_go_wave_by_wave_layer_by_layer_and_reuse_slots_in_turn() {
        let ids = |all: &[u32]| all.iter().copied().map(ExpertId).collect::<Vec<_>>();
        let walk = Walk::new(2, &[ids(&[1, 3]), ids(&[]), ids(&[0])], 2);
        let listed: Vec<_> = walk.entries().iter().map(|entry| (entry.pass, entry.expert.0)).collect();
        assert_eq!(listed, [(0, 1), (0, 3), (2, 0), (3, 1), (3, 3), (5, 0)]);
        assert_eq!(walk.passes(), 6);
        assert_eq!(walk.pass(3), 3..5);
        assert_eq!(walk.pass(1), 2..2);
        assert!(walk.must_be_read_before(1, 2) && !walk.must_be_read_before(1, 1));
        assert_eq!((walk.slot(3), walk.before(3), walk.before(1)), (1, Some(1), None));
    }
}
