//! The model checker's atomics and locks as the board uses them. Orderings can be weakened and wake-ups lost, line by
//! line, so that a test can ask whether a model would notice.

use std::sync::LockResult;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use loom::sync::{Mutex, MutexGuard};
pub use loom::thread::yield_now;
pub use loom::thread::yield_now as spin_loop;

use super::lines;

/// One more than the callers of any model.
pub const PLACES: usize = 3;
/// Pauses are time, which models do not have.
pub const PAUSES: usize = 0;

/// The ordering, unless it is taken from the calling line.
#[track_caller]
fn kept(order: Ordering) -> Ordering {
    if order != Ordering::Relaxed && !lines::acts() { Ordering::Relaxed } else { order }
}

/// Time passes at once.
pub struct Instant;

impl Instant {
    pub fn now() -> Self {
        Self
    }

    pub fn elapsed(&self) -> Duration {
        Duration::MAX
    }
}

macro_rules! atomic {
    ($name:ident, $of:ty, $unchanged:ident($zero:expr)) => {
        #[derive(Debug)]
        pub struct $name(loom::sync::atomic::$name);

        impl $name {
            pub fn new(value: $of) -> Self {
                Self(loom::sync::atomic::$name::new(value))
            }

            #[track_caller]
            pub fn load(&self, order: Ordering) -> $of {
                match kept(order) {
                    // The checker takes sequential consistency for acquire. A change to the same value reads the last
                    // one, as such a load does after changes that are all of that kind.
                    Ordering::SeqCst => self.0.$unchanged($zero, Ordering::SeqCst),
                    order => self.0.load(order),
                }
            }

            #[track_caller]
            pub fn store(&self, value: $of, order: Ordering) {
                self.0.store(value, kept(order));
            }
        }
    };
}

atomic!(AtomicBool, bool, fetch_or(false));
atomic!(AtomicUsize, usize, fetch_or(0));

impl AtomicBool {
    #[track_caller]
    pub fn swap(&self, value: bool, order: Ordering) -> bool {
        self.0.swap(value, kept(order))
    }
}

impl AtomicUsize {
    #[track_caller]
    pub fn fetch_add(&self, value: usize, order: Ordering) -> usize {
        self.0.fetch_add(value, kept(order))
    }

    #[track_caller]
    pub fn fetch_sub(&self, value: usize, order: Ordering) -> usize {
        self.0.fetch_sub(value, kept(order))
    }

    #[track_caller]
    pub fn fetch_or(&self, value: usize, order: Ordering) -> usize {
        self.0.fetch_or(value, kept(order))
    }

    #[track_caller]
    pub fn fetch_and(&self, value: usize, order: Ordering) -> usize {
        self.0.fetch_and(value, kept(order))
    }

    #[track_caller]
    pub fn fetch_update(
        &self,
        set: Ordering,
        fetch: Ordering,
        change: impl FnMut(usize) -> Option<usize>,
    ) -> Result<usize, usize> {
        self.0.fetch_update(kept(set), fetch, change)
    }
}

pub struct AtomicPtr<T>(loom::sync::atomic::AtomicPtr<T>);

impl<T> std::fmt::Debug for AtomicPtr<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("pointer")
    }
}

impl<T> AtomicPtr<T> {
    pub fn new(value: *mut T) -> Self {
        Self(loom::sync::atomic::AtomicPtr::new(value))
    }

    #[track_caller]
    pub fn load(&self, order: Ordering) -> *mut T {
        self.0.load(kept(order))
    }

    #[track_caller]
    pub fn store(&self, value: *mut T, order: Ordering) {
        self.0.store(value, kept(order));
    }
}

#[derive(Debug)]
pub struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub fn new() -> Self {
        Self(loom::sync::Condvar::new())
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.0.wait(guard)
    }

    #[track_caller]
    pub fn notify_all(&self) {
        if lines::acts() {
            self.0.notify_all();
        }
    }
}
