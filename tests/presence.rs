//! Declared GPUs and those that are there: what is kept, what becomes virtual, what is refused and how it is said.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use aqueduct::card::cuda::CudaDevice;
use aqueduct::engine::{Presence, Present};
use aqueduct::topology::{CardAddress, CardKind, HostFacts, Topology};
use aqueduct::units::Bytes;

const FACTS: HostFacts = HostFacts { memory: Bytes(8 << 30), workers: 2 };

fn uuid(number: usize) -> String {
    format!("GPU-00000000-0000-0000-0000-{number:012}")
}

fn devices(count: usize) -> Vec<CudaDevice> {
    let device = |ordinal| CudaDevice {
        ordinal,
        name: "NVIDIA Test".to_owned(),
        uuid: uuid(ordinal),
        pci: format!("0000:{ordinal:02x}:00.0"),
        arch: 86,
        memory: Bytes(24 << 30),
        processors: 82,
        shared: 101_376,
    };
    (0..count).map(device).collect()
}

fn topology(cards: &[&str]) -> Topology {
    let cards: String =
        cards.iter().enumerate().map(|(i, card)| format!("    c{i}: {{{card}, memory: {} GiB}}\n", 4 + i)).collect();
    Topology::parse("test.yaml", &format!("rig:\n  cards:\n{cards}"), FACTS).unwrap()
}

fn among(cards: &[&str], count: usize, presence: &Presence) -> Result<Present, String> {
    presence.among(&topology(cards), devices(count)).map_err(|error| error.to_string())
}

fn named(list: &[&str]) -> Presence {
    Presence { devices: Some(list.iter().map(|text| text.parse().unwrap()).collect()), strict: false }
}

/// Name, kind and driver's number of each card.
fn kept(present: &Present) -> Vec<(String, CardKind, Option<u32>)> {
    let index = |address: &CardAddress| match address {
        CardAddress::Index(index) => *index,
        other => panic!("{other:?} was not looked up"),
    };
    let cards = present.topology.cards().iter();
    cards.map(|card| (card.name.clone(), card.kind, card.address.as_ref().map(index))).collect()
}

fn cuda(name: &str, ordinal: u32) -> (String, CardKind, Option<u32>) {
    (name.to_owned(), CardKind::Cuda, Some(ordinal))
}

#[test]
fn cards_are_found_by_index_uuid_and_pci_address() {
    let cards = [format!("uuid: {}", uuid(2)), "pci: \"01:00.0\"".to_owned(), "index: 0".to_owned()];
    let cards: Vec<&str> = cards.iter().map(String::as_str).collect();
    let present = among(&cards, 3, &Presence::default()).unwrap();
    assert_eq!(kept(&present), [cuda("c0", 2), cuda("c1", 1), cuda("c2", 0)]);
    assert_eq!(present.note, None);
}

#[test]
fn fewer_cards_than_declared_are_enough_unless_all_are_asked_for() {
    let cards = ["index: 0", "index: 1"];
    let present = among(&cards, 1, &Presence::default()).unwrap();
    assert_eq!(kept(&present), [cuda("c0", 0)]);
    let note = present.note.unwrap();
    assert!(note.starts_with("c1 is not present") && !note.contains('\n'), "{note}");
    let gone = [&format!("uuid: {}", uuid(7))[..], "pci: \"00:00.0\""];
    assert_eq!(kept(&among(&gone, 1, &Presence::default()).unwrap()), [cuda("c1", 0)]);
    let strict = Presence { strict: true, ..Presence::default() };
    let error = among(&cards, 1, &strict).unwrap_err();
    assert!(error.contains("no GPU for c1 (index 1)") && error.contains(&uuid(0)), "{error}");
    assert!(among(&cards, 2, &strict).is_ok());
}

#[test]
fn without_a_gpu_the_cpu_computes_with_the_same_budgets() {
    let cards = ["index: 0", "kind: virtual", "index: 1"];
    let present = among(&cards, 0, &Presence::default()).unwrap();
    assert!(present.topology.cards().iter().all(|card| card.kind == CardKind::Virtual && card.address.is_none()));
    let declared: Vec<_> = topology(&cards).cards().iter().map(|card| card.usable()).collect();
    let planned: Vec<_> = present.topology.cards().iter().map(|card| card.usable()).collect();
    assert_eq!(planned, declared);
    assert_eq!(present.note.unwrap(), "no NVIDIA GPU is present: the CPU computes for c0, c2");
    let error = among(&cards, 0, &Presence { strict: true, ..Presence::default() }).unwrap_err();
    assert!(error.contains("--strict"), "{error}");
    assert_eq!(among(&["kind: virtual"], 0, &Presence::default()).unwrap().note, None);
    assert!(among(&cards, 2, &named(&[])).unwrap().note.is_some(), "no GPU may be used");
}

#[test]
fn named_devices_are_the_only_ones_and_count_from_zero() {
    let present = among(&["index: 0"], 3, &named(&["2"])).unwrap();
    assert_eq!(kept(&present), [cuda("c0", 2)]);
    let present = among(&["index: 0", "index: 1"], 3, &named(&[&uuid(1), "0000:00:00.0"])).unwrap();
    assert_eq!(kept(&present), [cuda("c0", 1), cuda("c1", 0)]);
    for (list, wanted) in
        [(&["5"][..], "no GPU index 5"), (&["0000:0f:00.0"], "no GPU 0000:0f:00.0"), (&["1", "1"], "twice")]
    {
        let error = among(&["index: 0"], 2, &named(list)).unwrap_err();
        assert!(error.contains(wanted), "{error}");
        assert!(wanted == "twice" || error.contains("1: NVIDIA Test"), "{error}");
    }
    assert!("GPU-12".parse::<CardAddress>().unwrap_err().contains("GPU-12"));
}

#[test]
fn wrong_addresses_are_told_with_what_is_there() {
    for card in [format!("uuid: {}", uuid(9)), "pci: \"0000:09:00.0\"".to_owned(), "index: 9".to_owned()] {
        let error = among(&[&card], 1, &Presence::default()).unwrap_err();
        assert!(error.contains("no GPU for c0") && error.contains("Present: 0: NVIDIA Test"), "{error}");
    }
    let error = among(&[&format!("uuid: {}", uuid(0)), "pci: \"00:00.0\""], 2, &Presence::default()).unwrap_err();
    assert!(error.contains("c0 and c1 are the same GPU"), "{error}");
}
