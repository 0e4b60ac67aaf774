//! The worker team: a rayon pool of its own, shared by the virtual cards and the host pool.

use std::sync::atomic::{AtomicUsize, Ordering};

use thiserror::Error;

/// The CPU workers of one engine.
#[derive(Debug)]
pub struct Team {
    pool: rayon::ThreadPool,
    workers: usize,
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

impl Team {
    /// Starts `workers` threads (at least one).
    ///
    /// # Errors
    /// When the system refuses the threads.
    pub fn new(workers: usize) -> Result<Self, TeamError> {
        let workers = workers.max(1);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(workers)
            .thread_name(|i| format!("worker {i}"))
            .build()
            .map_err(|e| TeamError { workers, reason: e.to_string() })?;
        Ok(Self { pool, workers })
    }

    /// Threads of the team.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Runs `work(part)` once for every part in `0..parts`, spread over the workers, and returns when all have ended.
    /// Which worker runs a part is not defined; a part must therefore compute the same on any.
    pub fn run(&self, parts: usize, work: impl Fn(usize) + Sync) {
        let next = AtomicUsize::new(0);
        self.pool.broadcast(|_| {
            loop {
                let part = next.fetch_add(1, Ordering::Relaxed);
                if part >= parts {
                    break;
                }
                work(part);
            }
        });
    }
}
