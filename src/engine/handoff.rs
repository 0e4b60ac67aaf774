//! The hand-off: hidden states on their way into a stage and out of it, through page-locked host memory.
//!
//! A boundary has two host buffers, and the cards on both sides have two hidden buffers each, used in turn: while a stage computes one wave,
//! the next one arrives and the last one leaves. Each job makes exactly one `sent` and one `taken` message, also when it is
//! abandoned, so that the two sides stay in step.

use std::sync::Arc;

use super::layer::F32;
use super::{EngineError, waits};
use crate::card::{
    Baton, BatonReceiver, Card, Command, Event, HostBuf, HostMemory, HostSpan, Span, Stream, Watcher, baton,
};

/// Hidden buffers of a stage that has neighbours.
const BUFFERS: usize = 2;

/// The sending side of a boundary.
pub(super) struct Sender {
    buffers: [HostSpan; BUFFERS],
    sent: Baton<Option<Event>>,
    taken: BatonReceiver<Option<Event>>,
    jobs: usize,
}

/// The receiving side of a boundary.
pub(super) struct Receiver {
    buffers: [HostSpan; BUFFERS],
    sent: BatonReceiver<Option<Event>>,
    taken: Baton<Option<Event>>,
    jobs: usize,
}

/// A boundary between two stages; each buffer holds `bytes`.
pub(super) fn boundary(host: &HostMemory, watcher: &Watcher, bytes: usize) -> Result<(Sender, Receiver), EngineError> {
    let buffers = [host.alloc(bytes, "hand-off 0")?.whole(), host.alloc(bytes, "hand-off 1")?.whole()];
    let (send, sent) = baton(watcher);
    let (take, taken) = baton(watcher);
    let sender = Sender { buffers: buffers.clone(), sent: send, taken, jobs: 0 };
    Ok((sender, Receiver { buffers, sent, taken: take, jobs: 0 }))
}

fn gone() -> EngineError {
    EngineError::Thread("a neighbouring stage has ended".to_owned())
}

fn buffer(buffers: &[HostSpan; BUFFERS], job: usize, bytes: usize) -> Result<HostSpan, EngineError> {
    let [even, odd] = buffers;
    let whole = if job.is_multiple_of(BUFFERS) { even } else { odd };
    whole.part(0, bytes).ok_or_else(|| EngineError::Mismatch("a wave is larger than the hand-off buffers".to_owned()))
}

impl Sender {
    /// Sends the hidden states of a job; `done` is the end of the stage's last layer. Returns the event after which the hidden buffer is free.
    pub fn send(&mut self, card: &dyn Card, hidden: Span, done: &Event) -> Result<Event, EngineError> {
        let job = self.jobs;
        let taken = self.next()?;
        let result = (|| {
            let to = buffer(&self.buffers, job, hidden.bytes)?;
            card.wait(Stream::HandOff, done, waits::STAGE_DONE)?;
            if let Some(taken) = &taken {
                card.wait(Stream::HandOff, taken, waits::HAND_OFF_TAKEN)?;
            }
            card.submit(Stream::HandOff, Command::CopyOut { from: hidden, to })?;
            Ok::<_, EngineError>(card.record(Stream::HandOff)?)
        })();
        self.sent.send(result.as_ref().ok().cloned()).map_err(|_| gone())?;
        result
    }

    /// Tells the receiver that nothing comes for this job.
    pub fn abandon(&mut self) -> Result<(), EngineError> {
        self.next()?;
        self.sent.send(None).map_err(|_| gone())
    }

    /// Forgets earlier jobs, after both sides have ended them and their cards were drained.
    pub fn reset(&mut self) -> Result<(), EngineError> {
        for _ in 0..self.jobs.min(BUFFERS) {
            self.taken.receive().ok_or_else(gone)?;
        }
        self.jobs = 0;
        Ok(())
    }

    /// Counts a job; waits for the message that the buffer's last content was taken, and returns its event.
    fn next(&mut self) -> Result<Option<Event>, EngineError> {
        self.jobs += 1;
        if self.jobs > BUFFERS { self.taken.receive().ok_or_else(gone) } else { Ok(None) }
    }
}

impl Receiver {
    /// Takes the hidden states of a job into `hidden`, which is free after `free`. Returns the event of their arrival; `None` when the
    /// sender abandoned the job.
    pub fn take(&mut self, card: &dyn Card, hidden: Span, free: Option<&Event>) -> Result<Option<Event>, EngineError> {
        let job = self.jobs;
        self.jobs += 1;
        let sent = self.sent.receive().ok_or_else(gone)?;
        let result = sent.map(|sent| {
            let from = buffer(&self.buffers, job, hidden.bytes)?;
            card.wait(Stream::HandOff, &sent, waits::HAND_OFF_SENT)?;
            if let Some(free) = free {
                card.wait(Stream::HandOff, free, waits::HIDDEN_FREE)?;
            }
            card.submit(Stream::HandOff, Command::CopyIn { from, to: hidden })?;
            Ok::<_, EngineError>(card.record(Stream::HandOff)?)
        });
        let result = result.transpose();
        self.taken.send(result.as_ref().ok().and_then(Clone::clone)).map_err(|_| gone())?;
        result
    }

    /// Forgets earlier jobs, after both sides have ended them and their cards were drained.
    pub fn reset(&mut self) {
        self.jobs = 0;
    }

    /// Passes a job without looking at it.
    pub fn pass(&mut self) -> Result<(), EngineError> {
        self.jobs += 1;
        self.sent.receive().ok_or_else(gone)?;
        self.taken.send(None).map_err(|_| gone())
    }
}

/// The first stage's way in: embeddings are written by the host and copied to the card.
pub(super) struct Embeddings {
    buffer: HostBuf,
    taken: Option<Event>,
}

impl Embeddings {
    /// A buffer of `bytes`.
    pub fn new(host: &HostMemory, bytes: usize) -> Result<Self, EngineError> {
        Ok(Self { buffer: host.alloc(bytes, "embeddings")?, taken: None })
    }

    /// Lets `write` fill the rows and copies them into `hidden`, which is free after `free`. Returns the event of their arrival.
    pub fn send(
        &mut self,
        card: &Arc<dyn Card>,
        hidden: Span,
        free: Option<&Event>,
        write: impl FnOnce(&mut [f32]) -> Result<(), EngineError>,
    ) -> Result<Event, EngineError> {
        if let Some(taken) = self.taken.take() {
            card.sync(&taken, waits::EMBEDDINGS_TAKEN)?;
        }
        let too_long = || EngineError::Mismatch(format!("{} rows exceed the wave", hidden.bytes / F32));
        let from = self.buffer.span(0, hidden.bytes).ok_or_else(too_long)?;
        from.write(|bytes| write(bytemuck::cast_slice_mut(bytes)))??;
        if let Some(free) = free {
            card.wait(Stream::HandOff, free, waits::HIDDEN_FREE)?;
        }
        card.submit(Stream::HandOff, Command::CopyIn { from, to: hidden })?;
        let arrived = card.record(Stream::HandOff)?;
        self.taken = Some(arrived.clone());
        Ok(arrived)
    }

    /// Forgets the last copy, after a drain.
    pub fn reset(&mut self) {
        self.taken = None;
    }
}
