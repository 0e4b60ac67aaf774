//! The rig: the cards that exist, opened, with the host's memory and workers.

use std::sync::Arc;

use crate::card::{Card, HostMemory};
use crate::cpu::Team;

/// What an engine runs on.
#[derive(Clone)]
pub struct Rig {
    /// The cards, in stage order.
    pub cards: Vec<Arc<dyn Card>>,
    /// Where page-locked memory comes from.
    pub host: HostMemory,
    /// The CPU workers: the host pool, and the arithmetic of virtual cards.
    pub team: Arc<Team>,
}
