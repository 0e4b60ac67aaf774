//! Memory, copies, events, refusals.

use std::time::{Duration, Instant};

use aqueduct::card::command::{Command, CopyIn, CopyOut, CopyWithin, RmsNorm};
use aqueduct::card::{Card, CardError, HostMemory, Stream};
use aqueduct::units::Bytes;

use crate::rig::{WHY, rig};

#[test]
fn events_order_streams_and_polls_see_them_end() {
    let Some(rig) = rig() else { return };
    let card = &rig.card;
    let bytes = 64 << 20;
    let (a, b) = (rig.space(bytes), rig.space(bytes));
    let mut polls = 0;
    for round in 0..20_u8 {
        let host = rig.memory.alloc(bytes, "round").unwrap();
        let back = rig.memory.alloc(bytes, "back").unwrap();
        assert!(host.is_locked());
        host.whole().write(|to| to.fill(round)).unwrap();
        card.submit(Stream::Experts, Command::CopyIn(CopyIn { from: host.whole(), to: a })).unwrap();
        let arrived = card.record(Stream::Experts).unwrap();
        card.wait(Stream::Compute, &arrived, WHY).unwrap();
        card.submit(Stream::Compute, Command::CopyWithin(CopyWithin { from: a, to: b })).unwrap();
        let copied = card.record(Stream::Compute).unwrap();
        card.wait(Stream::KvOut, &copied, WHY).unwrap();
        card.submit(Stream::KvOut, Command::CopyOut(CopyOut { from: b, to: back.whole() })).unwrap();
        // The card keeps the source alive for as long as it copies.
        drop(host);
        let written = card.record(Stream::KvOut).unwrap();
        while !card.finished(&written).unwrap() {
            polls += 1;
            std::thread::yield_now();
        }
        assert!(back.whole().read(|bytes| bytes.iter().all(|b| *b == round)).unwrap());
        card.sync(&written, WHY).unwrap();
        card.wait(Stream::Experts, &copied, WHY).unwrap();
    }
    println!("{polls} polls saw copies under way");
    assert!(polls > 0, "20 times 64 MiB do not all arrive at once");
}

#[test]
fn memory_that_is_not_page_locked_is_copied_both_ways_in_order() {
    let Some(rig) = rig() else { return };
    let card = &rig.card;
    let pageable = HostMemory::default();
    // More than all staging buffers hold, and no multiple of one.
    let bytes = (37 << 20) + 5;
    let (a, b) = (rig.space(bytes), rig.space(bytes));
    for round in 0..3_usize {
        let value = |at: usize, of: usize| (at / 977 + at + 7 * round + of) as u8;
        let source = |of: usize| {
            let host = pageable.alloc(bytes, "pageable").unwrap();
            host.whole().write(|to| to.iter_mut().enumerate().for_each(|(at, to)| *to = value(at, of))).unwrap();
            host
        };
        let (first, second) = (source(1), source(2));
        assert!(!first.is_locked());
        // Two streams use the buffers in turn; the second copy to `a` is behind the first.
        card.submit(Stream::Experts, Command::CopyIn(CopyIn { from: second.whole(), to: a })).unwrap();
        card.submit(Stream::KvIn, Command::CopyIn(CopyIn { from: second.whole(), to: b })).unwrap();
        card.submit(Stream::Experts, Command::CopyIn(CopyIn { from: first.whole(), to: a })).unwrap();
        // Memory that a copy has been queued from may be written: it was read.
        first.whole().write(|to| to.fill(0)).unwrap();
        drop(second);
        let back = pageable.alloc(bytes, "back").unwrap();
        for (stream, from, of) in [(Stream::Experts, a, 1), (Stream::KvIn, b, 2)] {
            card.submit(stream, Command::CopyOut(CopyOut { from, to: back.whole() })).unwrap();
            // Copies out to such memory are waited for.
            let right = |bytes: &[u8]| bytes.iter().enumerate().all(|(at, byte)| *byte == value(at, of));
            assert!(back.whole().read(right).unwrap(), "round {round}, source {of}");
        }
        card.submit(Stream::KvIn, Command::CopyIn(CopyIn { from: back.whole(), to: a })).unwrap();
        card.drain(Stream::KvIn, WHY).unwrap();
        assert!(rig.download(&a) == rig.download(&b));
    }
}

#[test]
fn refusals_name_the_reason_and_leave_the_card_usable() {
    let Some(rig) = rig() else { return };
    let card = &rig.card;
    let free = card.free_memory().unwrap();
    let refused = card.alloc(Bytes(free.0 + 1), "too much").unwrap_err();
    assert!(matches!(refused, CardError::OutOfMemory { .. }), "{refused}");
    let empty = card.alloc(Bytes(0), "nothing").unwrap().whole();
    rig.run(Command::CopyWithin(CopyWithin { from: empty, to: empty }));

    let x = rig.floats(&[1.0; 64]);
    let short = rig.space(100);
    let refused = card
        .submit(Stream::Compute, Command::RmsNorm(RmsNorm { x, weight: short, eps: 0.0, rows: 1, cols: 64, out: x }))
        .unwrap_err();
    assert!(matches!(refused, CardError::Refused { .. }) && refused.to_string().contains("rms norm"), "{refused}");
    card.recover().unwrap();
    let weight = rig.floats(&[1.0; 64]);
    rig.run(Command::RmsNorm(RmsNorm { x, weight, eps: 0.0, rows: 1, cols: 64, out: x }));
    assert_eq!(rig.read(&x), [1.0; 64]);
}

/// What the calling thread has computed for so far.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_thread_that_waits_long_gives_its_core_away() {
    let Some(rig) = rig() else { return };
    let bytes = 256 << 20;
    let (a, b) = (rig.space(bytes), rig.space(bytes));
    let wait = |copies: usize| {
        (0..copies).for_each(|_| rig.run(CopyWithin { from: a, to: b }.into()));
        let ended = rig.card.record(Stream::Compute).unwrap();
        let (began, before) = (Instant::now(), thread_time());
        rig.card.sync(&ended, WHY).unwrap();
        (began.elapsed(), thread_time() - before)
    };
    let (mut waited, mut used) = (Duration::ZERO, Duration::ZERO);
    while waited < Duration::from_millis(300) {
        let (longer, more) = wait(400);
        (waited, used) = (waited + longer, used + more);
    }
    println!("long waits: {waited:.1?}, of which the thread took {used:.1?}");
    assert!(used < waited / 3, "{used:?} of {waited:?}");
    let small = a.part(0, 4096);
    let began = Instant::now();
    for _ in 0..2000 {
        rig.run(CopyWithin { from: small, to: b.part(0, 4096) }.into());
        let ended = rig.card.record(Stream::Compute).unwrap();
        rig.card.sync(&ended, WHY).unwrap();
    }
    println!("short waits: {:.1?} each, launch and all", began.elapsed() / 2000);
}
