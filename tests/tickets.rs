//! Requests beside each other: each gets the bits it would get alone, and what ends one leaves the others alone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use aqueduct::engine::{Cancel, Engine, EngineError, Output, Request, Sequence, Ticket};
use aqueduct::topology::HandOff;
use support::stories::{Dice, Story, Way, answer, open, story};
use support::watchdog::Watchdog;
use support::{TestRig, least, plan_for, rig};

/// Sequences at a time.
const SEQUENCES: usize = 4;

/// A story of several sequences, on cards with the least memory for it and two more experts.
fn crowd(name: &'static str, cards: usize, way: Way, wave: u32) -> Story {
    let mut story = story(name, &open("qwen3moe-f32"), cards, way, 0, wave);
    story.settings.sequences = SEQUENCES as u32;
    if way != Way::Resident {
        let blob = story.model.spec.expert_layers().next().unwrap().1.blob().bytes as u64;
        let enough = |bytes| plan_for(&story.model, &vec![bytes; cards], &story.settings).is_ok();
        let memory = aqueduct::units::Bytes(least(enough).0 + 2 * blob);
        story.memory = vec![memory; cards];
    }
    story
}

fn load(story: &Story) -> (Engine, TestRig) {
    let plan = plan_for(&story.model, &story.memory, &story.settings).unwrap();
    let rig = rig(&story.memory, 1);
    (Engine::load(Arc::clone(&story.model), plan, &rig.rig, &|_| {}).unwrap(), rig)
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// What one sequence is to read: a prompt, then tokens one by one.
struct Text {
    prompt: Vec<u32>,
    steps: Vec<u32>,
}

fn text(dice: &mut Dice, longest: usize) -> Text {
    let length = 1 + dice.below(longest);
    let mut tokens = |count: usize| (0..count).map(|_| dice.below(500) as u32).collect();
    Text { prompt: tokens(length), steps: tokens(5) }
}

/// Each answer of a text that is read alone.
fn alone(engine: &mut Engine, text: &Text) -> Vec<Vec<u32>> {
    let cancel = Cancel::new();
    let mut sequence = engine.sequence().unwrap();
    let mut all = vec![bits(&engine.prompt(&mut sequence, &text.prompt, &cancel).unwrap())];
    for token in &text.steps {
        all.push(bits(&engine.step(&mut [(&mut sequence, *token)], &cancel).unwrap()[0]));
    }
    all
}

/// A text on its way.
struct Reader<'a> {
    text: &'a Text,
    wanted: &'a [Vec<u32>],
    sequence: Sequence,
    answers: usize,
    ticket: Option<Ticket>,
    last: Vec<u32>,
}

impl Reader<'_> {
    fn is_done(&self) -> bool {
        self.answers == self.wanted.len()
    }

    fn reads_prompt(&self) -> bool {
        self.answers == 0 && self.ticket.is_some()
    }

    /// Submits what comes next; a step of one to three tokens.
    fn go_on(&mut self, engine: &Engine, dice: &mut Dice) {
        let Text { prompt, steps } = self.text;
        let request = if self.answers == 0 {
            Request::prompt(&self.sequence, &prompt[self.sequence.tokens()..])
        } else {
            let rest = &steps[self.answers - 1..];
            let count = (1 + dice.below(3)).min(rest.len());
            Request::step([(&self.sequence, &rest[..count])])
        };
        self.ticket = Some(engine.submit(request).unwrap());
    }
}

/// How often each interesting thing happened.
#[derive(Debug, Default)]
struct Seen {
    requests: usize,
    steps_beside_prompts: usize,
    rows_together: usize,
    cancelled: usize,
    waves_kept: usize,
    dropped: usize,
}

fn storm(story: &Story, rounds: usize, dice: &mut Dice, watchdog: &Watchdog, seen: &mut Seen) {
    let (mut engine, rig) = load(story);
    for round in 0..rounds {
        let longest = story.settings.context as usize - 6;
        let texts: Vec<Text> = (0..SEQUENCES).map(|_| text(dice, longest)).collect();
        let wanted: Vec<_> = texts.iter().map(|text| alone(&mut engine, text)).collect();
        watchdog.watch(&format!("{}, round {round}", story.name), || {
            together(&engine, &texts, &wanted, dice, seen, story.name);
        });
        assert_eq!(engine.taken(), (0, 0), "{}, round {round}", story.name);
        assert_eq!(rig.ledger.violations(), Vec::<String>::new(), "{}, round {round}", story.name);
    }
}

