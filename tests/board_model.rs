//! The workers' board in every order in which its threads can take their steps (up to a bound on preemptions): the
//! crate's own source, compiled here over the model checker's atomics. Each ordering and each wake-up of it is taken
//! away once, and a model must notice.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::disallowed_methods)]
#![allow(dead_code, reason = "the source offers more than the model uses")]

#[allow(unsafe_code, reason = "a job lies on its caller's stack")]
#[allow(clippy::absurd_extreme_comparisons, reason = "no pauses here")]
#[path = "../src/cpu/team/board.rs"]
mod board;
#[path = "support/lines.rs"]
mod lines;
#[path = "board_model/sync.rs"]
mod sync;

use std::any::Any;
use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use board::{Board, Job};
use loom::cell::Cell;
use loom::thread;

/// What the board uses of the team.
type Panic = Box<dyn Any + Send>;

fn attempt(work: &(dyn Fn(usize) + Sync), part: usize) -> Result<(), Panic> {
    catch_unwind(AssertUnwindSafe(|| work(part)))
}

fn home(parts: usize, workers: usize, index: usize) -> Range<usize> {
    index * parts / workers..(index + 1) * parts / workers
}

/// What a model does, beside the order of its steps.
#[derive(Clone, Copy, Debug)]
struct Story {
    /// Jobs that a caller posts one after the other.
    jobs: usize,
    callers: usize,
    parts: usize,
    /// Parts wait for one another, so a worker must come.
    meet: bool,
    /// A part that panics.
    bad: Option<usize>,
}

const PLAIN: Story = Story { jobs: 1, callers: 1, parts: 2, meet: false, bad: None };

fn stories() -> Vec<Story> {
    vec![
        PLAIN,
        Story { meet: true, ..PLAIN },
        Story { jobs: 2, ..PLAIN },
        Story { callers: 2, parts: 1, ..PLAIN },
        Story { bad: Some(0), ..PLAIN },
        Story { bad: Some(1), ..PLAIN },
    ]
}

/// What a part writes and its caller reads, which the checker watches.
struct Written(Vec<Cell<usize>>);

// SAFETY: what the test is about: the board orders each part's write before its caller's read, or the checker tells.
#[allow(unsafe_code)]
unsafe impl Sync for Written {}

impl Written {
    fn add(&self, part: usize) {
        self.0[part].set(self.0[part].get() + 1);
    }
}

/// Parts that wait until all of them have begun.
struct Meeting {
    begun: loom::sync::Mutex<usize>,
    all: loom::sync::Condvar,
}

impl Meeting {
    fn wait_for(&self, parts: usize) {
        let mut begun = self.begun.lock().unwrap();
        *begun += 1;
        self.all.notify_all();
        while *begun < parts {
            begun = self.all.wait(begun).unwrap();
        }
    }
}

/// Runs on the caller's thread what [`aqueduct::cpu::Team::run`] runs.
fn call(board: &Board, story: Story, helped: &AtomicUsize) {
    for _ in 0..story.jobs {
        let written = Written((0..story.parts).map(|_| Cell::new(0)).collect());
        let meeting = Meeting { begun: loom::sync::Mutex::new(0), all: loom::sync::Condvar::new() };
        let caller = thread::current().id();
        let work = |part: usize| {
            written.add(part);
            if story.meet {
                meeting.wait_for(story.parts);
            }
            helped.fetch_add(usize::from(thread::current().id() != caller), Ordering::Relaxed);
            if story.bad == Some(part) {
                resume_unwind(Box::new("bad part"));
            }
        };
        let job = Job::new(story.parts, &work);
        board.post(&job).expect("there are more places than callers").take_parts();
        match job.into_panic() {
            None => assert!(written.0.iter().all(|runs| runs.get() == 1), "each part runs once"),
            Some(panic) if story.bad.is_some() && text(panic.as_ref()) == "bad part" => {}
            Some(panic) => resume_unwind(panic),
        }
    }
}

