//! The rig: the cards that exist, opened, with the host's memory and workers.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::EngineError;
use crate::card::cuda::{CompilerSettings, CudaCard, CudaSettings};
use crate::card::ledger::{Ledger, LedgerCard};
use crate::card::timeline::Timeline;
use crate::card::virt::{Faults, LinkRates, VirtualCard, VirtualOptions};
use crate::card::{Card, HostMemory, Watcher};
use crate::cpu::Team;
use crate::model::ModelSpec;
use crate::topology::{self, CardAddress, CardSpec, Topology};

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
    /// Whether the caller refuses what runs otherwise than was asked for.
    pub strict: bool,
    /// Where kernels of GPUs come from.
    pub compiler: CompilerSettings,
    /// Puts guard bands around the regions of GPUs.
    pub guard_regions: bool,
}

impl Rig {
    /// Opens the cards of a topology for a model. GPUs are named by the driver's number:
    /// [`Presence::of`](super::Presence::of) gives it to cards that are declared by UUID or PCI address.
    ///
    /// # Errors
    /// When a card of the topology cannot be opened, or threads are refused.
    pub fn open(topology: &Topology, model: &ModelSpec, options: &RigOptions) -> Result<Self, EngineError> {
        let team = Arc::new(Team::new(topology.host.workers as usize)?);
        let ledger = options.check_order.then(Ledger::new);
        let mut cards: Vec<Arc<dyn Card>> = Vec::with_capacity(topology.cards().len());
        let mut lock = None;
        for spec in topology.cards() {
            let card: Arc<dyn Card> = match spec.kind {
                topology::CardKind::Virtual => Arc::new(open_virtual(spec, topology, options, &team)?),
                topology::CardKind::Cuda => {
                    let card = open_cuda(spec, topology, model, options)?;
                    lock.get_or_insert_with(|| card.page_lock());
                    Arc::new(card)
                }
                topology::CardKind::Sim => {
                    return Err(EngineError::NoCard {
                        card: spec.name.clone(),
                        reason: "nothing runs on sim cards; use a topology with `kind: virtual` to run on the CPU"
                            .to_owned(),
                    });
                }
            };
            cards.push(match &ledger {
                Some(ledger) => Arc::new(LedgerCard::new(ledger, card)),
                None => card,
            });
        }
        let watcher = ledger.map_or_else(Watcher::default, |ledger| Watcher::new(ledger));
        Ok(Self { cards, host: HostMemory::new(watcher, lock).limited(topology.host.locked), team })
    }
}

fn open_virtual(
    spec: &CardSpec,
    topology: &Topology,
    options: &RigOptions,
    team: &Arc<Team>,
) -> Result<VirtualCard, EngineError> {
    let rates = LinkRates { h2d: spec.link.h2d, d2h: spec.link.d2h };
    Ok(VirtualCard::new(VirtualOptions {
        id: spec.id,
        name: spec.name.clone(),
        budget: spec.usable(),
        team: Arc::clone(team),
        links: topology.run.throttle.then_some(rates),
        faults: Faults::default(),
        timeline: options.timeline.clone(),
    })?)
}

fn open_cuda(
    spec: &CardSpec,
    topology: &Topology,
    model: &ModelSpec,
    options: &RigOptions,
) -> Result<CudaCard, EngineError> {
    let refused = |reason: String| EngineError::NoCard { card: spec.name.clone(), reason };
    // `Presence` has looked the GPU up.
    let Some(CardAddress::Index(ordinal)) = spec.address else {
        return Err(refused("its GPU was not looked up in this machine (see `Presence`)".to_owned()));
    };
    let attention = model.layers.iter().filter_map(|layer| layer.attention()).map(|attention| attention.shape);
    let kv = topology.run.kv.kind;
    CudaCard::open(CudaSettings {
        card: spec.id,
        ordinal: ordinal as usize,
        budget: spec.usable(),
        weights: model.tensors().map(|tensor| tensor.ty).collect::<BTreeSet<_>>().into_iter().collect(),
        attention: attention.map(|shape| (shape, kv)).collect(),
        compiler: options.compiler.clone(),
        timeline: options.timeline.clone(),
        guarded: options.guard_regions,
    })
    .map_err(|error| refused(error.to_string()))
}
