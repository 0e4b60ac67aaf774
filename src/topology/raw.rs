//! The `rig` part as it is written: syntax, units and ranges are right, names may still lead nowhere.

use std::ops::Range;

use super::amounts::Flops;
use super::diagnose::{Code, Diagnostic};
use super::keys;
use super::reader::{Fields, Reader};
use super::rig::{CardAddress, CardKind};
use super::tree::{At, Item, Shape, clip};
use crate::units::{Bytes, Rate};

pub(super) struct RawRig {
    pub at: Range<usize>,
    pub host: RawHost,
    pub cards: Vec<RawCard>,
    pub switches: Vec<At<String>>,
    /// `None` where the file has no `links` at all; a link that could not be read is `None` in it.
    pub links: Option<Vec<Option<RawLink>>>,
    pub peer: Vec<RawPair>,
}

#[derive(Default)]
pub(super) struct RawHost {
    pub memory: Option<At<Bytes>>,
    pub rate: Option<At<Rate>>,
    pub workers: Option<At<u32>>,
    pub locked: Option<At<Bytes>>,
    pub disk: Option<At<Rate>>,
    pub numa: Vec<RawNuma>,
}

pub(super) struct RawNuma {
    pub at: Range<usize>,
    pub memory: Option<At<Bytes>>,
    pub rate: Option<At<Rate>>,
}

pub(super) struct RawCard {
    pub name: At<String>,
    pub kind: CardKind,
    pub address: Option<At<CardAddress>>,
    /// `None` where the file has none or a wrong one; that is noted already.
    pub memory: Option<At<Bytes>>,
    pub reserve: Option<At<Bytes>>,
    pub rate: Option<At<Rate>>,
    pub compute: Option<At<Flops>>,
    pub numa: Option<At<u32>>,
    pub shared: Option<At<bool>>,
}

pub(super) struct RawLink {
    pub at: Range<usize>,
    pub from: At<String>,
    pub to: At<String>,
    pub generation: Option<At<u32>>,
    pub lanes: Option<At<u32>>,
    pub h2d: Option<At<Rate>>,
    pub d2h: Option<At<Rate>>,
    pub rate: Option<At<Rate>>,
    /// Whether a rate or generation is there, right or wrong: a wrong one is noted already.
    pub has_speed: bool,
}

pub(super) struct RawPair {
    pub at: Range<usize>,
    pub a: At<String>,
    pub b: At<String>,
}

pub(super) fn read_rig(reader: &mut Reader, key_at: Range<usize>, item: &Item) -> RawRig {
    let fields = reader.fields(&keys::RIG, "`rig`", key_at.clone(), item);
    let host =
        fields.get("host").map(|entry| read_host(reader, entry.key.at.clone(), &entry.value)).unwrap_or_default();
    let cards = match fields.get("cards") {
        None => {
            reader.missing(&fields, "cards");
            Vec::new()
        }
        Some(entry) => {
            let named = reader.named("`cards`", "gpu0: {memory: 20 GiB}", &entry.value);
            named.into_iter().map(|card| read_card(reader, &card.key, &card.value)).collect()
        }
    };
    let switches = fields.get("switches").map_or_else(Vec::new, |entry| {
        let items = reader.list("`switches`", "[sw0]", &entry.value);
        items
            .iter()
            .filter_map(|item| reader.item_text("a member of `switches`", "the name of a switch", &item.at, item))
            .collect()
    });
    let links = fields.get("links").map(|entry| {
        let items = reader.list("`links`", "- {from: host, to: gpu0, generation: 3, lanes: 16}", &entry.value);
        items.iter().map(|item| read_link(reader, item)).collect()
    });
    let peer = fields.get("peer").map_or_else(Vec::new, |entry| read_peer(reader, &entry.key.at, &entry.value));
    RawRig { at: key_at, host, cards, switches, links, peer }
}

fn read_host(reader: &mut Reader, key_at: Range<usize>, item: &Item) -> RawHost {
    let fields = reader.fields(&keys::HOST, "`host`", key_at, item);
    let numa = fields.get("numa").map_or_else(Vec::new, |entry| {
        let items = reader.list("`numa`", "- {memory: 64 GiB, rate: 40 GB/s}", &entry.value);
        items
            .iter()
            .enumerate()
            .map(|(node, item)| {
                let fields = reader.fields(&keys::NUMA, format!("node {node} of `numa`"), item.at.clone(), item);
                RawNuma {
                    at: item.at.clone(),
                    memory: reader.amount(&fields, "memory"),
                    rate: reader.amount(&fields, "rate"),
                }
            })
            .collect()
    });
    RawHost {
        memory: reader.amount(&fields, "memory"),
        rate: reader.amount(&fields, "rate"),
        workers: reader.number(&fields, "workers", 1..=1024),
        locked: reader.amount(&fields, "locked"),
        disk: reader.amount(&fields, "disk"),
        numa,
    }
}

