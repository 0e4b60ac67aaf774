//! The KV cache: where cells lie, and how those in host memory reach a card.
//!
//! The first `resident` cells of a sequence live on the card ([`cells`]). In a prompt, later ones are written to the
//! wave's tail and copied from there to host memory ([`tail`]); those of earlier waves and turns come back through the
//! staging pool ([`staging`]). In a decode step the card attends the older ones over its link, and the host pool its
//! share of the newest where they are ([`host`]).

pub(super) mod cells;
pub(super) mod host;
pub(super) mod staging;
pub(super) mod tail;

use self::cells::HostCells;
use self::staging::Staging;
use self::tail::Tail;
use crate::card::Event;

/// What a stage keeps of cells that live in host memory.
pub(super) struct Streamed {
    /// The cells in host memory.
    pub host: HostCells,
    /// New cells on their way there.
    pub tail: Tail,
    /// For each layer, the end of the copy of its newest cells to host memory.
    pub written: Vec<Option<Event>>,
    /// The staging pool of the prompt being read, where it streams cells.
    pub staging: Option<Staging>,
}

impl Streamed {
    /// Forgets events of a request whose streams are drained before the next one.
    pub fn forget(&mut self) {
        self.tail.copied = None;
        self.written.iter_mut().for_each(|written| *written = None);
    }
}
