//! A card that hangs ends its requests with an error and does not keep the engine from ending.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use aqueduct::engine::{Cancel, Engine};
use aqueduct::topology::HandOff;
use support::stories::{Story, Way, answer, open, story};
use support::tap::{Listen, Tap};
use support::watchdog::Watchdog;
use support::{plan_for, rig};

/// Waits for a card no longer than this.
struct Impatient;

impl Listen for Impatient {
    fn patience(&self) -> Option<Duration> {
        Some(Duration::from_millis(300))
    }
}

/// Lets the `n`th command of this name hang on a card: the request, the next one and the engine end. Whether it came to
/// that command.
fn hangs(story: &Story, card: usize, name: &'static str, n: usize, watchdog: &Watchdog) -> bool {
    let plan = plan_for(&story.model, &story.memory, &story.settings).unwrap();
    let mut rig = rig(&story.memory, 1);
    Tap::all(&mut rig, &Arc::new(Impatient));
    let mut engine = Engine::load(Arc::clone(&story.model), plan, &rig.rig, &|_| {}).unwrap();
    answer(&mut engine, &story.tokens).unwrap();
    let faults = &rig.faults[card];
    let before = faults.fired();
    faults.hang_in(name, n);
    let case = format!("{}: command {n} of `{name}` hangs on card {card}", story.name);
    let mut sequence = engine.sequence().unwrap();
    let ended = watchdog.watch(&case, || engine.prompt(&mut sequence, &story.tokens, &Cancel::new()));
    let came = faults.fired() > before;
    assert_eq!(ended.is_err(), came, "{case}: {ended:?}");
    if came {
        let text = ended.unwrap_err().to_string();
        assert!(text.contains("hang"), "{case}: {text}");
        let next = watchdog.watch(&format!("the next request, {case}"), || answer(&mut engine, &story.tokens));
        assert!(next.is_err(), "{case}: a request went through a card that hangs");
    }
    drop(sequence);
    watchdog.watch(&format!("dropping the engine, {case}"), || drop(engine));
    faults.clear();
    came
}

#[test]
fn a_card_that_hangs_ends_requests_and_the_engine() {
    let qwen = open("qwen3moe-f32");
    let stories = [
        story("gated", &qwen, 1, Way::Gated, 0, 5),
        story("ungated", &qwen, 1, Way::Ungated, 0, 5),
        story("below the floor", &qwen, 1, Way::BelowFloor, 0, 5),
        story("prefetch, 2 cards", &qwen, 2, Way::Prefetched, 0, 5),
        story("", &qwen, 2, Way::Gated, 1, 4).across("peer copies, 2 cards", HandOff::Peer),
        story("", &qwen, 2, Way::Gated, 1, 4).across("wires, 2 cards", HandOff::Nccl),
    ];
    // At the same time: a case mostly waits.
    let came: usize = std::thread::scope(|scope| {
        let run = |story: &Story| {
            let (watchdog, cards) = (Watchdog::start(), 0..story.memory.len());
            let commands = ["rms norm", "copy in", "experts", "copy out"];
            let cases = cards.flat_map(|card| commands.map(|name| (card, name)));
            cases.filter(|(card, name)| hangs(story, *card, name, 2, &watchdog)).count()
        };
        let running: Vec<_> = stories.iter().map(|story| scope.spawn(move || run(story))).collect();
        running.into_iter().map(|story| story.join().unwrap()).sum()
    });
    println!("{came} hangs");
    assert!(came > 20, "{came} hangs");
}