fn read_card(reader: &mut Reader, name: &At<String>, item: &Item) -> RawCard {
    let fields = reader.fields(&keys::CARD, format!("card `{}`", clip(&name.value)), name.at.clone(), item);
    let kinds = [("cuda", CardKind::Cuda), ("virtual", CardKind::Virtual), ("sim", CardKind::Sim)];
    let kind = reader.choice(&fields, "kind", &kinds).map_or(CardKind::Cuda, |kind| kind.value);
    if fields.get("memory").is_none() {
        reader.missing(&fields, "memory");
    }
    RawCard {
        name: name.clone(),
        kind,
        address: read_address(reader, &fields, kind),
        memory: reader.amount(&fields, "memory"),
        reserve: reader.amount(&fields, "reserve"),
        rate: reader.amount(&fields, "rate"),
        compute: reader.amount(&fields, "compute"),
        numa: reader.number(&fields, "numa", 0..=63),
        shared: reader.choice(&fields, "shared", &[("true", true), ("false", false)]),
    }
}

fn read_address(reader: &mut Reader, fields: &Fields<'_>, kind: CardKind) -> Option<At<CardAddress>> {
    let mut given = ["uuid", "pci", "index"].into_iter().filter_map(|key| Some((key, fields.get(key)?)));
    let (first_key, first) = given.next()?;
    for (key, other) in given {
        reader.note(
            Diagnostic::new(
                Code::Contradiction,
                other.key.at.clone(),
                format!("{} has both `{first_key}` and `{key}`", fields.what),
            )
            .allowed("one of uuid, pci, index")
            .fix(format!("keep `{first_key}` and remove `{key}`"))
            .also(first.key.at.clone(), "first here"),
        );
    }
    if kind != CardKind::Cuda {
        reader.note(
            Diagnostic::new(
                Code::Contradiction,
                first.key.at.clone(),
                format!("{} is no GPU but has `{first_key}`", fields.what),
            )
            .allowed("uuid, pci or index for cards of kind `cuda` only")
            .fix(format!("remove `{first_key}`, or write `kind: cuda`")),
        );
        return None;
    }
    if first_key == "index" {
        let index = reader.number(fields, "index", 0..=255)?;
        return Some(At { value: CardAddress::Index(index.value), at: index.at });
    }
    let text = reader.text(fields, first_key)?;
    let (address, allowed, fix) = if first_key == "uuid" {
        (
            uuid(&text.value),
            "`GPU-` or `MIG-` and the 36 characters of a UUID",
            "copy it from the output of `nvidia-smi -L`",
        )
    } else {
        (
            pci(&text.value),
            "`domain:bus:device.function` in hexadecimal, such as `0000:01:00.0`",
            "copy it from the output of `nvidia-smi` or `lspci -D`",
        )
    };
    if address.is_none() {
        let found = format!("`{first_key}` of {} is `{}`", fields.what, clip(&text.value));
        reader.note(Diagnostic::new(Code::WrongValue, text.at.clone(), found).allowed(allowed).fix(fix));
    }
    Some(At { value: address?, at: text.at })
}

impl std::str::FromStr for CardAddress {
    type Err = String;

    /// An index, a UUID or a PCI address.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let index = text.parse().ok().map(Self::Index);
        let address = index.or_else(|| uuid(text)).or_else(|| pci(text));
        address.ok_or_else(|| {
            format!("`{text}` is neither an index, nor a UUID (GPU-...), nor a PCI address (0000:01:00.0)")
        })
    }
}

/// Takes letters of either case, and gives them as the driver prints them.
fn uuid(text: &str) -> Option<CardAddress> {
    let (kind, digits) = text.split_once('-')?;
    let kind = ["GPU", "MIG"].into_iter().find(|known| known.eq_ignore_ascii_case(kind))?;
    let groups: Vec<&str> = digits.split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    let hexadecimal = groups.iter().all(|group| group.bytes().all(|byte| byte.is_ascii_hexdigit()));
    (lengths == [8, 4, 4, 4, 12] && hexadecimal)
        .then(|| CardAddress::Uuid(format!("{kind}-{}", digits.to_ascii_lowercase())))
}

