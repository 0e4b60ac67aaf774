//! A stage's thread: it takes jobs in order and queues their commands on the stage's card.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use super::embed::embed;
use super::handoff::{Embeddings, Free, Receiver, Sender};
use super::job::{Job, Rows, Run, Wanted};
use super::layer::F32;
use super::schedule::Schedule;
use super::stage::Stage;
use super::ticket::Running;
use super::{EngineError, waits};
use crate::card::command::Phase;
use crate::card::{ClockedReceiver, ClockedSender, Event, Span, Stream, Watcher};
use crate::cpu::Team;
use crate::model::Model;
use crate::plan::Use;
use crate::units::TokenId;

/// Where a stage's hidden states come from.
pub(super) enum Inlet {
    /// Embeddings of tokens: the first stage.
    Embeddings(Embeddings),
    /// The stage before.
    Stage(Receiver),
}

/// Where a stage's jobs come from.
pub(super) enum Source {
    /// The first stage: it asks the schedule, and passes each job on to the others.
    Schedule(Vec<ClockedSender<Job>>),
    /// The others.
    Queue(ClockedReceiver<Job>),
}

/// A stage with its neighbours.
pub(super) struct Worker {
    pub stage: Stage,
    pub model: Arc<Model>,
    pub team: Arc<Team>,
    pub schedule: Arc<Schedule>,
    pub source: Source,
    pub inlet: Inlet,
    pub outlet: Option<Sender>,
    /// Hidden buffers used in turn: the end of their last reader.
    pub hidden: Vec<Option<Event>>,
    pub jobs: usize,
}

/// The running threads of all stages. Dropping this ends every request and joins them.
pub(super) struct Stages {
    pub schedule: Arc<Schedule>,
    threads: Vec<JoinHandle<()>>,
}

impl Stages {
    /// No stage yet.
    pub fn new(schedule: Arc<Schedule>) -> Self {
        Self { schedule, threads: Vec::new() }
    }

    /// Starts a stage's thread.
    ///
    /// # Errors
    /// When the system refuses it.
    pub fn start(&mut self, mut worker: Worker, watcher: &Watcher) -> Result<(), EngineError> {
        let (watcher, begun) = (watcher.clone(), watcher.stamp());
        let thread = std::thread::Builder::new()
            .name(format!("stage on {}", worker.stage.card.id()))
            .spawn(move || {
                watcher.join(&begun);
                // Whatever ends this thread ends the engine: nobody may wait for a stage that is gone.
                let _closing = Closing(Arc::clone(&worker.schedule));
                worker.run();
            })
            .map_err(|error| EngineError::Thread(format!("cannot start a stage: {error}")))?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Stages {
    fn drop(&mut self) {
        self.schedule.close();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a stage's thread panicked");
            }
        }
    }
}

