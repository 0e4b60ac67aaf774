//! Engines on the first GPU, for tests that are skipped where there is none.

use std::collections::BTreeSet;
use std::sync::Arc;

use aqueduct::card::cuda::{CudaCard, CudaSettings};
use aqueduct::card::ledger::{Ledger, LedgerCard};
use aqueduct::card::{Card, CardKind, HostMemory, Watcher};
use aqueduct::cpu::Team;
use aqueduct::engine::{Cancel, Engine, Rig};
use aqueduct::model::Model;
use aqueduct::ops::KvType;
use aqueduct::plan::{self, CardBudget, Plan, PlanError};
use aqueduct::topology::{ResidentCells, RunSettings, Share, Staging, Switch, Wave};
use aqueduct::units::{Bytes, CardId, Rate};

use super::cuda::{compiler, devices, guarded};
use super::{CROSSING, host};

/// Whether there is a GPU; says so where there is none.
pub fn there_is_a_gpu() -> bool {
    !devices().is_empty()
}

pub fn plan_for(model: &Model, memory: &[Bytes], settings: &RunSettings) -> Result<Plan, PlanError> {
    let cards = (0..).zip(memory).map(|(i, memory)| CardBudget {
        id: CardId(i),
        name: format!("gpu{i}"),
        kind: CardKind::Cuda,
        memory: *memory,
        link: Rate(50e9),
        rate: Rate(1e12),
        compute: None,
        crossing: CROSSING,
    });
    plan::plan(&plan::Request { spec: &model.spec, cards: cards.collect(), host: host(Bytes(8 << 30)), settings })
}

/// An engine whose cards are all on the first GPU, each with memory and streams of its own, under a ledger.
pub fn engine(model: &Arc<Model>, memory: &[Bytes], settings: &RunSettings) -> (Engine, Arc<Ledger>) {
    let (rig, ledger, _) = rig(model, memory, settings, None);
    (load(model, memory, settings, &rig), ledger)
}

/// The same with the cards on this many GPUs in turn.
pub fn spread(model: &Arc<Model>, memory: &[Bytes], settings: &RunSettings, gpus: usize) -> (Engine, Arc<Ledger>) {
    let (rig, ledger, _) = rig_on(gpus, model, memory, settings, None);
    (load(model, memory, settings, &rig), ledger)
}

pub fn load(model: &Arc<Model>, memory: &[Bytes], settings: &RunSettings, rig: &Rig) -> Engine {
    let plan = plan_for(model, memory, settings).unwrap();
    Engine::load(Arc::clone(model), plan, rig, &|_| {}).unwrap()
}

/// A rig for it, with at most `locked` bytes of page-locked memory; and the device's free memory after the last card
/// had taken its own.
pub fn rig(
    model: &Model,
    memory: &[Bytes],
    settings: &RunSettings,
    locked: Option<Bytes>,
) -> (Rig, Arc<Ledger>, Bytes) {
    rig_on(1, model, memory, settings, locked)
}

fn rig_on(
    gpus: usize,
    model: &Model,
    memory: &[Bytes],
    settings: &RunSettings,
    locked: Option<Bytes>,
) -> (Rig, Arc<Ledger>, Bytes) {
    let ledger = Ledger::new();
    let mut free = Bytes(0);
    let mut lock = None;
    let attention = model.spec.layers.iter().filter_map(|layer| layer.attention()).map(|attention| attention.shape);
    let attention: Vec<_> = attention.map(|shape| (shape, settings.kv.kind)).collect();
    let mut cards: Vec<Arc<dyn Card>> = Vec::new();
    for (i, budget) in (0..).zip(memory) {
        let card = CudaCard::open(CudaSettings {
            card: CardId(i),
            ordinal: i as usize % gpus,
            budget: *budget,
            weights: model.spec.tensors().map(|tensor| tensor.ty).collect::<BTreeSet<_>>().into_iter().collect(),
            attention: attention.clone(),
            timeline: None,
            compiler: compiler(),
            guarded: guarded(),
        });
        let card = card.unwrap();
        free = card.free_after();
        lock.get_or_insert_with(|| card.page_lock());
        cards.push(Arc::new(LedgerCard::new(&ledger, Arc::new(card))));
    }
    let host = HostMemory::new(Watcher::new(ledger.clone()), lock).limited(locked);
    (Rig { cards, host, team: Arc::new(Team::new(2).unwrap()) }, ledger, free)
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// A prompt in two turns beside another sequence; then, if wanted, decode steps of both.
pub fn story(engine: &mut Engine, tokens: &[u32], steps: &[u32]) -> Vec<u32> {
    let cancel = Cancel::new();
    let mut all = Vec::new();
    let mut sink = |_: usize, logits: &[f32]| all.extend(bits(logits));
    let (mut sequence, mut other) = (engine.sequence().unwrap(), engine.sequence().unwrap());
    let (first, second) = tokens.split_at(tokens.len() / 2);
    engine.prompt_all(&mut sequence, first, &cancel, &mut sink).unwrap();
    engine.prompt_all(&mut other, &[7, 3], &cancel, &mut sink).unwrap();
    engine.prompt_all(&mut sequence, second, &cancel, &mut sink).unwrap();
    for token in steps {
        let rows = engine.step(&mut [(&mut sequence, *token), (&mut other, token + 1)], &cancel).unwrap();
        rows.iter().enumerate().for_each(|(row, logits)| sink(row, logits));
    }
    all
}

pub fn way(kv: KvType) -> RunSettings {
    let mut settings = RunSettings { context: 128, sequences: 2, ..RunSettings::default() };
    settings.kv.kind = kv;
    settings
}

/// Experts and cells that both cross the link.
pub fn streaming() -> RunSettings {
    let mut settings = way(KvType::F16);
    settings.kv.resident_cells = ResidentCells::First(0);
    settings.kv.staging = Staging::Cells(64);
    settings.kv.prefetch = Switch::On;
    settings.kv.host_share = Share::Percent(100);
    settings.prompt.wave = Wave::Tokens(20);
    settings.prompt.floor = 1;
    settings.prompt.routed_stream = Switch::On;
    settings
}
