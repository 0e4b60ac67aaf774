//! Opening a boundary: a way that is not the host's is tried with data before it is used.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{BUFFERS, POLL, Receiver, Sender, Way, buffer, sides};
use crate::card::command::{CopyIn, CopyOut};
use crate::card::{Card, CardError, Command, Event, HostMemory, HostSpan, Span, Stream, Watcher};
use crate::engine::EngineError;
use crate::plan::{HandOffPlan, HandOffWay};

/// How long making a wire may take: NCCL looks at the whole machine first.
const JOIN_LIMIT: Duration = Duration::from_secs(20);

/// How long the test of a way may take.
const TEST_LIMIT: Duration = Duration::from_secs(5);

/// Most bytes that a round of the test sends.
const TEST_BYTES: usize = 4 << 20;

/// One side of a boundary.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Side<'a> {
    /// Its card.
    pub card: &'a Arc<dyn Card>,
    /// Its hidden buffers.
    pub hidden: Span,
}

/// The host buffers of a boundary whose waves have at most `bytes`.
pub(in crate::engine) fn buffers(host: &HostMemory, bytes: usize) -> Result<[HostSpan; BUFFERS], EngineError> {
    Ok([host.alloc(bytes, "hand-off 0")?.whole(), host.alloc(bytes, "hand-off 1")?.whole()])
}

/// Opens a boundary. Where the planned way cannot be had or its test fails, hidden states go through the
/// host, and the plan is told.
///
/// # Errors
/// When the test left a card that does not come back.
pub(in crate::engine) fn open(
    watcher: &Watcher,
    plan: &mut HandOffPlan,
    [from, to]: [Side<'_>; 2],
    buffers: [HostSpan; BUFFERS],
) -> Result<(Sender, Receiver), EngineError> {
    let through_host = || sides(watcher, &buffers, [Way::Host, Way::Host]);
    let ways = match plan.way {
        HandOffWay::Host => return Ok(through_host()),
        HandOffWay::Peer => to.card.reach(&from.card.neighbour()).map(|()| [Way::Peer, Way::Peer]),
        HandOffWay::Nccl => from.card.join(&to.card.neighbour(), JOIN_LIMIT).map(|ends| ends.map(Way::Wire)),
    };
    let tried = ways.and_then(|ways| {
        let (mut sender, mut receiver) = sides(watcher, &buffers, ways);
        let test = Test { buffers: &buffers, from, to, deadline: Instant::now() + TEST_LIMIT };
        test.run(&mut sender, &mut receiver).map(|()| (sender, receiver))
    });
    let reason = match tried {
        Ok(sides) => return Ok(sides),
        Err(reason) => reason,
    };
    let [left, arrived] = [from.card, to.card].map(|card| comes_back(card.as_ref()));
    if !left || !arrived {
        // A card with a stream that never ends cannot be closed either: it stays until the process ends.
        [from.card, to.card].into_iter().for_each(|card| std::mem::forget(Arc::clone(card)));
        return Err(EngineError::HandOff { from: plan.from, to: plan.to, way: plan.way.name(), reason });
    }
    from.card.recover()?;
    to.card.recover()?;
    plan.why = format!("it does not work {}: {reason}", plan.way.name());
    plan.way = HandOffWay::Host;
    Ok(through_host())
}

/// Whether all that is queued for hand-offs ends, with or without a failure.
fn comes_back(card: &dyn Card) -> bool {
    let Ok(event) = card.record(Stream::HandOff) else { return true };
    within(card, &event, Instant::now() + TEST_LIMIT) != Ok(false)
}

/// Waits for an event; whether it ended in time.
fn within(card: &dyn Card, event: &Event, deadline: Instant) -> Result<bool, CardError> {
    while !card.finished(event)? {
        if Instant::now() >= deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(true)
}

/// A test of a boundary: what jobs will do, with data that is known. The first host buffer brings it, the second one
/// takes it back.
struct Test<'a> {
    buffers: &'a [HostSpan; BUFFERS],
    from: Side<'a>,
    to: Side<'a>,
    deadline: Instant,
}

impl Test<'_> {
    fn run(&self, sender: &mut Sender, receiver: &mut Receiver) -> Result<(), String> {
        let whole = self.buffers.iter().map(HostSpan::bytes).min().unwrap_or(0).min(TEST_BYTES);
        // More rounds than there are buffers, so that each of them is used again; whole, odd, and short.
        let rounds = [whole, (whole / 3) | 1, whole, 1].map(|bytes| bytes.min(whole));
        for (round, bytes) in rounds.into_iter().enumerate() {
            let came = match self.round(sender, receiver, round, bytes) {
                Ok(came) => came,
                Err(error) => {
                    // A side whose wire the other one cut does not know why.
                    let cause = if receiver.cut_from_afar() {
                        self.failure(self.from.card.as_ref())
                    } else if sender.cut_from_afar() {
                        self.failure(self.to.card.as_ref())
                    } else {
                        None
                    };
                    return Err(cause.map_or_else(|| error.to_string(), |cause| cause.to_string()));
                }
            };
            let Some(came) = came else {
                return Err(format!("{bytes} bytes did not arrive within {} s", TEST_LIMIT.as_secs()));
            };
            let differs =
                |found: &[u8]| (0..).zip(found).find(|(i, byte)| **byte != pattern(round, *i)).map(|(i, _)| i);
            if let Some(byte) = came.read(differs).map_err(|error| error.to_string())? {
                return Err(format!("byte {byte} of {bytes} arrived wrong"));
            }
        }
        sender.reset().map_err(|error| error.to_string())?;
        receiver.reset();
        Ok(())
    }

    /// Brings a pattern to the sending card, hands it over and takes it back; nothing where that does not end in time.
    fn round(
        &self,
        sender: &mut Sender,
        receiver: &mut Receiver,
        round: usize,
        bytes: usize,
    ) -> Result<Option<HostSpan>, EngineError> {
        let [out, back] = [self.from.card, self.to.card].map(Arc::as_ref);
        let [from, to] = [self.from, self.to].map(|side| side.hidden.part(0, bytes));
        let brought = buffer(self.buffers, 0, bytes)?;
        brought.write(|to| (0..).zip(to).for_each(|(i, byte)| *byte = pattern(round, i)))?;
        out.submit(Stream::HandOff, Command::CopyIn(CopyIn { from: brought, to: from }))?;
        let ready = out.record(Stream::HandOff)?;
        let left = sender.send(out, from, &ready)?;
        receiver.take(back, to, None)?;
        let taken = buffer(self.buffers, 1, bytes)?;
        back.submit(Stream::HandOff, Command::CopyOut(CopyOut { from: to, to: taken.clone() }))?;
        let ended = back.record(Stream::HandOff)?;
        // The sender is looked at again and again: if it fails, nothing ever arrives over a wire.
        while !within(back, &ended, Instant::now() + POLL)? {
            out.finished(&left)?;
            if Instant::now() >= self.deadline {
                return Ok(None);
            }
        }
        Ok(within(out, &left, self.deadline)?.then_some(taken))
    }

    /// What failed on a card, if something did.
    fn failure(&self, card: &dyn Card) -> Option<CardError> {
        match card.record(Stream::HandOff) {
            Ok(event) => within(card, &event, self.deadline).err(),
            Err(error) => Some(error),
        }
    }
}

/// Byte `i` of a round: neither constant nor periodic, and another one each round.
fn pattern(round: usize, i: usize) -> u8 {
    let mixed = (i as u32 ^ (round as u32) << 24).wrapping_mul(0x9e37_79b1);
    (mixed >> 24) as u8 ^ (mixed >> 13) as u8
}