/// Closes the schedule when it is dropped.
struct Closing(Arc<Schedule>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Source {
    fn next(&self, schedule: &Schedule) -> Option<Job> {
        match self {
            Self::Queue(jobs) => jobs.receive(),
            Self::Schedule(others) => {
                let job = schedule.next()?;
                let passed = others.iter().try_for_each(|other| other.send(job.clone()));
                passed.is_ok().then_some(job)
            }
        }
    }
}

impl Worker {
    fn run(&mut self) {
        while let Some(job) = self.source.next(&self.schedule) {
            match job {
                Job::Run(run) => {
                    let result = self.caught(|worker| worker.guarded(&run));
                    self.schedule.answer(run.request.id, Some(run.number), result);
                }
                Job::Release(request) => {
                    let ended = self.caught(|worker| worker.end(true));
                    let result = self.caught(|worker| worker.recovered(&request, ended));
                    self.schedule.answer(request.id, None, result);
                }
                Job::Settle => {
                    let result = self.caught(Self::settle);
                    self.schedule.settled(result);
                }
            }
        }
    }

    fn guarded(&mut self, run: &Run) -> Result<(), EngineError> {
        let mut passed = Passed::default();
        let mut result = self.caught(|worker| worker.job(run, &mut passed));
        if matches!(&result, Err(error) if !matches!(error, EngineError::Cancelled)) {
            self.cut();
        }
        if let Err(error) = self.keep_step(&passed)
            && result.is_ok()
        {
            result = Err(error);
        }
        self.jobs += 1;
        // A cancelled request ends like a finished one: a failure of its earlier waves, which count as complete, shows
        // here.
        let ends = result.as_ref().map_or_else(|error| matches!(error, EngineError::Cancelled), |()| run.last);
        if ends && let Err(error) = self.end(matches!(run.rows, Rows::Wave(_))) {
            result = Err(error);
        }
        self.recovered(&run.request, result)
    }

    /// After a failure the card is made ready for the next request, and the neighbours learn of it.
    fn recovered(&mut self, request: &Running, result: Result<(), EngineError>) -> Result<(), EngineError> {
        let Err(error) = result else { return Ok(()) };
        if matches!(error, EngineError::Cancelled) {
            return Err(error);
        }
        request.fail();
        // What a neighbour's failure brought about is not the cause of the request's end.
        let followed = self.cut_from_afar();
        self.cut();
        self.stage.end_prompt(true)?;
        Err(if followed { EngineError::Cancelled } else { error })
    }

    /// Runs a part of a job; a panic is its error.
    fn caught(&mut self, run: impl FnOnce(&mut Self) -> Result<(), EngineError>) -> Result<(), EngineError> {
        let ran = catch_unwind(AssertUnwindSafe(|| run(self)));
        ran.unwrap_or_else(|_| Err(EngineError::Thread(format!("the stage on {} panicked", self.stage.card.id()))))
    }

    /// After a failure of this stage: what it has queued for its neighbours may never run, and they must not wait for
    /// it.
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

    fn job(&mut self, run: &Run, passed: &mut Passed) -> Result<(), EngineError> {
        let request = &run.request;
        if request.stops() {
            return Err(EngineError::Cancelled);
        }
        let tokens = &run.tokens;
        let (turn, buffer) = self.turn()?;
        let bytes = tokens.len() * self.stage.width * F32;
        if bytes > buffer.bytes {
            return Err(EngineError::Internal(format!("{} rows exceed the hidden buffer", tokens.len())));
        }
        let hidden = buffer.part(0, bytes);

        if let Rows::Wave(wave) = &run.rows {
            self.stage.prompt = request.prompt;
            self.stage.kv_plan = request.kv;
            self.stage.begin_wave(wave)?;
        }
        let Some(arrived) = self.arrive(hidden, turn, tokens, passed)? else { return Err(EngineError::Cancelled) };
        self.stage.card.wait(Stream::Compute, &arrived, waits::HIDDEN_ARRIVED)?;
        let phase = match &run.rows {
            Rows::Wave(wave) => {
                self.stage.wave(wave, hidden, request)?;
                Phase::Prompt
            }
            Rows::Step(rows) => {
                self.stage.step(rows, hidden, request)?;
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
                self.logits(phase, hidden, run)?;
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
    fn logits(&mut self, phase: Phase, hidden: Span, run: &Run) -> Result<(), EngineError> {
        let rows = run.tokens.len();
        let mut at = match run.wanted {
            Wanted::None => return Ok(()),
            Wanted::Last => rows - 1,
            Wanted::All => 0,
        };
        while at < rows {
            let count = (rows - at).min(self.stage.head_block.max(1));
            let logits = self.stage.logits(phase, hidden, at..at + count)?;
            // Weights are read in place: the file must have been the same until these logits were computed.
            self.model.gguf().check()?;
            if !run.request.deliver(run.first + at, logits, self.model.spec.vocab) {
                return Err(EngineError::Cancelled);
            }
            at += count;
        }
        Ok(())
    }
}

/// Which of its messages to the neighbours a job has made.
#[derive(Default)]
struct Passed {
    taken: bool,
    sent: bool,
}
