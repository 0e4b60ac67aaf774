//! From what is written to what holds: names are resolved, contradictions found, defaults filled in.

use super::Topology;
use super::diagnose::{Code, Diagnostic};
use super::facts::HostFacts;
use super::names::Names;
use super::raw::{RawCard, RawHost, RawRig};
use super::raw_run::RawRun;
use super::reader::Reader;
use super::rig::{CardAddress, CardKind, CardSpec, Host, LinkRates, NumaNode, RigDefaults};
use super::settings::{ExpertPin, HandOff, LayerPin, RunSettings};
use super::tree::At;
use super::wiring::check_links;
use crate::units::{Bytes, CardId, Rate};

/// The topology that a file declares, if the reader has nothing to note about it.
pub(super) fn validate(reader: &mut Reader, rig: &RawRig, run: RawRun, facts: HostFacts) -> Option<Topology> {
    let names = Names::collect(reader, rig);
    let host = check_host(reader, &rig.host, facts);
    let cards = check_cards(reader, rig);
    let peer = check_peer(reader, &names, rig);
    let links = check_links(reader, &names, rig, &peer);
    let run = check_run(reader, &names, run, cards.len(), &peer);
    let switches = rig.switches.iter().map(|switch| switch.value.clone()).collect();
    // Links that were refused may run in circles, and the graph's walks rely on there being none.
    reader.problems.is_empty().then(|| Topology::assemble(host, cards, switches, links, peer, run))
}

fn check_host(reader: &mut Reader, raw: &RawHost, facts: HostFacts) -> Host {
    let nodes = raw.numa.len() as u64;
    let all_memory: Option<Bytes> = raw.numa.iter().map(|node| node.memory.as_ref().map(|memory| memory.value)).sum();
    let all_rates: Option<f64> = raw.numa.iter().map(|node| node.rate.as_ref().map(|rate| rate.value.0)).sum();
    let declared = raw.memory.as_ref().map(|memory| memory.value);
    let memory = declared.or(all_memory.filter(|_| nodes > 0)).unwrap_or(facts.memory);
    let rate = raw.rate.as_ref().map(|rate| rate.value).or(all_rates.filter(|_| nodes > 0).map(Rate));
    let rate = rate.unwrap_or(RigDefaults::default().host_rate);
    if let Some(zero) = raw.memory.as_ref().filter(|memory| memory.value.is_empty()) {
        note_no_memory(reader, zero, "the host", "94 GiB");
    }
    if let Some(locked) = raw.locked.as_ref().filter(|locked| locked.value > memory) {
        reader.note(
            Diagnostic::new(Code::OutOfRange, locked.at.clone(), format!("`locked` of `host` is {}", locked.value))
                .allowed(format!("at most the host's memory, {memory}"))
                .fix("write less, or remove `locked` to allow all"),
        );
    }
    let known: Bytes = raw.numa.iter().filter_map(|node| node.memory.as_ref()).map(|memory| memory.value).sum();
    if let (Some(last), Some(declared)) = (raw.numa.last(), declared.filter(|declared| known > *declared)) {
        reader.note(
            Diagnostic::new(Code::Contradiction, last.at.clone(), format!("the nodes of `numa` have {known} together"))
                .allowed(format!("at most the host's memory, {declared}"))
                .fix("correct `memory` of the nodes or of `host`"),
        );
    }
    let numa = raw
        .numa
        .iter()
        .map(|node| NumaNode {
            memory: node.memory.as_ref().map_or(Bytes(memory.0 / nodes.max(1)), |memory| memory.value),
            rate: node.rate.as_ref().map_or(Rate(rate.0 / nodes.max(1) as f64), |rate| rate.value),
        })
        .collect();
    Host {
        memory,
        rate,
        workers: raw.workers.as_ref().map_or(facts.workers, |workers| workers.value),
        locked: raw.locked.as_ref().map(|locked| locked.value),
        disk: raw.disk.as_ref().map_or(RigDefaults::default().disk, |disk| disk.value),
        shared: false,
        numa,
    }
}

