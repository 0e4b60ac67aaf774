//! Virtual cards: bounded memory, checked commands, real kernels, slowed links, faults and recovery, threads that end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "virtual_card/across.rs"]
mod across;
#[path = "virtual_card/any_command.rs"]
mod any_command;
#[path = "virtual_card/kernels.rs"]
mod kernels;
#[path = "virtual_card/over_link.rs"]
mod over_link;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use aqueduct::card::command::{
    Attend, AttentionEnd, Cells, Combine, CopyIn, CopyOut, CopyWithin, Epilogue, ExpertsInto, GatedActivation,
    HeldExpert, Linear, LinearPart, Phase, RmsNorm, Route, Routing, RunExperts, StoreKv, Weight,
};
use aqueduct::card::timeline::{Timeline, Track, Work};
use aqueduct::card::virt::{Faults, LinkRates, VirtualCard, VirtualOptions};
use aqueduct::card::{Card, CardError, CardKind, Command, HostBuf, HostMemory, Lease, Region, Stream, Why};
use aqueduct::cpu::Team;
use aqueduct::ops::{
    ATTENTION_TILE, Activation, AttentionShape, BlobLayout, CellLayout, ExpertSet, KvType, RouterRule, RouterScores,
};
use aqueduct::quant::QuantType;
use aqueduct::units::{Bytes, CardId, ExpertId, Rate};

const WHY: Why = Why("test");

/// Every card of these tests has its own number, so that threads can be told apart by their names.
static NEXT: AtomicU32 = AtomicU32::new(0);

struct Bench {
    card: Arc<VirtualCard>,
    faults: Faults,
    timeline: Timeline,
}

impl Bench {
    fn new() -> Self {
        Self::with(None)
    }

    fn with(links: Option<LinkRates>) -> Self {
        let (faults, timeline) = (Faults::default(), Timeline::default());
        let id = CardId(NEXT.fetch_add(1, Ordering::Relaxed));
        let card = VirtualCard::new(VirtualOptions {
            id,
            name: format!("virtual {}", id.0),
            budget: Bytes(1 << 20),
            team: Arc::new(Team::new(2).unwrap()),
            links,
            faults: faults.clone(),
            timeline: Some(timeline.clone()),
        });
        Self { card: Arc::new(card.unwrap()), faults, timeline }
    }

    fn region(&self, bytes: u64, what: &str) -> Region {
        self.card.alloc(Bytes(bytes), what).unwrap()
    }

    /// A region that holds these numbers.
    fn floats(&self, values: &[f32]) -> Region {
        let region = self.region(values.len() as u64 * 4, "floats");
        let from = host(bytemuck::cast_slice(values));
        self.card.submit(Stream::Compute, Command::CopyIn(CopyIn { from: from.whole(), to: region.whole() })).unwrap();
        region
    }

    fn read(&self, region: &Region) -> Vec<f32> {
        let to = HostMemory::default().alloc(region.bytes, "read back").unwrap();
        self.card.submit(Stream::Compute, Command::CopyOut(CopyOut { from: region.whole(), to: to.whole() })).unwrap();
        self.card.drain(Stream::Compute, WHY).unwrap();
        to.whole().read(bytemuck::pod_collect_to_vec).unwrap()
    }

    fn refusal(&self, command: Command) -> String {
        match self.card.submit(Stream::Compute, command).unwrap_err() {
            CardError::Refused { reason, .. } => reason,
            other => panic!("{other}"),
        }
    }
}

fn host(bytes: &[u8]) -> HostBuf {
    let buf = HostMemory::default().alloc(bytes.len(), "host").unwrap();
    buf.whole().write(|to| to.copy_from_slice(bytes)).unwrap();
    buf
}

fn copy(from: &Region, to: &Region) -> Command {
    Command::CopyWithin(CopyWithin { from: from.whole(), to: to.whole() })
}

#[test]
fn memory_is_bounded_and_zeroed_and_says_what_is_free() {
    let bench = Bench::new();
    let first = bench.region(700 << 10, "weights");
    assert_eq!(bench.card.free_memory(), Ok(Bytes(324 << 10)));
    let error = bench.card.alloc(Bytes(325 << 10), "expert pool").unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{}: expert pool needs 325.0 KiB, 324.0 KiB is free", bench.card.id()),
        "the message names card, purpose and both amounts"
    );
    assert_eq!(bench.card.alloc(Bytes(0), "nothing").unwrap().bytes, 0);
    assert!(bench.read(&first).iter().all(|x| *x == 0.0));
    bench.region(324 << 10, "the rest");
    assert_eq!(bench.card.free_memory(), Ok(Bytes(0)));
    assert_eq!(bench.card.kind(), CardKind::Virtual);
}

