//! Requests on small plans: what cancels, faults and left-out waits are tried on.

use std::ops::ControlFlow;
use std::sync::Arc;

use aqueduct::engine::{Cancel, Engine, EngineError, Sequence};
use aqueduct::model::Model;
use aqueduct::ops::KvType;
use aqueduct::plan::{Plan, StagePlan};
use aqueduct::synth::{Overrides, Shape, write_model};
use aqueduct::topology::{HandOff, ResidentCells, Ring, RunSettings, Share, Staging, Switch, Wave};
use aqueduct::units::Bytes;

use super::{ROOMY, least, plan_for};

/// A model on cards, and how its prompts are read.
#[derive(Clone)]
pub struct Story {
    pub name: &'static str,
    pub model: Arc<Model>,
    pub memory: Vec<Bytes>,
    pub settings: RunSettings,
    pub tokens: Vec<u32>,
}

impl Story {
    /// The same with another way of hidden states from card to card.
    pub fn across(mut self, name: &'static str, way: HandOff) -> Self {
        (self.name, self.settings.hand_off) = (name, way);
        self
    }
}

/// How prompts get their experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Resident,
    Gated,
    Ungated,
    BelowFloor,
    /// With the gate, and cells in host memory that are copied ahead.
    Prefetched,
    /// Without the gate, and cells in host memory that are copied when they are needed.
    Staged,
    /// As prefetched, with a prompt that outgrows its resident cells and the staging pool.
    Outgrown,
}

/// Decode steps of a request.
pub const STEPS: [u32; 2] = [5, 9];

/// Opens an oracle model.
pub fn open(name: &str) -> Arc<Model> {
    Arc::new(Model::open(super::data(format!("oracle/models/{name}.gguf"))).unwrap())
}

/// A synthetic mixture of experts with more layers than the oracle models have.
pub fn deep(layers: usize) -> Arc<Model> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep.gguf");
    let layers = Overrides { layers: Some(layers), ..Overrides::default() };
    let shape = Shape::named("tiny-llama-moe").unwrap().with(&layers).unwrap();
    write_model(&shape, &path, &mut |_, _| ControlFlow::Continue(())).unwrap();
    Arc::new(Model::open(&path).unwrap())
}

/// A model on `cards` cards with the least memory, each of them, or with enough for `extra` more experts on each: then
/// some residents give way to the ring.
pub fn story(name: &'static str, model: &Arc<Model>, cards: usize, way: Way, extra: u64, wave: u32) -> Story {
    let mut settings = RunSettings { context: 64, sequences: 2, ..RunSettings::default() };
    settings.kv.kind = KvType::F16;
    settings.prompt.wave = Wave::Tokens(wave);
    settings.prompt.floor = if way == Way::BelowFloor { 1024 } else { 1 };
    settings.prompt.depth = 3;
    settings.prompt.routed_stream = matches!(way, Way::Gated | Way::Prefetched | Way::Outgrown).into();
    if matches!(way, Way::Prefetched | Way::Staged) {
        settings.kv.resident_cells = ResidentCells::First(0);
        settings.kv.prefetch = (way == Way::Prefetched).into();
        // In one the host attends all of them in decode, in the other the card.
        settings.kv.host_share = Share::Percent(if way == Way::Prefetched { 100 } else { 0 });
    }
    let mut length = 13;
    if way == Way::Outgrown {
        settings.context = 256;
        settings.kv.resident_cells = ResidentCells::First(64);
        settings.kv.staging = Staging::Cells(128);
        settings.kv.prefetch = Switch::On;
        settings.kv.host_share = Share::Percent(40);
        length = 230;
    }
    settings.prompt.ring = if way == Way::Resident { Ring::Auto } else { Ring::Slots(if extra > 0 { 6 } else { 4 }) };
    let blob = model.spec.expert_layers().map(|(_, experts)| experts.blob().bytes as u64).max().unwrap_or(0);
    let mut memory = vec![ROOMY; cards];
    if way != Way::Resident {
        memory = vec![least(|bytes| plan_for(model, &vec![bytes; cards], &settings).is_ok()); cards];
        for card in 0..cards {
            let with = |bytes| {
                let mut memory = memory.clone();
                memory[card] = bytes;
                memory
            };
            memory[card] = least(|bytes| plan_for(model, &with(bytes), &settings).is_ok());
        }
        memory.iter_mut().for_each(|memory| memory.0 += extra * blob);
        let plan = plan_for(model, &memory, &settings).unwrap();
        let streams = |stage: &StagePlan| stage.experts.as_ref().is_some_and(|experts| experts.ring > 0);
        assert!(plan.stages.iter().all(streams), "{name}: not every card streams\n{plan}");
    }
    let tokens = (0..length).map(|i| (i * 37 + 11) % 500).collect();
    Story { name, model: Arc::clone(model), memory, settings, tokens }
}

/// The bits of logits: of a prompt's last row, then of each step.
pub type Bits = Vec<Vec<u32>>;

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// A request in the making: a prompt and some steps; what is done stays done when a part of it does not end well.
pub struct Request<'a> {
    tokens: &'a [u32],
    pub sequence: Sequence,
    pub done: Bits,
}

impl<'a> Request<'a> {
    pub fn new(engine: &Engine, tokens: &'a [u32]) -> Self {
        Self { tokens, sequence: engine.sequence().unwrap(), done: Vec::new() }
    }

    /// Goes on to the end.
    pub fn run(&mut self, engine: &mut Engine, cancel: &Cancel) -> Result<(), EngineError> {
        if self.done.is_empty() {
            let rest = &self.tokens[self.sequence.tokens()..];
            self.done.push(bits(&engine.prompt(&mut self.sequence, rest, cancel)?));
        }
        while let Some(token) = STEPS.get(self.done.len() - 1) {
            let logits = engine.step(&mut [(&mut self.sequence, *token)], cancel)?.remove(0);
            self.done.push(bits(&logits));
        }
        Ok(())
    }
}

/// A whole request.
pub fn answer(engine: &mut Engine, tokens: &[u32]) -> Result<Bits, EngineError> {
    let mut request = Request::new(engine, tokens);
    request.run(engine, &Cancel::new())?;
    Ok(request.done)
}

/// Lengths after which a prompt's waves are complete.
pub fn boundaries(plan: &Plan, tokens: usize) -> Vec<usize> {
    let of = tokens.div_ceil(plan.wave);
    let rows = |number: usize| tokens / of + usize::from(number < tokens % of);
    (0..=of).map(|waves| (0..waves).map(rows).sum()).collect()
}

/// Pseudo-random numbers (splitmix64): the same ones each time.
pub struct Dice(pub u64);

impl Dice {
    /// A number below `below`.
    pub fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % below as u64) as usize
    }
}
