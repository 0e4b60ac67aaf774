//! The schedule: which job goes through the stages next.
//!
//! The first stage asks for each job when it has queued the one before, and passes it on to the others, so all stages
//! see one order. Prompts are read one after the other. Steps go first: between two waves of a prompt, those that wait
//! by then, at most one for each sequence.
//!
//! A stage that fails ends all requests that have begun: what they queued on its card after the failure did not run.
//! Nothing new begins until every stage has ended its jobs and has settled; requests that had not begun go on then.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::EngineError;
use super::job::{Job, Rows, Run, Wanted};
use super::sequence::Place;
use super::ticket::{Running, TicketId};
use crate::card::{Stamp, Watcher};
use crate::units::TokenId;

/// A request that was accepted, cut into jobs.
pub(super) struct Accepted {
    pub request: Arc<Running>,
    pub jobs: Vec<(Rows, Arc<[TokenId]>)>,
    pub wanted: Wanted,
    /// The sequences, and how many tokens a step appends to each; a prompt appends those of its complete waves.
    pub places: Vec<(Arc<Place>, usize)>,
}

/// The requests of an engine, and the order of their jobs.
pub(super) struct Schedule {
    stages: usize,
    /// Most steps between two waves of a prompt.
    steps: usize,
    watcher: Watcher,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// In order of arrival.
    entries: Vec<Entry>,
    /// Answers that stages owe: one for each job and stage.
    owed: usize,
    /// Step jobs since the last wave.
    steps_since_wave: usize,
    /// What failed, until all stages have settled.
    failure: Option<String>,
    settling: bool,
    closed: bool,
    /// What the stages that answered, and the callers, had seen.
    seen: Vec<Stamp>,
}

/// A request on its way.
struct Entry {
    accepted: Accepted,
    /// Jobs that were issued.
    issued: usize,
    /// Whether the last job, or the release of a cancelled prompt, was issued.
    complete: bool,
    /// For each job, the stages that have completed it.
    done: Vec<usize>,
    /// Answers that stages owe to this request.
    owed: usize,
    outcome: Result<(), EngineError>,
}

