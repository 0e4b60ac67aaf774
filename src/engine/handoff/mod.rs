//! The hand-off: hidden states on their way into a stage and out of it.
//!
//! A boundary has two host buffers, and the cards on both sides have two hidden buffers each, used in turn: while a
//! stage computes one wave, the next one arrives and the last one leaves. Each job makes exactly one `sent` and one
//! `taken` message, also when it is abandoned, so that the two sides stay in step. There are three ways across:
//!
//! - *host*: the sender copies to a host buffer, the receiver from it;
//! - *peer*: the receiver copies from the sender's hidden buffer, which is free again when that copy has ended;
//! - *wire*: the sender sends and the receiver receives, each on its own card. Both halves of a job are queued or
//!   neither is: a receiver that passes a job takes what was sent for it. A stage that fails cuts its wires, so that no
//!   neighbour waits for it; from the next request on hidden states then go through the host.

mod embeddings;
mod open;

use std::time::Duration;

pub(super) use embeddings::Embeddings;
pub(super) use open::{Side, buffers, open};

use super::{EngineError, waits};
use crate::card::command::{CopyAcross, CopyIn, CopyOut, WireReceive, WireSend};
use crate::card::{
    Card, ClockedReceiver, ClockedSender, Command, Event, HostSpan, Span, Stream, Watcher, Why, Wire, clocked_channel,
};

/// Hidden buffers of a stage that has neighbours, and host buffers of a boundary.
const BUFFERS: usize = 2;

/// How often a side that waits for a message looks whether its own card still runs.
const POLL: Duration = Duration::from_millis(20);

/// How hidden states cross a boundary.
enum Way {
    Host,
    Peer,
    Wire(Wire),
}

/// What was sent: there after `event`, from this part of the sender's memory.
struct Sent {
    event: Event,
    hidden: Span,
}

/// The sending side of a boundary.
pub(super) struct Sender {
    way: Way,
    buffers: [HostSpan; BUFFERS],
    sent: ClockedSender<Option<Sent>>,
    taken: ClockedReceiver<Option<Event>>,
    /// A `taken` message that came before its turn.
    early: Option<Option<Event>>,
    /// The last transfer over a wire.
    last: Option<Event>,
    jobs: usize,
}

/// The receiving side of a boundary.
pub(super) struct Receiver {
    way: Way,
    buffers: [HostSpan; BUFFERS],
    sent: ClockedReceiver<Option<Sent>>,
    taken: ClockedSender<Option<Event>>,
    /// The last transfer over a wire.
    last: Option<Event>,
    jobs: usize,
}

/// The two sides of a boundary over these ways.
fn sides(watcher: &Watcher, buffers: &[HostSpan; BUFFERS], [out, back]: [Way; 2]) -> (Sender, Receiver) {
    let (send, sent) = clocked_channel(watcher);
    let (take, taken) = clocked_channel(watcher);
    let (to, from) = (buffers.clone(), buffers.clone());
    let sender = Sender { way: out, buffers: to, sent: send, taken, early: None, last: None, jobs: 0 };
    (sender, Receiver { way: back, buffers: from, sent, taken: take, last: None, jobs: 0 })
}

/// When a hidden buffer may be written again.
pub(super) struct Free {
    pub event: Event,
    pub why: Why,
}

impl Free {
    fn wait(free: Option<&Self>, card: &dyn Card) -> Result<(), EngineError> {
        free.map_or(Ok(()), |free| Ok(card.wait(Stream::HandOff, &free.event, free.why)?))
    }
}

/// The one message that a job owes its neighbour: sent when this is dropped, so that a panic does not make the
/// neighbour wait.
struct Owed<'a, T> {
    to: &'a ClockedSender<Option<T>>,
    message: Option<T>,
}

impl<T> Drop for Owed<'_, T> {
    fn drop(&mut self) {
        // A neighbour that has ended waits for nothing; the next message from it tells.
        let _ = self.to.send(self.message.take());
    }
}

