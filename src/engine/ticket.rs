//! Requests and their tickets: what a caller asks for, and how it gets the answer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::EngineError;
use super::cancel::Cancel;
use super::job::Wanted;
use super::sequence::Sequence;
use crate::plan::{KvPlan, PromptPlan};
use crate::units::TokenId;

/// Blocks of logits that wait for the caller. A block may be many MiB, so a stage whose caller is slow waits for it.
const BLOCKS: usize = 2;

/// How often a stage that waits for its caller looks whether the request was cancelled.
const LOOK: Duration = Duration::from_millis(20);

/// What an engine is asked for: tokens to append to sequences.
pub struct Request<'a> {
    pub(super) what: What<'a>,
    pub(super) cancel: Cancel,
}

/// What a request appends.
pub(super) enum What<'a> {
    Prompt { sequence: &'a Sequence, tokens: &'a [TokenId], wanted: Wanted },
    Step(Vec<(&'a Sequence, &'a [TokenId])>),
}

impl<'a> Request<'a> {
    /// A prompt: tokens go through the layers in waves. The ticket gives the logits after the last one.
    pub fn prompt(sequence: &'a Sequence, tokens: &'a [TokenId]) -> Self {
        Self { what: What::Prompt { sequence, tokens, wanted: Wanted::Last }, cancel: Cancel::new() }
    }

    /// As [`Request::prompt`]; the ticket gives the logits after every token, in order.
    pub fn prompt_all(sequence: &'a Sequence, tokens: &'a [TokenId]) -> Self {
        Self { what: What::Prompt { sequence, tokens, wanted: Wanted::All }, cancel: Cancel::new() }
    }

    /// A decode step: one or more tokens of each sequence, at most as many in all as the plan has sequences. The ticket
    /// gives the logits after each token, in this order.
    pub fn step(rows: impl IntoIterator<Item = (&'a Sequence, &'a [TokenId])>) -> Self {
        Self { what: What::Step(rows.into_iter().collect()), cancel: Cancel::new() }
    }

    /// Lets `cancel` end the request too.
    pub fn cancelled_by(self, cancel: &Cancel) -> Self {
        Self { cancel: cancel.clone(), ..self }
    }
}

/// Identifies a request of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketId(pub u64);

static NEXT: AtomicU64 = AtomicU64::new(1);

/// What comes of a request.
#[derive(Debug)]
pub enum Output {
    /// Logits after consecutive tokens of the request, f32 `[rows, vocabulary]`; `first` is the number of the first of
    /// them.
    Logits {
        /// Number of the first row in the request.
        first: usize,
        /// The values.
        logits: Vec<f32>,
    },
    /// The request has ended; its sequences can be used again.
    End(Result<(), EngineError>),
}

/// A request that was accepted. It runs whether or not anybody asks; dropping the ticket cancels it.
///
/// As an iterator it waits for each output; the last one is [`Output::End`]. While blocks of logits wait to be taken,
/// the stage that made them waits, and with it whatever else it has to do: take them as they come, or cancel.
#[derive(Debug)]
pub struct Ticket {
    running: Arc<Running>,
    ended: bool,
}

impl Ticket {
    pub(super) fn new(running: &Arc<Running>) -> Self {
        Self { running: Arc::clone(running), ended: false }
    }

    /// Identifies the request.
    pub fn id(&self) -> TicketId {
        self.running.id
    }

    /// Ends the request within one layer's time.
    pub fn cancel(&self) {
        self.running.cancel.cancel();
    }

    /// The next output, if there is one now. Nothing comes after [`Output::End`].
    pub fn poll(&mut self) -> Option<Output> {
        self.next_within(Duration::ZERO)
    }

    /// Waits at most `limit` for the next output.
    pub fn next_within(&mut self, limit: Duration) -> Option<Output> {
        if self.ended {
            return None;
        }
        let output = self.running.take(Some(Instant::now() + limit));
        self.ended = matches!(output, Some(Output::End(_)));
        output
    }

