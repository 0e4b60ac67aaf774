//! A stage's thread: it takes jobs in order and queues their commands on the stage's card.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::cancel::Cancel;
use super::handoff::{Embeddings, Free, Receiver, Sender};
use super::kv::cells::Slot;
use super::layer::F32;
use super::prompt::Wave;
use super::stage::Stage;
use super::{EngineError, waits};
use crate::card::command::Phase;
use crate::card::{Baton, BatonReceiver, Event, Span, Stream, Watcher, baton};
use crate::cpu::Team;
use crate::model::Model;
use crate::plan::{KvPlan, PromptPlan, Use};
use crate::quant::dequantize;
use crate::units::TokenId;

/// The tokens that go through all stages together.
#[derive(Clone, Debug)]
pub(super) enum Rows {
    /// A wave of a prompt.
    Wave(Wave),
    /// One token of each of several sequences, with its position.
    Step(Vec<(Slot, usize)>),
}

/// Whose logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Nobody's.
    None,
    /// The last row's.
    Last,
    /// Every row's.
    All,
}

/// What a request shares with all stages.
#[derive(Debug)]
pub(super) struct Request {
    pub cancel: Cancel,
    /// How its prompt is read.
    pub prompt: PromptPlan,
    /// How its cached cells come.
    pub kv: KvPlan,
    /// Set by the first stage that fails; the others stop at their next layer.
    pub failed: AtomicBool,
}

/// A job for every stage.
#[derive(Clone)]
pub(super) enum Job {
    /// Rows go through the stage.
    Run {
        number: usize,
        rows: Rows,
        tokens: Arc<[TokenId]>,
        wanted: Wanted,
        /// Whether the request ends with this job.
        last: bool,
        request: Arc<Request>,
    },
    /// After a failed or cancelled request, when all stages have ended their jobs: forget hand-offs.
    Settle,
}

/// What a stage answers.
pub(super) enum Reply {
    /// Logits of `count` rows from row `first` of the job.
    Logits { number: usize, first: usize, logits: Vec<f32> },
    /// A job has ended on a stage.
    Done { number: usize, result: Result<(), EngineError> },
    /// A stage has settled.
    Settled { result: Result<(), EngineError> },
}

/// Where a stage's hidden states come from.
pub(super) enum Inlet {
    /// Embeddings of tokens: the first stage.
    Embeddings(Embeddings),
    /// The stage before.
    Stage(Receiver),
}

/// A stage with its neighbours.
pub(super) struct Worker {
    pub stage: Stage,
    pub model: Arc<Model>,
    pub team: Arc<Team>,
    pub inlet: Inlet,
    pub outlet: Option<Sender>,
    pub replies: Baton<Reply>,
    /// Hidden buffers used in turn: the end of their last reader.
    pub hidden: Vec<Option<Event>>,
    pub jobs: usize,
}

/// The running thread of a stage; dropping it ends the thread after its queued jobs.
pub(super) struct StageThread {
    jobs: Option<Baton<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl StageThread {
    /// Starts the thread.
    pub fn start(worker: Worker, watcher: &Watcher) -> Result<Self, EngineError> {
        let (jobs, receive) = baton(watcher);
        let thread = std::thread::Builder::new()
            .name(format!("stage on {}", worker.stage.card.id()))
            .spawn(move || worker.run(&receive))
            .map_err(|error| EngineError::Thread(format!("cannot start a stage: {error}")))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Queues a job.
    pub fn send(&self, job: Job) -> Result<(), EngineError> {
        let gone = || EngineError::Thread("a stage has ended".to_owned());
        self.jobs.as_ref().ok_or_else(gone)?.send(job).map_err(|_| gone())
    }
}

impl Drop for StageThread {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a stage's thread panicked");
        }
    }
}

impl Worker {
    fn run(mut self, jobs: &BatonReceiver<Job>) {
        while let Some(job) = jobs.receive() {
            let reply = match job {
                Job::Run { number, rows, tokens, wanted, last, request } => {
                    let guarded = |worker: &mut Self| worker.guarded(number, &rows, &tokens, wanted, last, &request);
                    Reply::Done { number, result: self.caught(guarded) }
                }
                Job::Settle => Reply::Settled { result: self.caught(Self::settle) },
            };
            if self.replies.send(reply).is_err() {
                return;
            }
        }
    }

