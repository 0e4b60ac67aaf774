//! What begins before it is needed: the next layer's cells, and the later stages' experts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::sync::{Arc, Mutex};

use aqueduct::card::{Card, Event, Stream, Why};
use aqueduct::engine::{Cancel, Engine};
use aqueduct::units::CardId;
use support::stories::{Way, open, story};
use support::tap::{Call, Held, Listen, Tap};
use support::watchdog::Watchdog;
use support::{plan_for, rig};

/// Writes down what the stage's thread submits to compute and kv-in.
#[derive(Default)]
struct Submitted(Mutex<Vec<Call>>);

impl Listen for Submitted {
    fn before(&self, _: &dyn Card, call: Call) {
        if let Call::Submit(Stream::Compute | Stream::KvIn, _) = call {
            self.0.lock().unwrap().push(call);
        }
    }
}

#[test]
fn the_next_layers_cells_are_copied_from_the_last_reader_on() {
    let story = story("prefetch", &open("qwen3moe-f32"), 1, Way::Prefetched, 0, 5);
    let layers = story.model.spec.layers.len();
    let plan = plan_for(&story.model, &story.memory, &story.settings).unwrap();
    let mut rig = rig(&story.memory, 1);
    let submitted = Arc::new(Submitted::default());
    Tap::all(&mut rig, &submitted);
    let mut engine = Engine::load(Arc::clone(&story.model), plan, &rig.rig, &|_| {}).unwrap();
    let mut sequence = engine.sequence().unwrap();
    engine.prompt(&mut sequence, &story.tokens, &Cancel::new()).unwrap();

    let calls = submitted.0.lock().unwrap();
    let copies: Vec<usize> = (0..calls.len()).filter(|i| matches!(calls[*i], Call::Submit(Stream::KvIn, _))).collect();
    let waves = story.tokens.len().div_ceil(5) - 1;
    assert_eq!(copies.len(), waves * layers, "a tile a layer in all waves but the first");
    let (mut first, mut later) = (0, 0);
    for copy in copies {
        // What compute was given before and is given after the copy was queued.
        let (before, after) = (calls[copy - 1], calls[copy + 1]);
        match before {
            Call::Submit(Stream::Compute, "attention") => {
                assert_eq!(after, Call::Submit(Stream::Compute, "linear"), "the layer's own output follows");
                later += 1;
            }
            _ => {
                assert_eq!(after, Call::Submit(Stream::Compute, "rms norm"), "before the wave's first layer");
                first += 1;
            }
        }
    }
    assert_eq!((first, later), (waves, waves * (layers - 1)));
}

/// Holds the first card back until another one copies experts.
struct Later {
    held: Arc<Held>,
    armed: Mutex<bool>,
    copies: Mutex<usize>,
}

impl Listen for Later {
    fn before(&self, card: &dyn Card, call: Call) {
        match call {
            Call::Submit(Stream::Compute, _)
                if card.id() == CardId(0) && std::mem::take(&mut *self.armed.lock().unwrap()) =>
            {
                card.wait(Stream::Compute, &Event::new(card.id(), self.held.clone()), Why("the test")).unwrap();
            }
            Call::Submit(Stream::Experts, _) if card.id() != CardId(0) => {
                *self.copies.lock().unwrap() += 1;
                self.held.end();
            }
            _ => {}
        }
    }
}

#[test]
fn later_stages_fill_their_rings_while_the_first_one_computes() {
    let story = story("gated, 2 cards", &open("qwen3moe-f32"), 2, Way::Gated, 0, 13);
    let plan = plan_for(&story.model, &story.memory, &story.settings).unwrap();
    let mut rig = rig(&story.memory, 1);
    let later = Arc::new(Later { held: Arc::default(), armed: Mutex::new(false), copies: Mutex::default() });
    Tap::all(&mut rig, &later);
    let mut engine = Engine::load(Arc::clone(&story.model), plan, &rig.rig, &|_| {}).unwrap();
    let mut sequence = engine.sequence().unwrap();
    *later.armed.lock().unwrap() = true;
    *later.copies.lock().unwrap() = 0;
    // Were the ring filled only after the first hand-off, the first card would wait for ever.
    let prompt = || engine.prompt(&mut sequence, &story.tokens, &Cancel::new());
    Watchdog::start().watch("a first stage that waits for the second one's copies", prompt).unwrap();
    assert!(*later.copies.lock().unwrap() > 0);
}
