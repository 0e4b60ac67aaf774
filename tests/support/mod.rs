//! What several tests need: rigs of virtual cards under a ledger, plans, oracle data.
#![allow(dead_code, reason = "each test uses a part of it")]

pub mod cuda;
pub mod gpu;
pub mod held;
pub mod oracle;
pub mod shapes;
pub mod stories;
pub mod tap;
pub mod watchdog;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use aqueduct::card::ledger::{Ledger, LedgerCard};
use aqueduct::card::virt::{Faults, VirtualCard, VirtualOptions};
use aqueduct::card::{Card, CardKind, HostMemory, Watcher};
use aqueduct::cpu::Team;
use aqueduct::engine::{Engine, Rig};
use aqueduct::model::Model;
use aqueduct::plan::{self, CardBudget, Crossing, HandOffWay, HostBudget, Plan, PlanError};
use aqueduct::topology::{HandOff, RunSettings};
use aqueduct::units::{Bytes, CardId, Rate};
use proptest::test_runner::{Config, TestRunner};

/// A path below `tests/data`.
pub fn data(path: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

/// Virtual cards under one ledger.
pub struct TestRig {
    pub rig: Rig,
    pub ledger: Arc<Ledger>,
    pub faults: Vec<Faults>,
}

/// Virtual cards with these budgets, all watched by a ledger.
pub fn rig(budgets: &[Bytes], workers: usize) -> TestRig {
    let team = Arc::new(Team::new(workers).unwrap());
    let ledger = Ledger::new();
    let faults: Vec<Faults> = budgets.iter().map(|_| Faults::default()).collect();
    let cards = budgets.iter().zip(&faults).enumerate().map(|(i, (budget, faults))| {
        let card = VirtualCard::new(VirtualOptions {
            id: CardId(i as u32),
            name: format!("virtual{i}"),
            budget: *budget,
            team: Arc::clone(&team),
            links: None,
            faults: faults.clone(),
            timeline: None,
        });
        Arc::new(LedgerCard::new(&ledger, Arc::new(card.unwrap()))) as Arc<dyn Card>
    });
    let cards = cards.collect();
    let host = HostMemory::new(Watcher::new(ledger.clone()), None);
    TestRig { rig: Rig { cards, host, team }, ledger, faults }
}

/// Peer copies are allowed and pay only where they are asked for.
pub const CROSSING: Crossing = Crossing { staged: Rate(10e9), peer: Some(Rate(5e9)) };

/// Budgets of virtual cards as the planner sees them.
pub fn budgets(all: &[Bytes]) -> Vec<CardBudget> {
    let budget = |(i, memory): (usize, &Bytes)| CardBudget {
        id: CardId(i as u32),
        name: format!("virtual{i}"),
        kind: CardKind::Virtual,
        memory: *memory,
        link: Rate(10e9),
        rate: Rate(20e9),
        compute: None,
        crossing: CROSSING,
    };
    all.iter().enumerate().map(budget).collect()
}

/// A host of two workers.
pub fn host(memory: Bytes) -> HostBudget {
    HostBudget { memory, workers: 2, rate: Rate(20e9), disk: Rate(1e9), shared: false }
}

/// The plan of a model on virtual cards. They are joined by wires where NCCL is asked for, which a plan for users
/// refuses.
pub fn plan_for(model: &Model, memory: &[Bytes], settings: &RunSettings) -> Result<Plan, PlanError> {
    let wired = settings.hand_off == HandOff::Nccl;
    let hand_off = if wired { HandOff::Host } else { settings.hand_off };
    let settings = &RunSettings { hand_off, ..settings.clone() };
    let host = host(Bytes(8 << 30));
    let mut plan = plan::plan(&plan::Request { spec: &model.spec, cards: budgets(memory), host, settings })?;
    plan.hand_offs.iter_mut().filter(|_| wired).for_each(|hand_off| hand_off.way = HandOffWay::Nccl);
    Ok(plan)
}

/// An engine on virtual cards under a ledger.
pub fn engine(model: &Arc<Model>, memory: &[Bytes], settings: &RunSettings) -> (Engine, TestRig) {
    let plan = plan_for(model, memory, settings).unwrap();
    let rig = rig(memory, 2);
    let engine = Engine::load(Arc::clone(model), plan, &rig.rig, &|_| {}).unwrap();
    (engine, rig)
}

/// Memory that holds all of any small test model.
pub const ROOMY: Bytes = Bytes(1 << 30);

/// The least memory that is enough, to a few bytes.
pub fn least(enough: impl Fn(Bytes) -> bool) -> Bytes {
    let (mut low, mut high) = (0, ROOMY.0);
    while high - low > 256 {
        let middle = low + (high - low) / 2;
        if enough(Bytes(middle)) { high = middle } else { low = middle }
    }
    Bytes(high)
}

/// The least memory of each of `cards` equal cards that can run the model.
pub fn least_of_each(model: &Model, cards: usize, settings: &RunSettings) -> Bytes {
    least(|bytes| plan_for(model, &vec![bytes; cards], settings).is_ok())
}

/// A property's runner: `own` cases, or as many as `PROPTEST_CASES` asks for.
pub fn runner(own: u32) -> TestRunner {
    const STANDARD: u32 = 256;
    let wanted = Config::default().cases;
    let cases = if wanted == STANDARD { own } else { wanted };
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
}