/// One run: a worker, and callers on threads of their own but one.
fn run(story: Story, helped: &AtomicUsize) {
    let board = Arc::new(Board::new(2));
    let worker = thread::spawn({
        let board = Arc::clone(&board);
        move || board.serve(1)
    });
    let others: Vec<_> = (1..story.callers)
        .map(|_| {
            let board = Arc::clone(&board);
            thread::spawn(move || call(&board, story, &AtomicUsize::new(0)))
        })
        .collect();
    call(&board, story, helped);
    others.into_iter().for_each(|other| other.join().unwrap());
    board.close();
    worker.join().unwrap();
}

/// Runs a model in every order, on a thread of its own; tells what went wrong, which lines order or wake, and how many
/// orders there were.
fn explore(story: Story, weak: Option<u32>, preemptions: usize) -> (Result<(), String>, BTreeSet<u32>, [usize; 2]) {
    let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let counted = Arc::clone(&counts);
    let explored = std::thread::spawn(move || {
        lines::take(weak);
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        let ran = catch_unwind(AssertUnwindSafe(|| {
            builder.check(move || {
                counted[0].fetch_add(1, Ordering::Relaxed);
                run(story, &counted[1]);
            });
        }));
        (ran.map_err(|panic| text(panic.as_ref())), lines::seen())
    });
    let (result, lines) = explored.join().unwrap();
    (result, lines, [&counts[0], &counts[1]].map(|count| count.load(Ordering::Relaxed)))
}

fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Preemptions of a model: two find all that is known, more take minutes.
const PREEMPTIONS: usize = 2;

#[test]
fn every_order_runs_each_part_once_and_ends() {
    for story in stories() {
        let (result, _, [orders, helped]) = explore(story, None, PREEMPTIONS);
        println!("{orders} orders, {helped} parts run by the worker: {story:?}");
        assert_eq!(result, Ok(()), "{story:?}");
        assert!(helped > 0, "the worker never took part: {story:?}");
    }
}

/// What the models do not miss. `closed` is written and read under the lock, and so is a sleeper that leaves. In the
/// order of sleepers and open places a change of the same value stands for a load, which is stronger than what the
/// source asks for: the checker has no sequential consistency.
const UNNOTICED: [&str; 4] = [
    "if self.sleepers.0.load(Ordering::SeqCst) > 0 {",
    "self.closed.store(true, Ordering::SeqCst);",
    "self.sleepers.0.fetch_add(1, Ordering::SeqCst);",
    "self.sleepers.0.fetch_sub(1, Ordering::SeqCst);",
];

/// The variable that names a line to the process that runs without its effect.
const LINE: &str = "BOARD_MODEL_LINE";

/// In a process of its own: what a board does that is out of order may abort it.
#[test]
#[ignore = "run by each_ordering_and_wake_up_is_needed"]
fn without_a_line() {
    let line = std::env::var(LINE).unwrap().parse().unwrap();
    for story in stories() {
        assert_eq!(explore(story, Some(line), PREEMPTIONS).0, Ok(()), "{story:?}");
    }
}

#[test]
fn each_ordering_and_wake_up_is_needed() {
    let lines: BTreeSet<u32> = stories().into_iter().flat_map(|story| explore(story, None, PREEMPTIONS).1).collect();
    println!("{} lines order or wake", lines.len());
    let source: Vec<&str> = include_str!("../src/cpu/team/board.rs").lines().map(str::trim).collect();
    let mut unnoticed = Vec::new();
    for line in lines {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "without_a_line", "--ignored"]).env(LINE, line.to_string()).env("RUST_BACKTRACE", "0");
        let output = child.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        assert!(String::from_utf8_lossy(&said).contains("running 1 test"), "line {line}: the model did not run");
        if output.status.success() {
            unnoticed.push(source[line as usize - 1]);
        }
    }
    assert_eq!(unnoticed, UNNOTICED, "lines of board.rs without which nothing fails");
}
