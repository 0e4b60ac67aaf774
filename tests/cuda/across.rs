//! From card to card: copies of another card's memory, NCCL wires, and how fast each way is. Two cards are on two GPUs
//! where there are two, else on one, where NCCL does not go.

use std::time::{Duration, Instant};

use aqueduct::card::command::{Command, CopyAcross, CopyIn, CopyOut, WireReceive, WireSend};
use aqueduct::card::cuda::{CudaCard, CudaSettings};
use aqueduct::card::{Card, CardError, Event, HostMemory, HostSpan, Span, Stream, Watcher, Wire};
use aqueduct::units::{Bytes, CardId};

use crate::rig::{Random, WHY};
use crate::support::{compiler, devices, guarded};

/// A transfer that is measured.
const LARGE: usize = 128 << 20;
const SMALL: usize = 8 << 10;

const LIMIT: Duration = Duration::from_secs(20);

/// Two cards and page-locked memory.
struct Pair {
    cards: [CudaCard; 2],
    memory: HostMemory,
    gpus: usize,
}

impl Pair {
    /// `None`, with the reason printed, where there is no GPU.
    fn open() -> Option<Self> {
        let gpus = devices().len().min(2);
        if gpus == 0 {
            return None;
        }
        println!("two cards on {gpus} GPU(s)");
        let cards = [0, 1].map(|i| {
            CudaCard::open(CudaSettings {
                card: CardId(i),
                ordinal: i as usize % gpus,
                budget: Bytes(3 * LARGE as u64),
                weights: Vec::new(),
                attention: Vec::new(),
                timeline: None,
                compiler: compiler(),
                guarded: guarded(),
            })
            .expect("the card opens")
        });
        let memory = HostMemory::new(Watcher::default(), Some(cards[0].page_lock()));
        Some(Self { cards, memory, gpus })
    }

    fn spaces(&self, bytes: usize) -> [Span; 2] {
        [0, 1].map(|i| self.cards[i].alloc(Bytes(bytes as u64), "test").expect("the budget lasts").whole())
    }

    fn host(&self, bytes: usize) -> HostSpan {
        self.memory.alloc(bytes, "test").unwrap().whole()
    }

    fn submit(&self, card: usize, command: Command) {
        self.cards[card].submit(Stream::HandOff, command).expect("the command is taken");
    }

    fn wait(&self, card: usize, event: &Event) {
        self.cards[card].wait(Stream::HandOff, event, WHY).unwrap();
    }

    fn record(&self, card: usize) -> Event {
        self.cards[card].record(Stream::HandOff).unwrap()
    }

    fn drain(&self) {
        self.cards.iter().for_each(|card| card.drain(Stream::HandOff, WHY).expect("all ends well"));
    }

    /// A wire from the first card to the second; `None`, with the reason printed, where there is none.
    fn wire(&self) -> Option<[Wire; 2]> {
        let begun = Instant::now();
        let wire = self.cards[0].join(&self.cards[1].neighbour(), LIMIT);
        println!("joined in {:.1?}: {wire:?}", begun.elapsed());
        if self.gpus == 1 {
            assert!(wire.as_ref().is_err_and(|reason| reason.contains("one GPU")), "{wire:?}");
        }
        wire.ok()
    }

    fn over(&self, [out, back]: &[Wire; 2], from: Span, to: Span) {
        self.submit(0, Command::WireSend(WireSend { from, over: out.clone() }));
        self.submit(1, Command::WireReceive(WireReceive { to, over: back.clone() }));
    }

    /// Sends random bytes of many lengths with `cross` and compares.
    fn check(&self, what: &str, mut cross: impl FnMut(Span, Span)) {
        let mut random = Random::new(11);
        let most = 5 << 20;
        let (spaces, up, down) = (self.spaces(most), self.host(most), self.host(most));
        for (round, bytes) in [1, 4, 255, 8192, 8193, 1 << 20, most - 3, most].into_iter().enumerate() {
            let offset = if bytes < most - 64 { 16 * (round % 3) } else { 0 };
            let [from, to] = spaces.map(|space| space.part(offset, bytes));
            let sent: Vec<u8> = (0..bytes).map(|_| (random.word() >> 30) as u8).collect();
            up.part(0, bytes).unwrap().write(|to| to.copy_from_slice(&sent)).unwrap();
            self.submit(0, Command::CopyIn(CopyIn { from: up.part(0, bytes).unwrap(), to: from }));
            let ready = self.record(0);
            self.wait(1, &ready);
            cross(from, to);
            let back = down.part(0, bytes).unwrap();
            self.submit(1, Command::CopyOut(CopyOut { from: to, to: back.clone() }));
            self.drain();
            assert!(back.read(|found| found == sent).unwrap(), "{what}: {bytes} bytes arrived wrong");
        }
        println!("{what}: right");
    }
}

