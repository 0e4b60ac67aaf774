//! Any text as a topology: it is read or refused with places that exist, and what is read can be asked, cut down and
//! planned for.

use std::ops::ControlFlow;
use std::sync::OnceLock;

use aqueduct::card::CardKind;
use aqueduct::model::{Model, ModelSpec};
use aqueduct::plan::{self, CardBudget, Crossing, HostBudget, Request};
use aqueduct::synth::{Shape, write_model};
use aqueduct::topology::{HostFacts, Links, Topology};
use aqueduct::units::{Bytes, Rate};

/// The machine that the texts are for.
const FACTS: HostFacts = HostFacts { memory: Bytes(64 << 30), workers: 8 };

/// Reads the bytes; whether they are a topology.
pub fn check(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    match Topology::parse("fuzz.yaml", text, FACTS) {
        Ok(topology) => {
            check_topology(&topology);
            true
        }
        Err(problems) => {
            assert!(!problems.list().is_empty(), "refused without a reason");
            assert!(problems.render(false).contains("fuzz.yaml"));
            assert!(!problems.render(true).is_empty());
            false
        }
    }
}

fn check_topology(topology: &Topology) {
    let links = Links::new(topology);
    let rates = links.all_to_cards();
    assert_eq!(rates.len(), topology.cards().len());
    assert!(rates.iter().all(|rate| rate.0.is_finite() && rate.0 > 0.0), "{rates:?}");
    for link in topology.links() {
        assert!(!topology.place_name(link.from).is_empty() && !topology.place_name(link.to).is_empty());
    }
    let half: Vec<_> = topology.cards().iter().map(|card| card.id).step_by(2).collect();
    assert_eq!(topology.keep_cards(&half).cards().len(), half.len());
    assert!(serde_json::to_string(topology).is_ok());
    check_plan(topology, &rates);
}

/// The spec of a model of two layers with eight experts each.
fn tiny() -> &'static ModelSpec {
    static TINY: OnceLock<ModelSpec> = OnceLock::new();
    TINY.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        write_model(&Shape::named("tiny-qwen3moe").unwrap(), &path, &mut |_, _| ControlFlow::Continue(())).unwrap();
        Model::open(&path).unwrap().spec
    })
}

/// A plan holds the layers once each and no more than the cards have.
fn check_plan(topology: &Topology, rates: &[Rate]) {
    let spec = tiny();
    let card = |(card, link): (&aqueduct::topology::CardSpec, &Rate)| CardBudget {
        id: card.id,
        name: card.name.clone(),
        kind: CardKind::Virtual,
        memory: card.usable(),
        link: *link,
        rate: card.rate.unwrap_or(Rate(400e9)),
        compute: card.compute,
        crossing: Crossing { staged: Rate(10e9), peer: None },
    };
    let host = &topology.host;
    let host = HostBudget {
        memory: host.memory,
        workers: host.workers as usize,
        rate: host.rate,
        disk: host.disk,
        shared: host.shared,
    };
    let cards = topology.cards().iter().zip(rates).map(card).collect();
    match plan::plan(&Request { spec, cards, host, settings: &topology.run }) {
        Ok(plan) => {
            assert_eq!(plan.stages.iter().map(|stage| stage.layers.len()).sum::<usize>(), spec.layers.len());
            assert!(plan.stages.iter().all(|stage| stage.total() <= stage.budget), "{plan}");
            assert!(serde_json::to_string(&plan).is_ok());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