#[test]
fn adopted_memory_is_read_in_place_counts_and_is_never_written() {
    let bench = Bench::new();
    let weights = host(&[3; 512 << 10]);
    assert!(matches!(bench.card.adopt(&weights.whole(), "weights"), Err(CardError::Device { .. })), "not sealed");
    weights.seal();
    let region = bench.card.adopt(&weights.whole(), "weights").unwrap().unwrap();
    assert_eq!(bench.card.free_memory(), Ok(Bytes(512 << 10)));
    assert!(matches!(bench.card.adopt(&host(&[0; 1]).whole(), "unsealed"), Err(CardError::Device { .. })));
    let more = host(&[0; 600 << 10]);
    more.seal();
    assert!(matches!(bench.card.adopt(&more.whole(), "too much"), Err(CardError::OutOfMemory { .. })));

    let own = bench.region(512 << 10, "copy");
    bench.card.submit(Stream::Compute, copy(&region, &own)).unwrap();
    assert_eq!(bench.read(&own)[0].to_bits(), 0x0303_0303);
    assert!(bench.refusal(copy(&own, &region)).contains("only read"));
    drop(weights);
    bench.card.submit(Stream::Compute, copy(&region, &own)).unwrap();
    bench.card.drain(Stream::Compute, WHY).unwrap();
}

#[test]
fn a_wrong_command_is_refused_with_its_reason_and_nothing_runs() {
    let (bench, other) = (Bench::new(), Bench::new());
    let (x, w, out) = (bench.region(64, "x"), bench.region(16, "norm weight"), bench.region(64, "out"));
    let foreign = other.region(64, "foreign");
    let norm = |x, rows, out| Command::RmsNorm(RmsNorm { x, weight: w.whole(), eps: 1e-5, rows, cols: 4, out });
    let mut beyond = x.whole();
    beyond.offset = 32;
    let sealed = host(&[0; 64]);
    sealed.seal();
    let part = |ty, rows, at| LinearPart { weight: Weight { ty, rows, cols: 4, at }, bias: None, out: out.whole() };
    let linear = |part| {
        Command::Linear(Linear {
            x: x.whole(),
            rows: 4,
            parts: vec![part],
            epilogue: Epilogue::Store,
            phase: Phase::Prompt,
            scratch: bench.region(1024, "scratch").whole(),
        })
    };
    let cases = [
        (Command::CopyWithin(CopyWithin { from: x.whole(), to: foreign.whole() }), "memory of card"),
        (
            Command::CopyWithin(CopyWithin { from: x.span(0, 8), to: out.span(0, 4) }),
            "the source has 8 bytes, the target 4",
        ),
        (Command::CopyWithin(CopyWithin { from: beyond, to: out.whole() }), "do not lie inside `x`"),
        (Command::CopyWithin(CopyWithin { from: x.span(0, 8), to: x.span(4, 8) }), "are written and used otherwise"),
        (Command::CopyOut(CopyOut { from: x.whole(), to: sealed.whole() }), "sealed"),
        (norm(x.whole(), 3, out.whole()), "x has 64 bytes, but 48"),
        (norm(x.span(2, 48), 3, out.span(0, 48)), "not aligned"),
        (norm(x.span(0, 48), 3, x.span(16, 48)), "are written and used otherwise"),
        (linear(part(QuantType::Q4_0, 4, w.whole())), "whole number of Q4_0 blocks"),
        (linear(part(QuantType::F32, 4, w.whole())), "a weight has 16 bytes, but 64"),
    ];
    for (command, wanted) in cases {
        let reason = bench.refusal(command);
        assert!(reason.contains(wanted), "{wanted}: {reason}");
    }
    let mut unknown = x.whole();
    unknown.region = foreign.id;
    assert!(
        bench.refusal(Command::CopyWithin(CopyWithin { from: unknown, to: out.whole() })).contains("does not exist")
    );
    bench.card.drain(Stream::Compute, WHY).unwrap();
    assert_eq!(bench.timeline.entries(), []);
}

