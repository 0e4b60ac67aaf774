//! What a plan is made for: a model, cards and a host with budgets and rates, settings.

use super::cost;
use crate::card::CardKind;
use crate::model::ModelSpec;
use crate::topology::{self, Flops, Flow, Links, RunSettings, Topology};
use crate::units::{Bytes, CardId, Rate};

/// One card as the planner sees it.
#[derive(Clone, Debug)]
pub struct CardBudget {
    /// Its place in the rig.
    pub id: CardId,
    /// Its name in the topology.
    pub name: String,
    /// What it is.
    pub kind: CardKind,
    /// Memory the engine may use: the card's memory less its reserve.
    pub memory: Bytes,
    /// Rate from host to card while all cards stream.
    pub link: Rate,
    /// Rate at which it reads its own memory.
    pub rate: Rate,
    /// Operations a second that prompts reach on it, where that is known.
    pub compute: Option<Flops>,
    /// What hidden states can have from the card before it.
    pub crossing: Crossing,
}

/// The host as the planner sees it.
#[derive(Clone, Copy, Debug)]
pub struct HostBudget {
    /// Memory the engine may use.
    pub memory: Bytes,
    /// CPU threads that compute.
    pub workers: usize,
    /// What its memory gives them while all cards stream.
    pub rate: Rate,
    /// Rate at which the model's file is read.
    pub disk: Rate,
    /// Whether virtual cards take their memory from it, as they do where no topology gives them any.
    pub shared: bool,
}

/// What a plan is made for.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The model.
    pub spec: &'a ModelSpec,
    /// The cards that are present, in stage order.
    pub cards: Vec<CardBudget>,
    /// The host.
    pub host: HostBudget,
    /// How the model is to run.
    pub settings: &'a RunSettings,
}

/// What hidden states on their way to a card from the card before it can have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// Rate through host memory, one copy after the other.
    pub staged: Rate,
    /// Rate from card to card, where the topology allows it.
    pub peer: Option<Rate>,
}

impl<'a> Request<'a> {
    /// A model on a declared rig. Rates to the cards, and of the host's workers, are those they have while all of them
    /// stream.
    pub fn new(spec: &'a ModelSpec, topology: &'a Topology) -> Self {
        let links = Links::new(topology);
        let ids = topology.cards().iter().map(|card| card.id);
        let all: Vec<Flow> = ids.clone().map(Flow::ToCard).chain([Flow::Workers]).collect();
        let host = HostBudget {
            memory: topology.host.memory,
            workers: topology.host.workers as usize,
            rate: links.together(&all).last().copied().unwrap_or(topology.host.rate),
            disk: topology.host.disk,
            shared: topology.host.shared,
        };
        let before = ids.clone().take(1).chain(ids);
        let cards = topology.cards().iter().zip(links.all_to_cards()).zip(before);
        let cards = cards.map(|((card, link), before)| {
            let kind = planned_as(card.kind);
            CardBudget {
                id: card.id,
                name: card.name.clone(),
                kind,
                memory: card.usable(),
                link,
                rate: card.rate.unwrap_or_else(|| cost::memory_rate(kind, topology.host.rate)),
                compute: card.compute,
                crossing: crossing(&links, before, card.id),
            }
        });
        Self { spec, cards: cards.collect(), host, settings: &topology.run }
    }
}

/// The kind of card the planner counts with: a modelled card holds what a real one would.
fn planned_as(kind: topology::CardKind) -> CardKind {
    match kind {
        topology::CardKind::Virtual => CardKind::Virtual,
        topology::CardKind::Cuda | topology::CardKind::Sim => CardKind::Cuda,
    }
}

/// What hidden states can have on their way between two cards.
fn crossing(links: &Links, from: CardId, to: CardId) -> Crossing {
    let staged = cost::one_after_the_other(links.alone(Flow::ToHost(from)), links.alone(Flow::ToCard(to)));
    Crossing { staged, peer: links.peer_allowed(from, to).then(|| links.alone(Flow::Between(from, to))) }
}
