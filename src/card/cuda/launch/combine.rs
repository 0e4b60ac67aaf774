//! The weighted sum over experts.

use super::super::kernels::{Grid, arguments, int};
use super::super::module::Module;
use super::Launch;
use super::route::Routed;
use super::table::Members;
use crate::card::command::{Combine, Routing};

impl Launch<'_> {
    pub(super) fn combine(&self, of: &Combine) -> Result<(), String> {
        let Combine { routing, slots, host_slots, held, width, out } = of;
        let width = *width;
        let routed = self.routed(routing)?;
        let entries = routing.rows * routing.top_k;
        let slots = self.words(slots, entries * width, "the slots")?;
        let others = host_slots.as_ref().map_or(Ok(0), |span| self.words(span, entries * width, "the host's slots"))?;
        let out = self.words(out, routing.rows * width, "out")?;
        self.sum_experts(routing, routed, [slots, others], Members::of(held), [0, width, width], out)
    }

    /// Queues the sums over the row's experts for columns `first..first + cols` of `width`.
    pub(super) fn sum_experts(
        &self,
        routing: &Routing,
        routed: Routed,
        [slots, others]: [u64; 2],
        members: Members,
        [first, cols, width]: [usize; 3],
        out: u64,
    ) -> Result<(), String> {
        let grid = Grid::row(routing.rows, 256);
        let (top_k, first, cols, width) = (int(routing.top_k)?, int(first)?, int(cols)?, int(width)?);
        let Routed { ids, weights, .. } = routed;
        // SAFETY: (const u32*, const float*, int, const float*, const float*, Members, int, int, int, float*).
        unsafe {
            self.launch(
                Module::Base,
                "combine",
                grid,
                arguments![ids, weights, top_k, slots, others, members, first, cols, width, out],
            )
        }
    }
}
