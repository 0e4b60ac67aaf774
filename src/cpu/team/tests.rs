use std::panic::catch_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use super::*;

/// As often as an ordinary run repeats something, or once under Miri, which takes thousands of times as long.
const fn times(often: usize) -> usize {
    if cfg!(miri) { 1 } else { often }
}

fn once_each(team: &Team, parts: usize) {
    let runs: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
    team.run(parts, |part| {
        runs[part].fetch_add(1, Ordering::Relaxed);
    });
    assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1), "{parts} parts: {runs:?}");
}

#[test]
fn every_part_runs_once() {
    for workers in [0, 1, 2, 3, 8] {
        let team = Team::new(workers).unwrap();
        for parts in [0, 1, 2, 3, 7, 64, if cfg!(miri) { 65 } else { 1000 }] {
            for _ in 0..times(50) {
                once_each(&team, parts);
            }
        }
    }
}

#[test]
fn the_workers_take_part() {
    let team = Team::new(2).unwrap();
    let threads = std::sync::Mutex::new(std::collections::HashSet::new());
    // Each part waits for the other, so one thread alone would never end.
    let met = AtomicUsize::new(0);
    team.run(2, |_| {
        met.fetch_add(1, Ordering::SeqCst);
        while met.load(Ordering::SeqCst) < 2 {
            thread::yield_now();
        }
        threads.lock().unwrap().insert(thread::current().id());
    });
    assert_eq!(threads.lock().unwrap().len(), 2);
}

#[test]
fn many_callers_and_regions_inside_regions() {
    let team = Team::new(3).unwrap();
    // More callers than the board has places, so that some run alone.
    thread::scope(|scope| {
        for caller in 0..24 {
            let team = &team;
            scope.spawn(move || {
                for round in 0..times(200) {
                    let sum = AtomicUsize::new(0);
                    team.run(5 + caller % 4, |part| {
                        team.run(3, |inner| {
                            sum.fetch_add(part * 3 + inner, Ordering::Relaxed);
                        });
                    });
                    let all = (5 + caller % 4) * 3;
                    assert_eq!(sum.load(Ordering::Relaxed), all * (all - 1) / 2, "caller {caller} round {round}");
                }
            });
        }
    });
}

#[test]
fn a_panic_reaches_the_caller_and_the_team_lives() {
    let team = Team::new(3).unwrap();
    for bad in [0, 1, 40, 99] {
        let thrown = catch_unwind(AssertUnwindSafe(|| {
            team.run(100, |part| assert!(part != bad, "part {part} is bad"));
        }));
        let message = *thrown.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(message, format!("part {bad} is bad"));
        once_each(&team, 100);
    }
}

#[test]
fn idle_workers_park_and_wake_again() {
    let team = Team::new(3).unwrap();
    for _ in 0..times(20) {
        once_each(&team, 10);
        let mut rounds = 0;
        while team.board.sleepers() < 2 {
            rounds += 1;
            assert!(rounds < 30_000, "workers still awake after 30 s without work");
            sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn chunks_are_disjoint_and_complete() {
    let team = Team::new(2).unwrap();
    for (length, chunk) in [(0, 3), (1, 3), (9, 3), (10, 3), (5, 100)] {
        let mut out = vec![0; length];
        team.for_chunks(usize::MAX, &mut out, chunk, |index, piece| {
            for (at, value) in piece.iter_mut().enumerate() {
                *value += index * chunk + at + 1;
            }
        });
        assert!(out.iter().enumerate().all(|(at, value)| *value == at + 1));
    }
}
