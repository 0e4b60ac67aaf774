//! The declared rig: YAML to validated topology to graph.
//!
//! Three steps with three types. The text becomes a tree with the place of every value, and the tree is read against
//! the table of [`keys`]; what comes of it is checked as a whole and becomes a [`Topology`]; [`Links`] is its graph of
//! capacities. A mistake never ends a step: [`Problems`] holds all of them. Nothing here asks a device.
//!
//! ```
//! use aqueduct::topology::{HostFacts, Links, Topology};
//!
//! let text = "
//! rig:
//!   cards:
//!     gpu0: {memory: 24 GiB}
//!     gpu1: {memory: 12 GiB}
//!   links:
//!     - {from: host, to: gpu0, generation: 4, lanes: 16}
//!     - {from: host, to: gpu1, generation: 4, lanes: 4}
//! ";
//! let topology = Topology::parse("rig.yaml", text, HostFacts::read())?;
//! assert_eq!(topology.cards().len(), 2);
//! assert!(Links::new(&topology).all_to_cards()[1].0 < 7e9);
//! # Ok::<(), aqueduct::topology::Problems>(())
//! ```

mod amounts;
mod diagnose;
mod facts;
pub mod keys;
mod links;
mod names;
mod raw;
mod raw_run;
mod reader;
mod rig;
mod settings;
mod tree;
mod validate;
mod wiring;
mod yaml;

use std::path::Path;

use serde::Serialize;
use thiserror::Error;

use crate::files::{InputError, read_regular_text};
use crate::units::{Bytes, CardId};

pub use amounts::Flops;
pub use diagnose::{Code, Diagnostic, Problems};
pub use facts::HostFacts;
pub use links::{Flow, Links};
pub use rig::{CardAddress, CardKind, CardSpec, Host, Link, LinkRates, NumaNode, Place, RigDefaults, pcie_rate};
pub use settings::{
    ExpertPin, HandOff, KvSettings, LayerPin, Pins, PromptSettings, ResidentCells, Ring, RunSettings, Share, Staging,
    Switch, Wave,
};

/// Why there is no topology.
#[derive(Debug, Error)]
pub enum TopologyError {
    /// The file cannot be read as text.
    #[error("the topology cannot be read: {0}; ready files are in the folder `topology`")]
    Read(#[from] InputError),
    /// The file has mistakes.
    #[error("{0}")]
    Invalid(Problems),
}

/// A declared rig and how to run on it. Every name leads somewhere and every card reaches the host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Topology {
    /// The host.
    pub host: Host,
    /// How to run.
    pub run: RunSettings,
    cards: Vec<CardSpec>,
    switches: Vec<String>,
    links: Vec<Link>,
    peer: Vec<(CardId, CardId)>,
}

impl Topology {
    /// Reads and checks a file. What it leaves out about the host is asked from the operating system.
    pub fn load(path: &Path) -> Result<Self, TopologyError> {
        let text = read_regular_text(path, "the path of a YAML file", Bytes(tree::MAX_FILE_BYTES as u64))?;
        Self::parse(&path.display().to_string(), &text, HostFacts::read()).map_err(TopologyError::Invalid)
    }

    /// Checks the text of a topology. `file` is how messages name it; `facts` fill in what it leaves out about the
    /// host.
    pub fn parse(file: &str, text: &str, facts: HostFacts) -> Result<Self, Problems> {
        let tree = tree::parse(text).map_err(|problem| Problems::new(file, text, vec![*problem]))?;
        let mut reader = reader::Reader::default();
        let top = reader.fields(&keys::TOP, "the file", 0..0, &tree);
        let run = top.get("run").map(|entry| raw_run::read_run(&mut reader, entry.key.at.clone(), &entry.value));
        let topology = match top.get("rig") {
            None => {
                reader.missing(&top, "rig");
                None
            }
            Some(entry) => {
                let rig = raw::read_rig(&mut reader, entry.key.at.clone(), &entry.value);
                validate::validate(&mut reader, &rig, run.unwrap_or_default(), facts)
            }
        };
        topology.ok_or_else(|| Problems::new(file, text, reader.problems))
    }

    /// The rig of a machine for which no file is given: one virtual card with all of the host's memory.
    pub fn cpu_only() -> Self {
        let facts = HostFacts::read();
        let mut topology = Self::virtual_rig(&[facts.memory], facts);
        topology.host.shared = true;
        topology
    }

    /// Virtual cards `virtual0`, `virtual1` ... with these memories and default links.
    pub fn virtual_rig(memories: &[Bytes], facts: HostFacts) -> Self {
        Self::simple_rig(CardKind::Virtual, memories, facts)
    }

    /// One GPU, the driver's first, with this memory and the default link.
    pub fn single_card(memory: Bytes, facts: HostFacts) -> Self {
        Self::simple_rig(CardKind::Cuda, &[memory], facts)
    }

