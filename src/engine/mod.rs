//! The running engine: rig, stages, prompt and decode passes.
//!
//! [`Engine::load`] allocates what a plan lists and starts a thread for each stage. [`Engine::submit`] cuts a request
//! into jobs (the waves of a prompt, or one step) and gives a [`Ticket`]; `schedule.rs` decides which job goes through
//! all stages next. Inside a stage, `prompt.rs` and `decode.rs` walk the layers; both queue the commands of `layer.rs`.
//! Experts reach the card through `experts/`.

mod attention;
mod buffers;
mod cancel;
mod counters;
mod decode;
mod embed;
mod error;
pub mod experts;
mod handoff;
mod head;
mod job;
mod kv;
mod layer;
mod present;
mod prompt;
mod rig;
mod schedule;
mod sequence;
mod stage;
mod ticket;
pub mod waits;
mod weights;
mod worker;

use std::sync::Arc;

pub use cancel::Cancel;
pub use counters::{Counters, Counts};
pub use error::EngineError;
pub use present::{Presence, Present};
pub use rig::{Rig, RigOptions};
pub use sequence::Sequence;
pub use ticket::{Output, Request, Ticket, TicketId};

use crate::card::{Card, Stream, clocked_channel};
use crate::model::Model;
use crate::plan::{Home, Plan, Use, Waves, memory};
use crate::units::{Bytes, TokenId};
use buffers::HostBuffers;
use experts::arena::Arena;
use experts::gate::Published;
use experts::latest_gate::LatestGate;
use handoff::{Embeddings, Side};
use job::{Row, Rows, Wanted, Wave};
use schedule::{Accepted, Schedule};
use sequence::{FreeSequences, Place, SequenceId};
use stage::Stage;
use ticket::{Running, What};
use worker::{Inlet, Source, Stages, Worker};

/// A loaded model, ready to run.
pub struct Engine {
    plan: Plan,
    model: Arc<Model>,
    cards: Vec<Arc<dyn Card>>,
    counters: Vec<Arc<Counters>>,
    latest_gates: Vec<Arc<LatestGate>>,
    free: Arc<FreeSequences>,
    stages: Stages,
}

/// Receives logits: the row of the prompt they belong to, and f32 `[vocabulary]`.
pub type LogitSink<'a> = dyn FnMut(usize, &[f32]) + 'a;

impl Engine {
    /// Allocates and loads all that the plan lists; `progress` is told bytes as they are read, of
    /// [`Engine::load_bytes`] in all.
    ///
    /// # Errors
    /// When memory is short, the file cannot be read, or plan, model and rig do not belong together.
    pub fn load(model: Arc<Model>, mut plan: Plan, rig: &Rig, progress: &dyn Fn(Bytes)) -> Result<Self, EngineError> {
        let watcher = rig.host.watcher();
        // Before the arena, which takes the most: where not all can be page-locked, it is experts that cross the link
        // through staging buffers.
        let buffers = plan.stages.iter().map(|stage| HostBuffers::alloc(&rig.host, stage));
        let buffers = buffers.collect::<Result<Vec<_>, _>>()?;
        let first = plan.stages.first().map_or(0, |stage| stage.host.arriving);
        let embeddings = Embeddings::new(&rig.host, first)?;
        let between = plan.stages.iter().skip(1).map(|stage| handoff::buffers(&rig.host, stage.host.arriving / 2));
        let between = between.collect::<Result<Vec<_>, _>>()?;
        let arena = Arc::new(Arena::load(&model, &plan.host.homes, &rig.host, progress)?);
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
        let mut stages = Stages::new(Schedule::new(loaded.len(), plan.sequences, watcher));
        let (others, sources): (Vec<_>, Vec<_>) = loaded.iter().skip(1).map(|_| clocked_channel(watcher)).unzip();
        let sources = [Source::Schedule(others)].into_iter().chain(sources.into_iter().map(Source::Queue));
        for (((stage, inlet), outlet), source) in loaded.into_iter().zip(inlets).zip(outlets).zip(sources) {
            let hidden = vec![None; memory::hidden_buffers(plan.stages.len())];
            let worker = Worker {
                stage,
                model: Arc::clone(&model),
                team: Arc::clone(&rig.team),
                schedule: Arc::clone(&stages.schedule),
                source,
                inlet,
                outlet,
                hidden,
                jobs: 0,
            };
            stages.start(worker, watcher)?;
        }
        model.gguf().check()?;
        let free = FreeSequences::new(plan.sequences);
        Ok(Self { plan, model, cards, counters, latest_gates, free, stages })
    }

    /// Bytes that [`Engine::load`] reads for this plan, as its progress counts them: experts that live in the file are
    /// read later.
    pub fn load_bytes(model: &Model, plan: &Plan) -> Bytes {
        let spec = &model.spec;
        let dense: usize = spec.layers.iter().flat_map(|layer| layer.dense_tensors()).map(|tensor| tensor.bytes).sum();
        let experts = [Home::Arena, Home::Card].map(|home| plan.host.homes.count(spec, home).1);
        Bytes((dense + spec.output_norm.bytes + spec.head.bytes) as u64) + experts[0] + experts[1]
    }

    /// The plan; its hand-offs are those that are used, also where another one was planned and did not work.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Reads the following prompts by another plan, which gives memory exactly as the engine's own does: only switches
    /// may differ.
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