#[test]
fn streams_wait_for_events_and_hosts_poll_them() {
    let bench = Bench::with(Some(LinkRates { h2d: Rate(1e6), d2h: Rate(1e6) }));
    let (slot, x) = (bench.region(20_000, "slot"), bench.region(20_000, "x"));
    let from = host(&[9; 20_000]);
    bench.card.submit(Stream::Experts, Command::CopyIn(CopyIn { from: from.whole(), to: slot.whole() })).unwrap();
    let arrived = bench.card.record(Stream::Experts).unwrap();
    assert_eq!(bench.card.finished(&arrived), Ok(false), "20 ms of copying have just begun");
    bench.card.wait(Stream::Compute, &arrived, Why("expert arrived")).unwrap();
    bench.card.submit(Stream::Compute, copy(&slot, &x)).unwrap();
    bench.card.drain(Stream::Compute, WHY).unwrap();
    assert_eq!(bench.card.finished(&arrived), Ok(true));
    assert_eq!(bench.read(&x)[0].to_bits(), 0x0909_0909);

    let waits: Vec<_> = bench.timeline.entries().into_iter().filter(|entry| entry.work == Work::Wait).collect();
    assert_eq!(waits.len(), 1);
    assert_eq!(waits[0].track, Track::Stream(bench.card.id(), Stream::Compute));
    assert_eq!(waits[0].label.as_deref(), Some("expert arrived"));
    assert!(waits[0].end - waits[0].start > 10_000_000, "{waits:?}");
}

/// The shortest of several times: other programs on the machine only make them longer.
fn shortest(times: impl Iterator<Item = Duration>, enough: Duration) -> Duration {
    let mut best = Duration::MAX;
    for time in times {
        best = best.min(time);
        if best <= enough {
            break;
        }
    }
    best
}

#[test]
fn a_slowed_link_takes_its_time_and_is_shared_by_its_direction() {
    let bench = Bench::with(Some(LinkRates { h2d: Rate(10e6), d2h: Rate(20e6) }));
    let from = host(&[1; 100_000]);
    let to = HostMemory::default().alloc(100_000, "to").unwrap();
    let (own, slots) = (bench.region(100_000, "own"), bench.region(600_000, "slots"));
    let round = || {
        let start = Instant::now();
        for i in 0..6 {
            // Two streams in one direction share 10 MB/s: 6 x 10 ms.
            let on = if i % 2 == 0 { Stream::Experts } else { Stream::KvIn };
            let to = slots.span(i * 100_000, 100_000);
            bench.card.submit(on, Command::CopyIn(CopyIn { from: from.whole(), to })).unwrap();
        }
        // The other direction is free meanwhile: 5 x 5 ms.
        for _ in 0..5 {
            bench.card.submit(Stream::KvOut, Command::CopyOut(CopyOut { from: own.whole(), to: to.whole() })).unwrap();
        }
        bench.card.drain(Stream::KvOut, WHY).unwrap();
        let out = start.elapsed();
        bench.card.drain(Stream::Experts, WHY).unwrap();
        bench.card.drain(Stream::KvIn, WHY).unwrap();
        let all = start.elapsed();
        println!("25 ms out took {out:?}, 60 ms in took {all:?}");
        assert!(out >= Duration::from_millis(24) && all >= Duration::from_millis(59), "faster than the links");
        out.max(all.saturating_sub(Duration::from_millis(35)))
    };
    let late = Duration::from_millis(45);
    assert!(shortest((0..20).map(|_| round()), late) <= late, "the directions hold each other up");

    let mut copies: Vec<_> = bench.timeline.entries().into_iter().filter(|entry| entry.name == "copy in").collect();
    copies.sort_by_key(|copy| copy.start);
    assert!(copies.iter().all(|copy| (9_999_000..=10_001_000).contains(&(copy.end - copy.start))), "{copies:?}");
    assert!(copies.windows(2).all(|pair| pair[0].end <= pair[1].start + 1), "one copy at a time: {copies:?}");
}

