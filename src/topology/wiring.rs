//! Checks of the links: their ends exist, their rates are possible, nothing is linked twice, every card reaches the
//! host.

use super::diagnose::{Code, Diagnostic};
use super::names::Names;
use super::raw::{RawLink, RawRig};
use super::reader::Reader;
use super::rig::{Link, Place, RigDefaults, pcie_rate};
use super::tree::At;
use crate::units::{CardId, Rate};

/// The links of a file, or each card's default link where it has none.
pub(super) fn check_links(reader: &mut Reader, names: &Names, rig: &RawRig, peer: &[(CardId, CardId)]) -> Vec<Link> {
    let Some(raw) = &rig.links else {
        return (0..).map(CardId).zip(&rig.cards).map(|(card, raw)| default_link(card, raw.numa.as_ref())).collect();
    };
    let mut links: Vec<(Link, &RawLink)> = Vec::new();
    // Where a link was refused, a missing path is its consequence and no second mistake.
    let mut refused = false;
    for raw in raw {
        let Some(raw) = raw else {
            refused = true;
            continue;
        };
        let ends = (names.find(reader, "a link", &raw.from), names.find(reader, "a link", &raw.to));
        let (Some(from), Some(to)) = ends else {
            refused = true;
            continue;
        };
        match check_link(reader, rig, raw, from, to) {
            Some(link) => links.push((link, raw)),
            None => refused = true,
        }
    }
    refused |= check_doubles(reader, names, &links);
    for (link, raw) in links.iter().filter(|(link, _)| link.between_cards()) {
        if let (Place::Card(a), Place::Card(b)) = (link.from, link.to)
            && !peer.contains(&(a.min(b), a.max(b)))
        {
            let (a, b) = (&raw.from.value, &raw.to.value);
            reader.note(
                Diagnostic::new(
                    Code::Contradiction,
                    raw.from.at.clone(),
                    format!("`{a}` and `{b}` are linked, but `peer` does not name the pair"),
                )
                .allowed("links between cards that may read and write each other's memory")
                .fix(format!("add `[{a}, {b}]` to `peer`, or remove the link")),
            );
        }
    }
    let links: Vec<Link> = links.into_iter().map(|(link, _)| link).collect();
    if !refused {
        check_paths(reader, names, rig, &links);
    }
    links
}

/// The link of a card when a file says nothing about links.
pub(super) fn default_link(card: CardId, numa: Option<&At<u32>>) -> Link {
    let default = RigDefaults::default();
    Link {
        from: numa.map_or(Place::Host, |node| Place::Numa(node.value)),
        to: Place::Card(card),
        generation: Some(default.generation),
        lanes: default.lanes,
        h2d: None,
        d2h: None,
    }
}

fn check_link(reader: &mut Reader, rig: &RawRig, raw: &RawLink, mut from: Place, mut to: Place) -> Option<Link> {
    let (mut near, mut far) = (&raw.from, &raw.to);
    if rank(from) > rank(to) {
        (from, to, near, far) = (to, from, far, near);
    }
    let (a, b) = (&near.value, &far.value);
    if from == to || rank(to) == 0 {
        reader.note(
            Diagnostic::new(Code::WrongValue, far.at.clone(), format!("a link goes from `{a}` to `{b}`"))
                .allowed("links that end at a switch or a card, from another place")
                .fix("name the switch or the card that hangs on this link"),
        );
        return None;
    }
    if let (Place::Host, Some(node)) = (from, card_numa(rig, to)) {
        from = Place::Numa(node);
    }
    if let (Place::Numa(on), Some(node)) = (from, card_numa(rig, to))
        && on != node
    {
        reader.note(
            Diagnostic::new(
                Code::Contradiction,
                near.at.clone(),
                format!("`{b}` is linked to `numa{on}` but declares `numa: {node}`"),
            )
            .allowed("one and the same node in both places")
            .fix(format!("write `from: host`, or `numa: {on}` at the card")),
        );
    }
    let between_cards = rank(from) == 2;
    let only = |reader: &mut Reader, at: &std::ops::Range<usize>, key: &str, allowed: &str| {
        reader.note(
            Diagnostic::new(Code::Contradiction, at.clone(), format!("the link from `{a}` to `{b}` has `{key}`"))
                .allowed(allowed)
                .fix(format!("remove `{key}`")),
        );
    };
    if between_cards {
        const ALLOWED: &str = "`rate` for a link between two cards";
        for (key, rate) in [("h2d", &raw.h2d), ("d2h", &raw.d2h)] {
            rate.iter().for_each(|rate| only(reader, &rate.at, key, ALLOWED));
        }
        for (key, number) in [("generation", &raw.generation), ("lanes", &raw.lanes)] {
            number.iter().for_each(|number| only(reader, &number.at, key, ALLOWED));
        }
    } else if let Some(rate) = &raw.rate {
        only(
            reader,
            &rate.at,
            "rate",
            "`generation` and `lanes`, `h2d` and `d2h` for a link from the host or a switch",
        );
    }
    if !raw.has_speed {
        let (allowed, fix) = if between_cards {
            ("`rate`, each way", "add `rate: 56 GB/s`")
        } else {
            ("`generation` and `lanes`, or measured `h2d` and `d2h`", "add `generation: 3, lanes: 16`")
        };
        reader.note(
            Diagnostic::new(Code::MissingKey, raw.at.clone(), format!("the link from `{a}` to `{b}` has no speed"))
                .allowed(allowed)
                .fix(fix),
        );
    }
    let default = RigDefaults::default();
    let lanes = raw.lanes.as_ref().map_or(u32::from(default.lanes), |lanes| lanes.value);
    let link = Link {
        from,
        to,
        generation: raw.generation.as_ref().and_then(|generation| u8::try_from(generation.value).ok()),
        lanes: u8::try_from(lanes).unwrap_or(default.lanes),
        h2d: raw.h2d.as_ref().or(raw.rate.as_ref()).map(|rate| rate.value),
        d2h: raw.d2h.as_ref().or(raw.rate.as_ref()).map(|rate| rate.value),
    };
    check_measured(reader, raw, &link);
    Some(link)
}

