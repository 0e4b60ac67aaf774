//! The validated `rig` part: host, cards and links, with what holds where a file says nothing.

use serde::Serialize;

use super::amounts::Flops;
use crate::units::{Bytes, CardId, Rate};

/// What holds where a file says nothing about the rig. The `run` part has [`super::RunSettings::default`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RigDefaults {
    /// What the host's memory delivers: low for today's machines, so that a plan promises too little rather than too
    /// much.
    pub host_rate: Rate,
    /// How fast a file is read: half of what a plain NVMe disk gives, twice what a SATA disk does.
    pub disk: Rate,
    /// Memory left to the driver and to other programs on a `cuda` or `sim` card.
    pub reserve: Bytes,
    /// PCIe generation of a card's link when the file has no `links`.
    pub generation: u8,
    /// PCIe lanes where a link has none, and of a card's link when the file has no `links`.
    pub lanes: u8,
    /// Share of a PCIe link's raw rate that large copies reach.
    pub pcie_share: f64,
}

impl Default for RigDefaults {
    fn default() -> Self {
        Self {
            host_rate: Rate(20e9),
            disk: Rate(1e9),
            reserve: Bytes(512 << 20),
            generation: 3,
            lanes: 16,
            pcie_share: 0.8,
        }
    }
}

/// The host: its memory and its CPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Host {
    /// Memory that may be used.
    pub memory: Bytes,
    /// What the memory delivers when all cores and links read at once.
    pub rate: Rate,
    /// CPU threads that compute.
    pub workers: u32,
    /// How much memory may be page-locked; `None` is no limit.
    pub locked: Option<Bytes>,
    /// How fast the model's file is read.
    pub disk: Rate,
    /// Whether virtual cards take their memory from the host's: where no file declares how much they have.
    pub shared: bool,
    /// Memory nodes where there are several, else empty.
    pub numa: Vec<NumaNode>,
}

/// A memory node of the host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct NumaNode {
    /// Its memory.
    pub memory: Bytes,
    /// Its read rate.
    pub rate: Rate,
}

/// What computes on a card's behalf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CardKind {
    /// An NVIDIA GPU.
    Cuda,
    /// Host threads, which really compute.
    Virtual,
    /// Nothing: only a modelled clock advances.
    Sim,
}

/// Which GPU a `cuda` card is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CardAddress {
    /// The driver's number, which may change between boots.
    Index(u32),
    /// `GPU-...` or `MIG-...`, as the driver prints it.
    Uuid(String),
    /// `domain:bus:device.function` in lower-case hexadecimal, four digits of domain.
    Pci(String),
}

/// A declared card.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CardSpec {
    /// Its place in the rig.
    pub id: CardId,
    /// Its name in the file.
    pub name: String,
    /// What computes.
    pub kind: CardKind,
    /// Which GPU it is; `Some` for `cuda` cards only.
    pub address: Option<CardAddress>,
    /// Memory that may be used, the reserve included.
    pub memory: Bytes,
    /// Memory left to the driver and to other programs.
    pub reserve: Bytes,
    /// Read rate of its memory, where declared.
    pub rate: Option<Rate>,
    /// Operations a second that prompts reach on it, where declared.
    pub compute: Option<Flops>,
    /// Whether other cards that say the same may be on its GPU, for tests.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// What its way to the host carries while nothing else is copied.
    pub link: LinkRates,
}

impl CardSpec {
    /// Memory that a plan may fill: all but the reserve.
    pub fn usable(&self) -> Bytes {
        Bytes(self.memory.0.saturating_sub(self.reserve.0))
    }
}

/// Rates between the host and a card.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LinkRates {
    /// Host to card.
    pub h2d: Rate,
    /// Card to host.
    pub d2h: Rate,
}

/// A node of the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// The host: its memory as a whole and its PCIe root.
    Host,
    /// One of the host's memory nodes.
    Numa(u32),
    /// A PCIe switch, counted in the order of the file.
    Switch(u32),
    /// A card.
    Card(CardId),
}

/// A declared link. `from` is the end nearer to the host, or either end of a link between two cards.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Link {
    /// The end nearer to the host.
    pub from: Place,
    /// The other end.
    pub to: Place,
    /// PCIe generation, where declared.
    pub generation: Option<u8>,
    /// PCIe lanes.
    pub lanes: u8,
    /// Measured rate from `from` to `to`.
    pub h2d: Option<Rate>,
    /// Measured rate from `to` to `from`.
    pub d2h: Option<Rate>,
}

impl Link {
    /// Rate away from the host: measured, or else what its PCIe generation and lanes usually reach, or else as the
    /// other way.
    pub fn down(&self) -> Rate {
        self.h2d.or_else(|| self.estimate()).or(self.d2h).unwrap_or(Rate(0.0))
    }

    /// Rate towards the host, found the same way.
    pub fn up(&self) -> Rate {
        self.d2h.or_else(|| self.estimate()).or(self.h2d).unwrap_or(Rate(0.0))
    }

    /// Whether the link is between two cards.
    pub fn between_cards(&self) -> bool {
        matches!((self.from, self.to), (Place::Card(_), Place::Card(_)))
    }

    fn estimate(&self) -> Option<Rate> {
        let raw = pcie_rate(self.generation?, self.lanes);
        Some(Rate(raw.0 * RigDefaults::default().pcie_share))
    }
}

/// What a PCIe link carries one way after its line code and before packet headers, in bytes per second.
pub fn pcie_rate(generation: u8, lanes: u8) -> Rate {
    // Transfers a second times the share that is data: 8b/10b, then 128b/130b, then 242 of 256 bytes of a flit.
    let lane = match generation {
        0 | 1 => 2.5e9 * 0.8,
        2 => 5e9 * 0.8,
        3 => 8e9 * 128.0 / 130.0,
        4 => 16e9 * 128.0 / 130.0,
        5 => 32e9 * 128.0 / 130.0,
        _ => 64e9 * 242.0 / 256.0,
    };
    Rate(lane / 8.0 * f64::from(lanes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pcie_rates_are_those_of_the_standard() {
        let giga = |generation, lanes| (pcie_rate(generation, lanes).0 / 1e7).round() / 100.0;
        assert_eq!(giga(1, 1), 0.25);
        assert_eq!(giga(3, 16), 15.75);
        assert_eq!(giga(4, 4), 7.88);
        assert_eq!(giga(5, 16), 63.02);
        assert_eq!(giga(6, 16), 121.0);
    }

    #[test]
    fn a_measured_rate_goes_before_an_estimate() {
        let link = Link {
            from: Place::Host,
            to: Place::Card(CardId(0)),
            generation: Some(3),
            lanes: 16,
            h2d: Some(Rate(12.1e9)),
            d2h: None,
        };
        assert_eq!(link.down(), Rate(12.1e9));
        assert_eq!(link.up().to_string(), "12.6 GB/s");
        assert_eq!(Link { generation: None, ..link }.up(), Rate(12.1e9));
    }
}