impl Schedule {
    /// A schedule for `stages` stages and as many sequences; `watcher` learns what orders their threads.
    pub fn new(stages: usize, sequences: usize, watcher: &Watcher) -> Arc<Self> {
        Arc::new(Self {
            stages,
            steps: sequences.max(1),
            watcher: watcher.clone(),
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts a request.
    ///
    /// # Errors
    /// When the engine has ended; the request's sequences are free again.
    pub fn submit(&self, accepted: Accepted) -> Result<(), EngineError> {
        let done = vec![0; accepted.jobs.len()];
        let mut state = self.state();
        if state.closed {
            accepted.places.iter().for_each(|(place, _)| place.release(0));
            return Err(ended());
        }
        state.seen.push(self.watcher.stamp());
        state.entries.push(Entry { accepted, issued: 0, complete: false, done, owed: 0, outcome: Ok(()) });
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// The first stage: waits for the next job; `None` when the engine ends.
    pub fn next(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            for stamp in state.seen.drain(..) {
                self.watcher.join(&stamp);
            }
            if state.closed {
                return None;
            }
            if let Some(job) = state.choose(self.stages, self.steps) {
                return Some(job);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A stage has ended a job: the `number`th of its request, or its release.
    pub fn answer(&self, id: TicketId, number: Option<usize>, result: Result<(), EngineError>) {
        let mut state = self.state();
        state.seen.push(self.watcher.stamp());
        state.answer(id, number, result, self.stages);
        drop(state);
        self.changed.notify_all();
    }

    /// A stage has settled after a failure.
    pub fn settled(&self, result: Result<(), EngineError>) {
        let mut state = self.state();
        state.seen.push(self.watcher.stamp());
        if let Err(error) = result {
            tracing::error!("a stage does not recover: {error}");
        }
        state.owed = state.owed.saturating_sub(1);
        if state.owed == 0 {
            state.end_failed(self.stages);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The engine ends, or a stage has: no job is issued any more, and every request ends.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        for entry in state.entries.drain(..) {
            entry.accepted.request.fail();
            entry.end(Err(ended()), 0);
        }
        drop(state);
        self.changed.notify_all();
    }
}

impl State {
    fn choose(&mut self, stages: usize, steps: usize) -> Option<Job> {
        if self.failure.is_some() {
            if self.owed > 0 || self.settling {
                return None;
            }
            self.settling = true;
            self.owed = stages;
            return Some(Job::Settle);
        }
        self.end_cancelled();
        let prompt = self.entries.iter().position(|entry| entry.is_prompt() && !entry.complete);
        let step = self.entries.iter().position(|entry| !entry.is_prompt() && !entry.complete);
        let step = step.filter(|_| prompt.is_none() || self.steps_since_wave < steps);
        self.steps_since_wave = if step.is_some() { self.steps_since_wave + 1 } else { 0 };
        let job = self.entries.get_mut(step.or(prompt)?)?.issue(stages)?;
        self.owed += stages;
        Some(job)
    }

    /// Ends cancelled requests of which no stage knows.
    fn end_cancelled(&mut self) {
        let cancelled = |entry: &mut Entry| entry.issued == 0 && entry.accepted.request.cancel.is_cancelled();
        for entry in self.entries.extract_if(.., cancelled) {
            entry.end(Err(EngineError::Cancelled), 0);
        }
    }

    fn answer(&mut self, id: TicketId, number: Option<usize>, result: Result<(), EngineError>, stages: usize) {
        self.owed = self.owed.saturating_sub(1);
        let Some(at) = self.entries.iter().position(|entry| entry.accepted.request.id == id) else { return };
        let Some(entry) = self.entries.get_mut(at) else { return };
        entry.owed = entry.owed.saturating_sub(1);
        match result {
            Ok(()) => {
                if let Some(done) = number.and_then(|number| entry.done.get_mut(number)) {
                    *done += 1;
                }
            }
            Err(EngineError::Cancelled) => {
                if entry.outcome.is_ok() {
                    entry.outcome = Err(EngineError::Cancelled);
                }
            }
            Err(error) => {
                self.failure.get_or_insert_with(|| error.to_string());
                // A stage that only followed another one's failure reports a cancellation: the cause comes first.
                if matches!(entry.outcome, Ok(()) | Err(EngineError::Cancelled)) {
                    entry.outcome = Err(error);
                }
                let begun = self.entries.iter().filter(|entry| entry.issued > 0);
                begun.for_each(|entry| entry.accepted.request.fail());
                return;
            }
        }
        if self.failure.is_none() && entry.complete && entry.owed == 0 {
            self.entries.remove(at).finish(stages);
        }
    }

    /// All stages have settled: ends the requests that had begun before the failure.
    fn end_failed(&mut self, stages: usize) {
        self.settling = false;
        let Some(cause) = self.failure.take() else { return };
        for mut entry in self.entries.extract_if(.., |entry| entry.issued > 0) {
            let ran = entry.complete && entry.done.iter().all(|done| *done == stages);
            if !ran && matches!(entry.outcome, Ok(()) | Err(EngineError::Cancelled)) {
                entry.outcome = Err(EngineError::Interrupted { cause: cause.clone() });
            }
            entry.finish(stages);
        }
    }
}

impl Entry {
    fn is_prompt(&self) -> bool {
        matches!(self.accepted.jobs.first(), Some((Rows::Wave(_), _)))
    }

    /// The next job of the request; a prompt that was cancelled between two waves is released.
    fn issue(&mut self, stages: usize) -> Option<Job> {
        let Accepted { request, jobs, wanted, .. } = &self.accepted;
        self.owed += stages;
        // Only a prompt has several jobs. One that is cancelled before its first job finds out by itself.
        if self.issued > 0 && (request.cancel.is_cancelled() || self.outcome.is_err()) {
            self.complete = true;
            self.outcome = Err(EngineError::Cancelled);
            return Some(Job::Release(Arc::clone(request)));
        }
        let (rows, tokens) = jobs.get(self.issued)?;
        let last = self.issued + 1 == jobs.len();
        let run = Run {
            request: Arc::clone(request),
            number: self.issued,
            first: jobs.iter().take(self.issued).map(|(_, tokens)| tokens.len()).sum(),
            rows: rows.clone(),
            tokens: Arc::clone(tokens),
            wanted: if *wanted == Wanted::Last && !last { Wanted::None } else { *wanted },
            last,
        };
        self.issued += 1;
        self.complete = last;
        Some(Job::Run(run))
    }

    /// Ends a request whose jobs have ended. A cancelled prompt keeps the waves that every stage completed.
    fn finish(mut self, stages: usize) {
        let outcome = std::mem::replace(&mut self.outcome, Ok(()));
        let outcome = outcome.and_then(|()| self.accepted.request.check_numbers());
        let kept = match &outcome {
            Ok(()) | Err(EngineError::Cancelled) => {
                let jobs = self.done.iter().zip(&self.accepted.jobs);
                jobs.take_while(|(done, _)| **done == stages).map(|(_, (_, tokens))| tokens.len()).sum()
            }
            Err(_) => 0,
        };
        self.end(outcome, kept);
    }

    /// Gives the sequences back, then tells the caller.
    fn end(self, outcome: Result<(), EngineError>, kept: usize) {
        let (prompt, Accepted { request, places, .. }) = (self.is_prompt(), self.accepted);
        for (place, appended) in places {
            place.release(if prompt || kept == 0 { kept } else { appended });
        }
        request.end(outcome);
    }
}

fn ended() -> EngineError {
    EngineError::Thread("the engine has ended, or one of its stages has".to_owned())
}
