//! A topology back to YAML, every default written out: for reading what holds, and for keeping it.

use std::fmt::Write as _;
use std::str::FromStr;

use super::rig::{CardAddress, CardKind, CardSpec, Link, Place};
use super::settings::{HandOff, ResidentCells, Ring, Share, Staging, Switch, Wave};
use super::{Flops, RunSettings, Topology};
use crate::ops::KvType;
use crate::units::{Bytes, Rate};

impl Topology {
    /// The file that declares exactly this topology, with everything that was left out filled in.
    pub fn to_yaml(&self) -> String {
        let mut text = "rig:\n  host:\n".to_owned();
        let mut line = |indent: usize, content: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{:indent$}{content}", "");
        };
        let host = &self.host;
        line(4, format!("memory: {}", bytes(host.memory)));
        line(4, format!("rate: {}", rate(host.rate)));
        line(4, format!("workers: {}", host.workers));
        if let Some(locked) = host.locked {
            line(4, format!("locked: {}", bytes(locked)));
        }
        line(4, format!("disk: {}", rate(host.disk)));
        if !host.numa.is_empty() {
            line(4, "numa:".to_owned());
        }
        for node in &host.numa {
            line(6, format!("- {{memory: {}, rate: {}}}", bytes(node.memory), rate(node.rate)));
        }
        line(2, "cards:".to_owned());
        for card in &self.cards {
            line(4, format!("{}:", card.name));
            card_lines(card).into_iter().for_each(|content| line(6, content));
        }
        if !self.switches.is_empty() {
            line(2, format!("switches: [{}]", self.switches.join(", ")));
        }
        line(2, "links:".to_owned());
        for link in &self.links {
            line(
                4,
                format!("- {{from: {}, to: {}{}}}", self.place_name(link.from), self.place_name(link.to), speed(link)),
            );
        }
        let pairs: Vec<String> = self
            .peer
            .iter()
            .map(|(a, b)| format!("[{}, {}]", self.place_name(Place::Card(*a)), self.place_name(Place::Card(*b))))
            .collect();
        line(2, if pairs.is_empty() { "peer: false".to_owned() } else { format!("peer: [{}]", pairs.join(", ")) });
        line(0, "run:".to_owned());
        self.run_lines().into_iter().for_each(|content| line(2, content));
        text
    }

    fn run_lines(&self) -> Vec<String> {
        let RunSettings { context, sequences, kv, prompt, hand_off, pins, throttle } = &self.run;
        let mut lines = vec![
            format!("context: {context}"),
            format!("sequences: {sequences}"),
            "kv:".to_owned(),
            format!("  type: {}", kv_word(kv.kind)),
            format!("  resident_cells: {}", cells_word(kv.resident_cells)),
            format!("  staging: {}", staging_word(kv.staging)),
            format!("  prefetch: {}", switch_word(kv.prefetch)),
            format!("  host_share: {}", share_word(kv.host_share)),
            "prompt:".to_owned(),
            format!("  routed_stream: {}", switch_word(prompt.routed_stream)),
            format!("  depth: {}", prompt.depth),
            format!("  floor: {}", prompt.floor),
            format!("  ring: {}", ring_word(prompt.ring)),
            format!("  wave: {}", wave_word(prompt.wave)),
            format!("  host_pool: {}", switch_word(prompt.host_pool.into())),
            format!("hand_off: {}", hand_off_word(*hand_off)),
            format!("throttle: {}", switch_word((*throttle).into())),
        ];
        if !pins.layers.is_empty() || !pins.experts.is_empty() {
            lines.push("pins:".to_owned());
        }
        if !pins.layers.is_empty() {
            lines.push("  layers:".to_owned());
        }
        for pin in &pins.layers {
            let last = pin.last.map_or_else(String::new, |last| last.to_string());
            lines.push(format!("    {}: {}-{last}", self.place_name(Place::Card(pin.card)), pin.first));
        }
        if !pins.experts.is_empty() {
            lines.push("  experts:".to_owned());
        }
        for pin in &pins.experts {
            lines.push(format!("    {}: {}", self.place_name(Place::Card(pin.card)), pin.slots));
        }
        lines
    }
}

