//! The ledger finds every kind of missing order, names it, and is silent about clean programs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "ledger/programs.rs"]
mod programs;

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use aqueduct::card::command::{CopyIn, CopyOut, CopyWithin};
use aqueduct::card::ledger::{Ledger, LedgerCard};
use aqueduct::card::virt::{Faults, VirtualCard, VirtualOptions};
use aqueduct::card::{
    Card, CardError, Command, HostBuf, HostMemory, Lease, Region, Stream, Watcher, Why, clocked_channel,
};
use aqueduct::cpu::Team;
use aqueduct::units::{Bytes, CardId};

const WHY: Why = Why("test");

/// Two watched cards and watched host memory.
struct Rig {
    ledger: Arc<Ledger>,
    cards: Vec<Arc<dyn Card>>,
    host: HostMemory,
}

impl Rig {
    fn new() -> Self {
        let ledger = Ledger::new();
        let team = Arc::new(Team::new(1).unwrap());
        let card = |id| -> Arc<dyn Card> {
            let card = VirtualCard::new(VirtualOptions {
                id: CardId(id),
                name: format!("virtual {id}"),
                budget: Bytes(1 << 20),
                team: Arc::clone(&team),
                links: None,
                faults: Faults::default(),
                timeline: None,
            });
            Arc::new(LedgerCard::new(&ledger, Arc::new(card.unwrap())))
        };
        let cards = vec![card(0), card(1)];
        let host = HostMemory::new(Watcher::new(ledger.clone()), None);
        Self { ledger, cards, host }
    }

    fn region(&self, card: usize, what: &str) -> Region {
        self.cards[card].alloc(Bytes(4096), what).unwrap()
    }

    fn buf(&self, what: &str) -> HostBuf {
        self.host.alloc(4096, what).unwrap()
    }

    /// The text of the one violation, which `result` returned as well.
    fn complaint<T>(&self, result: Result<T, CardError>) -> String {
        let Err(CardError::Unordered(text)) = result else { panic!("no complaint") };
        assert_eq!(self.ledger.violations(), std::slice::from_ref(&text));
        text
    }

    fn clean(&self) {
        assert_eq!(self.ledger.violations(), [] as [String; 0]);
    }
}

fn inside(from: &Region, to: &Region) -> Command {
    Command::CopyWithin(CopyWithin { from: from.whole(), to: to.whole() })
}

fn copy_in(from: &HostBuf, to: &Region) -> Command {
    Command::CopyIn(CopyIn { from: from.whole(), to: to.whole() })
}

fn copy_out(from: &Region, to: &HostBuf) -> Command {
    Command::CopyOut(CopyOut { from: from.whole(), to: to.whole() })
}

