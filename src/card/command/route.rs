//! The choice of experts.

use super::cost::count;
use super::sizes::{WORD, exactly, product};
use super::{Access, Cost, ExpertSet, Operation};
use crate::card::{CardKind, HostSpan, Span};
use crate::ops::RouterRule;

/// What a [`Route`] found out, in card memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routing {
    /// Tokens.
    pub rows: usize,
    /// Experts of the layer.
    pub experts: usize,
    /// Experts a token uses.
    pub top_k: usize,
    /// u32 `[rows, top_k]`: the chosen experts, best first.
    pub ids: Span,
    /// f32 `[rows, top_k]`: their weights.
    pub weights: Span,
    /// u32 `[experts + 1]` offsets, then u32 `[rows * top_k]` entries `row * top_k + slot`, ascending inside each
    /// expert: which entries belong to which expert.
    pub groups: Span,
}

impl Routing {
    pub(super) fn check(&self) -> Result<(), String> {
        let &Self { rows, experts, top_k, ids, weights, groups } = self;
        if top_k == 0 || top_k > experts {
            return Err(format!("{top_k} of {experts} experts cannot be chosen"));
        }
        exactly("the ids", ids.bytes, &[rows, top_k, WORD])?;
        exactly("the weights", weights.bytes, &[rows, top_k, WORD])?;
        let entries = product(&[rows, top_k])?;
        exactly("the groups", groups.bytes, &[entries.saturating_add(experts + 1), WORD])
    }
}

/// Chooses each row's experts from router logits.
#[derive(Clone, Debug)]
pub struct Route {
    /// f32 `[rows, experts]`.
    pub logits: Span,
    /// The rule.
    pub rule: RouterRule,
    /// Where the choice is written.
    pub routing: Routing,
    /// Mapped host memory for the set of experts that any row uses: a bit an expert, little endian u64 words.
    pub routed: Option<HostSpan>,
}

impl Operation for Route {
    fn name(&self) -> &'static str {
        "route"
    }

    fn accesses(&self) -> Vec<Access> {
        let Routing { ids, weights, groups, .. } = self.routing;
        let mut all =
            vec![Access::Read(self.logits), Access::Write(ids), Access::Write(weights), Access::Write(groups)];
        all.extend(self.routed.clone().map(Access::HostWrite));
        all
    }

    fn check(&self, _: CardKind) -> Result<(), String> {
        let Self { logits, rule, routing, routed } = self;
        exactly("the logits", logits.bytes, &[routing.rows, routing.experts, WORD])?;
        if rule.top_k != routing.top_k {
            return Err(format!("the rule takes {} experts, the routing has {}", rule.top_k, routing.top_k));
        }
        routing.check()?;
        routed
            .as_ref()
            .map_or(Ok(()), |routed| exactly("the routed set", routed.bytes(), &[ExpertSet::bytes(routing.experts)]))
    }

    fn cost(&self) -> Cost {
        let Routing { rows, experts, top_k, ids, weights, groups } = self.routing;
        Cost {
            card_read: self.logits.bytes as u64,
            card_written: ids.bytes as u64 + weights.bytes as u64 + groups.bytes as u64,
            host_written: self.routed.as_ref().map_or(0, |routed| routed.bytes() as u64),
            // A score (difference, exponential, sum) and a comparison for each of the chosen.
            float: count(&[rows, experts, 3 + top_k]),
            ..Cost::default()
        }
    }
}
