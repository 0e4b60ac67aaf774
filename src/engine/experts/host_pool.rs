//! The host pool: CPU workers that compute experts in place from the arena, and those that live in the model's file
//! after reading them.

use std::sync::Arc;

use super::arena::Arena;
use crate::card::HostSpan;
use crate::cpu::{ExpertBlob, ExpertsOut, Routing, Team, experts_scratch, run_experts};
use crate::engine::EngineError;
use crate::ops::ExpertSet;
use crate::plan::memory::FILE_BLOBS;
use crate::units::ExpertId;

/// The host's share of decode steps.
pub(in crate::engine) struct HostPool {
    team: Arc<Team>,
    arena: Arc<Arena>,
    scratch: Vec<u8>,
    /// Blobs that were read from the file.
    read: Vec<u8>,
}

/// One layer of a step as the host sees it.
#[derive(Clone, Copy)]
pub(in crate::engine) struct HostLayer<'a> {
    /// The layer.
    pub layer: usize,
    /// Tokens.
    pub rows: usize,
    /// Experts of the layer.
    pub experts: usize,
    /// Experts a token uses.
    pub top_k: usize,
    /// u32 `[rows, top_k]`, copied from the card.
    pub ids: &'a HostSpan,
    /// f32 `[rows, width]`, copied from the card.
    pub normed: &'a HostSpan,
    /// f32 `[rows * top_k, width]`, to be written.
    pub slots: &'a HostSpan,
    /// Experts the card runs.
    pub held: &'a ExpertSet,
}

impl HostPool {
    /// A host pool over an arena.
    pub fn new(team: Arc<Team>, arena: Arc<Arena>) -> Self {
        Self { team, arena, scratch: Vec::new(), read: Vec::new() }
    }

    /// Computes the chosen experts that the card does not hold; returns how many products that were.
    ///
    /// # Errors
    /// When a host access is not ordered, or the layer has no experts.
    pub fn run(&mut self, at: &HostLayer<'_>) -> Result<usize, EngineError> {
        let ids = at.ids.read(bytemuck::pod_collect_to_vec::<u8, u32>)?;
        let missing = || EngineError::Internal(format!("layer {} has no experts", at.layer));
        let layout = Arc::clone(self.arena.layout(at.layer).ok_or_else(missing)?);
        let mut wanted: Vec<u32> = ids.iter().copied().filter(|id| !at.held.contains(ExpertId(*id))).collect();
        let products = wanted.len();
        wanted.sort_unstable();
        wanted.dedup();
        let (mut blobs, mut in_file) = (Vec::with_capacity(wanted.len()), Vec::new());
        for id in wanted.into_iter().map(ExpertId) {
            match self.arena.blob(at.layer, id)? {
                Some(blob) => blobs.push((id, blob)),
                None => in_file.push(id),
            }
        }
        in_file.iter().for_each(|id| self.arena.read_ahead(at.layer, *id));
        let mut listed = Vec::with_capacity(blobs.len());
        for (id, blob) in &blobs {
            let unsealed = || EngineError::Internal("the arena is still being written".to_owned());
            listed.push(ExpertBlob { id: *id, blob: blob.sealed().ok_or_else(unsealed)? });
        }
        let (HostLayer { rows, experts, top_k, .. }, groups) = (*at, group(&ids, at.experts));
        // Results go to slots unweighted; the card weighs them.
        let weights = vec![0.0; ids.len()];
        let routing = Routing { rows, experts, top_k, ids: &ids, weights: &weights, groups: &groups };
        let needed = experts_scratch(rows, top_k, &layout);
        if self.scratch.len() < needed {
            self.scratch.resize(needed, 0);
        }
        let Self { team, scratch, arena, read } = self;
        at.normed.read(|x| {
            at.slots.write(|slots| -> Result<(), EngineError> {
                let (x, slots) = (bytemuck::cast_slice(x), bytemuck::cast_slice_mut(slots));
                let mut run = |listed: &[ExpertBlob<'_>]| {
                    run_experts(team, &layout, x, &routing, listed, ExpertsOut::Slots(&mut *slots), scratch);
                };
                run(&listed);
                // Each product has a slot of its own, so a few experts at a time give the same results.
                for few in in_file.chunks(FILE_BLOBS) {
                    read.resize(read.len().max(few.len() * layout.bytes), 0);
                    for (id, out) in few.iter().zip(read.chunks_mut(layout.bytes)) {
                        arena.read(at.layer, *id, out)?;
                    }
                    let blobs = few.iter().zip(read.chunks(layout.bytes));
                    run(&blobs.map(|(id, blob)| ExpertBlob { id: *id, blob }).collect::<Vec<_>>());
                }
                Ok(())
            })
        })???;
        Ok(products)
    }
}

/// The groups table of these picks, as a router writes it.
fn group(ids: &[u32], experts: usize) -> Vec<u32> {
    let mut table = vec![0; experts + 1];
    let mut order: Vec<u32> = (0..ids.len() as u32).collect();
    order.sort_by_key(|entry| ids.get(*entry as usize).copied());
    for id in ids {
        for offset in table.iter_mut().skip(*id as usize + 1) {
            *offset += 1;
        }
    }
    table.extend(order);
    table
}

#[cfg(test)]
mod tests {
    #[test]
    fn picks_are_grouped_by_expert_in_entry_order() {
        assert_eq!(super::group(&[2, 0, 2, 1], 4), [0, 1, 2, 4, 4, 1, 3, 0, 2]);
    }
}