fn note_no_memory(reader: &mut Reader, memory: &At<Bytes>, what: &str, example: &str) {
    reader.note(
        Diagnostic::new(Code::OutOfRange, memory.at.clone(), format!("{what} has no memory"))
            .allowed("more than 0 B")
            .fix(format!("write what it has, such as `{example}`")),
    );
}

fn check_cards(reader: &mut Reader, rig: &RawRig) -> Vec<CardSpec> {
    if rig.cards.is_empty() && reader.problems.is_empty() {
        reader.note(
            Diagnostic::new(Code::MissingKey, rig.at.clone(), "`cards` is empty")
                .allowed("at least one card")
                .fix("add a card such as `gpu0: {memory: 24 GiB}` or `cpu: {kind: virtual, memory: 16 GiB}`"),
        );
    }
    let mut next_index = 0;
    let mut taken: Vec<(CardAddress, &RawCard)> = Vec::new();
    let mut cards = Vec::new();
    for (id, raw) in (0..).map(CardId).zip(&rig.cards) {
        let address = (raw.kind == CardKind::Cuda).then(|| {
            let address = raw.address.as_ref().map_or(CardAddress::Index(next_index), |address| address.value.clone());
            next_index += 1;
            check_address(reader, &taken, raw, &address);
            taken.push((address.clone(), raw));
            address
        });
        cards.push(check_card(reader, rig, raw, id, address));
    }
    cards
}

fn check_address(reader: &mut Reader, taken: &[(CardAddress, &RawCard)], raw: &RawCard, address: &CardAddress) {
    let shares = |card: &RawCard| card.shared.as_ref().is_some_and(|shared| shared.value);
    let same = taken.iter().find(|(known, card)| known == address && !(shares(card) && shares(raw)));
    let Some((_, first)) = same else { return };
    let at = |card: &RawCard| card.address.as_ref().map_or(card.name.at.clone(), |address| address.at.clone());
    let (a, b) = (&first.name.value, &raw.name.value);
    reader.note(
        Diagnostic::new(Code::Contradiction, at(raw), format!("`{a}` and `{b}` are the same GPU"))
            .allowed(
                "a GPU of its own for each card; without uuid, pci and index, cards count from index 0 in their order",
            )
            .fix("give each card its own `uuid` (nvidia-smi -L); for tests on one GPU write `shared: true` at both")
            .also(at(first), "first here"),
    );
}

fn check_card(reader: &mut Reader, rig: &RawRig, raw: &RawCard, id: CardId, address: Option<CardAddress>) -> CardSpec {
    let name = &raw.name.value;
    let memory = raw.memory.as_ref().map_or(Bytes(0), |memory| memory.value);
    let default = match raw.kind {
        CardKind::Virtual => Bytes(0),
        CardKind::Cuda | CardKind::Sim => RigDefaults::default().reserve,
    };
    let reserve = raw.reserve.as_ref().map_or(default, |reserve| reserve.value);
    if let Some(declared) = &raw.memory {
        if declared.value.is_empty() {
            note_no_memory(reader, declared, &format!("card `{name}`"), "24 GiB");
        } else if reserve >= memory {
            let at = raw.reserve.as_ref().map_or(declared.at.clone(), |reserve| reserve.at.clone());
            reader.note(
                Diagnostic::new(Code::OutOfRange, at, format!("`reserve` of card `{name}` is {reserve}"))
                    .allowed(format!("less than the card's memory, {memory}"))
                    .fix("write a smaller `reserve`, or correct `memory`"),
            );
        }
    }
    if let Some(node) = raw.numa.as_ref().filter(|node| node.value as usize >= rig.host.numa.len()) {
        let nodes = rig.host.numa.len();
        let (allowed, fix) = match nodes {
            0 => ("no `numa` at a card where `host` has none".to_owned(), "remove it, or list the nodes under `host`"),
            _ => (format!("a node of `host`, 0 to {}", nodes - 1), "write the number of a listed node"),
        };
        reader.note(
            Diagnostic::new(
                Code::UnknownName,
                node.at.clone(),
                format!("card `{name}` names node {} of `numa`", node.value),
            )
            .allowed(allowed)
            .fix(fix),
        );
    }
    if let Some(shared) = raw.shared.as_ref().filter(|shared| shared.value && raw.kind != CardKind::Cuda) {
        reader.note(
            Diagnostic::new(Code::Contradiction, shared.at.clone(), format!("card `{name}` is no GPU and is `shared`"))
                .allowed("`shared` for cards of kind `cuda` only")
                .fix("remove it: cards of other kinds need no device"),
        );
    }
    CardSpec {
        id,
        name: name.clone(),
        kind: raw.kind,
        address,
        memory,
        reserve,
        rate: raw.rate.as_ref().map(|rate| rate.value),
        compute: raw.compute.as_ref().map(|compute| compute.value),
        shared: raw.shared.as_ref().is_some_and(|shared| shared.value),
        // The assembled topology computes it from the links.
        link: LinkRates { h2d: Rate(0.0), d2h: Rate(0.0) },
    }
}