    fn guarded(
        &mut self,
        number: usize,
        rows: &Rows,
        tokens: &[TokenId],
        wanted: Wanted,
        last: bool,
        request: &Request,
    ) -> Result<(), EngineError> {
        let mut passed = Passed::default();
        let mut result = self.caught(|worker| worker.job(number, rows, tokens, wanted, request, &mut passed));
        if matches!(&result, Err(error) if !matches!(error, EngineError::Cancelled)) {
            self.cut();
        }
        if let Err(error) = self.keep_step(&passed)
            && result.is_ok()
        {
            result = Err(error);
        }
        // A cancelled request ends like a finished one: a failure of its earlier waves, which count as complete, shows here.
        let ends = result.as_ref().map_or_else(|error| matches!(error, EngineError::Cancelled), |()| last);
        if ends && let Err(error) = self.end(matches!(rows, Rows::Wave(_))) {
            result = Err(error);
        }
        if let Err(error) = &result {
            request.failed.store(true, Ordering::Release);
            if !matches!(error, EngineError::Cancelled) {
                // What a neighbour's failure brought about is not the cause of the request's end.
                let followed = self.cut_from_afar();
                self.cut();
                let recovered = self.stage.end_prompt(true);
                if followed {
                    result = Err(EngineError::Cancelled);
                }
                if let Err(error) = recovered {
                    result = Err(error);
                }
            }
        }
        result
    }

    /// Runs a part of a job; a panic is its error.
    fn caught(&mut self, run: impl FnOnce(&mut Self) -> Result<(), EngineError>) -> Result<(), EngineError> {
        let ran = catch_unwind(AssertUnwindSafe(|| run(self)));
        ran.unwrap_or_else(|_| Err(EngineError::Thread(format!("the stage on {} panicked", self.stage.card.id()))))
    }

    /// After a failure of this stage: what it has queued for its neighbours may never run, and they must not wait for it.
    fn cut(&self) {
        if let Inlet::Stage(receiver) = &self.inlet {
            receiver.cut();
        }
        if let Some(sender) = &self.outlet {
            sender.cut();
        }
    }

    /// Whether a neighbour failed and cut its wire.
    fn cut_from_afar(&self) -> bool {
        let inlet = matches!(&self.inlet, Inlet::Stage(receiver) if receiver.cut_from_afar());
        inlet || self.outlet.as_ref().is_some_and(Sender::cut_from_afar)
    }

    /// Makes the messages to the neighbours that the job did not come to: both, also where the first fails.
    fn keep_step(&mut self, passed: &Passed) -> Result<(), EngineError> {
        let inwards = if passed.taken { Ok(()) } else { self.pass() };
        let card = self.stage.card.as_ref();
        let outwards = match &mut self.outlet {
            Some(sender) if !passed.sent => sender.abandon(card),
            _ => Ok(()),
        };
        inwards.and(outwards)
    }

    fn pass(&mut self) -> Result<(), EngineError> {
        let (turn, hidden) = self.turn()?;
        let wired = matches!(&self.inlet, Inlet::Stage(receiver) if receiver.is_wired());
        let free = if wired { self.free(turn)? } else { None };
        match &mut self.inlet {
            Inlet::Stage(receiver) => receiver.pass(self.stage.card.as_ref(), hidden, free.as_ref()),
            Inlet::Embeddings(_) => Ok(()),
        }
    }

    /// The hidden buffer whose turn it is, and its number.
    fn turn(&self) -> Result<(usize, Span), EngineError> {
        let buffers = self.hidden.len().max(1);
        let (turn, whole) = (self.jobs % buffers, self.stage.buffers.whole(Use::Hidden)?);
        let bytes = whole.bytes / buffers;
        Ok((turn, whole.part(turn * bytes, bytes)))
    }

    /// When the hidden buffer whose turn it is may be written again.
    fn free(&mut self, turn: usize) -> Result<Option<Free>, EngineError> {
        if let Some(sender) = &mut self.outlet
            && let Some(event) = sender.freed()?
        {
            return Ok(Some(Free { event, why: waits::HIDDEN_COPIED }));
        }
        let event = self.hidden.get(turn).cloned().flatten();
        Ok(event.map(|event| Free { event, why: waits::HIDDEN_FREE }))
    }