    fn simple_rig(kind: CardKind, memories: &[Bytes], facts: HostFacts) -> Self {
        let default = RigDefaults::default();
        let cards: Vec<CardSpec> = (0..)
            .zip(memories)
            .map(|(number, memory)| CardSpec {
                id: CardId(number),
                name: match kind {
                    CardKind::Cuda => format!("gpu{number}"),
                    CardKind::Virtual => format!("virtual{number}"),
                    CardKind::Sim => format!("sim{number}"),
                },
                kind,
                address: (kind == CardKind::Cuda).then_some(CardAddress::Index(number)),
                memory: *memory,
                reserve: if kind == CardKind::Virtual { Bytes(0) } else { default.reserve },
                rate: None,
                compute: None,
                shared: false,
                link: LinkRates { h2d: default.host_rate, d2h: default.host_rate },
            })
            .collect();
        let links = cards.iter().map(|card| wiring::default_link(card.id, None)).collect();
        let host = Host {
            memory: facts.memory,
            rate: default.host_rate,
            workers: facts.workers,
            locked: None,
            disk: default.disk,
            shared: false,
            numa: Vec::new(),
        };
        Self::assemble(host, cards, Vec::new(), links, Vec::new(), RunSettings::default())
    }

    /// Joins checked parts and computes each card's rates from the links.
    fn assemble(
        host: Host,
        cards: Vec<CardSpec>,
        switches: Vec<String>,
        links: Vec<Link>,
        peer: Vec<(CardId, CardId)>,
        run: RunSettings,
    ) -> Self {
        let mut topology = Self { host, run, cards, switches, links, peer };
        let graph = Links::new(&topology);
        for card in &mut topology.cards {
            card.link =
                LinkRates { h2d: graph.link_rate(Flow::ToCard(card.id)), d2h: graph.link_rate(Flow::ToHost(card.id)) };
        }
        topology
    }

    /// The cards in declared order; a card's id is its place here.
    pub fn cards(&self) -> &[CardSpec] {
        &self.cards
    }

    /// The cards, for another budget or kind; their number, order and links stay.
    pub fn cards_mut(&mut self) -> &mut [CardSpec] {
        &mut self.cards
    }

    /// A card by its id.
    pub fn card(&self, id: CardId) -> Option<&CardSpec> {
        self.cards.get(usize::try_from(id.0).ok()?)
    }

    /// The card of that name.
    pub fn card_named(&self, name: &str) -> Option<&CardSpec> {
        self.cards.iter().find(|card| card.name == name)
    }

    /// The links, those between cards included.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Pairs of cards that may read and write each other's memory, the lower id first.
    pub fn peer(&self) -> &[(CardId, CardId)] {
        &self.peer
    }

    /// The name of a place as the file writes it.
    pub fn place_name(&self, place: Place) -> String {
        let known = match place {
            Place::Host => Some("host".to_owned()),
            Place::Numa(node) => Some(format!("numa{node}")),
            Place::Switch(number) => self.switches.get(number as usize).cloned(),
            Place::Card(id) => self.card(id).map(|card| card.name.clone()),
        };
        known.unwrap_or_else(|| "nowhere".to_owned())
    }

    /// The same rig with only these cards, in their declared order and counted anew; pins of the others are gone.
    /// For a machine on which fewer cards are present than the file declares.
    pub fn keep_cards(&self, keep: &[CardId]) -> Self {
        let kept: Vec<CardId> = self.cards.iter().map(|card| card.id).filter(|id| keep.contains(id)).collect();
        let renamed = |id: CardId| (0..).map(CardId).zip(&kept).find(|(_, old)| **old == id).map(|(new, _)| new);
        let place = |place: Place| match place {
            Place::Card(id) => renamed(id).map(Place::Card),
            other => Some(other),
        };
        let cards =
            self.cards.iter().filter_map(|card| Some(CardSpec { id: renamed(card.id)?, ..card.clone() })).collect();
        let links = self
            .links
            .iter()
            .filter_map(|link| Some(Link { from: place(link.from)?, to: place(link.to)?, ..*link }))
            .collect();
        let peer = self.peer.iter().filter_map(|(a, b)| Some((renamed(*a)?, renamed(*b)?))).collect();
        let pins = &self.run.pins;
        let pins = Pins {
            layers: pins.layers.iter().filter_map(|pin| Some(LayerPin { card: renamed(pin.card)?, ..*pin })).collect(),
            experts: pins
                .experts
                .iter()
                .filter_map(|pin| Some(ExpertPin { card: renamed(pin.card)?, ..*pin }))
                .collect(),
        };
        let run = RunSettings { pins, ..self.run.clone() };
        Self::assemble(self.host.clone(), cards, self.switches.clone(), links, peer, run)
    }
}