/// Reads all texts at a time, with cancels and dropped tickets in between.
fn together(engine: &Engine, texts: &[Text], wanted: &[Vec<Vec<u32>>], dice: &mut Dice, seen: &mut Seen, name: &str) {
    let mut readers: Vec<Reader<'_>> = Vec::new();
    for (text, wanted) in texts.iter().zip(wanted) {
        let sequence = engine.sequence().unwrap();
        readers.push(Reader { text, wanted, sequence, answers: 0, ticket: None, last: Vec::new() });
    }
    while !readers.iter().all(Reader::is_done) {
        let prompt_runs = readers.iter().any(Reader::reads_prompt);
        for (at, reader) in readers.iter_mut().enumerate() {
            if reader.is_done() {
                continue;
            }
            let Some(ticket) = &mut reader.ticket else {
                reader.go_on(engine, dice);
                seen.requests += usize::from(reader.ticket.is_some());
                continue;
            };
            match dice.below(60) {
                0 => ticket.cancel(),
                1 => {
                    reader.ticket = None;
                    seen.dropped += 1;
                    continue;
                }
                _ => {}
            }
            let patience = Duration::from_micros(dice.below(300) as u64);
            match ticket.next_within(patience) {
                None => {}
                Some(Output::Logits { first, logits }) => {
                    reader.last.extend(bits(&logits));
                    let vocab = reader.wanted[0].len();
                    let rows = reader.last.len() / vocab;
                    assert!(first < rows.max(1) || reader.answers == 0, "{name}: row {first} of {rows}");
                }
                Some(Output::End(Ok(()))) => {
                    let vocab = reader.wanted[0].len();
                    let rows: Vec<_> = reader.last.chunks(vocab).collect();
                    seen.rows_together += usize::from(rows.len() > 1);
                    seen.steps_beside_prompts += usize::from(reader.answers > 0 && prompt_runs);
                    for row in rows {
                        assert!(
                            *row == reader.wanted[reader.answers],
                            "{name}: sequence {at}, other bits in answer {}",
                            reader.answers
                        );
                        reader.answers += 1;
                    }
                    reader.last.clear();
                    reader.ticket = None;
                    assert_eq!(reader.sequence.tokens(), reader.text.prompt.len() + reader.answers - 1);
                }
                Some(Output::End(Err(EngineError::Cancelled))) => {
                    seen.cancelled += 1;
                    seen.waves_kept += usize::from(reader.answers == 0 && reader.sequence.tokens() > 0);
                    reader.last.clear();
                    reader.ticket = None;
                }
                Some(Output::End(Err(error))) => panic!("{name}: {error}"),
            }
        }
        for reader in readers.iter_mut().filter(|reader| reader.ticket.is_none() && !reader.is_done()) {
            // A request whose ticket was dropped may have run to its end, which nobody has seen.
            let answered = if reader.answers == 0 { 0 } else { reader.text.prompt.len() + reader.answers - 1 };
            let most = if reader.answers == 0 { reader.text.prompt.len() - 1 } else { answered };
            while let Err(error) = reader.sequence.truncate(most) {
                assert!(matches!(error, EngineError::Busy), "{error}");
                std::thread::yield_now();
            }
            reader.last.clear();
        }
    }
}

#[test]
fn requests_beside_each_other_get_the_bits_they_get_alone() {
    let stories = [
        crowd("resident, 1 card", 1, Way::Resident, 5),
        crowd("gated, 2 cards", 2, Way::Gated, 5),
        crowd("below the floor, 1 card", 1, Way::BelowFloor, 4),
        crowd("prefetch, 1 card", 1, Way::Prefetched, 5),
        crowd("staged, 2 cards", 2, Way::Staged, 6),
        crowd("", 2, Way::Ungated, 3).across("peer copies, 2 cards", HandOff::Peer),
        crowd("", 2, Way::Gated, 4).across("wires, 2 cards", HandOff::Nccl),
    ];
    let (mut seen, mut dice, watchdog) = (Seen::default(), Dice(7), Watchdog::start());
    for story in &stories {
        storm(story, 4, &mut dice, &watchdog, &mut seen);
    }
    println!("{seen:?}");
    let Seen { requests, steps_beside_prompts, rows_together, cancelled, waves_kept, dropped } = seen;
    assert!(requests > 300 && steps_beside_prompts > 20 && rows_together > 20, "{requests} {steps_beside_prompts}");
    assert!(cancelled > 10 && waves_kept > 0 && dropped > 5, "{cancelled} {waves_kept} {dropped}");
}

#[test]
fn steps_run_between_the_waves_of_a_prompt() {
    for (cards, way) in [(1, Way::Gated), (2, Way::Prefetched)] {
        let (engine, rig) = load(&crowd("many waves", cards, way, 2));
        let (long, short) = (engine.sequence().unwrap(), engine.sequence().unwrap());
        let tokens: Vec<u32> = (0..56).map(|i| (i * 37 + 11) % 500).collect();
        engine.submit(Request::prompt(&short, &tokens[..3])).unwrap().wait(|_, _| {}).unwrap();
        let watchdog = Watchdog::start();
        let mut prompt = engine.submit(Request::prompt(&long, &tokens)).unwrap();
        let mut steps = 0;
        while prompt.poll().is_none() {
            let step = engine.submit(Request::step([(&short, &tokens[steps..=steps])])).unwrap();
            watchdog.watch("a step beside a prompt", || step.wait(|_, _| {})).unwrap();
            steps += 1;
        }
        println!("{cards} cards, {way:?}: {steps} steps while a prompt of 28 waves was read");
        assert!(steps >= 8, "{steps} steps");
        assert_eq!(rig.ledger.violations(), Vec::<String>::new());
    }
}

