//! Which of the declared cards are there: GPUs are looked up, and a topology is cut down to what the machine has.

use std::fmt::Write as _;

use super::EngineError;
use crate::card::cuda::{CudaDevice, probe};
use crate::topology::{CardAddress, CardKind, CardSpec, Topology};

/// Which GPUs may be used, and whether all declared ones must be there.
#[derive(Clone, Debug, Default)]
pub struct Presence {
    /// The GPUs that exist for the topology, counted from 0 in this order; `None` for all that the driver shows.
    pub devices: Option<Vec<CardAddress>>,
    /// Refuses a machine that lacks a declared GPU.
    pub strict: bool,
}

/// A topology of cards that are there, and what is not as declared, in one line.
#[derive(Clone, Debug)]
pub struct Present {
    /// The declared topology, or less.
    pub topology: Topology,
    /// What was changed and why.
    pub note: Option<String>,
}

impl Presence {
    /// Asks the driver for its GPUs and cuts the topology down to them. Asks nothing for a topology without GPUs.
    ///
    /// # Errors
    /// As [`Presence::among`]; also when the driver does not answer.
    pub fn of(&self, declared: &Topology) -> Result<Present, EngineError> {
        let devices = if gpus(declared).next().is_some() { probe().map_err(refused)? } else { Vec::new() };
        self.among(declared, devices)
    }

    /// The declared cards that are among `devices`, each with the driver's number of its GPU. GPUs that are missing
    /// because the machine has fewer than declared are left out; without any GPU at all their cards become virtual
    /// ones with the same memory.
    ///
    /// # Errors
    /// [`EngineError::Devices`] when an address is wrong, or a GPU is missing and must not be.
    pub fn among(&self, declared: &Topology, devices: Vec<CudaDevice>) -> Result<Present, EngineError> {
        let mut topology = declared.clone();
        let wanted = gpus(declared).count();
        if wanted == 0 {
            return Ok(Present { topology, note: None });
        }
        let devices = self.allowed(devices)?;
        if devices.is_empty() {
            if self.strict {
                return Err(refused("no NVIDIA GPU is present, and --strict asks for all that the topology declares"));
            }
            for card in topology.cards_mut().iter_mut().filter(|card| card.kind == CardKind::Cuda) {
                (card.kind, card.address) = (CardKind::Virtual, None);
            }
            let note = format!("no NVIDIA GPU is present: the CPU computes for {}", list(gpus(declared)));
            return Ok(Present { topology, note: Some(note) });
        }
        let mut missing = Vec::new();
        for card in topology.cards_mut().iter_mut().filter(|card| card.kind == CardKind::Cuda) {
            match card.address.as_ref().and_then(|address| find(&devices, address)) {
                Some(device) => card.address = Some(CardAddress::Index(device.ordinal as u32)),
                None => missing.push(card.clone()),
            }
        }
        check_twice(&topology, &missing)?;
        if missing.is_empty() {
            return Ok(Present { topology, note: None });
        }
        if self.strict || devices.len() >= wanted || missing.len() == topology.cards().len() {
            let addresses = missing.iter().filter_map(|card| Some((card, card.address.as_ref()?)));
            let addresses: Vec<String> = addresses.map(|(card, at)| format!("{} ({})", card.name, say(at))).collect();
            return Err(refused(format!("no GPU for {}. Present: {}", addresses.join(", "), told(&devices))));
        }
        let note = format!("{} is not present: planned without it; present: {}", list(missing.iter()), told(&devices));
        let kept: Vec<_> = topology.cards().iter().map(|card| card.id).collect();
        let kept: Vec<_> = kept.into_iter().filter(|id| missing.iter().all(|card| card.id != *id)).collect();
        Ok(Present { topology: topology.keep_cards(&kept), note: Some(note) })
    }

    /// The devices that may be used, in their order.
    fn allowed(&self, devices: Vec<CudaDevice>) -> Result<Vec<CudaDevice>, EngineError> {
        let Some(wanted) = &self.devices else { return Ok(devices) };
        let mut allowed: Vec<CudaDevice> = Vec::with_capacity(wanted.len());
        for address in wanted {
            let device = find(&devices, address)
                .ok_or_else(|| refused(format!("there is no GPU {}. Present: {}", say(address), told(&devices))))?;
            if allowed.contains(device) {
                return Err(refused(format!("GPU {} is named twice", say(address))));
            }
            allowed.push(device.clone());
        }
        Ok(allowed)
    }
}

fn refused(reason: impl ToString) -> EngineError {
    EngineError::Devices(reason.to_string())
}

fn gpus(topology: &Topology) -> impl Iterator<Item = &CardSpec> {
    topology.cards().iter().filter(|card| card.kind == CardKind::Cuda)
}

/// The device at an address; an index counts in the list.
fn find<'d>(devices: &'d [CudaDevice], address: &CardAddress) -> Option<&'d CudaDevice> {
    match address {
        CardAddress::Index(index) => devices.get(*index as usize),
        CardAddress::Uuid(uuid) => devices.iter().find(|device| device.uuid.eq_ignore_ascii_case(uuid)),
        CardAddress::Pci(pci) => devices.iter().find(|device| device.pci.eq_ignore_ascii_case(pci)),
    }
}

/// A topology may give one GPU to two cards in two ways of naming it, which only the machine shows.
fn check_twice(topology: &Topology, missing: &[CardSpec]) -> Result<(), EngineError> {
    let found: Vec<&CardSpec> = gpus(topology).filter(|card| missing.iter().all(|gone| gone.id != card.id)).collect();
    for (i, card) in found.iter().enumerate() {
        if let Some(other) =
            found.iter().skip(i + 1).find(|other| other.address == card.address && !(card.shared && other.shared))
        {
            return Err(refused(format!(
                "{} and {} are the same GPU (for tests, `shared: true` at both allows it)",
                card.name, other.name
            )));
        }
    }
    Ok(())
}

fn say(address: &CardAddress) -> String {
    match address {
        CardAddress::Index(index) => format!("index {index}"),
        CardAddress::Uuid(text) | CardAddress::Pci(text) => text.clone(),
    }
}

fn list<'c>(cards: impl Iterator<Item = &'c CardSpec>) -> String {
    cards.map(|card| card.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn told(devices: &[CudaDevice]) -> String {
    if devices.is_empty() {
        return "none".to_owned();
    }
    let mut text = String::new();
    for (index, device) in devices.iter().enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        let _ = write!(text, "{comma}{index}: {} ({}, {})", device.name, device.uuid, device.pci);
    }
    text
}
