//! Every place where a stream or the host waits, by name. Tests remove them one by one and ask the ledger.

use crate::card::Why;

/// Compute waits for the hidden states of its wave.
pub const HIDDEN_ARRIVED: Why = Why("hidden states arrived");
/// An arriving copy waits until compute has done with the hidden buffer's last wave.
pub const HIDDEN_FREE: Why = Why("hidden buffer free");
/// An arriving copy waits until the next card has copied the hidden buffer's last wave.
pub const HIDDEN_COPIED: Why = Why("hidden states copied");
/// A copy from the sending card's memory waits for its last layer.
pub const HIDDEN_READY: Why = Why("hidden states ready");
/// The host waits before it writes embeddings over the last wave's.
pub const EMBEDDINGS_TAKEN: Why = Why("embeddings taken");
/// The leaving copy waits for the stage's last layer.
pub const STAGE_DONE: Why = Why("stage done");
/// The arriving copy waits until the sender's copy is in host memory.
pub const HAND_OFF_SENT: Why = Why("hand-off sent");
/// The leaving copy waits until the receiver has taken the host buffer's last content.
pub const HAND_OFF_TAKEN: Why = Why("hand-off taken");
/// The host waits for the routed set of a prompt's layer.
pub const ROUTED: Why = Why("routed set known");
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
/// Compute waits until the tail's last cells are in host memory.
pub const TAIL_COPIED: Why = Why("tail copied");
/// The kv-out stream waits for a wave's new cells.
pub const CELLS_STORED: Why = Why("cells stored");
/// A copy of streamed cells waits until the newest of them are in host memory.
pub const CELLS_WRITTEN: Why = Why("cells written");
/// The kv-in stream waits for the last reader of a place in the staging pool.
pub const CELLS_RELEASED: Why = Why("staged cells released");
/// Compute waits for cells that were copied ahead.
pub const CELLS_READY: Why = Why("staged cells ready");
/// The host ends the staging pool's lease.
pub const STAGING_RETURNED: Why = Why("staging pool returned");
/// The host waits for a decode step's queries and new cells.
pub const ASKED: Why = Why("queries and cells known");
/// The host waits for the card's share of a decode step's attention.
pub const CARD_ATTENDED: Why = Why("resident cells attended");
/// The host waits for logits.
pub const LOGITS: Why = Why("logits");
/// The host keeps at most one layer of a prompt launched ahead.
pub const ONE_LAYER_AHEAD: Why = Why("one layer ahead");
/// The host waits for the end of a request on a stage, so that its failures are its own, also those of waves that were
/// complete before a cancellation.
pub const REQUEST_END: Why = Why("request end");
/// The host waits for the weights.
pub const LOADED: Why = Why("loaded");

/// All of them.
pub const ALL: [Why; 26] = [
    HIDDEN_ARRIVED,
    HIDDEN_FREE,
    HIDDEN_COPIED,
    HIDDEN_READY,
    EMBEDDINGS_TAKEN,
    STAGE_DONE,
    HAND_OFF_SENT,
    HAND_OFF_TAKEN,
    ROUTED,
    SLOT_RELEASED,
    EXPERT_ARRIVED,
    RING_RETURNED,
    RESIDENTS_BACK,
    CHOSEN,
    TAIL_COPIED,
    CELLS_STORED,
    CELLS_WRITTEN,
    CELLS_RELEASED,
    CELLS_READY,
    STAGING_RETURNED,
    ASKED,
    CARD_ATTENDED,
    LOGITS,
    ONE_LAYER_AHEAD,
    REQUEST_END,
    LOADED,
];
