//! Cards: memory, in-order streams, commands and events.
//!
//! A [`Card`] takes [`Command`]s on named [`Stream`]s and runs each stream in order. Order between streams, and between
//! a stream and the host, comes only from [`Event`]s and drains. Every wait carries a [`Why`], its place in the
//! protocol: it is shown in traces and messages, and tests remove waits by it.

mod borrow;
pub mod check;
pub mod command;
pub mod cuda;
mod error;
mod event;
mod lease;
pub mod ledger;
mod locking;
mod memory;
pub mod timeline;
pub mod virt;
mod watch;
mod wire;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

pub use command::Command;
pub use error::CardError;
pub use event::{Event, EventState};
pub use lease::{Lease, LeaseId, Leases};
pub use locking::{Locking, PageLock};
pub use memory::{HostBuf, HostMemory, HostSpan, Region, RegionId, Span};
pub use watch::{
    ClockedReceiver, ClockedSender, HostAccess, Stamp, Watch, Watcher, bounded_clocked_channel, clocked_channel,
};
pub use wire::{Wire, WireEnd};

use crate::units::{Bytes, CardId};

/// A card's in-order queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stream {
    /// The model's kernels.
    Compute,
    /// Streamed experts, host to card.
    Experts,
    /// Streamed KV cells, host to card.
    KvIn,
    /// New KV cells, card to host.
    KvOut,
    /// Hidden states that cross to or from another stage.
    HandOff,
}

impl Stream {
    /// Every stream of a card.
    pub const ALL: [Self; 5] = [Self::Compute, Self::Experts, Self::KvIn, Self::KvOut, Self::HandOff];

    /// The name used in messages and traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Experts => "experts",
            Self::KvIn => "kv in",
            Self::KvOut => "kv out",
            Self::HandOff => "hand-off",
        }
    }
}

/// The place of a wait or drain in the protocol, such as `ring slot released`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Why(pub &'static str);

/// What kind of accelerator a card is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CardKind {
    /// Host threads that really compute.
    Virtual,
    /// An NVIDIA GPU.
    Cuda,
}

/// A region takes its size rounded up to this of a card's budget; a card whose memory needs no alignment takes less.
pub const REGION_ALIGN: usize = 256;

/// Ten minutes: a layer of a long wave on a slow link, or of a large model on a CPU, takes minutes.
const PATIENCE: Duration = Duration::from_secs(600);

/// A card as other cards see it.
#[derive(Clone)]
pub struct Neighbour {
    /// Its place in the rig.
    pub card: CardId,
    /// For cards of the same kind.
    pub inner: Arc<dyn Any + Send + Sync>,
}

/// One accelerator: bounded memory and in-order streams. All methods may be called from any thread.
pub trait Card: Send + Sync {
    /// The card's place in the rig.
    fn id(&self) -> CardId;

    /// What it is.
    fn kind(&self) -> CardKind;

    /// Its name for people, such as `virtual 0` or `NVIDIA GeForce RTX 3090`.
    fn name(&self) -> String;

    /// Takes `bytes` of card memory (zero is legal). The memory lives as long as the card.
    ///
    /// # Errors
    /// [`CardError::OutOfMemory`] past the budget, with the bytes wanted and free.
    fn alloc(&self, bytes: Bytes, what: &str) -> Result<Region, CardError>;

    /// Uses host memory in place as card memory that no command writes, where the card can (`None` where it cannot;
    /// then [`Card::alloc`] and a copy do it). Counts against the budget as an allocation does.
    ///
    /// # Errors
    /// [`CardError::OutOfMemory`] past the budget.
    fn adopt(&self, host: &HostSpan, what: &str) -> Result<Option<Region>, CardError>;

    /// Bytes of the budget that are not allocated.
    fn free_memory(&self) -> Result<Bytes, CardError>;

    /// Queues a command; returns before it has run.
    ///
    /// # Errors
    /// When the command's spans do not fit their regions, a lease it uses has ended, the device refuses it, or an
    /// earlier command of this card failed. Nothing of the command runs then.
    fn submit(&self, on: Stream, command: Command) -> Result<(), CardError>;

    /// An event that ends when all that is queued on the stream now has ended.
    ///
    /// # Errors
    /// When the device refuses it.
    fn record(&self, on: Stream) -> Result<Event, CardError>;

    /// Makes the stream (not the host) wait for an event of this or another card.
    ///
    /// # Errors
    /// When the device refuses it.
    fn wait(&self, on: Stream, event: &Event, why: Why) -> Result<(), CardError>;

    /// Whether the event has ended; never blocks.
    ///
    /// # Errors
    /// [`CardError::Failed`] when a command before the event failed.
    fn finished(&self, event: &Event) -> Result<bool, CardError>;

    /// Blocks the calling thread until the event has ended.
    ///
    /// # Errors
    /// [`CardError::Failed`] when a command before the event failed. [`CardError::Hung`] when a GPU has not ended it in
    /// ten minutes: it is given up then, every later call of the card gives that error at once, and closing the
    /// card waits for nothing.
    fn sync(&self, event: &Event, why: Why) -> Result<(), CardError>;

    /// Blocks the calling thread until all that is queued on the stream has ended.
    ///
    /// # Errors
    /// [`CardError::Failed`] when a command of the stream failed; the stream is empty then too. [`CardError::Hung`] as
    /// for [`Card::sync`]; the host memory that its commands use is never given back then.
    fn drain(&self, on: Stream, why: Why) -> Result<(), CardError>;

    /// Drains all streams and, where the device allows it, forgets an earlier failure, so that the next request can
    /// run.
    ///
    /// # Errors
    /// When the device is lost.
    fn recover(&self) -> Result<(), CardError>;

    /// How long the host waits for the card at most. What takes longer hangs: [`Card::sync`] and [`Card::drain`] of a
    /// device report it as an error then, and so does whoever polls [`Card::finished`].
    fn patience(&self) -> Duration {
        PATIENCE
    }

    /// How long the stream has stood still for events so far, as far as the card measures it.
    fn waited(&self, _on: Stream) -> Duration {
        Duration::ZERO
    }

    /// What another card of the same kind needs to know of this one, for its [`Card::reach`] and [`Card::join`].
    fn neighbour(&self) -> Neighbour;

    /// Lets [`Command::CopyAcross`] of this card read the memory of another.
    ///
    /// # Errors
    /// Why this card cannot reach it.
    fn reach(&self, from: &Neighbour) -> Result<(), String>;

    /// Joins this card, which will send, with another one by a wire. Returns the sending and the receiving end.
    ///
    /// # Errors
    /// Why there is no wire, at the latest after `limit`.
    fn join(&self, to: &Neighbour, limit: Duration) -> Result<[Wire; 2], String>;

    /// The leases whose spans this card's commands may use.
    fn leases(&self) -> &Arc<Leases>;
}
