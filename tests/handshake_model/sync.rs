//! The model checker's locks, and what it lacks: a wait that times out, and wake-ups that get lost where a test asks
//! for it.

use std::ops::{Deref, DerefMut};
use std::sync::LockResult;
use std::time::Duration;

use super::lines;

#[derive(Debug)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    guard: loom::sync::MutexGuard<'a, T>,
}

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        Ok(MutexGuard { mutex: self, guard: self.0.lock().unwrap() })
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[derive(Debug)]
pub struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub fn new() -> Self {
        Self(loom::sync::Condvar::new())
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        let MutexGuard { mutex, guard } = guard;
        Ok(MutexGuard { mutex, guard: self.0.wait(guard).unwrap() })
    }

    /// Others may do anything in the meantime, or nothing.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        _limit: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, bool)> {
        let mutex = guard.mutex;
        drop(guard);
        loom::thread::yield_now();
        Ok((mutex.lock().unwrap(), true))
    }

    #[track_caller]
    pub fn notify_all(&self) {
        if lines::acts() {
            self.0.notify_all();
        }
    }
}
