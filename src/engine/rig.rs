//! The rig: the cards that exist, opened, with the host's memory and workers.

use std::sync::Arc;

use super::EngineError;
use crate::card::ledger::{Ledger, LedgerCard};
use crate::card::timeline::Timeline;
use crate::card::virt::{Faults, LinkRates, VirtualCard, VirtualOptions};
use crate::card::{Card, HostMemory, Watcher};
use crate::cpu::Team;
use crate::topology::{self, CardSpec, Topology};

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

/// How a rig is opened.
#[derive(Clone, Default)]
pub struct RigOptions {
    /// Records what ran when.
    pub timeline: Option<Timeline>,
    /// Wraps every card in a ledger: an access that nothing orders is an error.
    pub check_order: bool,
}

impl Rig {
    /// Opens the cards of a topology.
    ///
    /// # Errors
    /// When a card of the topology is not there, or threads are refused.
    pub fn open(topology: &Topology, options: &RigOptions) -> Result<Self, EngineError> {
        let team = Arc::new(Team::new(topology.host.workers as usize)?);
        let ledger = options.check_order.then(Ledger::new);
        let mut cards: Vec<Arc<dyn Card>> = Vec::with_capacity(topology.cards().len());
        for spec in topology.cards() {
            let card = open_card(spec, topology, options, &team)?;
            cards.push(match &ledger {
                Some(ledger) => Arc::new(LedgerCard::new(ledger, card)),
                None => card,
            });
        }
        let watcher = ledger.map_or_else(Watcher::default, |ledger| Watcher::new(ledger));
        Ok(Self { cards, host: HostMemory::new(watcher, None), team })
    }
}

fn open_card(
    spec: &CardSpec,
    topology: &Topology,
    options: &RigOptions,
    team: &Arc<Team>,
) -> Result<Arc<dyn Card>, EngineError> {
    match spec.kind {
        topology::CardKind::Virtual => {
            let rates = LinkRates { h2d: spec.link.h2d, d2h: spec.link.d2h };
            let card = VirtualCard::new(VirtualOptions {
                id: spec.id,
                name: spec.name.clone(),
                budget: spec.usable(),
                team: Arc::clone(team),
                links: topology.run.throttle.then_some(rates),
                faults: Faults::default(),
                timeline: options.timeline.clone(),
            })?;
            Ok(Arc::new(card))
        }
        topology::CardKind::Cuda | topology::CardKind::Sim => {
            let kind = if spec.kind == topology::CardKind::Cuda { "cuda" } else { "sim" };
            Err(EngineError::NoCard { card: spec.name.clone(), kind })
        }
    }
}