/// A measured rate above what the declared slot carries is a unit or a slot that is wrong.
fn check_measured(reader: &mut Reader, raw: &RawLink, link: &Link) {
    let Some(generation) = link.generation else { return };
    let most = pcie_rate(generation, link.lanes);
    for (key, rate) in [("h2d", &raw.h2d), ("d2h", &raw.d2h)] {
        if let Some(rate) = rate.as_ref().filter(|rate| rate.value.0 > most.0) {
            reader.note(
                Diagnostic::new(
                    Code::OutOfRange,
                    rate.at.clone(),
                    format!("`{key}` of a PCIe {generation} x{} link is {}", link.lanes, rate.value),
                )
                .allowed(format!("at most {}", Rate(most.0)))
                .fix("check the unit (a byte is 8 bits), `generation` and `lanes`"),
            );
        }
    }
}

/// Returns whether there are any.
fn check_doubles(reader: &mut Reader, names: &Names, links: &[(Link, &RawLink)]) -> bool {
    let before = reader.problems.len();
    for (number, (link, raw)) in links.iter().enumerate() {
        let pair = |link: &Link| (link.from.min(link.to), link.from.max(link.to));
        let earlier = links.get(..number).unwrap_or(&[]);
        if let Some((_, first)) = earlier.iter().find(|(first, _)| pair(first) == pair(link)) {
            let (a, b) = (names.of(link.from), names.of(link.to));
            reader.note(
                Diagnostic::new(
                    Code::DoubleLink,
                    raw.from.at.clone(),
                    format!("a second link between `{a}` and `{b}`"),
                )
                .allowed("one link between two ends")
                .fix("remove one of the two; a wider slot is more `lanes`")
                .also(first.from.at.clone(), "first here"),
            );
        } else if let Some((other, first)) =
            earlier.iter().find(|(first, _)| first.to == link.to && !first.between_cards() && !link.between_cards())
        {
            let (end, a, b) = (names.of(link.to), names.of(other.from), names.of(link.from));
            reader.note(
                Diagnostic::new(Code::DoubleLink, raw.to.at.clone(), format!("`{end}` hangs on `{a}` and on `{b}`"))
                    .allowed("one link towards the host for each switch and card")
                    .fix("remove one of the two")
                    .also(first.to.at.clone(), "first here"),
            );
        }
    }
    reader.problems.len() > before
}

fn check_paths(reader: &mut Reader, names: &Names, rig: &RawRig, links: &[Link]) {
    for (card, raw) in (0..).map(CardId).zip(&rig.cards) {
        let above = |end: Place| links.iter().find(|link| link.to == end && !link.between_cards());
        let mut end = Place::Card(card);
        // A way longer than all links together runs in a circle.
        for _ in 0..=links.len() {
            end = above(end).map_or(end, |link| link.from);
        }
        if rank(end) == 0 {
            continue;
        }
        let name = &raw.name.value;
        let (found, fix) = if above(end).is_some() {
            (
                format!("the way from `{name}` to the host runs in a circle through `{}`", names.of(end)),
                "let one of the switches hang on `host`".to_owned(),
            )
        } else if end == Place::Card(card) {
            (
                format!("nothing links `{name}` with the host"),
                format!("add `- {{from: host, to: {name}, generation: 3, lanes: 16}}` to `links`"),
            )
        } else {
            let end = names.of(end);
            (
                format!("the way from `{name}` to the host ends at `{end}`"),
                format!("add `- {{from: host, to: {end}, generation: 3, lanes: 16}}` to `links`"),
            )
        };
        reader.note(
            Diagnostic::new(Code::NoPath, raw.name.at.clone(), found)
                .allowed("a chain of links from `host` or a `numa` node to every card")
                .fix(fix),
        );
    }
}

/// Distance from the host: its memory, switches, cards.
fn rank(place: Place) -> u8 {
    match place {
        Place::Host | Place::Numa(_) => 0,
        Place::Switch(_) => 1,
        Place::Card(_) => 2,
    }
}

fn card_numa(rig: &RawRig, place: Place) -> Option<u32> {
    match place {
        Place::Card(card) => {
            let card = rig.cards.get(usize::try_from(card.0).ok()?)?;
            card.numa.as_ref().map(|node| node.value).filter(|node| (*node as usize) < rig.host.numa.len())
        }
        _ => None,
    }
}
