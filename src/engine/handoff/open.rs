//! Opening a boundary: a way that is not the host's is tried with data before it is used.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{BUFFERS, Receiver, Sender, Way, sides};
use crate::card::{BatonReceiver, Card, CardError, Command, Event, HostMemory, HostSpan, Span, Stream, baton};
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

/// Opens a boundary whose waves have at most `bytes`. Where the planned way cannot be had or its test fails, hidden states go through the
/// host, and the plan is told.
///
/// # Errors
/// When host memory is short, or the test left a card that does not come back.
pub(in crate::engine) fn open(
    host: &HostMemory,
    plan: &mut HandOffPlan,
    [from, to]: [Side<'_>; 2],
    bytes: usize,
) -> Result<(Sender, Receiver), EngineError> {
    let buffers = [host.alloc(bytes, "hand-off 0")?.whole(), host.alloc(bytes, "hand-off 1")?.whole()];
    let through_host = || sides(host.watcher(), &buffers, [Way::Host, Way::Host]);
    let ways = match plan.way {
        HandOffWay::Host => return Ok(through_host()),
        HandOffWay::Peer => to.card.reach(&from.card.neighbour()).map(|()| [Way::Peer, Way::Peer]),
        HandOffWay::Nccl => from.card.join(&to.card.neighbour(), JOIN_LIMIT).map(|ends| ends.map(Way::Wire)),
    };
    let tried = ways.and_then(|ways| {
        let (mut sender, mut receiver) = sides(host.watcher(), &buffers, ways);
        let test = Test { host, buffers: &buffers, from, to, deadline: Instant::now() + TEST_LIMIT };
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

/// A test of a boundary: what jobs will do, with data that is known. The first host buffer brings it, the second one takes it back.
struct Test<'a> {
    host: &'a HostMemory,
    buffers: &'a [HostSpan; BUFFERS],
    from: Side<'a>,
    to: Side<'a>,
    deadline: Instant,
}

impl Test<'_> {
    fn run(&self, sender: &mut Sender, receiver: &mut Receiver) -> Result<(), String> {
        let [brings, _] = self.buffers;
        let whole = brings.bytes().min(TEST_BYTES);
        // More rounds than there are buffers, so that each of them is used again; whole, odd, and short.
        let rounds = [whole, (whole / 3) | 1, whole, 1].map(|bytes| bytes.min(whole));
        let (go, told) = baton(self.host.watcher());
        // Each side has a thread, as when jobs run: the two halves of a wire's first transfer wait for each other.
        let (sent, received) = std::thread::scope(|scope| {
            let sender = &mut *sender;
            let sending = scope.spawn(move || self.send_all(sender, &told));
            let received = (0..).zip(rounds).try_for_each(|(round, bytes)| {
                go.send((round, bytes)).map_err(|_| "the sender has ended".to_owned())?;
                self.receive(receiver, round, bytes)
            });
            if received.is_err() {
                receiver.cut();
            }
            drop(go);
            let sent = sending.join().unwrap_or_else(|_| Err("the sender panicked".to_owned()));
            (sent, received)
        });
        // Who only knows that nothing came, or that the wire was cut, is not asked first.
        if sender.cut_from_afar() { received.and(sent) } else { sent.and(received) }?;
        sender.reset().map_err(|error| error.to_string())?;
        receiver.reset();
        Ok(())
    }

    fn send_all(&self, sender: &mut Sender, rounds: &BatonReceiver<(usize, usize)>) -> Result<(), String> {
        let card = self.from.card.as_ref();
        while let Some((round, bytes)) = rounds.receive() {
            let hidden = self.from.hidden.part(0, bytes);
            let sent = match self.bring(round, hidden) {
                Ok(done) => sender.send(card, hidden, &done),
                Err(error) => sender.abandon(card).and(Err(error)),
            };
            let ended = sent.and_then(|left| Ok(within(card, &left, self.deadline)?));
            match ended {
                Ok(true) => {}
                Ok(false) => return Err(self.late(sender, bytes)),
                Err(error) => {
                    sender.cut();
                    return Err(error.to_string());
                }
            }
        }
        Ok(())
    }

    fn late(&self, sender: &Sender, bytes: usize) -> String {
        sender.cut();
        format!("{bytes} bytes did not leave within {} s", TEST_LIMIT.as_secs())
    }

    /// Puts the round's pattern into the sending card's memory.
    fn bring(&self, round: usize, hidden: Span) -> Result<Event, EngineError> {
        let card = self.from.card.as_ref();
        let from = part(self.buffers, 0, hidden.bytes)?;
        from.write(|to| to.iter_mut().enumerate().for_each(|(i, byte)| *byte = pattern(round, i)))?;
        card.submit(Stream::HandOff, Command::CopyIn { from, to: hidden })?;
        Ok(card.record(Stream::HandOff)?)
    }

    /// Takes a round and compares it.
    fn receive(&self, receiver: &mut Receiver, round: usize, bytes: usize) -> Result<(), String> {
        let back = self.take(receiver, bytes).map_err(|error| error.to_string())?;
        let Some(back) = back else {
            return Err(format!("{bytes} bytes did not arrive within {} s", TEST_LIMIT.as_secs()));
        };
        let wrong =
            |found: &[u8]| found.iter().enumerate().find(|(i, byte)| **byte != pattern(round, *i)).map(|(i, _)| i);
        match back.read(wrong).map_err(|error| error.to_string())? {
            None => Ok(()),
            Some(byte) => Err(format!("byte {byte} of {bytes} arrived wrong")),
        }
    }

    /// Takes a round and brings it back to the host; nothing where it does not come in time.
    fn take(&self, receiver: &mut Receiver, bytes: usize) -> Result<Option<HostSpan>, EngineError> {
        let card = self.to.card.as_ref();
        let hidden = self.to.hidden.part(0, bytes);
        if receiver.take(card, hidden, None)?.is_none() {
            return Err(EngineError::Mismatch("nothing was sent".to_owned()));
        }
        let back = part(self.buffers, 1, bytes)?;
        card.submit(Stream::HandOff, Command::CopyOut { from: hidden, to: back.clone() })?;
        let ended = card.record(Stream::HandOff)?;
        Ok(within(card, &ended, self.deadline)?.then_some(back))
    }
}

fn part(buffers: &[HostSpan; BUFFERS], which: usize, bytes: usize) -> Result<HostSpan, EngineError> {
    super::buffer(buffers, which, bytes)
}

/// Byte `i` of a round: neither constant nor periodic, and another one each round.
fn pattern(round: usize, i: usize) -> u8 {
    let mixed = (i as u32 ^ (round as u32) << 24).wrapping_mul(0x9e37_79b1);
    (mixed >> 24) as u8 ^ (mixed >> 13) as u8
}
