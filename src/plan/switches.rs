//! The two streams' switches: what `auto` means, in the closed form of a prompt's time.
//!
//! A stage's time for a wave is the larger of its arithmetic and what its link moves meanwhile; streamed cells that are not copied ahead
//! come on top. That is coarse, but `auto` only asks whether there is anything to gain.

use super::{CardBudget, KvPlan, Request, StagePlan};
use crate::card::CardKind;
use crate::model::{Ffn, LayerSpec};
use crate::ops::{AttentionShape, CellLayout};
use crate::topology::Switch;

/// Least predicted gain for which `auto` turns a switch on.
const WORTH: f64 = 0.01;

/// Whether streamed cells are copied ahead, and why where the planner decided or where it cannot act.
pub(super) struct Prefetch {
    pub on: bool,
    pub note: Option<String>,
}

/// Up to which wave, in tokens, the stream skips unrouted experts, and why where the planner decided or where it cannot act.
pub(super) struct RoutedStream {
    pub upto: usize,
    pub note: Option<String>,
}

/// One stage's share of a prompt, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Seconds {
    /// Arithmetic.
    compute: f64,
    /// Streamed experts on the link.
    experts: f64,
    /// Streamed cells on the link.
    cells: f64,
}

/// Whether the next layer's streamed cells are copied ahead, for a full context read in waves of `wave` tokens.
pub(super) fn prefetch(request: &Request<'_>, kv: &KvPlan, stages: &[StagePlan], wave: usize) -> Prefetch {
    let wanted = request.settings.kv.prefetch;
    if !kv.streams() {
        let on = wanted == Switch::On;
        let why = "kv.prefetch is on, but every cell lives on a card: nothing is copied ahead";
        return Prefetch { on, note: on.then(|| why.to_owned()) };
    }
    let prefix = request.settings.context as usize;
    let all = seconds(request, kv, stages, wave.min(prefix), prefix);
    let off: f64 = all.iter().map(|at| at.cells + at.compute.max(at.experts)).sum();
    let on: f64 = all.iter().map(|at| at.compute.max(at.experts + at.cells)).sum();
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

/// Up to which wave the stream skips experts that no token routes to. A longer wave routes to more of them, and leaves the link more time: so
/// what is gained never grows with it, and the last wave that gains is found by halving.
pub(super) fn routed_stream(request: &Request<'_>, kv: &KvPlan, stages: &[StagePlan], wave: usize) -> RoutedStream {
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
            let gain = |tokens| skipping(request, kv, stages, tokens);
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
            let saves = format!("it is predicted to save {:.0}% of a prompt of {floor} tokens", gain(floor) * 100.0);
            RoutedStream { upto, note: Some(format!("prompt.routed_stream auto: {state} {saves}")) }
        }
    }
}

/// The share of a first wave's time that is gained by skipping unrouted experts.
fn skipping(request: &Request<'_>, kv: &KvPlan, stages: &[StagePlan], tokens: usize) -> f64 {
    let all = seconds(request, kv, stages, tokens, 0);
    let routed = 1.0 - untouched(request, tokens);
    let off: f64 = all.iter().map(|at| at.compute.max(at.experts)).sum();
    let on: f64 = all.iter().map(|at| at.compute.max(at.experts * routed)).sum();
    gain(off, on)
}

fn gain(off: f64, on: f64) -> f64 {
    if off > 0.0 { (off - on) / off } else { 0.0 }
}

/// What each stage spends on `tokens` tokens after `prefix` cells.
fn seconds(request: &Request<'_>, kv: &KvPlan, stages: &[StagePlan], tokens: usize, prefix: usize) -> Vec<Seconds> {
    let of = |(stage, card): (&StagePlan, &CardBudget)| {
        let layers = request.spec.layers.get(stage.layers.clone()).unwrap_or_default();
        let operations: f64 = layers.iter().map(|layer| operations(layer, tokens, prefix)).sum();
        let cells = prefix.saturating_sub(kv.resident);
        let cell = |shape: &AttentionShape| CellLayout::new(kv.kind, shape).cell_bytes();
        let bytes: usize = layers.iter().filter_map(LayerSpec::attention).map(|layer| cell(&layer.shape) * cells).sum();
        Seconds {
            compute: operations / card.compute.map_or(card.rate.0 * operations_a_byte(card.kind), |flops| flops.0),
            experts: stage.experts.as_ref().map_or(0.0, |experts| experts.streamed.0 as f64) / card.link.0,
            cells: bytes as f64 / card.link.0,
        }
    };
    stages.iter().zip(&request.cards).map(of).collect()
}

/// Multiplications and additions of a layer.
fn operations(layer: &LayerSpec, tokens: usize, prefix: usize) -> f64 {
    let weights: usize = layer.dense_tensors().into_iter().map(|tensor| tensor.rows * tensor.cols).sum();
    let experts = match &layer.ffn {
        Ffn::Dense(_) => 0,
        Ffn::Experts(experts) => {
            let parts = [&experts.gate, &experts.up, &experts.down];
            experts.rule.top_k * parts.map(|tensor| tensor.rows * tensor.cols).iter().sum::<usize>()
        }
    };
    let seen = prefix as f64 + tokens as f64 / 2.0;
    let attention =
        layer.attention().map_or(0.0, |of| (of.shape.heads * (of.shape.head_dim + of.shape.value_dim)) as f64 * seen);
    2.0 * tokens as f64 * ((weights + experts) as f64 + attention)
}

/// What a card of unknown speed does in a prompt while it could read a byte of its memory. An H200 of 4,800 GB/s reaches 57 over all that
/// a prompt is ([`operations`] counts 71 T for 8,192 tokens of Qwen3-30B-A3B, which take 0.26 s); 45 promise a little less. That is far below what GPUs multiply at
/// their peak (16-bit products with 32-bit sums: 206 a byte there, 70 to 165 on RTX 30 to 50), and should be: a prompt is no single large product.
fn operations_a_byte(kind: CardKind) -> f64 {
    match kind {
        CardKind::Cuda => 45.0,
        CardKind::Virtual => 8.0,
    }
}

/// The share of experts that no token of a text touches: `(1 + t / 1.8)^-0.43` for `t` picks an expert. It goes through what was
/// measured on models of 256 experts with 8 used: 60% untouched after 130 tokens, 23% after 1,658.
fn untouched(request: &Request<'_>, tokens: usize) -> f64 {
    let share = |layer: &LayerSpec| {
        let experts = layer.experts()?;
        let picks = (tokens * experts.rule.top_k) as f64 / experts.experts.max(1) as f64;
        Some((1.0 + picks / 1.8).powf(-0.433))
    };
    let all: Vec<f64> = request.spec.layers.iter().filter_map(share).collect();
    if all.is_empty() { 0.0 } else { all.iter().sum::<f64>() / all.len() as f64 }
}
