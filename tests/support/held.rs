//! What a process holds of the system, before and after it has done something many times.

use std::time::Duration;

/// Cycles after which everything that is made once has been made.
pub const FIRST: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    /// Bytes of resident memory.
    resident: u64,
    threads: usize,
    files: usize,
}

fn entries(folder: &str) -> usize {
    fs_err::read_dir(folder).unwrap().count()
}

fn now() -> Held {
    let statm = fs_err::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    Held { resident: pages * 4096, threads: entries("/proc/self/task"), files: entries("/proc/self/fd") }
}

/// Runs `cycle` so many times; after the first few, threads and open files must not grow, nor resident memory by more
/// than `noise` bytes: allocators keep some of what was freed, in a place of each thread.
pub fn stays(cycles: usize, noise: u64, mut cycle: impl FnMut()) {
    let mut first = None;
    for done in 1..=cycles {
        cycle();
        if done == FIRST {
            first = Some(now());
        }
    }
    let first = first.expect("more cycles than the first few");
    // Threads that have been joined may still be listed for a moment.
    for _ in 0..200 {
        if now().threads <= first.threads {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let last = now();
    println!("after {FIRST} cycles: {first:?}, after {cycles}: {last:?}");
    assert!(last.threads <= first.threads && last.files <= first.files, "{first:?} became {last:?}");
    assert!(last.resident <= first.resident + noise, "resident memory grew: {first:?} became {last:?}");
}