fn card_lines(card: &CardSpec) -> Vec<String> {
    let kind = match card.kind {
        CardKind::Cuda => "cuda",
        CardKind::Virtual => "virtual",
        CardKind::Sim => "sim",
    };
    let mut lines = vec![format!("kind: {kind}")];
    match &card.address {
        Some(CardAddress::Index(index)) => lines.push(format!("index: {index}")),
        Some(CardAddress::Uuid(uuid)) => lines.push(format!("uuid: {uuid}")),
        Some(CardAddress::Pci(pci)) => lines.push(format!("pci: {pci}")),
        None => {}
    }
    lines.push(format!("memory: {}", bytes(card.memory)));
    lines.push(format!("reserve: {}", bytes(card.reserve)));
    lines.extend(card.rate.map(|memory| format!("rate: {}", rate(memory))));
    lines.extend(card.compute.map(|compute| format!("compute: {}", flops(compute))));
    lines
}

fn speed(link: &Link) -> String {
    if link.between_cards() {
        return format!(", rate: {}", rate(link.down()));
    }
    let mut text = String::new();
    if let Some(generation) = link.generation {
        text += &format!(", generation: {generation}");
    }
    text += &format!(", lanes: {}", link.lanes);
    for (key, measured) in [("h2d", link.h2d), ("d2h", link.d2h)] {
        if let Some(measured) = measured {
            text += &format!(", {key}: {}", rate(measured));
        }
    }
    text
}

/// The shortest of several spellings that parses back to the same amount.
fn exact<A: FromStr + PartialEq>(amount: &A, spellings: impl IntoIterator<Item = String>, last: String) -> String {
    spellings.into_iter().find(|text| text.parse::<A>().is_ok_and(|parsed| parsed == *amount)).unwrap_or(last)
}

fn bytes(amount: Bytes) -> String {
    let n = amount.0;
    let units = [("GiB", 1u64 << 30), ("GB", 1_000_000_000), ("MiB", 1 << 20), ("MB", 1_000_000), ("KiB", 1 << 10)];
    let whole = units.into_iter().filter(|(_, unit)| n > 0 && n.is_multiple_of(*unit));
    exact(&amount, whole.map(|(name, unit)| format!("{} {name}", n / unit)), format!("{n} B"))
}

fn rate(amount: Rate) -> String {
    exact(
        &amount,
        [format!("{} GB/s", amount.0 / 1e9), format!("{} MB/s", amount.0 / 1e6)],
        format!("{} B/s", amount.0),
    )
}

fn flops(amount: Flops) -> String {
    let spellings = [format!("{} TFLOP/s", amount.0 / 1e12), format!("{} GFLOP/s", amount.0 / 1e9)];
    exact(&amount, spellings, format!("{} PFLOP/s", amount.0 / 1e15))
}

fn switch_word(switch: Switch) -> &'static str {
    match switch {
        Switch::Off => "off",
        Switch::On => "on",
        Switch::Auto => "auto",
    }
}

fn kv_word(kind: KvType) -> &'static str {
    match kind {
        KvType::F32 => "f32",
        KvType::F16 => "f16",
        KvType::Int8 => "int8",
    }
}

fn cells_word(cells: ResidentCells) -> String {
    match cells {
        ResidentCells::All => "all".to_owned(),
        ResidentCells::First(cells) => cells.to_string(),
    }
}

fn staging_word(staging: Staging) -> String {
    match staging {
        Staging::Auto => "auto".to_owned(),
        Staging::Cells(cells) => cells.to_string(),
    }
}

fn share_word(share: Share) -> String {
    match share {
        Share::Auto => "auto".to_owned(),
        Share::Percent(percent) => format!("{percent}%"),
    }
}

fn ring_word(ring: Ring) -> String {
    match ring {
        Ring::Auto => "auto".to_owned(),
        Ring::Slots(slots) => slots.to_string(),
        Ring::Bytes(amount) => bytes(amount),
    }
}

fn wave_word(wave: Wave) -> String {
    match wave {
        Wave::Auto => "auto".to_owned(),
        Wave::Tokens(tokens) => tokens.to_string(),
    }
}

fn hand_off_word(hand_off: HandOff) -> &'static str {
    match hand_off {
        HandOff::Auto => "auto",
        HandOff::Host => "host",
        HandOff::Peer => "peer",
        HandOff::Nccl => "nccl",
    }
}
