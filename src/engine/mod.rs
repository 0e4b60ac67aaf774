//! The running engine: rig, stages, prompt and decode passes.
//!
//! [`Engine::load`] allocates what a plan lists and starts a thread for each stage. [`Engine::prompt`] and [`Engine::step`] cut their tokens
//! into jobs, send each job to all stages, and collect the logits. Inside a stage, `prompt.rs` and `decode.rs` walk the layers; both
//! queue the commands of `layer.rs`. Experts reach the card through `experts/`.

mod attention;
mod buffers;
mod cancel;
mod counters;
mod decode;
mod error;
pub mod experts;
mod handoff;
mod head;
mod kv;
mod layer;
mod present;
mod prompt;
mod rig;
pub mod sampler;
mod sequence;
mod stage;
pub mod waits;
mod weights;
mod worker;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub use cancel::Cancel;
pub use counters::{Counters, Counts};
pub use error::EngineError;
pub use present::{Presence, Present};
pub use rig::{Rig, RigOptions};
pub use sequence::Sequence;

use crate::card::{BatonReceiver, Card, Stream, bounded_baton};
use crate::model::Model;
use crate::plan::{Plan, Use, memory};
use crate::units::{Bytes, TokenId};
use buffers::HostBuffers;
use experts::arena::Arena;
use experts::gate::Published;
use experts::latest_gate::LatestGate;
use handoff::{Embeddings, Side};
use prompt::Wave;
use sequence::FreeSlots;
use stage::Stage;
use worker::{Inlet, Job, Reply, Request, Rows, StageThread, Wanted, Worker};

/// Answers that wait for the caller: a block of logits may be many MiB, so a stage whose caller is slow waits for it.
const REPLIES: usize = 2;

/// A loaded model, ready to run.
pub struct Engine {
    plan: Plan,
    model: Arc<Model>,
    cards: Vec<Arc<dyn Card>>,
    counters: Vec<Arc<Counters>>,
    latest_gates: Vec<Arc<LatestGate>>,
    free: Arc<FreeSlots>,
    // Dropped before the stages: one that waits with an answer ends its job when nobody receives any more.
    replies: BatonReceiver<Reply>,
    // A stage's thread ends when its jobs do.
    stages: Vec<StageThread>,
}

/// Receives logits: the row of the prompt they belong to, and f32 `[vocabulary]`.
pub type LogitSink<'a> = dyn FnMut(usize, &[f32]) + 'a;

impl Engine {
    /// Allocates and loads all that the plan lists; `progress` is told bytes as they are read, of [`Engine::load_bytes`] in all.
    ///
    /// # Errors
    /// When memory is short, the file cannot be read, or plan, model and rig do not belong together.
    pub fn load(model: Arc<Model>, mut plan: Plan, rig: &Rig, progress: &dyn Fn(Bytes)) -> Result<Self, EngineError> {
        let watcher = rig.host.watcher();
        // Before the arena, which takes the most: where not all can be page-locked, it is experts that cross the link through staging buffers.
        let buffers = plan.stages.iter().map(|stage| HostBuffers::alloc(&rig.host, stage));
        let buffers = buffers.collect::<Result<Vec<_>, _>>()?;
        let first = plan.stages.first().map_or(0, |stage| stage.host.arriving);
        let embeddings = Embeddings::new(&rig.host, first)?;
        let between = plan.stages.iter().skip(1).map(|stage| handoff::buffers(&rig.host, stage.host.arriving / 2));
        let between = between.collect::<Result<Vec<_>, _>>()?;
        let arena = Arc::new(Arena::load(&model, &rig.host, progress)?);
        let (reply, replies) = bounded_baton(watcher, REPLIES);
        let load = |(stage, buffers)| Stage::load(&model, &plan, stage, rig, &arena, buffers, progress);
        let loaded = plan.stages.iter().zip(buffers).map(load).collect::<Result<Vec<_>, _>>()?;
        let counters = loaded.iter().map(|stage| Arc::clone(&stage.counters)).collect();
        let latest_gates = loaded.iter().map(|stage| Arc::clone(&stage.latest_gate)).collect();
        let cards = loaded.iter().map(|stage| Arc::clone(&stage.card)).collect();
        let mut inlets = vec![Inlet::Embeddings(embeddings)];
        let mut outlets = Vec::with_capacity(loaded.len());
        let neighbours = loaded.iter().zip(loaded.iter().skip(1));
        for ((neighbours, buffers), hand_off) in neighbours.zip(between).zip(&mut plan.hand_offs) {
            let (from, to) = neighbours;
            let (sender, receiver) = handoff::open(watcher, hand_off, [side(from)?, side(to)?], buffers)?;
            outlets.push(Some(sender));
            inlets.push(Inlet::Stage(receiver));
        }
        outlets.push(None);
        let mut stages = Vec::with_capacity(loaded.len());
        for ((stage, inlet), outlet) in loaded.into_iter().zip(inlets).zip(outlets) {
            let hidden = vec![None; memory::hidden_buffers(plan.stages.len())];
            let worker = Worker {
                stage,
                model: Arc::clone(&model),
                team: Arc::clone(&rig.team),
                inlet,
                outlet,
                replies: reply.clone(),
                hidden,
                jobs: 0,
            };
            stages.push(StageThread::start(worker, watcher)?);
        }
        let free = FreeSlots::new(plan.sequences);
        Ok(Self { plan, model, cards, counters, latest_gates, free, replies, stages })
    }

