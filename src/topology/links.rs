//! The topology as a graph of capacities: what each card gets alone, and what each gets when several copy at once.

use petgraph::Direction as Way;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;

use super::Topology;
use super::rig::Place;
use crate::units::{CardId, Rate};

/// A stream of bytes that lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flow {
    /// From host memory to a card.
    ToCard(CardId),
    /// From a card to host memory.
    ToHost(CardId),
    /// From one card's memory to another's, without host memory.
    Between(CardId, CardId),
    /// CPU workers that read host memory, all nodes alike.
    Workers,
}

/// Places, and between neighbours one edge each way with its capacity.
#[derive(Clone, Debug)]
pub struct Links {
    graph: DiGraph<Place, Wire>,
    host: NodeIndex,
    /// What the host's memory delivers and takes together.
    memory: f64,
    /// The same of each of its nodes.
    nodes: Vec<f64>,
    peer: Vec<(CardId, CardId)>,
}

#[derive(Clone, Copy, Debug)]
struct Wire {
    /// Bytes per second.
    capacity: f64,
    /// Whether it leads away from the host; links between cards do not.
    down: bool,
}

/// What a flow uses of every resource it passes: the share of its own rate.
struct Use {
    resource: usize,
    share: f64,
}

impl Links {
    /// Builds the graph of a topology.
    pub fn new(topology: &Topology) -> Self {
        let mut graph = DiGraph::new();
        let host = graph.add_node(Place::Host);
        let nodes: Vec<f64> = topology.host.numa.iter().map(|node| node.rate.0).collect();
        let mut links = Self { graph, host, memory: topology.host.rate.0, nodes, peer: topology.peer().to_vec() };
        for (node, rate) in (0..).zip(links.nodes.clone()) {
            let index = links.graph.add_node(Place::Numa(node));
            links.join(host, index, rate, rate, true);
        }
        for link in topology.links() {
            let (from, to) = (links.node(link.from), links.node(link.to));
            links.join(from, to, link.down().0, link.up().0, !link.between_cards());
        }
        links
    }

    /// The way from the host to a card, both included; empty where there is none.
    pub fn path(&self, card: CardId) -> Vec<Place> {
        let Some(mut at) = self.find(Place::Card(card)) else { return Vec::new() };
        let mut places = vec![Place::Card(card)];
        while let Some((above, _)) = self.above(at) {
            places.extend(self.graph.node_weight(above));
            at = above;
        }
        places.reverse();
        if at == self.host { places } else { Vec::new() }
    }

    /// Whether two cards may read and write each other's memory.
    pub fn peer_allowed(&self, a: CardId, b: CardId) -> bool {
        self.peer.contains(&(a.min(b), a.max(b)))
    }

    /// Rate of a flow while nothing else is copied; zero where there is no way, or no permission.
    pub fn alone(&self, flow: Flow) -> Rate {
        self.together(&[flow]).first().copied().unwrap_or(Rate(0.0))
    }

    /// The narrowest place between a card and the host, whatever the host's memory delivers as a whole.
    pub(super) fn link_rate(&self, flow: Flow) -> Rate {
        let edges = self.edges(flow).unwrap_or_default();
        let least = edges.iter().filter_map(|edge| self.graph.edge_weights().nth(*edge)).map(|wire| wire.capacity);
        Rate(least.reduce(f64::min).unwrap_or(0.0))
    }

    /// Rate that each card gets when every card is filled from host memory at once, in the order of the cards.
    pub fn all_to_cards(&self) -> Vec<Rate> {
        let cards = self.graph.node_weights().filter(|place| matches!(place, Place::Card(_))).count();
        let flows: Vec<Flow> = (0..).map(CardId).map(Flow::ToCard).take(cards).collect();
        self.together(&flows)
    }

