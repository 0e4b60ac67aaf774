//! Every place where a stream or the host waits, by name. Tests remove them one by one and ask the ledger.

use crate::card::Why;

/// Compute waits for the hidden states of its wave.
pub const HIDDEN_ARRIVED: Why = Why("hidden states arrived");
/// An arriving copy waits until compute has done with the hidden buffer's last wave.
pub const HIDDEN_FREE: Why = Why("hidden buffer free");
/// The host waits before it writes embeddings over the last wave's.
pub const EMBEDDINGS_TAKEN: Why = Why("embeddings taken");
/// The leaving copy waits for the stage's last layer.
pub const STAGE_DONE: Why = Why("stage done");
/// Compute waits before it writes a hidden buffer whose leaving copy may still read it.
pub const HIDDEN_LEFT: Why = Why("hidden states left");
/// The arriving copy waits until the sender's copy is in host memory.
pub const HAND_OFF_SENT: Why = Why("hand-off sent");
/// The leaving copy waits until the receiver has taken the host buffer's last content.
pub const HAND_OFF_TAKEN: Why = Why("hand-off taken");
/// The host waits for the routed set of a prompt's layer.
pub const ROUTED: Why = Why("routed set known");
/// The expert stream waits until compute no longer reads the residents that give way.
pub const POOL_LENT: Why = Why("pool lent");
/// The expert stream waits for a ring slot's last reader.
pub const SLOT_RELEASED: Why = Why("ring slot released");
/// Compute waits for a streamed expert.
pub const EXPERT_ARRIVED: Why = Why("expert arrived");
/// The host ends the ring's lease.
pub const RING_RETURNED: Why = Why("ring returned");
/// Compute waits for displaced residents that were copied back.
pub const RESIDENTS_BACK: Why = Why("residents back");
/// The host waits for the choice of a decode step's layer.
pub const CHOSEN: Why = Why("experts chosen");
/// The host waits for logits.
pub const LOGITS: Why = Why("logits");
/// The host keeps at most one layer of a prompt launched ahead.
pub const ONE_LAYER_AHEAD: Why = Why("one layer ahead");
/// The host waits for the end of a request on a stage.
pub const REQUEST_END: Why = Why("request end");
/// The host waits for the weights.
pub const LOADED: Why = Why("loaded");

/// All of them.
pub const ALL: [Why; 18] = [
    HIDDEN_ARRIVED,
    HIDDEN_FREE,
    EMBEDDINGS_TAKEN,
    STAGE_DONE,
    HIDDEN_LEFT,
    HAND_OFF_SENT,
    HAND_OFF_TAKEN,
    ROUTED,
    POOL_LENT,
    SLOT_RELEASED,
    EXPERT_ARRIVED,
    RING_RETURNED,
    RESIDENTS_BACK,
    CHOSEN,
    LOGITS,
    ONE_LAYER_AHEAD,
    REQUEST_END,
    LOADED,
];