fn check_peer(reader: &mut Reader, names: &Names, rig: &RawRig) -> Vec<(CardId, CardId)> {
    let mut pairs: Vec<((CardId, CardId), &std::ops::Range<usize>)> = Vec::new();
    for raw in &rig.peer {
        let ends = (names.card(reader, "`peer`", &raw.a), names.card(reader, "`peer`", &raw.b));
        let (Some(a), Some(b)) = ends else { continue };
        let pair = (a.min(b), a.max(b));
        let (a, b) = (&raw.a.value, &raw.b.value);
        if pair.0 == pair.1 {
            reader.note(
                Diagnostic::new(Code::WrongValue, raw.b.at.clone(), format!("`peer` pairs `{a}` with itself"))
                    .allowed("two different cards")
                    .fix("name the other card"),
            );
        } else if let Some((_, first)) = pairs.iter().find(|(known, _)| *known == pair) {
            reader.note(
                Diagnostic::new(Code::DuplicateKey, raw.at.clone(), format!("`peer` names `{a}` and `{b}` twice"))
                    .allowed("each pair once; access goes both ways")
                    .fix("remove one of the two")
                    .also((*first).clone(), "first here"),
            );
        } else {
            pairs.push((pair, &raw.at));
        }
    }
    pairs.into_iter().map(|(pair, _)| pair).collect()
}

fn check_run(reader: &mut Reader, names: &Names, raw: RawRun, cards: usize, peer: &[(CardId, CardId)]) -> RunSettings {
    let mut run = raw.settings;
    if run.hand_off == HandOff::Peer && peer.is_empty() && cards > 1 {
        reader.note(
            Diagnostic::new(
                Code::Contradiction,
                raw.hand_off_at,
                "`hand_off` is `peer`, but no cards may reach each other",
            )
            .allowed("`peer` only where `rig.peer` names pairs of cards")
            .fix("write `hand_off: host`, or name the pairs in `rig.peer`"),
        );
    }
    let mut placed: Vec<(LayerPin, std::ops::Range<usize>)> = Vec::new();
    for pin in &raw.layers {
        let Some(card) = names.card(reader, "a layer pin", &pin.card) else { continue };
        let own = LayerPin { card, first: pin.first, last: pin.last };
        if let Some((other, at)) = placed.iter().find(|(other, _)| other.overlaps(&own)) {
            let (layer, other) = (own.first.max(other.first), names.of(super::Place::Card(other.card)));
            let found = format!("layer {layer} is pinned to `{other}` and to `{}`", pin.card.value);
            reader.note(
                Diagnostic::new(Code::Overlap, pin.at.clone(), found)
                    .allowed("each layer on one card")
                    .fix(format!("end one range before layer {layer}, or begin the other after it"))
                    .also(at.clone(), "first here"),
            );
        }
        placed.push((own, pin.at.clone()));
    }
    run.pins.layers = placed.into_iter().map(|(pin, _)| pin).collect();
    for pin in &raw.experts {
        if let Some(card) = names.card(reader, "an expert pin", &pin.card) {
            run.pins.experts.push(ExpertPin { card, slots: pin.slots });
        }
    }
    run
}
