//! Topology files: the ready ones load, mistakes are all told with their places, links share their capacities fairly.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use aqueduct::files::InputError;
use aqueduct::ops::KvType;
use aqueduct::topology::{
    CardAddress, CardKind, Code, Flow, HandOff, HostFacts, Links, Place, Problems, ResidentCells, Ring, RunSettings,
    Share, Switch, Topology, TopologyError, Wave, keys,
};
use aqueduct::units::{Bytes, CardId, Rate};
use proptest::prelude::*;

const FACTS: HostFacts = HostFacts { memory: Bytes(64 << 30), workers: 8 };

fn repo(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn parse(text: &str) -> Result<Topology, Problems> {
    Topology::parse("rig.yaml", text, FACTS)
}

fn ready_files() -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = fs_err::read_dir(repo("topology"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs_err::read_to_string(&path).unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn every_ready_file_loads_and_says_what_it_is() {
    let files = ready_files();
    assert!(files.len() >= 12, "{} files", files.len());
    for (name, text) in &files {
        let topology = Topology::load(&repo("topology").join(name)).unwrap_or_else(|error| panic!("{error}"));
        assert!(text.starts_with("# "), "{name} begins with a comment");
        let cards = topology.cards();
        assert!(cards.iter().all(|card| card.link.h2d.0 > 0.0 && card.link.d2h.0 > 0.0), "{name}");
        println!("{name}: {} cards, {}", cards.len(), topology.host.memory);
    }
}

#[test]
fn a_topology_written_out_reads_back_the_same() {
    for (name, text) in ready_files().into_iter().chain([("everything".to_owned(), EVERYTHING.to_owned())]) {
        let topology = parse(&text).unwrap_or_else(|problems| panic!("{problems}"));
        let written = topology.to_yaml();
        let again = parse(&written).unwrap_or_else(|problems| panic!("{name}: {problems}"));
        assert_eq!(topology, again, "{name}\n{written}");
    }
}

const EVERYTHING: &str = "
rig:
  host:
    memory: 250 GiB
    rate: 160.5 GB/s
    workers: 32
    locked: 200 GiB
    numa: [{memory: 125 GiB, rate: 80 GB/s}, {}]
  cards:
    a: {kind: cuda, uuid: GPU-5ac5cbb1-1b42-4d2a-9f0a-0123456789ab, memory: 20 GiB, reserve: 700 MiB, rate: 760 GB/s, compute: 59.5 TFLOP/s, numa: 1}
    b: {pci: 0A:00.0, memory: 10 GB}
    c: {index: 7, memory: 11.5 GB}
    d: {kind: sim, memory: 12345678 B, reserve: 1 MB}
  switches: [sw0, sw1]
  links:
    - {from: host, to: a, generation: 4, h2d: 24.1 GB/s}
    - {from: numa0, to: sw0, generation: 4, lanes: 16}
    - {from: sw0, to: sw1, h2d: 13 GB/s, d2h: 12.9 GB/s}
    - {from: c, to: sw1, generation: 3, lanes: 8}
    - {from: sw1, to: b, generation: 3, lanes: 8}
    - {from: sw0, to: d, d2h: 1.5 GB/s}
    - {from: b, to: c, rate: 56 GB/s}
  peer: [[c, b], [a, d]]
run:
  context: 131072
  sequences: 4
  kv: {type: int8, resident_cells: 32768, prefetch: on, host_share: 25%}
  prompt: {routed_stream: auto, depth: 8, floor: 512, ring: 2 GiB, wave: 4096 tokens, host_pool: on}
  hand_off: peer
  throttle: on
  pins:
    layers: {a: 0-9, b: 10-, }
    experts: {a: 1200}
";

#[test]
fn every_key_means_what_it_says() {
    let topology = parse(EVERYTHING).unwrap_or_else(|problems| panic!("{problems}"));
    let [a, b, c, d] = topology.cards() else { panic!("four cards") };
    assert_eq!((a.kind, d.kind), (CardKind::Cuda, CardKind::Sim));
    assert_eq!(a.address, Some(CardAddress::Uuid("GPU-5ac5cbb1-1b42-4d2a-9f0a-0123456789ab".to_owned())));
    assert_eq!(b.address, Some(CardAddress::Pci("0000:0a:00.0".to_owned())));
    assert_eq!(c.address, Some(CardAddress::Index(7)));
    assert_eq!(d.address, None);
    assert_eq!(a.usable(), Bytes((20 << 30) - (700 << 20)));
    assert_eq!(a.link.h2d, Rate(24.1e9));
    assert_eq!(a.link.d2h.to_string(), "25.2 GB/s");
    assert_eq!(c.link.h2d.to_string(), "6.3 GB/s");
    assert_eq!(topology.host.numa[1].memory, Bytes(125 << 30));
    assert_eq!(topology.host.numa[1].rate, Rate(80.25e9));
    assert_eq!(topology.host.locked, Some(Bytes(200 << 30)));
    assert_eq!(topology.peer(), [(CardId(1), CardId(2)), (CardId(0), CardId(3))]);
    let run = &topology.run;
    assert_eq!((run.context, run.sequences, run.throttle, run.hand_off), (131_072, 4, true, HandOff::Peer));
    assert_eq!((run.kv.kind, run.kv.resident_cells), (KvType::Int8, ResidentCells::First(32_768)));
    assert_eq!(run.kv.host_share, Share::Percent(25));
    assert_eq!((run.kv.prefetch, run.prompt.routed_stream), (Switch::On, Switch::Auto));
    assert_eq!((run.prompt.depth, run.prompt.floor), (8, 512));
    assert_eq!((run.prompt.ring, run.prompt.wave), (Ring::Bytes(Bytes(2 << 30)), Wave::Tokens(4096)));
    assert!(run.prompt.host_pool);
    assert!(run.pins.layers[1].covers(500) && !run.pins.layers[0].covers(10));
    assert_eq!(run.pins.experts[0].slots, 1200);
    let links = Links::new(&topology);
    let switch = |number| Place::Switch(number);
    assert_eq!(links.path(CardId(0)), [Place::Host, Place::Numa(1), Place::Card(CardId(0))]);
    assert_eq!(links.path(CardId(1)), [Place::Host, Place::Numa(0), switch(0), switch(1), Place::Card(CardId(1))]);
    assert_eq!(links.alone(Flow::Between(CardId(2), CardId(1))), Rate(56e9));
    assert!(links.peer_allowed(CardId(3), CardId(0)) && !links.peer_allowed(CardId(0), CardId(1)));
}

#[test]
fn a_short_file_is_enough() {
    let topology = parse("rig: {cards: {gpu0: {memory: 24 GiB}, gpu1: {memory: 12 GiB}}}").unwrap();
    assert_eq!(topology.run, RunSettings::default());
    assert_eq!((topology.host.memory, topology.host.workers), (FACTS.memory, FACTS.workers));
    assert_eq!(topology.card_named("gpu1").unwrap().address, Some(CardAddress::Index(1)));
    assert_eq!(topology.card(CardId(0)).unwrap().link.h2d.to_string(), "12.6 GB/s");
    assert_eq!(topology.run.kv.prefetch, Switch::Auto);
    assert_eq!((topology.run.prompt.depth, topology.run.prompt.floor), (16, 1024));
}

#[test]
fn without_a_file_there_is_a_rig_too() {
    let topology = Topology::cpu_only();
    assert_eq!(topology.cards().len(), 1);
    assert_eq!(topology.cards()[0].kind, CardKind::Virtual);
    assert_eq!(topology.cards()[0].usable(), topology.host.memory);
    let two = Topology::virtual_rig(&[Bytes(30 << 20), Bytes(60 << 20)], FACTS);
    assert_eq!(parse(&two.to_yaml()).unwrap(), two);
    let one = Topology::single_card(Bytes(24 << 30), FACTS);
    assert_eq!(parse(&one.to_yaml()).unwrap(), one);
}

#[test]
fn switches_from_outside_go_before_the_file() {
    let mut run = parse(EVERYTHING).unwrap().run;
    run.override_kv_prefetch(None);
    run.override_routed_stream(None);
    assert_eq!((run.kv.prefetch, run.prompt.routed_stream), (Switch::On, Switch::Auto));
    run.override_kv_prefetch(Some(false));
    run.override_routed_stream(Some(true));
    run.override_context(Some(100));
    assert_eq!((run.kv.prefetch, run.prompt.routed_stream, run.context), (Switch::Off, Switch::On, 100));
    assert_eq!(run.kv.resident_cells.of(run.context), 100);
}

#[test]
fn fewer_cards_keep_their_links_and_pins() {
    let topology = parse(EVERYTHING).unwrap();
    let fewer = topology.keep_cards(&[CardId(2), CardId(1)]);
    assert_eq!(fewer.cards().iter().map(|card| card.name.as_str()).collect::<Vec<_>>(), ["b", "c"]);
    assert_eq!(fewer.cards()[0].id, CardId(0));
    assert_eq!(fewer.cards()[1].link, topology.cards()[2].link);
    assert_eq!(fewer.peer(), [(CardId(0), CardId(1))]);
    assert_eq!(fewer.run.pins.layers.len(), 1);
    assert_eq!(fewer.run.pins.layers[0].card, CardId(0));
    assert_eq!(Links::new(&fewer).alone(Flow::Between(CardId(0), CardId(1))), Rate(56e9));
}

#[test]
fn json_has_amounts_as_numbers() {
    let json = serde_json::to_value(parse(EVERYTHING).unwrap()).unwrap();
    assert_eq!(json["cards"][0]["memory"], 20u64 << 30);
    assert_eq!(json["cards"][1]["address"]["pci"], "0000:0a:00.0");
    assert_eq!(json["run"]["kv"]["type"], "int8");
    assert_eq!(json["run"]["kv"]["resident_cells"]["first"], 32_768);
    assert_eq!(json["run"]["prompt"]["routed_stream"], "auto");
    assert_eq!(json["run"]["pins"]["layers"][0]["last"], 9);
}

#[test]
fn ten_mistakes_are_told_in_one_go() {
    let text = fs_err::read_to_string(repo("tests/data/topology/ten-mistakes.yaml")).unwrap();
    let problems = Topology::parse("ten-mistakes.yaml", &text, FACTS).unwrap_err();
    assert_eq!(problems.list().len(), 10, "{problems}");
    insta::assert_snapshot!(problems.to_string());
}

#[test]
fn yaml_that_is_none_is_told_with_its_place() {
    let mut told = String::new();
    for text in [
        "rig:\n  cards: [\n",
        "rig:\n\tcards: {}\n",
        "rig: {cards: {gpu0: {memory: 'x}}}\n",
        "",
        "- 1\n- 2\n",
        "just text",
        "rig: *nobody\n",
    ] {
        told += &format!("{}\n----\n", parse(text).unwrap_err());
    }
    insta::assert_snapshot!(told);
}

/// A mistake, the code it has, its line and column.
type Case = (&'static str, Code, usize, usize);

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("rig: {cards: {g: {memory: 1 GiB}}}\nrun: {context: 0}\n", Code::OutOfRange, 2, 16),
    ("rig: {cards: {g: {memory: 1 GiB}}}\nrun: {context: 8K}\n", Code::WrongType, 2, 16),
    ("rig: {cards: {g: {memory: 1 GiB}}}\nrun: {context: 99999999999}\n", Code::OutOfRange, 2, 16),
    ("rig: {cards: {g: {memory: 1 GiB}}}\nrun: {kv: {prefetch: true}}\n", Code::WrongValue, 2, 22),
    ("rig: {cards: {g: {memory: 1 GiB}}}\nrun: {kv: {type: q8}}\n", Code::WrongValue, 2, 18),
    ("rig: {cards: {g: {memory: 1 GiB}}}\nrun: {kv: [f16]}\n", Code::WrongType, 2, 12),
    ("rig: {cards: {g: {memory: 1 GiB}}}\nrun: {kv: {resident_cells: most}}\n", Code::WrongValue, 2, 28),
    ("rig: {cards: {g: {memory: 1 GiB}}}\nrun: {kv: {host_share: 0.25}}\n", Code::WrongValue, 2, 24),
    ("rig: {cards: {g: {memory: 1 GiB}}}\nrun: {kv: {host_share: 101%}}\n", Code::WrongValue, 2, 24),
    ("rig: {cards: {g: {memory: 1 GiB}}}\nrun: {prompt: {depth: 65}}\n", Code::OutOfRange, 2, 23),
    ("rig: {cards: {g: {memory: 1 GiB}}}\nrun: {prompt: {ring: big}}\n", Code::WrongValue, 2, 22),
    ("rig: {cards: {g: {memory: 1 GiB}}}\nrun: {prompt: {wave: 0}}\n", Code::OutOfRange, 2, 22),
    ("rig: {cards: {g: {memory: 1 GiB}}}\nrun: {hand_off: peer}\nx: 1\n", Code::UnknownKey, 3, 1),
    ("rig: {cards: {g: {memory: 1 GiB}, h: {memory: 1 GiB}}}\nrun: {hand_off: peer}\n", Code::Contradiction, 2, 17),
    ("rig: {cards: {g: {memory: 1 GiB}}}\nrun: {pins: {layers: {g: 5-2}}}\n", Code::WrongValue, 2, 26),
    ("rig: {cards: {g: {memory: 1 GiB}}}\nrun: {pins: {layers: {h: 0-2}}}\n", Code::UnknownName, 2, 23),
    ("rig: {cards: {g: {memory: 1 GiB}}}\nrun: {pins: {experts: {host: 2}}}\n", Code::UnknownName, 2, 24),
    ("rig: {cards: {g: {memory: 1 GiB}, h: {memory: 1 GiB}}}\nrun: {pins: {layers: {g: 4-, h: 9}}}\n", Code::Overlap, 2, 33),
    ("run: {}\n", Code::MissingKey, 1, 1),
    ("rig: {host: {memory: 1 GiB}}\n", Code::MissingKey, 1, 1),
    ("rig: {cards: {}}\n", Code::MissingKey, 1, 1),
    ("rig: {cards: {g: }}\n", Code::MissingKey, 1, 15),
    ("rig: {cards: {g: {memory: }}}\n", Code::MissingKey, 1, 19),
    ("rig: {cards: [g]}\n", Code::WrongType, 1, 15),
    ("rig: {cards: {host: {memory: 1 GiB}}}\n", Code::BadName, 1, 15),
    ("rig: {cards: {0: {memory: 1 GiB}}}\n", Code::BadName, 1, 15),
    ("rig: {cards: {g: {memory: 1 GiB}}, switches: [g]}\n", Code::BadName, 1, 15),
    ("rig: {cards: {g: {memory: 1 GiB}, g: {memory: 1 GiB}}}\n", Code::DuplicateKey, 1, 35),
    ("rig: {cards: {g: {memory: 0 B}}}\n", Code::OutOfRange, 1, 27),
    ("rig: {cards: {g: {memory: 256 MiB}}}\n", Code::OutOfRange, 1, 27),
    ("rig: {cards: {g: {memory: 1 GiB, rate: 760}}}\n", Code::WrongUnit, 1, 40),
    ("rig: {cards: {g: {memory: 1 GiB, rate: 1 B/s}}}\n", Code::OutOfRange, 1, 40),
    ("rig: {cards: {g: {memory: 1 GiB, compute: 60}}}\n", Code::WrongUnit, 1, 43),
    ("rig: {cards: {g: {memory: 1 GiB, uuid: 3080}}}\n", Code::WrongValue, 1, 40),
    ("rig: {cards: {g: {memory: 1 GiB, pci: 01:00.0, index: 0}}}\n", Code::Contradiction, 1, 48),
    ("rig: {cards: {g: {kind: virtual, memory: 1 GiB, index: 0}}}\n", Code::Contradiction, 1, 49),
    ("rig: {cards: {g: {memory: 1 GiB, index: 1}, h: {memory: 1 GiB}}}\n", Code::Contradiction, 1, 45),
    ("rig: {cards: {g: {memory: 1 GiB, numa: 0}}}\n", Code::UnknownName, 1, 40),
    ("rig: {host: {memory: 1 GiB, locked: 2 GiB}, cards: {g: {memory: 1 GiB}}}\n", Code::OutOfRange, 1, 37),
    ("rig: {host: {memory: 1 GiB, numa: [{memory: 2 GiB}]}, cards: {g: {memory: 1 GiB}}}\n", Code::Contradiction, 1, 37),
    ("rig: {host: {context: 1}, cards: {g: {memory: 1 GiB}}}\n", Code::UnknownKey, 1, 14),
    ("rig: {cards: {g: {memory: 1 GiB}}, peer: true}\n", Code::WrongValue, 1, 42),
    ("rig: {cards: {g: {memory: 1 GiB}}, peer: [[g]]}\n", Code::WrongValue, 1, 44),
    ("rig: {cards: {g: {memory: 1 GiB}}, peer: [[g, g]]}\n", Code::WrongValue, 1, 47),
    ("rig: {cards: {g: {memory: 1 GiB}}, peer: [[g, k]]}\n", Code::UnknownName, 1, 47),
    ("rig: {cards: {g: {memory: 1 GiB}, h: {memory: 1 GiB}}, peer: [[g, h], [h, g]]}\n", Code::DuplicateKey, 1, 72),
    ("rig: {cards: {g: {memory: 1 GiB}}, links: []}\n", Code::NoPath, 1, 15),
    ("rig: {cards: {g: {memory: 1 GiB}}, switches: [s],\n  links: [{from: s, to: g, generation: 3}]}\n", Code::NoPath, 1, 15),
    ("rig: {cards: {g: {memory: 1 GiB}}, switches: [s, t],\n  links: [{from: s, to: g, generation: 3}, {from: s, to: t, generation: 3}, {from: t, to: s, generation: 3}]}\n", Code::DoubleLink, 2, 84),
    ("rig: {cards: {g: {memory: 1 GiB}}, links: [{from: host, to: g}]}\n", Code::MissingKey, 1, 45),
    ("rig: {cards: {g: {memory: 1 GiB}}, links: [{to: g, generation: 3}]}\n", Code::MissingKey, 1, 45),
    ("rig: {cards: {g: {memory: 1 GiB}}, links: [{from: host, to: g, generation: 3, lanes: 12}]}\n", Code::OutOfRange, 1, 86),
    ("rig: {cards: {g: {memory: 1 GiB}}, links: [{from: host, to: g, generation: 7}]}\n", Code::OutOfRange, 1, 76),
    ("rig: {cards: {g: {memory: 1 GiB}}, links: [{from: host, to: g, generation: 3, rate: 1 GB/s}]}\n", Code::Contradiction, 1, 85),
    ("rig: {cards: {g: {memory: 1 GiB}}, links: [{from: g, to: g, generation: 3}]}\n", Code::WrongValue, 1, 58),
    ("rig: {cards: {g: {memory: 1 GiB}}, links: [{from: host, to: g, generation: 3, lanes: 4, h2d: 12 GB/s}]}\n", Code::OutOfRange, 1, 94),
    ("rig: {cards: {g: {memory: 1 GiB}}, switches: [s],\n  links: [{from: host, to: g, generation: 3}, {from: host, to: s, generation: 3}, {from: s, to: g, generation: 3}]}\n", Code::DoubleLink, 2, 97),
    ("rig: {cards: {g: {memory: 1 GiB}, h: {memory: 1 GiB}},\n  links: [{from: host, to: g, generation: 3}, {from: host, to: h, generation: 3}, {from: g, to: h, rate: 9 GB/s}]}\n", Code::Contradiction, 2, 90),
    ("rig: {host: {numa: [{}, {}]}, cards: {g: {memory: 1 GiB, numa: 1}},\n  links: [{from: numa0, to: g, generation: 3}]}\n", Code::Contradiction, 2, 18),
    ("rig: {cards: {g: {memory: 1 GiB}}}\nrig: {}\n", Code::DuplicateKey, 2, 1),
    ("rig: {cards: {g: {memory: 1 GiB}}, switches: [s, t],\n  links: [{from: t, to: g, generation: 3}, {from: s, to: t, generation: 3}, {from: t, to: s, generation: 3}]}\n", Code::DoubleLink, 2, 84),
    ("rig: {cards: {g: {memory: 1 GiB}}, switches: [s, t, u],\n  links: [{from: t, to: g, generation: 3}, {from: s, to: t, generation: 3}, {from: u, to: s, generation: 3}, {from: t, to: u, generation: 3}]}\n", Code::NoPath, 1, 15),
    ("rig: [\n", Code::Syntax, 1, 6),
];

#[test]
fn each_mistake_has_its_code_and_place() {
    let mut seen = BTreeMap::new();
    let mut wrong = Vec::new();
    for (text, code, line, column) in CASES {
        match parse(text) {
            Ok(_) => wrong.push(format!("accepted: {text}")),
            Err(problems) => {
                let told: Vec<_> = problems.list().iter().map(|one| (one.code, one.line, one.column)).collect();
                if told != [(*code, *line, *column)] {
                    wrong.push(format!("wanted {code:?} at {line}:{column}, told {told:?}\n{text}{problems}"));
                }
                for problem in problems.list() {
                    assert!(
                        !problem.found.is_empty() && !problem.allowed.is_empty() && !problem.fix.is_empty(),
                        "{problem:?}"
                    );
                }
                *seen.entry(code.name()).or_insert(0) += 1;
            }
        }
    }
    println!("{seen:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // A file beyond the size limit is the only kind that is not in the table.
    assert_eq!(seen.len(), 14);
}

#[test]
fn misspelt_keys_get_the_nearest_known_one() {
    for section in keys::SECTIONS {
        for key in section.keys {
            assert!(!key.allowed.is_empty() && !key.meaning.is_empty(), "{}.{}", section.path, key.name);
        }
    }
    let problems =
        parse("rig: {cards: {g: {memry: 1 GiB, resreve: 0 B}}}\nrun: {contxt: 1, memory: 2 GiB}\n").unwrap_err();
    let fixes: Vec<&str> = problems.list().iter().map(|problem| problem.fix.as_str()).collect();
    assert_eq!(
        fixes,
        [
            "add `memory: ...`",
            "write `memory`, if that is meant",
            "write `reserve`, if that is meant",
            "write `context`, if that is meant",
            "move it to `rig.host`, where this key is known",
        ]
    );
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let missing = Topology::load(Path::new("no/such/rig.yaml")).unwrap_err();
    assert!(missing.to_string().contains("no/such/rig.yaml"), "{missing}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("huge.yaml");
    fs_err::write(&path, "#".repeat(2 << 20)).unwrap();
    let huge = Topology::load(&path).unwrap_err();
    assert!(matches!(huge, TopologyError::Read(InputError::TooLarge { most: Bytes(1_048_576), .. })), "{huge}");
    fs_err::write(&path, b"rig: \xff\xfe").unwrap();
    let binary = Topology::load(&path).unwrap_err();
    assert!(binary.to_string().contains("huge.yaml"), "{binary}");
}

/// Code blocks of the reference that are whole topologies.
fn blocks_of_the_reference() -> (String, Vec<String>) {
    let text = fs_err::read_to_string(repo("docs/topology.md")).unwrap();
    let blocks = text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_owned());
    let blocks = blocks.filter(|block| block.starts_with("rig:") || block.contains("\nrig:")).collect();
    (text, blocks)
}

#[test]
fn the_reference_names_every_key_and_its_examples_load() {
    let (text, blocks) = blocks_of_the_reference();
    for section in keys::SECTIONS {
        for key in section.keys {
            assert!(
                text.contains(&format!("| `{}` |", key.name)),
                "docs/topology.md lacks {}.{}",
                section.path,
                key.name
            );
        }
    }
    assert!(blocks.len() >= 3, "{} examples", blocks.len());
    for block in blocks {
        parse(&block).unwrap_or_else(|problems| panic!("{problems}"));
    }
    let defaults = text.split("<!-- defaults -->\n```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let written = parse(defaults).unwrap_or_else(|problems| panic!("{problems}"));
    let short = parse("rig: {host: {memory: 94 GiB, workers: 8}, cards: {gpu0: {memory: 20 GiB}}}").unwrap();
    assert_eq!(written, short, "the block of defaults in docs/topology.md does not spell the defaults");
}

fn rates(links: &Links, flows: &[Flow]) -> Vec<f64> {
    links.together(flows).iter().map(|rate| (rate.0 / 1e8).round() / 10.0).collect()
}

#[test]
fn cards_under_one_switch_share_its_link() {
    let four = Topology::load(&repo("topology/four-rtx-5060-ti.yaml")).unwrap();
    let links = Links::new(&four);
    let all: Vec<Flow> = (0..4).map(|card| Flow::ToCard(CardId(card))).collect();
    assert_eq!(rates(&links, &all), [25.2, 25.2, 3.2, 3.2]);
    assert_eq!(rates(&links, &all[2..3]), [6.3]);
    // Towards the host the same wires are free: the other direction has lanes of its own.
    assert_eq!(rates(&links, &[all[2], Flow::ToHost(CardId(3))]), [6.3, 6.3]);
}

#[test]
fn host_memory_bounds_what_the_links_promise() {
    let text = "
rig:
  host: {rate: 20 GB/s}
  cards: {a: {memory: 1 GiB}, b: {memory: 1 GiB}, c: {memory: 1 GiB}}
  links:
    - {from: host, to: a, h2d: 12 GB/s}
    - {from: host, to: b, h2d: 12 GB/s}
    - {from: host, to: c, h2d: 2 GB/s}
  peer: [[a, b]]
";
    let links = Links::new(&parse(text).unwrap());
    assert_eq!(links.all_to_cards(), [Rate(9e9), Rate(9e9), Rate(2e9)]);
    let (a, b, c) = (CardId(0), CardId(1), CardId(2));
    assert_eq!(rates(&links, &[Flow::ToCard(a), Flow::Workers]), [10.0, 10.0]);
    assert_eq!(rates(&links, &[Flow::ToCard(c), Flow::Workers]), [2.0, 18.0]);
    // Between cards nothing passes through host memory, but both links are used.
    assert_eq!(rates(&links, &[Flow::Between(a, b), Flow::Workers]), [12.0, 20.0]);
    assert_eq!(rates(&links, &[Flow::Between(a, c), Flow::ToCard(CardId(9))]), [0.0, 0.0]);
}

#[test]
fn a_memory_node_bounds_the_cards_on_it() {
    let text = "
rig:
  host: {rate: 40 GB/s, numa: [{rate: 10 GB/s}, {rate: 30 GB/s}]}
  cards: {a: {memory: 1 GiB, numa: 0}, b: {memory: 1 GiB, numa: 0}, c: {memory: 1 GiB, numa: 1}}
";
    let links = Links::new(&parse(text).unwrap());
    assert_eq!(rates(&links, &[0, 1, 2].map(|card| Flow::ToCard(CardId(card)))), [5.0, 5.0, 12.6]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1, ..ProptestConfig::default() })]

    /// Max-min fairness: no resource is overdrawn, and every flow passes a full resource in which nobody has more.
    #[test]
    fn shares_are_feasible_and_fair(seed in any::<u64>()) {
        let mut rng = seed | 1;
        let mut next = |below: u64| { rng ^= rng << 13; rng ^= rng >> 7; rng ^= rng << 17; rng % below };
        let (mut by_memory, mut by_switch, mut by_own) = (0, 0, 0);
        for _ in 0..300 {
            let cards = 2 + next(5);
            let memory = 5 + next(60);
            let uplink = 2 + next(30);
            let mut text = format!("rig:\n  host: {{rate: {memory} GB/s}}\n  switches: [sw]\n  cards:\n");
            for card in 0..cards { text += &format!("    c{card}: {{kind: sim, memory: 1 GiB}}\n"); }
            text += &format!("  links:\n    - {{from: host, to: sw, h2d: {uplink} GB/s}}\n");
            let (mut own, mut under) = (Vec::new(), Vec::new());
            for card in 0..cards {
                let rate = 1 + next(20);
                let on_switch = next(2) == 0;
                text += &format!("    - {{from: {}, to: c{card}, h2d: {rate} GB/s}}\n", if on_switch { "sw" } else { "host" });
                own.push(rate as f64 * 1e9);
                under.push(on_switch);
            }
            let rates: Vec<f64> = Links::new(&parse(&text).unwrap()).all_to_cards().iter().map(|rate| rate.0).collect();
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b;
            let total: f64 = rates.iter().sum();
            let on_switch: Vec<f64> = rates.iter().zip(&under).filter(|(_, under)| **under).map(|(rate, _)| *rate).collect();
            let through: f64 = on_switch.iter().sum();
            let (memory, uplink) = (memory as f64 * 1e9, uplink as f64 * 1e9);
            prop_assert!(total <= memory * (1.0 + 1e-9) && through <= uplink * (1.0 + 1e-9), "{text}");
            for ((rate, own), under) in rates.iter().zip(&own).zip(&under) {
                prop_assert!(*rate <= own * (1.0 + 1e-9));
                let most = |all: &[f64]| all.iter().copied().fold(0.0, f64::max);
                if near(*rate, *own) { by_own += 1; }
                else if *under && near(through, uplink) && near(*rate, most(&on_switch)) { by_switch += 1; }
                else if near(total, memory) && near(*rate, most(&rates)) { by_memory += 1; }
                else { prop_assert!(false, "a card could have more: {rates:?}\n{text}"); }
            }
        }
        println!("bound by its own link {by_own}, by the switch {by_switch}, by host memory {by_memory}");
        prop_assert!(by_own > 0 && by_switch > 0 && by_memory > 0);
    }

    /// Files with random damage give a topology or a list of mistakes with places inside the file, never a panic.
    #[test]
    fn damaged_files_are_told_not_crashed_on(seed in any::<u64>()) {
        let mut rng = seed | 1;
        let mut next = |below: usize| { rng ^= rng << 13; rng ^= rng >> 7; rng ^= rng << 17; (rng % below as u64) as usize };
        let sources: Vec<String> = ready_files().into_iter().map(|(_, text)| text).chain([EVERYTHING.to_owned()]).collect();
        let scraps = ["{", "}", "[", "]", ":", "- ", "\n", "\t", "ü", "&a ", "*a", "<<: ", "'", "\"", "| ", "!!int ", "~", "\r\n", "#", "-1", "🦀", "gpu0", "---\n", "\u{feff}", "\0"];
        let (mut fine, mut several) = (0, 0);
        let mut codes = BTreeSet::new();
        for _ in 0..2_000 {
            let mut text = sources[next(sources.len())].clone();
            for _ in 0..1 + next(4) {
                let at = text.floor_char_boundary(next(text.len() + 1));
                let to = text.floor_char_boundary((at + next(12)).min(text.len()));
                text.replace_range(at..to, scraps[next(scraps.len())]);
            }
            match parse(&text) {
                Ok(_) => fine += 1,
                Err(problems) => {
                    prop_assert!(!problems.list().is_empty());
                    prop_assert!(!problems.to_string().is_empty() && !problems.render(true).is_empty());
                    let lines = text.matches('\n').count() + 1;
                    for problem in problems.list() {
                        prop_assert!(problem.line >= 1 && problem.line <= lines && problem.column >= 1, "{problem:?}");
                        codes.insert(problem.code.name());
                    }
                    several += usize::from(problems.list().len() > 1);
                }
            }
        }
        println!("{fine} still right, {several} with several mistakes, codes {codes:?}");
        prop_assert!(fine > 0 && several > 0 && codes.len() >= 8);
    }
}