#[test]
fn a_stream_that_does_not_wait_for_another_is_found() {
    let rig = Rig::new();
    let card = &rig.cards[0];
    let (slot, x, y) = (rig.region(0, "expert pool"), rig.region(0, "x"), rig.region(0, "y"));
    card.submit(Stream::Experts, inside(&x, &slot)).unwrap();
    let event = card.record(Stream::Experts).unwrap();
    let text = rig.complaint(card.submit(Stream::Compute, inside(&slot, &y)));
    for part in ["card 0's compute stream", "card 0's experts stream", "`expert pool`", "0..4096", "reads", "wrote"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    card.wait(Stream::Compute, &event, WHY).unwrap();
    card.submit(Stream::Compute, inside(&slot, &y)).unwrap();
    assert_eq!(rig.ledger.violations().len(), 1);
}

#[test]
fn an_event_covers_only_what_stood_before_it() {
    let rig = Rig::new();
    let card = &rig.cards[0];
    let (a, b, c) = (rig.region(0, "a"), rig.region(0, "b"), rig.region(0, "c"));
    card.submit(Stream::Experts, inside(&c, &a)).unwrap();
    let event = card.record(Stream::Experts).unwrap();
    card.submit(Stream::Experts, inside(&c, &b)).unwrap();
    card.wait(Stream::Compute, &event, WHY).unwrap();
    card.submit(Stream::Compute, copy_out(&a, &rig.buf("out"))).unwrap();
    rig.clean();
    let text = rig.complaint(card.submit(Stream::Compute, copy_out(&b, &rig.buf("out"))));
    assert!(text.contains("action 2 of card 0's experts stream"), "{text}");
}

#[test]
fn a_read_must_end_before_its_bytes_are_written_again() {
    let rig = Rig::new();
    let card = &rig.cards[0];
    let (slot, x) = (rig.region(0, "ring slot"), rig.region(0, "x"));
    card.submit(Stream::Compute, inside(&slot, &x)).unwrap();
    let released = card.record(Stream::Compute).unwrap();
    let host = rig.buf("arena");
    let text = rig.complaint(card.submit(Stream::Experts, copy_in(&host, &slot)));
    assert!(text.contains("writes") && text.contains("which read"), "{text}");
    card.wait(Stream::Experts, &released, WHY).unwrap();
    card.submit(Stream::Experts, copy_in(&host, &slot)).unwrap();
}

#[test]
fn cards_that_meet_in_a_host_buffer_need_an_event_between_them() {
    let rig = Rig::new();
    let (x, y, host) = (rig.region(0, "x"), rig.region(1, "y"), rig.buf("hand-off"));
    rig.cards[0].submit(Stream::HandOff, copy_out(&x, &host)).unwrap();
    let sent = rig.cards[0].record(Stream::HandOff).unwrap();
    let text = rig.complaint(rig.cards[1].submit(Stream::HandOff, copy_in(&host, &y)));
    assert!(text.contains("card 1's hand-off stream") && text.contains("card 0's hand-off stream"), "{text}");
    rig.cards[1].wait(Stream::HandOff, &sent, WHY).unwrap();
    rig.cards[1].submit(Stream::HandOff, copy_in(&host, &y)).unwrap();
    assert_eq!(rig.ledger.violations().len(), 1);
}

#[test]
fn the_host_reads_only_after_a_drain_a_sync_or_a_finished_event() {
    for way in 0..3 {
        let rig = Rig::new();
        let card = &rig.cards[0];
        let (x, host) = (rig.region(0, "x"), rig.buf("logits"));
        card.submit(Stream::Compute, copy_out(&x, &host)).unwrap();
        let event = card.record(Stream::Compute).unwrap();
        let text = rig.complaint(host.whole().read(<[u8]>::to_vec));
        assert!(text.contains("`host read`") && text.contains("`logits`"), "{text}");
        match way {
            0 => card.drain(Stream::Compute, WHY).unwrap(),
            1 => card.sync(&event, WHY).unwrap(),
            _ => while !card.finished(&event).unwrap() {},
        }
        host.whole().read(<[u8]>::to_vec).unwrap();
        assert_eq!(rig.ledger.violations().len(), 1);
    }
}

#[test]
fn the_host_writes_only_after_copies_have_read() {
    let rig = Rig::new();
    let (x, host) = (rig.region(0, "x"), rig.buf("tokens"));
    host.whole().write(|bytes| bytes.fill(1)).unwrap();
    rig.cards[0].submit(Stream::Compute, copy_in(&host, &x)).unwrap();
    rig.clean();
    rig.complaint(host.whole().write(|bytes| bytes.fill(2)));
}

#[test]
fn sealed_and_adopted_memory_is_read_freely() {
    let rig = Rig::new();
    let (x, host) = (rig.region(0, "x"), rig.buf("weights"));
    host.whole().write(|bytes| bytes.fill(7)).unwrap();
    host.seal();
    let weights = rig.cards[0].adopt(&host.whole(), "weights").unwrap().unwrap();
    std::thread::spawn({
        let (card, x) = (Arc::clone(&rig.cards[0]), x.clone());
        move || {
            card.submit(Stream::Compute, Command::CopyWithin(CopyWithin { from: weights.whole(), to: x.whole() }))
                .unwrap()
        }
    })
    .join()
    .unwrap();
    std::thread::spawn(move || assert_eq!(host.whole().read(|bytes| bytes[5]), Ok(7))).join().unwrap();
    rig.clean();
}

#[test]
fn a_command_with_an_ended_lease_is_refused() {
    let rig = Rig::new();
    let card = &rig.cards[0];
    let (slot, x) = (rig.region(0, "expert pool"), rig.region(0, "x"));
    let lease = Lease::new(Arc::clone(card), &[slot.whole()], &[Stream::Compute], WHY);
    let borrowed = lease.spans()[0];
    card.submit(Stream::Compute, Command::CopyWithin(CopyWithin { from: x.whole(), to: borrowed })).unwrap();
    lease.end().unwrap();
    let text =
        rig.complaint(card.submit(Stream::Compute, Command::CopyWithin(CopyWithin { from: x.whole(), to: borrowed })));
    assert!(text.contains("lease") && text.contains("`expert pool`") && text.contains("ended"), "{text}");
    assert_eq!(rig.ledger.counts().waits[&WHY], 1);
}

#[test]
fn a_lease_orders_what_its_holder_does_next_with_the_slots() {
    let rig = Rig::new();
    let card = &rig.cards[0];
    let (slot, x) = (rig.region(0, "expert pool"), rig.region(0, "x"));
    let refill = inside(&x, &slot);
    let lease = Lease::new(Arc::clone(card), &[slot.whole()], &[Stream::Experts], WHY);
    card.submit(Stream::Experts, Command::CopyWithin(CopyWithin { from: x.whole(), to: lease.spans()[0] })).unwrap();
    drop(lease);
    card.submit(Stream::Compute, refill.clone()).unwrap();
    rig.clean();

    let rig = Rig::new();
    let card = &rig.cards[0];
    let (slot, x) = (rig.region(0, "expert pool"), rig.region(0, "x"));
    rig.ledger.leave_out(WHY);
    let lease = Lease::new(Arc::clone(card), &[slot.whole()], &[Stream::Experts], WHY);
    card.submit(Stream::Experts, Command::CopyWithin(CopyWithin { from: x.whole(), to: lease.spans()[0] })).unwrap();
    drop(lease);
    rig.complaint(card.submit(Stream::Compute, inside(&x, &slot)));
    assert_eq!(rig.ledger.counts().left_out[&WHY], 1);
}

#[test]
fn a_message_between_host_threads_orders_only_if_it_carries_the_clock() {
    let rig = Rig::new();
    let host = rig.buf("expert inputs");
    std::thread::scope(|scope| {
        let (send, receive) = mpsc::channel();
        let span = host.whole();
        scope.spawn(move || {
            span.write(|bytes| bytes.fill(1)).unwrap();
            send.send(()).unwrap();
        });
        receive.recv().unwrap();
    });
    let text = rig.complaint(host.whole().read(<[u8]>::to_vec));
    assert!(text.contains("host thread"), "{text}");

    let rig = Rig::new();
    let host = rig.buf("expert inputs");
    std::thread::scope(|scope| {
        let (send, receive) = clocked_channel(rig.host.watcher());
        let span = host.whole();
        scope.spawn(move || {
            span.write(|bytes| bytes.fill(1)).unwrap();
            send.send(5).unwrap();
        });
        assert_eq!(receive.receive_within(Duration::from_secs(10)), Ok(Some(5)));
    });
    host.whole().read(<[u8]>::to_vec).unwrap();
    rig.clean();
}

#[test]
fn a_command_is_ordered_after_what_its_submitter_had_seen() {
    let rig = Rig::new();
    let (x, y, host) = (rig.region(0, "x"), rig.region(1, "y"), rig.buf("hidden states"));
    rig.cards[0].submit(Stream::HandOff, copy_out(&x, &host)).unwrap();
    rig.cards[0].drain(Stream::HandOff, WHY).unwrap();
    let (send, receive) = clocked_channel(rig.host.watcher());
    send.send(()).unwrap();
    std::thread::spawn({
        let (card, host) = (Arc::clone(&rig.cards[1]), host.clone());
        move || {
            receive.receive().unwrap();
            card.submit(Stream::HandOff, copy_in(&host, &y)).unwrap();
        }
    })
    .join()
    .unwrap();
    rig.clean();
}

#[test]
fn what_a_card_refuses_leaves_no_trace() {
    let rig = Rig::new();
    let card = &rig.cards[0];
    let (x, y) = (rig.region(0, "x"), rig.region(0, "y"));
    let short = Command::CopyWithin(CopyWithin { from: x.span(0, 8), to: y.span(0, 4) });
    assert!(matches!(card.submit(Stream::Compute, short), Err(CardError::Refused { .. })));
    card.submit(Stream::KvIn, inside(&x, &y)).unwrap();
    rig.clean();
    assert_eq!(rig.ledger.counts().all().commands, 1);
    assert_eq!(rig.ledger.counts().on(CardId(0), Stream::KvIn, "copy").bytes, 4096);
}

#[test]
fn recovery_orders_the_host_after_everything() {
    let rig = Rig::new();
    let card = &rig.cards[0];
    let (x, host) = (rig.region(0, "x"), rig.buf("out"));
    card.submit(Stream::KvOut, copy_out(&x, &host)).unwrap();
    card.recover().unwrap();
    host.whole().read(<[u8]>::to_vec).unwrap();
    rig.clean();
}

/// A ring of slots filled by one stream and read by another, and cells written one after the other and read from the
/// first.
#[test]
fn a_hundred_thousand_commands_take_seconds() {
    let rig = Rig::new();
    let card = &rig.cards[0];
    let (ring, x, cells) = (rig.region(0, "ring"), rig.region(0, "x"), rig.region(0, "cells"));
    let (host, out) = (rig.buf("arena"), rig.buf("out"));
    let mut released: Vec<Option<aqueduct::card::Event>> = vec![None; 8];
    let start = Instant::now();
    for i in 0..25_000 {
        let slot = ring.span(i % 8 * 512, 512);
        if let Some(event) = &released[i % 8] {
            card.wait(Stream::Experts, event, WHY).unwrap();
        }
        card.submit(Stream::Experts, Command::CopyIn(CopyIn { from: host.span(0, 512).unwrap(), to: slot })).unwrap();
        let arrived = card.record(Stream::Experts).unwrap();
        card.wait(Stream::Compute, &arrived, WHY).unwrap();
        card.submit(Stream::Compute, Command::CopyWithin(CopyWithin { from: slot, to: x.span(0, 512) })).unwrap();
        released[i % 8] = Some(card.record(Stream::Compute).unwrap());
        let cell = i % 256;
        card.submit(
            Stream::Compute,
            Command::CopyWithin(CopyWithin { from: x.span(0, 16), to: cells.span(cell * 16, 16) }),
        )
        .unwrap();
        let seen = (cell + 1) * 16;
        let read = Command::CopyOut(CopyOut { from: cells.span(0, seen), to: out.span(0, seen).unwrap() });
        card.submit(Stream::Compute, read).unwrap();
    }
    let took = start.elapsed();
    println!("100,000 commands under the ledger: {took:?}");
    rig.clean();
    assert_eq!(rig.ledger.counts().all().commands, 100_000);
    assert!(took < Duration::from_secs(30), "{took:?}");
}