    /// Bytes that [`Engine::load`] reads for this plan, as its progress counts them.
    pub fn load_bytes(model: &Model) -> Bytes {
        let spec = &model.spec;
        let dense: usize = spec.layers.iter().flat_map(|layer| layer.dense_tensors()).map(|tensor| tensor.bytes).sum();
        Bytes((dense + spec.output_norm.bytes + spec.head.bytes) as u64) + spec.expert_bytes()
    }

    /// The plan; its hand-offs are those that are used, also where another one was planned and did not work.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Reads the following prompts by another plan, which gives memory exactly as the engine's own does: only switches may differ.
    ///
    /// # Errors
    /// [`EngineError::Mismatch`] when it gives memory in another way; nothing changes then.
    pub fn read_prompts_by(&mut self, plan: &Plan) -> Result<(), EngineError> {
        let hand_offs = self.plan.hand_offs.clone();
        let plan = Plan { hand_offs, ..plan.clone() };
        let mut same = Plan { prompt: self.plan.prompt, notes: self.plan.notes.clone(), ..plan.clone() };
        same.kv.prefetch = self.plan.kv.prefetch;
        if same != self.plan {
            return Err(EngineError::Mismatch(
                "another plan may change how prompts are read, not what memory holds".into(),
            ));
        }
        self.plan = plan;
        Ok(())
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// What each stage did so far.
    pub fn counts(&self) -> Vec<Counts> {
        let of = |(counters, card): (&Arc<Counters>, &Arc<dyn Card>)| {
            let waited = card.waited(Stream::Compute).as_micros() as u64;
            Counts { compute_waited_us: waited, ..counters.read() }
        };
        self.counters.iter().zip(&self.cards).map(of).collect()
    }

    /// What each stage's gate was told in the latest prompt, in order; nothing for a stage whose prompt had no gate.
    pub fn publications(&self) -> Vec<Vec<Published>> {
        self.latest_gates.iter().map(|latest| latest.published()).collect()
    }

    /// Leases that have not ended, and sequences that are taken; both are zero when nothing runs and nobody holds a sequence.
    pub fn taken(&self) -> (usize, usize) {
        let leases = self.cards.iter().map(|card| card.leases().live()).sum();
        (leases, self.plan.sequences - self.free.count())
    }

    /// A fresh sequence.
    ///
    /// # Errors
    /// [`EngineError::NoSequence`] when all are in use.
    pub fn sequence(&self) -> Result<Sequence, EngineError> {
        self.free.take().ok_or(EngineError::NoSequence { sequences: self.plan.sequences })
    }

    /// Appends tokens to a sequence in layer-major waves and returns the logits after the last one, f32 `[vocabulary]`.
    ///
    /// # Errors
    /// [`EngineError::Cancelled`], after which the sequence holds the waves that were complete; any other error leaves the
    /// sequence as it was, and the engine ready for the next request.
    pub fn prompt(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[TokenId],
        cancel: &Cancel,
    ) -> Result<Vec<f32>, EngineError> {
        let mut last = Vec::new();
        self.run_prompt(sequence, tokens, Wanted::Last, cancel, &mut |_, logits| last = logits.to_vec())?;
        Ok(last)
    }

    /// As [`Engine::prompt`], with the logits of every row, in order. The stages wait for a slow `sink`, so that few rows are held.
    ///
    /// # Errors
    /// As [`Engine::prompt`].
    pub fn prompt_all(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[TokenId],
        cancel: &Cancel,
        sink: &mut LogitSink<'_>,
    ) -> Result<(), EngineError> {
        self.run_prompt(sequence, tokens, Wanted::All, cancel, sink)
    }

    /// Appends one token to each of these sequences and returns the logits after it, in their order.
    ///
    /// # Errors
    /// Any error leaves the sequences as they were, and the engine ready for the next request.
    pub fn step(
        &mut self,
        rows: &mut [(&mut Sequence, TokenId)],
        cancel: &Cancel,
    ) -> Result<Vec<Vec<f32>>, EngineError> {
        if rows.is_empty() {
            return Err(EngineError::Empty);
        }
        let mut slots: Vec<_> = rows.iter().map(|(sequence, _)| sequence.slot).collect();
        slots.sort_unstable();
        slots.dedup();
        if slots.len() < rows.len() {
            return Err(EngineError::Sequences { found: rows.len() });
        }
        for (sequence, token) in rows.iter() {
            self.check(sequence, &[*token])?;
        }
        let places = rows.iter().map(|(sequence, _)| (sequence.slot, sequence.tokens)).collect();
        let tokens: Arc<[TokenId]> = rows.iter().map(|(_, token)| *token).collect();
        let mut all = vec![Vec::new(); rows.len()];
        let jobs = vec![(Rows::Step(places), tokens)];
        let (_, result) = self.run(jobs, Wanted::All, cancel, &mut |row, logits| {
            if let Some(place) = all.get_mut(row) {
                *place = logits.to_vec();
            }
        })?;
        result?;
        rows.iter_mut().for_each(|(sequence, _)| sequence.tokens += 1);
        Ok(all)
    }

    fn check(&self, sequence: &Sequence, tokens: &[TokenId]) -> Result<(), EngineError> {
        if !sequence.belongs_to(&self.free) {
            return Err(EngineError::Sequences { found: 1 });
        }
        let (held, context) = (sequence.tokens, self.plan.context);
        if tokens.is_empty() {
            return Err(EngineError::Empty);
        }
        if held + tokens.len() > context {
            return Err(EngineError::ContextFull { tokens: tokens.len(), held, context });
        }
        let vocab = self.model.spec.vocab;
        match tokens.iter().find(|token| **token as usize >= vocab) {
            Some(token) => Err(EngineError::Token { token: *token, vocab }),
            None => Ok(()),
        }
    }

    fn run_prompt(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[TokenId],
        wanted: Wanted,
        cancel: &Cancel,
        sink: &mut LogitSink<'_>,
    ) -> Result<(), EngineError> {
        self.check(sequence, tokens)?;
        let of = tokens.len().div_ceil(self.plan.wave);
        let shortest = tokens.len() / of;
        let mut jobs = Vec::with_capacity(of);
        let mut start = 0;
        for number in 0..of {
            let rows = shortest + usize::from(number < tokens.len() % of);
            let part = tokens.get(start..start + rows).unwrap_or_default();
            let first = sequence.tokens + start;
            let end = sequence.tokens + tokens.len();
            let wave = Wave { slot: sequence.slot, first, rows, number, of, shortest, end };
            jobs.push((Rows::Wave(wave), Arc::from(part)));
            start += rows;
        }
        let (complete, result) = self.run(jobs, wanted, cancel, sink)?;
        if result.is_ok() || matches!(result, Err(EngineError::Cancelled)) {
            sequence.tokens += complete;
        }
        result
    }

    /// Sends the jobs to all stages and collects what they answer. Returns the tokens of the jobs that every stage completed, and how
    /// the request ended; the outer error is the engine's own end.
    fn run(
        &mut self,
        jobs: Vec<(Rows, Arc<[TokenId]>)>,
        wanted: Wanted,
        cancel: &Cancel,
        sink: &mut LogitSink<'_>,
    ) -> Result<(usize, Result<(), EngineError>), EngineError> {
        let (prompt, kv) = (self.plan.prompt, self.plan.kv);
        let request = Arc::new(Request { cancel: cancel.clone(), prompt, kv, failed: AtomicBool::new(false) });
        let count = jobs.len();
        let starts: Vec<usize> = jobs
            .iter()
            .scan(0, |at, (_, tokens)| {
                *at += tokens.len();
                Some(*at - tokens.len())
            })
            .collect();
        let rows: Vec<usize> = jobs.iter().map(|(_, tokens)| tokens.len()).collect();
        for (number, (rows, tokens)) in jobs.into_iter().enumerate() {
            let last = number + 1 == count;
            let wanted = if wanted == Wanted::Last && !last { Wanted::None } else { wanted };
            for stage in &self.stages {
                let (rows, tokens, request) = (rows.clone(), Arc::clone(&tokens), Arc::clone(&request));
                stage.send(Job::Run { number, rows, tokens, wanted, last, request })?;
            }
        }
        let mut done = vec![0; count];
        let mut outcome: Result<(), EngineError> = Ok(());
        let mut pending = count * self.stages.len();
        while pending > 0 {
            match self.reply()? {
                Reply::Logits { number, first, logits } => {
                    let base = starts.get(number).copied().unwrap_or(0) + first;
                    for (row, logits) in logits.chunks(self.model.spec.vocab).enumerate() {
                        if logits.iter().any(|logit| logit.is_nan()) {
                            outcome = outcome.and(Err(EngineError::NotANumber { row: base + row }));
                        } else {
                            sink(base + row, logits);
                        }
                    }
                }
                Reply::Done { number, result } => {
                    pending -= 1;
                    match result {
                        Ok(()) => done.iter_mut().skip(number).take(1).for_each(|done| *done += 1),
                        // A stage that only followed another one's failure reports a cancellation: the cause comes first.
                        Err(EngineError::Cancelled) => outcome = outcome.and(Err(EngineError::Cancelled)),
                        Err(error) if matches!(outcome, Ok(()) | Err(EngineError::Cancelled)) => outcome = Err(error),
                        Err(_) => {}
                    }
                }
                Reply::Settled { .. } => {}
            }
        }
        if outcome.is_err() {
            self.settle()?;
        }
        let complete =
            done.iter().zip(rows).take_while(|(done, _)| **done == self.stages.len()).map(|(_, rows)| rows).sum();
        Ok((complete, outcome))
    }

    fn settle(&mut self) -> Result<(), EngineError> {
        for stage in &self.stages {
            stage.send(Job::Settle)?;
        }
        let mut result = Ok(());
        for _ in 0..self.stages.len() {
            if let Reply::Settled { result: settled } = self.reply()? {
                result = result.and(settled);
            }
        }
        result
    }

    fn reply(&self) -> Result<Reply, EngineError> {
        self.replies.receive().ok_or_else(|| EngineError::Thread("all stages have ended".to_owned()))
    }
}

/// A stage as its boundaries see it.
fn side(stage: &Stage) -> Result<Side<'_>, EngineError> {
    Ok(Side { card: &stage.card, hidden: stage.buffers.whole(Use::Hidden)? })
}
