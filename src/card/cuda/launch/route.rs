//! The choice of experts.

use super::super::kernels::{Grid, arguments, int};
use super::super::module::Module;
use super::super::page_lock::device_address;
use super::Launch;
use crate::card::HostSpan;
use crate::card::command::{ExpertSet, Route, Routing};
use crate::ops::RouterScores;

/// Experts of a layer that the kernels can choose from.
const MOST_EXPERTS: usize = 1024;

/// Experts a token may use.
const MOST_CHOSEN: usize = 32;

/// The addresses of a routing.
#[derive(Clone, Copy)]
pub(super) struct Routed {
    pub(super) ids: u64,
    pub(super) weights: u64,
    pub(super) groups: u64,
    pub(super) list: u64,
}

impl Launch<'_> {
    pub(super) fn routed(&self, routing: &Routing) -> Result<Routed, String> {
        let Routing { rows, experts, top_k, .. } = *routing;
        if experts == 0 || experts > MOST_EXPERTS || top_k == 0 || top_k > MOST_CHOSEN || top_k > experts {
            return Err(format!("{top_k} of {experts} experts: at most {MOST_CHOSEN} of {MOST_EXPERTS} can be chosen"));
        }
        let groups = self.words(&routing.groups, experts + 1 + rows * top_k, "the groups")?;
        Ok(Routed {
            ids: self.words(&routing.ids, rows * top_k, "the ids")?,
            weights: self.words(&routing.weights, rows * top_k, "the weights")?,
            groups,
            list: groups + (experts as u64 + 1) * 4,
        })
    }

    pub(super) fn route(&self, of: &Route, held: &mut Vec<HostSpan>) -> Result<(), String> {
        let Route { logits, rule, routing, routed } = of;
        let Routing { rows, experts, top_k, .. } = *routing;
        let to = self.routed(routing)?;
        let logits = self.words(logits, rows * experts, "the logits")?;
        let set = routed.as_ref().map_or(Ok(0), |span| self.mapped(span, experts))?;
        let scores = match rule.scores {
            RouterScores::Softmax => 0_i32,
            RouterScores::Sigmoid => 1,
        };
        let entries = rows * top_k;
        let (normalise, scale) = (i32::from(rule.normalise), rule.scale);
        let grid = Grid::row(rows.div_ceil(8), 256);
        let group_grid = Grid::row(experts + 1, if entries > 4096 { 1024 } else { 256 });
        let (rows, experts, top_k, entries) = (int(rows)?, int(experts)?, int(top_k)?, int(entries)?);
        // Before anything is queued: of what then fails, a part may run.
        held.extend(routed.clone());
        // SAFETY: (const float*, int, int, int, int, int, float, u32*, float*).
        unsafe {
            self.launch(
                Module::Base,
                "route",
                grid,
                arguments![logits, rows, experts, top_k, scores, normalise, scale, to.ids, to.weights],
            )
        }?;
        // SAFETY: (const u32*, int, int, u32*, u64*).
        unsafe {
            self.launch(Module::Base, "group", group_grid, arguments![to.ids, entries, experts, to.groups, set])
        }?;
        Ok(())
    }

    /// The device's address of the mapped set.
    fn mapped(&self, span: &HostSpan, experts: usize) -> Result<u64, String> {
        if !span.buf().is_locked() {
            return Err(format!(
                "the host buffer `{}` must be page-locked to be written by a kernel",
                span.buf().what()
            ));
        }
        if span.bytes() < ExpertSet::bytes(experts) || !span.offset().is_multiple_of(8) {
            return Err(format!(
                "the set of {experts} experts needs {} bytes at a multiple of 8",
                ExpertSet::bytes(experts)
            ));
        }
        device_address(span.start()).map_err(|error| self.failed(error))
    }
}