    /// Waits for the end and gives each block of logits to `sink`, with the number of its first row.
    ///
    /// # Errors
    /// [`EngineError::Cancelled`], after which a prompt's sequence holds the waves that were complete; any other error
    /// leaves the sequences as they were.
    pub fn wait(self, mut sink: impl FnMut(usize, &[f32])) -> Result<(), EngineError> {
        for output in self {
            match output {
                Output::Logits { first, logits } => sink(first, &logits),
                Output::End(result) => return result,
            }
        }
        Ok(())
    }
}

impl Iterator for Ticket {
    type Item = Output;

    fn next(&mut self) -> Option<Output> {
        if self.ended {
            return None;
        }
        let output = self.running.take(None);
        self.ended = matches!(output, Some(Output::End(_)));
        output
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.ended {
            self.running.cancel.cancel();
        }
        self.running.mail().closed = true;
        self.running.changed.notify_all();
    }
}

/// What a request, its ticket and all stages share.
#[derive(Debug)]
pub(super) struct Running {
    pub id: TicketId,
    pub cancel: Cancel,
    /// How its prompt is read.
    pub prompt: PromptPlan,
    /// How its cached cells come.
    pub kv: KvPlan,
    /// A stage has failed: the others stop at their next layer.
    failed: AtomicBool,
    mail: Mutex<Mail>,
    changed: Condvar,
}

/// What waits for the caller.
#[derive(Debug, Default)]
struct Mail {
    blocks: VecDeque<(usize, Vec<f32>)>,
    /// The first row whose logits are not numbers.
    not_a_number: Option<usize>,
    end: Option<Result<(), EngineError>>,
    /// Nobody asks any more.
    closed: bool,
}

impl Running {
    pub fn new(cancel: Cancel, prompt: PromptPlan, kv: KvPlan) -> Arc<Self> {
        Arc::new(Self {
            id: TicketId(NEXT.fetch_add(1, Ordering::Relaxed)),
            cancel,
            prompt,
            kv,
            failed: AtomicBool::new(false),
            mail: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn mail(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the stages are to stop at their next layer.
    pub fn stops(&self) -> bool {
        self.cancel.is_cancelled() || self.has_failed()
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// A stage has failed under the request.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    /// Gives logits of rows from `first` on to the caller, and waits while it has too many; `false` when it wants no
    /// more. Rows with values that are not numbers are kept back: they make the request's end an error.
    pub fn deliver(&self, first: usize, logits: Vec<f32>, vocab: usize) -> bool {
        let odd = logits.chunks(vocab.max(1)).position(|row| row.iter().any(|logit| logit.is_nan()));
        let mut logits = logits;
        if let Some(row) = odd {
            self.mail().not_a_number.get_or_insert(first + row);
            logits.truncate(row * vocab);
        }
        let mut mail = self.mail();
        while mail.blocks.len() >= BLOCKS && !mail.closed && !self.stops() {
            (mail, _) = self.changed.wait_timeout(mail, LOOK).unwrap_or_else(PoisonError::into_inner);
        }
        if mail.closed || self.stops() {
            return false;
        }
        if !logits.is_empty() {
            mail.blocks.push_back((first, logits));
        }
        drop(mail);
        self.changed.notify_all();
        true
    }

    /// The error that odd logits make of a good end.
    pub fn check_numbers(&self) -> Result<(), EngineError> {
        self.mail().not_a_number.map_or(Ok(()), |row| Err(EngineError::NotANumber { row, cells: self.kv.kind }))
    }

    /// The request has ended.
    pub fn end(&self, result: Result<(), EngineError>) {
        self.mail().end.get_or_insert(result);
        self.changed.notify_all();
    }

    /// The next output; waits for it, at the latest until `deadline`.
    fn take(&self, deadline: Option<Instant>) -> Option<Output> {
        let mut mail = self.mail();
        loop {
            if let Some((first, logits)) = mail.blocks.pop_front() {
                drop(mail);
                self.changed.notify_all();
                return Some(Output::Logits { first, logits });
            }
            if let Some(result) = mail.end.take() {
                return Some(Output::End(result));
            }
            mail = match deadline {
                None => self.changed.wait(mail).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
                    self.changed.wait_timeout(mail, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}