fn gone() -> EngineError {
    EngineError::Thread("a neighbouring stage has ended".to_owned())
}

fn buffer(buffers: &[HostSpan; BUFFERS], job: usize, bytes: usize) -> Result<HostSpan, EngineError> {
    let [even, odd] = buffers;
    let whole = if job.is_multiple_of(BUFFERS) { even } else { odd };
    whole.part(0, bytes).ok_or_else(|| EngineError::Internal("a wave is larger than the hand-off buffers".to_owned()))
}

impl Way {
    /// Waits for a message of the neighbour. Over a wire the neighbour may stand still because this card has failed and
    /// its half of a transfer will never run: then the wire is cut, and the message comes.
    fn message<T>(&self, from: &ClockedReceiver<T>, card: &dyn Card, last: Option<&Event>) -> Result<T, EngineError> {
        if let (Self::Wire(wire), Some(last)) = (self, last) {
            loop {
                match from.receive_within(POLL) {
                    Ok(Some(message)) => return Ok(message),
                    Ok(None) if card.finished(last).is_err() => break wire.end().cut(),
                    Ok(None) => {}
                    Err(_) => return Err(gone()),
                }
            }
        }
        from.receive().ok_or_else(gone)
    }

    fn cut(&self) {
        if let Self::Wire(wire) = self {
            wire.end().cut();
        }
    }

    fn cut_from_afar(&self) -> bool {
        matches!(self, Self::Wire(wire) if wire.end().cut_from_afar())
    }

    /// Whether hidden states must go through the host from now on.
    fn give_up(&mut self) -> bool {
        let cut = matches!(self, Self::Wire(wire) if wire.end().is_cut());
        if cut {
            *self = Self::Host;
        }
        cut
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.cut();
    }
}

impl Sender {
    /// When the hidden buffer of the job to come may be written again, as far as the receiver decides that: it copies
    /// from there itself.
    pub fn freed(&mut self) -> Result<Option<Event>, EngineError> {
        if !matches!(self.way, Way::Peer) || self.jobs < BUFFERS {
            return Ok(None);
        }
        if self.early.is_none() {
            self.early = Some(self.taken.receive().ok_or_else(gone)?);
        }
        Ok(self.early.clone().flatten())
    }

    /// Sends the hidden states of a job; `done` is the end of the stage's last layer. Returns the event after which the
    /// hidden buffer is free, unless [`Sender::freed`] tells another.
    pub fn send(&mut self, card: &dyn Card, hidden: Span, done: &Event) -> Result<Event, EngineError> {
        let job = self.jobs;
        let taken = self.next(card)?;
        let mut owed = Owed { to: &self.sent, message: None };
        let left = match &self.way {
            Way::Host => {
                let to = buffer(&self.buffers, job, hidden.bytes)?;
                card.wait(Stream::HandOff, done, waits::STAGE_DONE)?;
                if let Some(taken) = &taken {
                    card.wait(Stream::HandOff, taken, waits::HAND_OFF_TAKEN)?;
                }
                card.submit(Stream::HandOff, Command::CopyOut(CopyOut { from: hidden, to }))?;
                card.record(Stream::HandOff)?
            }
            Way::Peer => done.clone(),
            Way::Wire(wire) => {
                card.wait(Stream::HandOff, done, waits::STAGE_DONE)?;
                card.submit(Stream::HandOff, Command::WireSend(WireSend { from: hidden, over: wire.clone() }))?;
                let left = card.record(Stream::HandOff)?;
                self.last = Some(left.clone());
                left
            }
        };
        owed.message = Some(Sent { event: left.clone(), hidden });
        Ok(left)
    }

    /// Tells the receiver that nothing comes for this job.
    pub fn abandon(&mut self, card: &dyn Card) -> Result<(), EngineError> {
        self.next(card)?;
        self.sent.send(None).map_err(|_| gone())
    }

    /// This stage failed: no neighbour may wait for what it has queued.
    pub fn cut(&self) {
        self.way.cut();
    }

