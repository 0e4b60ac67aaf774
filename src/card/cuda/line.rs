//! A handle that one thread calls with and another one may close meanwhile.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The handle and the calls that are in it.
#[derive(Debug)]
pub(super) struct Line<H> {
    state: Mutex<State<H>>,
    left: Condvar,
}

#[derive(Debug)]
struct State<H> {
    handle: Option<H>,
    calls: usize,
}

impl<H> Default for Line<H> {
    fn default() -> Self {
        Self { state: Mutex::new(State { handle: None, calls: 0 }), left: Condvar::new() }
    }
}

impl<H: Copy> Line<H> {
    fn lock(&self) -> MutexGuard<'_, State<H>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens it.
    pub(super) fn open(&self, handle: H) {
        self.lock().handle = Some(handle);
    }

    /// Calls with the handle, without holding a lock meanwhile; `None` where it is closed.
    pub(super) fn call<R>(&self, with: impl FnOnce(H) -> R) -> Option<R> {
        let handle = {
            let mut state = self.lock();
            let handle = state.handle?;
            state.calls += 1;
            handle
        };
        let result = with(handle);
        self.lock().calls -= 1;
        self.left.notify_all();
        Some(result)
    }

    /// Closes it: no call begins any more. Returns the handle, once, when calls that are in it have ended or `patience`
    /// is over: a call that blocks is ended by what its caller does with the handle next.
    pub(super) fn close(&self, patience: Duration) -> Option<H> {
        let deadline = Instant::now() + patience;
        let mut state = self.lock();
        let handle = state.handle.take()?;
        while state.calls > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.left.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(handle)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_call_that_blocks_does_not_keep_the_line_open() {
        let line = Line::default();
        line.open(7);
        let (inside, freed) = (Barrier::new(2), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let blocked = scope.spawn(|| {
                line.call(|handle: i32| {
                    inside.wait();
                    // As a transfer that only an abort ends.
                    while !freed.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                    handle
                })
            });
            inside.wait();
            let began = Instant::now();
            assert_eq!(line.close(Duration::from_millis(20)), Some(7));
            assert!(began.elapsed() >= Duration::from_millis(20));
            assert_eq!(line.call(|_| ()), None, "a call begins on a closed line");
            assert_eq!(line.close(Duration::ZERO), None, "closed twice");
            freed.store(true, Ordering::Release);
            assert_eq!(blocked.join().unwrap(), Some(7));
        });
    }

    #[test]
    fn a_close_lets_short_calls_end_first() {
        for _ in 0..20 {
            let line = Line::default();
            line.open(1);
            let (inside, ended) = (Barrier::new(2), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    line.call(|_: i32| {
                        inside.wait();
                        std::thread::sleep(Duration::from_millis(2));
                        ended.store(true, Ordering::Release);
                    })
                });
                inside.wait();
                assert_eq!(line.close(Duration::from_secs(60)), Some(1));
                assert!(ended.load(Ordering::Acquire), "closed under a call");
            });
        }
    }
}