    /// Leases that have not ended, and sequences that are taken; both are zero when nothing runs and nobody holds a
    /// sequence.
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

    /// Accepts a request; its ticket gives what comes of it. Requests run beside each other: prompts are read one after
    /// the other, and steps go between their waves.
    ///
    /// # Errors
    /// When the request cannot run: too many tokens, a sequence of another engine or one that a request runs on.
    pub fn submit(&self, request: Request<'_>) -> Result<Ticket, EngineError> {
        let running = Running::new(request.cancel, self.plan.prompt, self.plan.kv);
        let mut claims = Claims(Vec::new());
        let (jobs, wanted) = match request.what {
            What::Prompt { sequence, tokens, wanted } => {
                let (id, first) = claims.claim(self, sequence, tokens)?;
                (self.waves(id, first, tokens), wanted)
            }
            What::Step(rows) => {
                let count = rows.iter().map(|(_, tokens)| tokens.len()).sum();
                if count > self.plan.sequences {
                    return Err(EngineError::StepRows { rows: count, most: self.plan.sequences });
                }
                let mut all = Vec::with_capacity(count);
                for (sequence, tokens) in &rows {
                    let (sequence, first) = claims.claim(self, sequence, tokens)?;
                    all.extend((first..first + tokens.len()).map(|position| Row { sequence, position }));
                }
                let tokens = rows.iter().flat_map(|(_, tokens)| tokens.iter().copied()).collect();
                if all.is_empty() {
                    return Err(EngineError::Empty);
                }
                (vec![(Rows::Step(all.into()), tokens)], Wanted::All)
            }
        };
        let accepted = Accepted { request: Arc::clone(&running), jobs, wanted, places: std::mem::take(&mut claims.0) };
        self.stages.schedule.submit(accepted)?;
        Ok(Ticket::new(&running))
    }

    /// Appends tokens to a sequence in layer-major waves and returns the logits after the last one, f32 `[vocabulary]`.
    ///
    /// # Errors
    /// [`EngineError::Cancelled`], after which the sequence holds the waves that were complete; any other error leaves
    /// the sequence as it was, and the engine ready for the next request.
    pub fn prompt(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[TokenId],
        cancel: &Cancel,
    ) -> Result<Vec<f32>, EngineError> {
        sequence.wait();
        let ticket = self.submit(Request::prompt(sequence, tokens).cancelled_by(cancel))?;
        let mut last = Vec::new();
        for output in ticket {
            match output {
                Output::Logits { logits, .. } => last = logits,
                Output::End(result) => result?,
            }
        }
        Ok(last)
    }

    /// As [`Engine::prompt`], with the logits of every row, in order. The stages wait for a slow `sink`, so that few
    /// rows are held.
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
        sequence.wait();
        let vocab = self.model.spec.vocab.max(1);
        let ticket = self.submit(Request::prompt_all(sequence, tokens).cancelled_by(cancel))?;
        ticket.wait(|first, logits| (first..).zip(logits.chunks(vocab)).for_each(|(row, logits)| sink(row, logits)))
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
        rows.iter().for_each(|(sequence, _)| sequence.wait());
        let request = Request::step(rows.iter().map(|(sequence, token)| (&**sequence, std::slice::from_ref(token))));
        let ticket = self.submit(request.cancelled_by(cancel))?;
        let vocab = self.model.spec.vocab.max(1);
        let mut all = Vec::with_capacity(rows.len());
        ticket.wait(|_, logits| all.extend(logits.chunks(vocab).map(<[f32]>::to_vec)))?;
        Ok(all)
    }

    fn check(&self, tokens: &[TokenId], held: usize) -> Result<(), EngineError> {
        let context = self.plan.context;
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

    /// The waves of a prompt from position `held` on, of equal size.
    fn waves(&self, sequence: SequenceId, held: usize, tokens: &[TokenId]) -> Vec<(Rows, Arc<[TokenId]>)> {
        let waves = Waves::of(tokens.len(), self.plan.wave);
        let of = waves.count;
        let end = held + tokens.len();
        let mut jobs = Vec::with_capacity(of);
        let mut rest = tokens;
        for number in 0..of {
            let rows = waves.rows(number);
            let (part, left) = rest.split_at(rows.min(rest.len()));
            let first = end - rest.len();
            jobs.push((Rows::Wave(Wave { sequence, first, rows, number, waves, end }), Arc::from(part)));
            rest = left;
        }
        jobs
    }
}

/// Sequences that were claimed for a request. Those that are still here when it is dropped are let go.
struct Claims(Vec<(Arc<Place>, usize)>);

impl Claims {
    /// Claims a sequence that is to get these tokens: its number, and the tokens it holds.
    fn claim(
        &mut self,
        engine: &Engine,
        sequence: &Sequence,
        tokens: &[TokenId],
    ) -> Result<(SequenceId, usize), EngineError> {
        if !sequence.belongs_to(&engine.free) {
            return Err(EngineError::Foreign);
        }
        let (place, held) = sequence.claim()?;
        let id = place.id;
        self.0.push((place, tokens.len()));
        engine.check(tokens, held)?;
        Ok((id, held))
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        self.0.iter().for_each(|(place, _)| place.release(0));
    }
}

/// A stage as its boundaries see it.
fn side(stage: &Stage) -> Result<Side<'_>, EngineError> {
    Ok(Side { card: &stage.card, hidden: stage.buffers.whole(Use::Hidden)? })
}
