//! A reader of logits that is slow, cancels, panics or goes away: nothing piles up and nothing hangs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aqueduct::card::{Card, Stream};
use aqueduct::engine::{Cancel, Engine, EngineError};
use aqueduct::topology::RunSettings;
use aqueduct::units::Bytes;
use support::stories::{answer, open};
use support::tap::{Call, Listen, Tap};
use support::watchdog::Watchdog;
use support::{ROOMY, TestRig, plan_for, rig};

/// Tokens of the prompt: thirty blocks of logits.
const TOKENS: u32 = 960;

/// Blocks of logits that may be computed while the reader has one: two wait, one waits for room.
const AHEAD: usize = 3;

/// Counts the blocks of logits that were copied to the host.
#[derive(Default)]
struct Blocks(AtomicUsize);

impl Listen for Blocks {
    fn before(&self, _: &dyn Card, call: Call) {
        if call == Call::Submit(Stream::Compute, "copy out") {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Blocks {
    /// The count, once it has stood still for a while.
    fn at_rest(&self) -> usize {
        let mut last = self.0.load(Ordering::SeqCst);
        loop {
            std::thread::sleep(Duration::from_millis(200));
            match self.0.load(Ordering::SeqCst) {
                now if now == last => return now,
                now => last = now,
            }
        }
    }
}

fn tokens() -> Vec<u32> {
    (0..TOKENS).map(|i| 3 + i * 7 % 400).collect()
}

fn loaded(cards: usize) -> (Engine, TestRig, Arc<Blocks>) {
    let model = open("qwen3moe-f32");
    let memory: Vec<Bytes> = vec![ROOMY; cards];
    let settings = RunSettings { context: 1024, ..RunSettings::default() };
    let plan = plan_for(&model, &memory, &settings).unwrap();
    let blocks = Arc::new(Blocks::default());
    let mut rig = rig(&memory, 2);
    Tap::all(&mut rig, &blocks);
    (Engine::load(model, plan, &rig.rig, &|_| {}).unwrap(), rig, blocks)
}

#[test]
fn logits_do_not_pile_up_before_a_slow_reader() {
    for cards in [1, 2] {
        let (mut engine, rig, blocks) = loaded(cards);
        let (mut rows, mut most) = (0, 0);
        let mut sequence = engine.sequence().unwrap();
        let watchdog = Watchdog::start();
        watchdog
            .watch("a slow reader", || {
                engine.prompt_all(&mut sequence, &tokens(), &Cancel::new(), &mut |row, _| {
                    assert_eq!(row, rows);
                    rows += 1;
                    if row == 0 {
                        most = blocks.at_rest();
                    }
                })
            })
            .unwrap();
        assert_eq!(rows, TOKENS as usize);
        assert!(most <= 1 + AHEAD, "{most} blocks of logits while the reader had the first");
        assert!(blocks.0.load(Ordering::SeqCst) >= 30);
        assert_eq!(rig.ledger.violations(), Vec::<String>::new());
    }
}

#[test]
fn a_reader_that_cancels_ends_the_request() {
    for cards in [1, 2] {
        let (mut engine, rig, blocks) = loaded(cards);
        let wanted = answer(&mut engine, &tokens()).unwrap();
        let watchdog = Watchdog::start();
        let cancel = Cancel::new();
        let mut sequence = engine.sequence().unwrap();
        let ended = watchdog.watch("cancelled by the reader", || {
            engine.prompt_all(&mut sequence, &tokens(), &cancel, &mut |row, _| {
                if row == 0 {
                    blocks.at_rest();
                    cancel.cancel();
                }
            })
        });
        assert!(matches!(ended, Ok(()) | Err(EngineError::Cancelled)), "{ended:?}");
        drop(sequence);
        assert_eq!(engine.taken(), (0, 0));
        assert!(answer(&mut engine, &tokens()).unwrap() == wanted, "other bits after a cancel");
        assert_eq!(rig.ledger.violations(), Vec::<String>::new());
    }
}

#[test]
fn an_engine_whose_reader_panicked_can_be_dropped() {
    for cards in [1, 2] {
        let (mut engine, _rig, blocks) = loaded(cards);
        let watchdog = Watchdog::start();
        let mut sequence = engine.sequence().unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            engine.prompt_all(&mut sequence, &tokens(), &Cancel::new(), &mut |_, _| {
                // By now the stage waits with an answer.
                blocks.at_rest();
                panic!("the reader panics, as this test wants");
            })
        }));
        assert!(panicked.is_err());
        drop(sequence);
        watchdog.watch("dropping the engine", || drop(engine));
    }
}