    /// Whether the neighbour failed and cut the wire.
    pub fn cut_from_afar(&self) -> bool {
        self.way.cut_from_afar()
    }

    /// Forgets earlier jobs, after both sides have ended them and their cards were drained.
    pub fn reset(&mut self) -> Result<(), EngineError> {
        for _ in 0..self.jobs.min(BUFFERS) {
            self.taken.receive().ok_or_else(gone)?;
        }
        (self.jobs, self.last) = (0, None);
        if self.way.give_up() {
            tracing::warn!(
                "the wire between two cards was cut by a failure: hidden states go through host memory from now on"
            );
        }
        Ok(())
    }

    /// Counts a job; waits for the message that the content before the last was taken, and returns its event.
    fn next(&mut self, card: &dyn Card) -> Result<Option<Event>, EngineError> {
        self.jobs += 1;
        match self.early.take() {
            Some(taken) => Ok(taken),
            None if self.jobs > BUFFERS => self.way.message(&self.taken, card, self.last.as_ref()),
            None => Ok(None),
        }
    }
}

impl Receiver {
    /// Takes the hidden states of a job into the beginning of `hidden`, which is free after `free`. Returns the event
    /// of their arrival; `None` when the sender abandoned the job.
    pub fn take(&mut self, card: &dyn Card, hidden: Span, free: Option<&Free>) -> Result<Option<Event>, EngineError> {
        let job = self.jobs;
        self.jobs += 1;
        let sent = self.way.message(&self.sent, card, self.last.as_ref())?;
        let mut owed = Owed { to: &self.taken, message: None };
        let Some(Sent { event, hidden: from }) = sent else { return Ok(None) };
        if from.bytes > hidden.bytes {
            return Err(EngineError::Internal("a wave is larger than the hidden buffers".to_owned()));
        }
        let to = hidden.part(0, from.bytes);
        let command = match &self.way {
            Way::Host => {
                card.wait(Stream::HandOff, &event, waits::HAND_OFF_SENT)?;
                Command::CopyIn(CopyIn { from: buffer(&self.buffers, job, to.bytes)?, to })
            }
            Way::Peer => {
                card.wait(Stream::HandOff, &event, waits::HIDDEN_READY)?;
                Command::CopyAcross(CopyAcross { from, to })
            }
            Way::Wire(wire) => Command::WireReceive(WireReceive { to, over: wire.clone() }),
        };
        Free::wait(free, card)?;
        card.submit(Stream::HandOff, command)?;
        let arrived = card.record(Stream::HandOff)?;
        if matches!(self.way, Way::Wire(_)) {
            self.last = Some(arrived.clone());
        }
        owed.message = Some(arrived.clone());
        Ok(Some(arrived))
    }

    /// Passes a job without looking at it; what comes over a wire goes to `hidden`, which is free after `free`.
    pub fn pass(&mut self, card: &dyn Card, hidden: Span, free: Option<&Free>) -> Result<(), EngineError> {
        if self.is_wired() {
            return self.take(card, hidden, free).map(drop).inspect_err(|_| self.way.cut());
        }
        self.jobs += 1;
        self.way.message(&self.sent, card, self.last.as_ref())?;
        self.taken.send(None).map_err(|_| gone())
    }

    /// Whether a wire leads here that is not cut.
    pub fn is_wired(&self) -> bool {
        matches!(&self.way, Way::Wire(wire) if !wire.end().is_cut())
    }

    /// This stage failed: no neighbour may wait for what it has queued.
    pub fn cut(&self) {
        self.way.cut();
    }

    /// Whether the neighbour failed and cut the wire.
    pub fn cut_from_afar(&self) -> bool {
        self.way.cut_from_afar()
    }

    /// Forgets earlier jobs, after both sides have ended them and their cards were drained.
    pub fn reset(&mut self) {
        (self.jobs, self.last) = (0, None);
        self.way.give_up();
    }
}