    /// Rates of flows that run at the same time: max-min fair, so that no flow can have more without taking from one
    /// that has no more than it. Zero where there is no way, or no permission. In the order of `flows`.
    pub fn together(&self, flows: &[Flow]) -> Vec<Rate> {
        let mut left = self.capacities();
        let uses: Vec<Option<Vec<Use>>> = flows.iter().map(|flow| self.uses(*flow)).collect();
        let mut rates = vec![0.0; flows.len()];
        let mut running: Vec<bool> = uses.iter().map(Option::is_some).collect();
        // Each round fills at least one resource, and every flow through it stops growing.
        while running.contains(&true) {
            let mut load = vec![0.0; left.len()];
            let active = uses.iter().zip(&running).filter(|(_, on)| **on).filter_map(|(uses, _)| uses.as_ref());
            for used in active.flatten() {
                if let Some(load) = load.get_mut(used.resource) {
                    *load += used.share;
                }
            }
            let step = left
                .iter()
                .zip(&load)
                .filter(|(_, load)| **load > 0.0)
                .map(|(left, load)| left / load)
                .fold(f64::INFINITY, f64::min);
            if !step.is_finite() {
                break;
            }
            let full: Vec<bool> =
                left.iter().zip(&load).map(|(left, load)| *load > 0.0 && left / load <= step * (1.0 + 1e-12)).collect();
            for (left, load) in left.iter_mut().zip(&load) {
                *left = (*left - step * load).max(0.0);
            }
            for ((rate, on), uses) in rates.iter_mut().zip(&mut running).zip(&uses) {
                if *on {
                    *rate += step;
                    let stopped = |used: &Use| full.get(used.resource).copied().unwrap_or(true);
                    *on = !uses.iter().flatten().any(stopped);
                }
            }
        }
        rates.into_iter().map(Rate).collect()
    }

    /// Capacities of all resources: the edges, then the host's memory, then its nodes.
    fn capacities(&self) -> Vec<f64> {
        let edges = self.graph.edge_weights().map(|wire| wire.capacity);
        edges.chain([self.memory]).chain(self.nodes.iter().copied()).collect()
    }

    fn uses(&self, flow: Flow) -> Option<Vec<Use>> {
        let whole = |resource| Use { resource, share: 1.0 };
        let memory = self.graph.edge_count();
        let mut uses: Vec<Use> = self.edges(flow)?.into_iter().map(whole).collect();
        match flow {
            Flow::Between(..) => {}
            Flow::Workers => {
                let share = 1.0 / self.nodes.len().max(1) as f64;
                uses.push(whole(memory));
                uses.extend((0..self.nodes.len()).map(|node| Use { resource: memory + 1 + node, share }));
            }
            Flow::ToCard(card) | Flow::ToHost(card) => {
                uses.push(whole(memory));
                // A card streams from the memory of its own node.
                if let Some(Place::Numa(node)) = self.path(card).get(1) {
                    uses.push(whole(memory + 1 + *node as usize));
                }
            }
        }
        Some(uses)
    }

    /// Numbers of the edges that a flow passes; `None` where it has no way.
    fn edges(&self, flow: Flow) -> Option<Vec<usize>> {
        match flow {
            Flow::Workers => Some(Vec::new()),
            Flow::ToCard(card) => self.climb(card, self.host, true),
            Flow::ToHost(card) => self.climb(card, self.host, false),
            Flow::Between(a, b) => {
                if a == b || !self.peer_allowed(a, b) {
                    return None;
                }
                let (from, to) = (self.find(Place::Card(a))?, self.find(Place::Card(b))?);
                if let Some(direct) = self.graph.find_edge(from, to) {
                    return Some(vec![direct.index()]);
                }
                // The lowest place that both hang under.
                let below = self.path(b);
                let meeting = self.path(a).into_iter().rev().find(|place| below.contains(place))?;
                let meeting = self.find(meeting)?;
                let mut edges = self.climb(a, meeting, false)?;
                edges.extend(self.climb(b, meeting, true)?);
                Some(edges)
            }
        }
    }

    /// Edges between a card and a place above it, those that lead down or those that lead up.
    fn climb(&self, card: CardId, top: NodeIndex, down: bool) -> Option<Vec<usize>> {
        let mut at = self.find(Place::Card(card))?;
        let mut edges = Vec::new();
        while at != top {
            let (above, downwards) = self.above(at)?;
            let edge = if down { downwards } else { self.graph.find_edge(at, above)?.index() };
            edges.push(edge);
            at = above;
        }
        Some(edges)
    }

    /// The place that another hangs on, and the edge down from there.
    fn above(&self, at: NodeIndex) -> Option<(NodeIndex, usize)> {
        let mut down = self.graph.edges_directed(at, Way::Incoming).filter(|edge| edge.weight().down);
        down.next().map(|edge| (edge.source(), edge.id().index()))
    }

    fn join(&mut self, from: NodeIndex, to: NodeIndex, there: f64, back: f64, down: bool) {
        self.graph.add_edge(from, to, Wire { capacity: there, down });
        self.graph.add_edge(to, from, Wire { capacity: back, down: false });
    }

    fn node(&mut self, place: Place) -> NodeIndex {
        self.find(place).unwrap_or_else(|| self.graph.add_node(place))
    }

    fn find(&self, place: Place) -> Option<NodeIndex> {
        self.graph.node_indices().find(|index| self.graph.node_weight(*index) == Some(&place))
    }
}
