//! Copies within host memory by a few threads: one thread writes much less than a link takes.

use std::cell::OnceCell;
use std::num::NonZero;
use std::thread::available_parallelism;

use rayon::ThreadPool;

/// Threads that write together, the calling one among them.
const THREADS: usize = 4;

/// Bytes that take a thread much longer to write than another one to wake.
const SHARE: usize = 512 << 10;

/// The threads. They are not the worker team's, which may compute meanwhile; they start with the first copy that is
/// worth sharing.
pub(super) struct Fillers {
    threads: usize,
    helpers: OnceCell<Option<ThreadPool>>,
}

impl Fillers {
    /// As many as this host has cores for.
    pub(super) fn of_host() -> Self {
        Self::new(available_parallelism().map_or(1, NonZero::get).min(THREADS))
    }

    fn new(threads: usize) -> Self {
        Self { threads, helpers: OnceCell::new() }
    }

    /// Copies the bytes, and returns when all are there.
    ///
    /// # Panics
    /// When the two are not as long as each other.
    pub(super) fn fill(&self, from: &[u8], to: &mut [u8]) {
        assert_eq!(from.len(), to.len(), "a copy has as many bytes as its target");
        let parts = self.threads.min(from.len() / SHARE);
        let helpers = if parts > 1 { self.helpers() } else { None };
        let Some(helpers) = helpers else {
            to.copy_from_slice(from);
            return;
        };
        let part = from.len().div_ceil(parts);
        let mut pairs = to.chunks_mut(part).zip(from.chunks(part));
        let own = pairs.next();
        helpers.in_place_scope(|scope| {
            for (to, from) in pairs {
                scope.spawn(|_| to.copy_from_slice(from));
            }
            if let Some((to, from)) = own {
                to.copy_from_slice(from);
            }
        });
    }

    /// The other threads; where the system refuses them, the calling one writes alone.
    fn helpers(&self) -> Option<&ThreadPool> {
        let start = || {
            let threads = self.threads - 1;
            rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("filler {i}")).build().ok()
        };
        self.helpers.get_or_init(start).as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_and_small_copies_start_no_thread() {
        let source: Vec<u8> = (0..5 * SHARE + 7).map(|i| (i * 31 + i / 251) as u8).collect();
        for threads in 1..=THREADS {
            let fillers = Fillers::new(threads);
            for bytes in [0, 1, SHARE - 1, 2 * SHARE - 1, 2 * SHARE, 2 * SHARE + 1, 3 * SHARE - 5, 5 * SHARE + 7] {
                let from = &source[source.len() - bytes..];
                let mut to = vec![0xA5; bytes];
                fillers.fill(from, &mut to);
                assert!(to == from, "{bytes} bytes by {threads} threads");
                // Sizes ascend, so that a thread once started stays.
                let shared = threads > 1 && bytes >= 2 * SHARE;
                assert_eq!(fillers.helpers.get().is_some(), shared, "{bytes} bytes by {threads} threads");
            }
        }
    }
}