#[test]
fn an_engine_whose_reader_panicked_goes_on() {
    for cards in [1, 2] {
        let story = crowd("a reader that panics", cards, Way::Gated, 4);
        let (mut engine, rig) = load(&story);
        let wanted = answer(&mut engine, &story.tokens).unwrap();
        let watchdog = Watchdog::start();
        for row in 0..story.tokens.len() {
            let mut sequence = engine.sequence().unwrap();
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                engine.prompt_all(&mut sequence, &story.tokens, &Cancel::new(), &mut |at, _| {
                    if at == row {
                        // Past the panic hook: the panic is wanted, nobody needs to read about it.
                        std::panic::resume_unwind(Box::new("wanted"));
                    }
                })
            }));
            assert!(panicked.is_err());
            let next = watchdog.watch("the request after a panic", || answer(&mut engine, &story.tokens)).unwrap();
            assert!(next == wanted, "{cards} cards: other bits after a reader that panicked at row {row}");
            drop(sequence);
        }
        assert_eq!(engine.taken(), (0, 0));
        assert_eq!(rig.ledger.violations(), Vec::<String>::new());
    }
}

#[test]
fn a_failure_ends_what_has_begun_and_nothing_else() {
    let watchdog = Watchdog::start();
    let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
    for (cards, failing) in [(1, 0), (2, 0), (2, 1)] {
        let story = crowd("a card that fails", cards, Way::Gated, 2);
        let (mut engine, rig) = load(&story);
        let wanted = answer(&mut engine, &story.tokens).unwrap();
        for n in (1..40).step_by(3) {
            let sequences: Vec<Sequence> = (0..SEQUENCES).map(|_| engine.sequence().unwrap()).collect();
            rig.faults[failing].panic_in("rms norm", n);
            let submit = |sequence| engine.submit(Request::prompt(sequence, &story.tokens)).unwrap();
            let tickets: Vec<Ticket> = sequences.iter().map(submit).collect();
            let mut failed = 0;
            for (ticket, sequence) in tickets.into_iter().zip(&sequences) {
                match watchdog.watch("a request beside a failure", || ticket.wait(|_, _| {})) {
                    Ok(()) => *ends.entry("well").or_default() += 1,
                    Err(EngineError::Card(_)) => failed += 1,
                    Err(EngineError::Interrupted { cause }) => {
                        assert!(cause.contains("rms norm"), "{cause}");
                        *ends.entry("interrupted").or_default() += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
                let held = sequence.tokens();
                assert!(held == 0 || held == story.tokens.len(), "{held} tokens");
            }
            assert_eq!(failed, 1, "one request has the cause");
            drop(sequences);
            rig.faults[failing].clear();
            assert_eq!(engine.taken(), (0, 0));
            assert!(answer(&mut engine, &story.tokens).unwrap() == wanted, "other bits after a failure");
        }
        assert_eq!(rig.ledger.violations(), Vec::<String>::new());
    }
    println!("{ends:?}");
    assert!(ends["well"] > 0);
}

#[test]
fn what_cannot_run_is_refused_and_takes_nothing() {
    let story = crowd("refusals", 1, Way::Resident, 5);
    let (engine, _rig) = load(&story);
    let (mut other, _other_rig) = load(&story);
    let sequence = engine.sequence().unwrap();
    let refused = |request: Request<'_>| engine.submit(request).map(drop).unwrap_err();
    let many: Vec<u32> = (0..100).collect();
    assert!(matches!(refused(Request::prompt(&sequence, &[])), EngineError::Empty));
    assert!(matches!(refused(Request::prompt(&sequence, &[9_999_999])), EngineError::Token { .. }));
    assert!(matches!(refused(Request::prompt(&sequence, &many)), EngineError::ContextFull { .. }));
    assert!(matches!(refused(Request::step([(&sequence, &many[..5])])), EngineError::StepRows { rows: 5, most: 4 }));
    assert!(matches!(refused(Request::step([(&sequence, &[1][..]), (&sequence, &[2][..])])), EngineError::Busy));
    assert!(matches!(refused(Request::step([])), EngineError::Empty));
    assert!(matches!(other.submit(Request::prompt(&sequence, &[1])), Err(EngineError::Foreign)));
    let ticket = engine.submit(Request::prompt(&sequence, &many[..40])).unwrap();
    let mut taken = sequence;
    assert!(matches!(taken.truncate(0), Err(EngineError::Busy)) || taken.tokens() == 0);
    ticket.wait(|_, _| {}).unwrap();
    taken.truncate(7).unwrap();
    assert_eq!(taken.tokens(), 7);
    drop(taken);
    assert_eq!(engine.taken(), (0, 0));
    assert!(answer(&mut other, &story.tokens).is_ok());
}