    /// Waits until all of the request has run on this stage, so that a late failure is still its own.
    fn end(&mut self, prompt: bool) -> Result<(), EngineError> {
        if prompt {
            self.stage.end_prompt(false)?;
        }
        self.stage.card.drain(Stream::Compute, waits::REQUEST_END)?;
        self.stage.card.drain(Stream::HandOff, waits::REQUEST_END)?;
        self.stage.card.drain(Stream::KvOut, waits::REQUEST_END)?;
        if let Some(pool) = &mut self.stage.pool {
            pool.confirm();
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), EngineError> {
        self.stage.end_prompt(true)?;
        match &mut self.inlet {
            Inlet::Embeddings(embeddings) => embeddings.reset(),
            Inlet::Stage(receiver) => receiver.reset(),
        }
        if let Some(sender) = &mut self.outlet {
            sender.reset()?;
        }
        self.hidden.iter_mut().for_each(|reader| *reader = None);
        Ok(())
    }

    fn job(
        &mut self,
        number: usize,
        rows: &Rows,
        tokens: &[TokenId],
        wanted: Wanted,
        request: &Request,
        passed: &mut Passed,
    ) -> Result<(), EngineError> {
        let stop = || request.cancel.is_cancelled() || request.failed.load(Ordering::Acquire);
        if stop() {
            return Err(EngineError::Cancelled);
        }
        let (turn, buffer) = self.turn()?;
        self.jobs += 1;
        let bytes = tokens.len() * self.stage.width * F32;
        if bytes > buffer.bytes {
            return Err(EngineError::Mismatch(format!("{} rows exceed the hidden buffer", tokens.len())));
        }
        let hidden = buffer.part(0, bytes);

        if let Rows::Wave(wave) = rows {
            self.stage.prompt = request.prompt;
            self.stage.kv_plan = request.kv;
            self.stage.begin_wave(wave)?;
        }
        let Some(arrived) = self.arrive(hidden, turn, tokens, passed)? else { return Err(EngineError::Cancelled) };
        self.stage.card.wait(Stream::Compute, &arrived, waits::HIDDEN_ARRIVED)?;
        let phase = match rows {
            Rows::Wave(wave) => {
                self.stage.wave(wave, hidden, &request.cancel)?;
                Phase::Prompt
            }
            Rows::Step(rows) => {
                self.stage.step(rows, hidden, &request.cancel)?;
                Phase::Decode
            }
        };
        let done = self.stage.card.record(Stream::Compute)?;
        let free = match &mut self.outlet {
            Some(sender) => {
                passed.sent = true;
                let left = sender.send(self.stage.card.as_ref(), hidden, &done)?;
                self.stage.counters.hand_off();
                left
            }
            None => {
                self.logits(phase, number, hidden, tokens.len(), wanted)?;
                self.stage.card.record(Stream::Compute)?
            }
        };
        if let Some(reader) = self.hidden.get_mut(turn) {
            *reader = Some(free);
        }
        Ok(())
    }

    /// Brings the hidden states in; `None` when the stage before abandoned the job.
    fn arrive(
        &mut self,
        hidden: Span,
        turn: usize,
        tokens: &[TokenId],
        passed: &mut Passed,
    ) -> Result<Option<Event>, EngineError> {
        let free = self.free(turn)?;
        match &mut self.inlet {
            Inlet::Stage(receiver) => {
                passed.taken = true;
                receiver.take(self.stage.card.as_ref(), hidden, free.as_ref())
            }
            Inlet::Embeddings(embeddings) => {
                let write = |to: &mut [f32]| embed(&self.model, &self.team, tokens, to);
                embeddings.send(&self.stage.card, hidden, free.as_ref(), write).map(Some)
            }
        }
    }

    /// The head over the wanted rows, block by block.
    fn logits(
        &mut self,
        phase: Phase,
        number: usize,
        hidden: Span,
        rows: usize,
        wanted: Wanted,
    ) -> Result<(), EngineError> {
        let first = match wanted {
            Wanted::None => return Ok(()),
            Wanted::Last => rows - 1,
            Wanted::All => 0,
        };
        let mut at = first;
        while at < rows {
            let count = (rows - at).min(self.stage.head_block.max(1));
            let logits = self.stage.logits(phase, hidden, at..at + count)?;
            let reply = Reply::Logits { number, first: at, logits };
            if self.replies.send(reply).is_err() {
                return Err(EngineError::Cancelled);
            }
            at += count;
        }
        Ok(())
    }
}

/// Writes the embeddings of the tokens, f32 `[tokens, width]`: of a long wave they are tens of megabytes, so the workers share them.
fn embed(model: &Model, team: &Team, tokens: &[TokenId], to: &mut [f32]) -> Result<(), EngineError> {
    let width = model.spec.width;
    let each = team.share(tokens.len(), 4);
    let failed = Mutex::new(None);
    team.for_chunks(to.len(), to, each * width, |part, out| {
        let own = tokens.iter().skip(part * each);
        if let Err(error) = own.zip(out.chunks_mut(width)).try_for_each(|(token, out)| embed_one(model, *token, out)) {
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

fn embed_one(model: &Model, token: TokenId, out: &mut [f32]) -> Result<(), EngineError> {
    let table = &model.spec.embedding;
    let (bytes, row) = (model.bytes(table), table.row_bytes());
    let start = token as usize * row;
    let blocks = bytes.get(start..start + row).ok_or(EngineError::Token { token, vocab: model.spec.vocab })?;
    dequantize(table.ty, blocks, out).map_err(|error| EngineError::Mismatch(format!("{}: {error}", table.name)))
}

/// Which of its messages to the neighbours a job has made.
#[derive(Default)]
struct Passed {
    taken: bool,
    sent: bool,
}