/// Takes the domain with four or eight digits, or without: tools print all three.
fn pci(text: &str) -> Option<CardAddress> {
    let (front, function) = text.rsplit_once('.')?;
    let mut parts = front.rsplit(':');
    let (device, bus, domain) = (parts.next()?, parts.next()?, parts.next().unwrap_or("0000"));
    let hex = |text: &str, lengths: &[usize]| {
        let all = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        (lengths.contains(&text.len()) && all).then(|| u32::from_str_radix(text, 16).ok()).flatten()
    };
    let (domain, bus) = (hex(domain, &[4, 8])?, hex(bus, &[2])?);
    let (device, function) = (hex(device, &[2])?, hex(function, &[1])?);
    let rest = parts.next().is_none() && device < 32 && function < 8;
    rest.then(|| CardAddress::Pci(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}")))
}

fn read_link(reader: &mut Reader, item: &Item) -> Option<RawLink> {
    let fields = reader.fields(&keys::LINK, "a link", item.at.clone(), item);
    if !matches!(item.shape, Shape::Map(_)) {
        if matches!(item.shape, Shape::Empty) {
            reader.missing(&fields, "from");
        }
        return None;
    }
    for end in ["from", "to"] {
        if fields.get(end).is_none() {
            reader.missing(&fields, end);
        }
    }
    let (from, to) = (reader.text(&fields, "from"), reader.text(&fields, "to"));
    let lanes = reader.number(&fields, "lanes", 1..=16);
    if let Some(wrong) = lanes.as_ref().filter(|lanes| !lanes.value.is_power_of_two()) {
        reader.note(
            Diagnostic::new(Code::OutOfRange, wrong.at.clone(), format!("`lanes` of a link is `{}`", wrong.value))
                .allowed("1, 2, 4, 8 or 16")
                .fix("write the width that `lspci -vv` shows as `LnkSta: ... Width`"),
        );
    }
    let link = RawLink {
        at: item.at.clone(),
        generation: reader.number(&fields, "generation", 1..=6),
        lanes: lanes.filter(|lanes| lanes.value.is_power_of_two()),
        h2d: reader.amount(&fields, "h2d"),
        d2h: reader.amount(&fields, "d2h"),
        rate: reader.amount(&fields, "rate"),
        has_speed: ["generation", "h2d", "d2h", "rate"].iter().any(|key| fields.get(key).is_some()),
        from: from?,
        to: to?,
    };
    Some(link)
}

fn read_peer(reader: &mut Reader, key_at: &Range<usize>, item: &Item) -> Vec<RawPair> {
    const ALLOWED: &str = "`false`, or a list of pairs of cards, such as `[[gpu0, gpu1]]`";
    let wrong = |reader: &mut Reader, at: Range<usize>, found: String| {
        reader.note(
            Diagnostic::new(Code::WrongValue, at, found)
                .allowed(ALLOWED)
                .fix("write `false`, or name the pairs: `[[gpu0, gpu1]]`"),
        );
    };
    let items = match &item.shape {
        Shape::Text(text) if text == "false" || text == "off" => return Vec::new(),
        Shape::List(items) => items,
        Shape::Empty => {
            wrong(reader, key_at.clone(), "`peer` is nothing".to_owned());
            return Vec::new();
        }
        Shape::Text(_) | Shape::Map(_) => {
            wrong(reader, item.at.clone(), format!("`peer` is {}", item.describe()));
            return Vec::new();
        }
    };
    let mut pairs = Vec::new();
    for pair in items {
        let members = match &pair.shape {
            Shape::List(members) => members.as_slice(),
            _ => &[],
        };
        let names: Vec<At<String>> = members
            .iter()
            .filter_map(|member| match &member.shape {
                Shape::Text(name) => Some(At { value: name.clone(), at: member.at.clone() }),
                _ => None,
            })
            .collect();
        match <[At<String>; 2]>::try_from(names) {
            Ok([a, b]) if members.len() == 2 => pairs.push(RawPair { at: pair.at.clone(), a, b }),
            _ => wrong(reader, pair.at.clone(), format!("a member of `peer` is {}", not_a_pair(pair))),
        }
    }
    pairs
}

fn not_a_pair(item: &Item) -> String {
    match &item.shape {
        Shape::List(members) => format!("a list of {}", members.len()),
        _ => item.describe(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_taken_as_tools_print_them() {
        let normal = Some(CardAddress::Pci("0000:0a:00.0".to_owned()));
        for text in ["0000:0a:00.0", "00000000:0A:00.0", "0a:00.0"] {
            assert_eq!(pci(text), normal, "{text}");
        }
        for text in ["", "0a:00", "0a:20.0", "0a:00.8", "1:0000:0a:00.0", "000:0a:00.0", "0g:00.0", "0a:00.00"] {
            assert_eq!(pci(text), None, "{text}");
        }
    }

    #[test]
    fn uuids_are_whole() {
        let whole = "GPU-5ac5cbb1-1b42-4d2a-9f0a-0123456789ab";
        assert_eq!(uuid(whole), Some(CardAddress::Uuid(whole.to_owned())));
        assert_eq!(uuid(&whole.to_lowercase()), uuid(whole));
        assert_eq!(uuid(&whole.to_uppercase()), uuid(whole));
        assert_eq!(uuid(&whole.replace("GPU", "mig")), Some(CardAddress::Uuid(whole.replace("GPU", "MIG"))));
        for text in ["GPU-5ac5cbb1", "5ac5cbb1-1b42-4d2a-9f0a-0123456789ab", "GPU-xac5cbb1-1b42-4d2a-9f0a-0123456789ab"]
        {
            assert_eq!(uuid(text), None, "{text}");
        }
    }
}