#[test]
fn bytes_cross_by_peer_copy_and_by_nccl() {
    let Some(pair) = Pair::open() else { return };
    let [from, to] = pair.spaces(64);
    let error = pair.cards[1].submit(Stream::HandOff, Command::CopyAcross(CopyAcross { from, to })).unwrap_err();
    assert!(matches!(error, CardError::Refused { .. }) && error.to_string().contains("not in reach"), "{error}");
    match pair.cards[1].reach(&pair.cards[0].neighbour()) {
        Ok(()) => pair.check("peer copy", |from, to| pair.submit(1, Command::CopyAcross(CopyAcross { from, to }))),
        Err(reason) => println!("no peer copy: {reason}"),
    }
    if let Some(wire) = pair.wire() {
        pair.check("NCCL", |from, to| pair.over(&wire, from, to));
    }
}

#[test]
fn a_cut_frees_a_half_that_waits_for_the_other() {
    let Some(pair) = Pair::open() else { return };
    let Some(wire) = pair.wire() else { return };
    let [from, to] = pair.spaces(32 << 20);
    pair.over(&wire, from, to);
    pair.drain();
    pair.submit(1, Command::WireReceive(WireReceive { to, over: wire[1].clone() }));
    let received = pair.record(1);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(pair.cards[1].finished(&received), Ok(false), "received what nobody sent");
    let begun = Instant::now();
    wire[0].end().cut();
    let _ = pair.cards[1].drain(Stream::HandOff, WHY);
    println!("cut and drained in {:.1?}", begun.elapsed());
    assert!(begun.elapsed() < LIMIT && wire[1].end().is_cut() && wire[1].end().cut_from_afar());
    let again = pair.cards[1].submit(Stream::HandOff, Command::WireReceive(WireReceive { to, over: wire[1].clone() }));
    assert!(again.is_err(), "a cut wire is used");
    pair.cards.iter().for_each(|card| card.recover().expect("the cards live on"));
    let (up, space) = (pair.host(64), to.part(0, 64));
    up.write(|to| to.fill(7)).unwrap();
    pair.submit(1, Command::CopyIn(CopyIn { from: up, to: space }));
    pair.drain();
}

#[test]
fn a_dozen_wires_come_and_go() {
    let Some(pair) = Pair::open() else { return };
    for _ in 0..12 {
        let Some(wire) = pair.wire() else { return };
        let [from, to] = pair.spaces(4096);
        pair.over(&wire, from, to);
        pair.drain();
    }
}

#[test]
#[ignore = "measures"]
fn hand_off_speed() {
    let Some(pair) = Pair::open() else { return };
    let (spaces, host) = (pair.spaces(LARGE), pair.host(LARGE));
    let measure = |what: &str, cross: &mut dyn FnMut(Span, Span)| {
        for (bytes, repeat) in [(LARGE, 10), (SMALL, 500)] {
            let [from, to] = spaces.map(|space| space.part(0, bytes));
            let mut once = || {
                cross(from, to);
                pair.drain();
            };
            (0..3).for_each(|_| once());
            let begun = Instant::now();
            (0..repeat).for_each(|_| once());
            let each = begun.elapsed().as_secs_f64() / f64::from(repeat);
            println!("{what:12} {bytes:>10} bytes {:>9.1} us {:>7.2} GB/s", each * 1e6, bytes as f64 / each / 1e9);
        }
    };
    measure("host", &mut |from, to| {
        let staged = host.part(0, from.bytes).unwrap();
        pair.submit(0, Command::CopyOut(CopyOut { from, to: staged.clone() }));
        let sent = pair.record(0);
        pair.wait(1, &sent);
        pair.submit(1, Command::CopyIn(CopyIn { from: staged, to }));
    });
    match pair.cards[1].reach(&pair.cards[0].neighbour()) {
        Ok(()) => measure("peer", &mut |from, to| pair.submit(1, Command::CopyAcross(CopyAcross { from, to }))),
        Err(reason) => println!("no peer copy: {reason}"),
    }
    if let Some(wire) = pair.wire() {
        measure("nccl", &mut |from, to| pair.over(&wire, from, to));
    }
}
