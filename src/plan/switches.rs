//! The two streams' switches: what `auto` means, by the time a prompt takes.
//!
//! A stage's time for a wave is the larger of its arithmetic and what its link moves meanwhile; streamed cells that are
//! not copied ahead come on top. That is coarse, but `auto` only asks whether there is anything to gain.

use super::cost::{self, Seconds, Work};
use super::home::{Home, Homes};
use super::kv::KvPlan;
use super::parts::StagePlan;
use super::request::{CardBudget, Request};
use crate::model::LayerSpec;
use crate::ops::{AttentionShape, CellLayout};
use crate::topology::Switch;

/// Least predicted gain for which `auto` turns a switch on.
const WORTH: f64 = 0.01;

/// Whether streamed cells are copied ahead, and why where the planner decided or where it cannot act.
pub(super) struct Prefetch {
    pub on: bool,
    pub note: Option<String>,
}

/// Up to which wave, in tokens, the stream skips unrouted experts, and why where the planner decided or where it cannot
/// act.
pub(super) struct RoutedStream {
    pub upto: usize,
    pub note: Option<String>,
}

/// What the switches act on.
pub(super) struct Streams<'a> {
    pub request: &'a Request<'a>,
    pub kv: &'a KvPlan,
    pub stages: &'a [StagePlan],
    pub homes: &'a Homes,
}

impl Streams<'_> {
    /// Whether the next layer's streamed cells are copied ahead, for a full context read in waves of `wave` tokens.
    pub fn prefetch(&self, wave: usize) -> Prefetch {
        let Self { request, kv, .. } = *self;
        let wanted = request.settings.kv.prefetch;
        if !kv.streams() {
            let on = wanted == Switch::On;
            let why = "kv.prefetch is on, but every cell lives on a card: nothing is copied ahead";
            return Prefetch { on, note: on.then(|| why.to_owned()) };
        }
        let prefix = request.settings.context as usize;
        let all = self.seconds(wave.min(prefix), prefix);
        let off: f64 = all.iter().map(Seconds::cells_first).sum();
        let on: f64 = all.iter().map(Seconds::ahead).sum();
        let gain = gain(off, on);
        let on = match wanted {
            Switch::Off => false,
            Switch::On => true,
            Switch::Auto => gain > WORTH,
        };
        let note = (wanted == Switch::Auto).then(|| {
        let state = if on { "on" } else { "off" };
        let percent = gain * 100.0;
        format!(
            "kv.prefetch auto: {state}, it is predicted to save {percent:.0}% of the prompt's time with a full context"
        )
    });
        Prefetch { on, note }
    }

    /// Up to which wave the stream skips experts that no token routes to. A longer wave routes to more of them, and
    /// leaves the link more time: so what is gained never grows with it, and the last wave that gains is found by
    /// halving.
    pub fn routed(&self, wave: usize) -> RoutedStream {
        let Self { request, stages, .. } = *self;
        let floor = (request.settings.prompt.floor as usize).max(1);
        let idle = if stages.iter().all(|stage| stage.experts.as_ref().is_none_or(|experts| experts.ring == 0)) {
            Some("every expert lives on a card: nothing is streamed".to_owned())
        } else if floor > wave {
            Some(format!("waves of at most {wave} tokens stay below prompt.floor: nothing is copied ahead of a router"))
        } else {
            None
        };
        match (request.settings.prompt.routed_stream, idle) {
            (Switch::On, idle) => {
                RoutedStream { upto: wave, note: idle.map(|why| format!("prompt.routed_stream is on, but {why}")) }
            }
            (Switch::Off, _) | (Switch::Auto, Some(_)) => RoutedStream { upto: 0, note: None },
            (Switch::Auto, None) => {
                let gain = |tokens| self.skipping(tokens);
                let (mut gains, mut not) = (floor - 1, wave + 1);
                while not - gains > 1 {
                    let middle = gains.midpoint(not);
                    if gain(middle) > WORTH {
                        gains = middle;
                    } else {
                        not = middle;
                    }
                }
                let (upto, state) = match gains {
                    some if some < floor => (0, "off,".to_owned()),
                    all if all == wave => (all, "on,".to_owned()),
                    some => (some, format!("on for waves of up to {some} tokens;")),
                };
                let saves =
                    format!("it is predicted to save {:.0}% of a prompt of {floor} tokens", gain(floor) * 100.0);
                RoutedStream { upto, note: Some(format!("prompt.routed_stream auto: {state} {saves}")) }
            }
        }
    }

    /// The share of a first wave's time that is gained by skipping unrouted experts.
    fn skipping(&self, tokens: usize) -> f64 {
        let all = self.seconds(tokens, 0);
        let routed = 1.0 - cost::untouched(self.request, tokens);
        let off: f64 = all.iter().map(Seconds::ahead).sum();
        let on: f64 = all.iter().map(|at| at.with_experts(routed).ahead()).sum();
        gain(off, on)
    }

    /// What each stage spends on `tokens` tokens after `prefix` cells.
    fn seconds(&self, tokens: usize, prefix: usize) -> Vec<Seconds> {
        let Self { request, kv, stages, homes } = *self;
        let of = |(stage, card): (&StagePlan, &CardBudget)| {
            let layers = request.spec.layers.get(stage.layers.clone()).unwrap_or_default();
            let cells = prefix.saturating_sub(kv.resident);
            let cell = |shape: &AttentionShape| CellLayout::new(kv.kind, shape).cell_bytes();
            let work = Work {
                operations: layers.iter().map(|layer| cost::operations(layer, tokens, prefix)).sum(),
                // Prompts long enough to stream are not bound by reading the card's own memory.
                read: 0,
                experts: stage.experts.as_ref().map_or(0, |experts| experts.streamed.len()),
                cells: layers.iter().filter_map(LayerSpec::attention).map(|layer| cell(&layer.shape) * cells).sum(),
                disk: homes.bytes(request.spec, stage.layers.clone(), Home::File),
            };
            cost::seconds(card, &request.host, &work)
        };
        stages.iter().zip(&request.cards).map(of).collect()
    }
}

fn gain(off: f64, on: f64) -> f64 {
    if off > 0.0 { (off - on) / off } else { 0.0 }
}
