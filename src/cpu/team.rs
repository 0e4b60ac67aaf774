//! The worker team: a rayon pool of its own, shared by the virtual cards and the host pool.
//!
//! A decode step is some hundreds of parallel regions of a few microseconds each, so a region must start and end
//! without a system call. The calling thread works itself; the other workers watch a small board of jobs for a short
//! while after the last job before they park.
#![allow(unsafe_code)]

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use thiserror::Error;

mod board;

/// What the board stands on; `tests/board_model.rs` compiles it over a model checker's.
mod sync {
    pub use std::hint::spin_loop;
    pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};
    pub use std::sync::{Condvar, Mutex, MutexGuard};
    pub use std::thread::yield_now;
    pub use std::time::Instant;

    /// Callers that can have a job posted at once; further ones run alone. At most the bits of a word.
    pub const PLACES: usize = 16;
    /// Pauses that a waiting thread makes before it starts to yield its core: some microseconds.
    pub const PAUSES: usize = 400;
}

use board::{Board, Job};

use super::disjoint::Disjoint;

/// The CPU workers of one engine.
#[derive(Debug)]
pub struct Team {
    board: Arc<Board>,
    workers: usize,
    /// Holds the threads; they end when the board is closed.
    _pool: Option<rayon::ThreadPool>,
}

/// Why a team could not be started.
#[derive(Debug, Error)]
#[error("cannot start {workers} CPU workers: {reason}")]
pub struct TeamError {
    /// Threads that were asked for.
    pub workers: usize,
    /// What the system said.
    pub reason: String,
}

/// Scalar operations below which a region costs more to share than to run (about two microseconds of vector code).
const INLINE: usize = 1 << 15;

impl Team {
    /// Starts a team of `workers` (at least one): the calling thread of a region and `workers - 1` threads.
    ///
    /// # Errors
    /// When the system refuses the threads.
    pub fn new(workers: usize) -> Result<Self, TeamError> {
        let workers = workers.max(1);
        let board = Arc::new(Board::new(workers));
        let pool = match workers {
            1 => None,
            _ => {
                let pool = rayon::ThreadPoolBuilder::new()
                    .num_threads(workers - 1)
                    .thread_name(|i| format!("worker {}", i + 1))
                    .build()
                    .map_err(|e| TeamError { workers, reason: e.to_string() })?;
                let watched = Arc::clone(&board);
                pool.spawn_broadcast(move |worker| watched.serve(worker.index() + 1));
                Some(pool)
            }
        };
        Ok(Self { board, workers, _pool: pool })
    }

    /// Threads that work on one region: the caller and the team's own.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Runs `work(part)` once for every part in `0..parts`, on the calling thread and the workers that are free, and
    /// returns when all have ended. Which thread runs a part is not defined; a part must therefore compute the same on
    /// any. May be called from several threads at once, and from inside a part.
    ///
    /// # Panics
    /// With the panic of a part, after the others have ended or were left out; the team stays usable.
    pub fn run(&self, parts: usize, work: impl Fn(usize) + Sync) {
        if parts <= 1 || self.workers == 1 {
            (0..parts).for_each(work);
            return;
        }
        let job = Job::new(parts, &work);
        match self.board.post(&job) {
            Some(posted) => posted.take_parts(),
            // As many callers as the board has places: the other workers have enough to do.
            None => (0..parts).for_each(&work),
        }
        if let Some(panic) = job.into_panic() {
            resume_unwind(panic);
        }
    }

    /// [`Team::run`] for work of about `operations` scalar operations in all: what is too small to share runs on the
    /// calling thread.
    ///
    /// # Panics
    /// As [`Team::run`].
    pub fn run_sized(&self, operations: usize, parts: usize, work: impl Fn(usize) + Sync) {
        if operations < INLINE {
            (0..parts).for_each(work);
        } else {
            self.run(parts, work);
        }
    }

    /// Cuts `out` into pieces of `chunk` elements (the last may be shorter) and runs `work(index, piece)` for each.
    ///
    /// # Panics
    /// As [`Team::run`], and when `chunk` is zero.
    pub fn for_chunks<T: Send>(
        &self,
        operations: usize,
        out: &mut [T],
        chunk: usize,
        work: impl Fn(usize, &mut [T]) + Sync,
    ) {
        assert!(chunk > 0, "a chunk holds at least one element");
        let (length, parts) = (out.len(), out.len().div_ceil(chunk));
        let out = Disjoint::new(out);
        self.run_sized(operations, parts, |part| {
            let range = part * chunk..length.min((part + 1) * chunk);
            // SAFETY: the ranges of different parts do not overlap, and each part runs once.
            work(part, unsafe { out.slice(range) });
        });
    }

    /// Wakes workers that are parked, for a region that is about to start: they watch for it a short while.
    pub fn rouse(&self) {
        self.board.rouse();
    }

    /// How many of `items` a part takes so that each worker gets about `each` parts.
    pub fn share(&self, items: usize, each: usize) -> usize {
        items.div_ceil(self.workers * each.max(1)).max(1)
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.board.close();
    }
}

/// What a part threw.
type Panic = Box<dyn Any + Send>;

/// Runs a part, catching its panic.
fn attempt(work: &(dyn Fn(usize) + Sync), part: usize) -> Result<(), Panic> {
    catch_unwind(AssertUnwindSafe(|| work(part)))
}

/// The parts that worker `index` of `workers` starts with.
fn home(parts: usize, workers: usize, index: usize) -> Range<usize> {
    index * parts / workers..(index + 1) * parts / workers
}

#[cfg(test)]
mod tests;