#[test]
fn many_small_copies_keep_the_rate() {
    let bench = Bench::with(Some(LinkRates { h2d: Rate(100e6), d2h: Rate(100e6) }));
    let (from, slot) = (host(&[1; 1_000]), bench.region(1_000, "slot"));
    let round = || {
        let start = Instant::now();
        for _ in 0..3_000 {
            // 10 us each, less than a thread can sleep.
            bench
                .card
                .submit(Stream::Experts, Command::CopyIn(CopyIn { from: from.whole(), to: slot.whole() }))
                .unwrap();
        }
        bench.card.drain(Stream::Experts, WHY).unwrap();
        let took = start.elapsed();
        println!("30 ms of small copies took {took:?}");
        assert!(took >= Duration::from_micros(29_900), "{took:?}");
        took
    };
    let late = Duration::from_millis(60);
    assert!(shortest((0..20).map(|_| round()), late) <= late, "sleeping makes the link slower");
}

#[test]
fn a_refused_copy_is_an_error_of_its_submission_only() {
    let bench = Bench::new();
    let (from, slot) = (host(&[1; 64]), bench.region(64, "slot"));
    let command = Command::CopyIn(CopyIn { from: from.whole(), to: slot.whole() });
    bench.faults.refuse_copy(2);
    bench.card.submit(Stream::Experts, command.clone()).unwrap();
    assert!(matches!(bench.card.submit(Stream::Experts, command.clone()), Err(CardError::Refused { .. })));
    bench.card.submit(Stream::Experts, command).unwrap();
    bench.card.drain(Stream::Experts, WHY).unwrap();
    assert_eq!(bench.faults.fired(), 1);

    bench.faults.refuse_alloc(1);
    assert!(matches!(bench.card.alloc(Bytes(4), "x"), Err(CardError::OutOfMemory { .. })));
    bench.region(4, "x");
}

#[test]
fn a_failed_command_fails_the_card_until_it_recovers() {
    for panics in [false, true] {
        let bench = Bench::new();
        let (from, slot, x) = (host(&[7; 64]), bench.region(64, "slot"), bench.region(64, "x"));
        let before = bench.card.record(Stream::Experts).unwrap();
        let name = if panics { "copy" } else { "copy in" };
        if panics {
            bench.faults.panic_in("copy", 1);
        } else {
            bench.faults.fail_copy(1);
        }
        let command =
            if panics { copy(&x, &slot) } else { Command::CopyIn(CopyIn { from: from.whole(), to: slot.whole() }) };
        bench.card.submit(Stream::Experts, command).unwrap();
        let after = bench.card.record(Stream::Experts).unwrap();
        let error = bench.card.sync(&after, WHY).unwrap_err();
        let CardError::Failed { card, stream, command, .. } = &error else { panic!("{error}") };
        assert_eq!((*card, *stream, *command), (bench.card.id(), Stream::Experts, name));
        assert_eq!(bench.card.finished(&before), Ok(true), "what stood before it has run");
        assert_eq!(bench.card.finished(&after), Err(error.clone()));

        assert_eq!(bench.card.submit(Stream::Compute, copy(&slot, &x)), Err(error.clone()), "other streams too");
        assert_eq!(bench.card.drain(Stream::KvIn, WHY), Err(error.clone()));

        bench.card.recover().unwrap();
        bench.card.drain(Stream::Experts, WHY).unwrap();
        let command = Command::CopyIn(CopyIn { from: from.whole(), to: x.whole() });
        bench.card.submit(Stream::Compute, command).unwrap();
        assert_eq!(bench.read(&x)[0].to_bits(), 0x0707_0707);
    }
}

#[test]
fn what_is_queued_behind_a_failure_does_not_run() {
    let bench = Bench::with(Some(LinkRates { h2d: Rate(1e6), d2h: Rate(1e6) }));
    let (from, slot, x) = (host(&[7; 20_000]), bench.region(20_000, "slot"), bench.region(20_000, "x"));
    let slow = Command::CopyIn(CopyIn { from: from.whole(), to: slot.whole() });
    bench.card.submit(Stream::Experts, slow).unwrap();
    let arrived = bench.card.record(Stream::Experts).unwrap();
    bench.card.wait(Stream::Compute, &arrived, WHY).unwrap();
    bench.faults.panic_in("copy", 1);
    bench.card.submit(Stream::Compute, copy(&slot, &x)).unwrap();
    bench.card.submit(Stream::Compute, copy(&slot, &x)).unwrap();
    assert!(bench.card.drain(Stream::Compute, WHY).is_err());
    bench.card.recover().unwrap();
    assert_eq!(bench.read(&x)[0], 0.0);
}

#[test]
fn a_card_that_waits_for_a_failed_one_fails_too() {
    let (bench, next) = (Bench::new(), Bench::new());
    let (x, to) = (bench.region(64, "x"), HostMemory::default().alloc(64, "hand-off").unwrap());
    bench.faults.fail_copy(1);
    bench.card.submit(Stream::HandOff, Command::CopyOut(CopyOut { from: x.whole(), to: to.whole() })).unwrap();
    let sent = bench.card.record(Stream::HandOff).unwrap();
    next.card.wait(Stream::HandOff, &sent, Why("hand-off sent")).unwrap();
    let y = next.region(64, "y");
    let _ = next.card.submit(Stream::HandOff, Command::CopyIn(CopyIn { from: to.whole(), to: y.whole() }));
    let error = next.card.drain(Stream::HandOff, WHY).unwrap_err().to_string();
    assert!(error.contains("hand-off sent") && error.contains(&bench.card.id().to_string()), "{error}");
    next.card.recover().unwrap();
    assert_eq!(next.read(&y)[0], 0.0, "yesterday's bytes did not arrive");
}

#[test]
fn a_lease_drains_its_streams_when_it_drops() {
    let bench = Bench::with(Some(LinkRates { h2d: Rate(1e6), d2h: Rate(1e6) }));
    let (from, slot) = (host(&[7; 20_000]), bench.region(20_000, "slot"));
    let card: Arc<dyn Card> = bench.card.clone();
    let lease = Lease::new(Arc::clone(&card), &[slot.whole()], &[Stream::Experts], WHY);
    let span = lease.spans()[0];
    card.submit(Stream::Experts, Command::CopyIn(CopyIn { from: from.whole(), to: span })).unwrap();
    let arrived = card.record(Stream::Experts).unwrap();
    assert_eq!(card.leases().live(), 1);
    drop(lease);
    assert_eq!(card.finished(&arrived), Ok(true));
    assert_eq!(card.leases().live(), 0);
    let late = card.submit(Stream::Experts, Command::CopyIn(CopyIn { from: from.whole(), to: span })).unwrap_err();
    assert!(matches!(late, CardError::Unordered(_)) && late.to_string().contains("`slot`"), "{late}");
}

#[test]
fn dropping_a_card_runs_what_is_queued_and_ends_its_threads() {
    let threads = |id: CardId| {
        let name = format!("{id} ");
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| fs_err::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|found| found.starts_with(&name)).count()
    };
    let bench = Bench::new();
    let id = bench.card.id();
    let (x, to) = (bench.floats(&[5.0; 4]), HostMemory::default().alloc(16, "to").unwrap());
    // A thread names itself when it first runs, and the system lists it a moment longer than it lives.
    let becomes = |count: usize| {
        let start = Instant::now();
        while threads(id) != count && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(threads(id), count);
    };
    becomes(Stream::ALL.len());
    for _ in 0..100 {
        bench.card.submit(Stream::Compute, Command::CopyOut(CopyOut { from: x.whole(), to: to.whole() })).unwrap();
    }
    let event = bench.card.record(Stream::Compute).unwrap();
    drop(bench);
    assert_eq!(event.state().finished(), Ok(true));
    assert_eq!(to.whole().read(bytemuck::pod_collect_to_vec::<u8, f32>), Ok(vec![5.0; 4]));
    becomes(0);
}

#[test]
fn handing_a_command_over_costs_microseconds() {
    let id = CardId(NEXT.fetch_add(1, Ordering::Relaxed));
    let card = VirtualCard::new(VirtualOptions {
        id,
        name: "plain".to_owned(),
        budget: Bytes(1 << 20),
        team: Arc::new(Team::new(1).unwrap()),
        links: None,
        faults: Faults::default(),
        timeline: None,
    })
    .unwrap();
    let (x, y) = (card.alloc(Bytes(64), "x").unwrap(), card.alloc(Bytes(64), "y").unwrap());
    let step = || {
        let start = Instant::now();
        for _ in 0..400 {
            card.submit(Stream::Compute, copy(&x, &y)).unwrap();
        }
        let submitted = start.elapsed();
        card.drain(Stream::Compute, WHY).unwrap();
        (start.elapsed(), submitted)
    };
    let (whole, submitted) = (0..200).map(|_| step()).min().unwrap();
    println!("400 commands: {whole:?}, of which submitting {submitted:?}");
    assert!(whole < Duration::from_millis(20), "{whole:?} for 400 commands of 64 bytes");
}
