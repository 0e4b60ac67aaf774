//! How much host memory is page-locked, and what keeps the rest from it.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError};

use crate::units::Bytes;

/// Something that keeps host memory page-locked; dropping it unlocks. Cards that can lock memory give one.
pub trait PageLock: Send + Sync {
    /// Locks the memory for all cards of the process and returns the guard.
    ///
    /// # Errors
    /// What the driver said.
    ///
    /// # Safety
    /// `start..start + bytes` stays allocated until the guard is dropped.
    unsafe fn lock(&self, start: *mut u8, bytes: usize) -> Result<Box<dyn Send + Sync>, String>;
}

/// Host memory that cards would have page-locked, and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Locking {
    /// What is page-locked.
    pub locked: Bytes,
    /// All that was to be.
    pub wanted: Bytes,
    /// Why not all is, from the first refusal.
    pub refused: Option<String>,
}

/// Locks memory up to a limit.
#[derive(Clone)]
pub(super) struct Locker {
    lock: Arc<dyn PageLock>,
    limit: Option<Bytes>,
    locking: Arc<Mutex<Locking>>,
}

/// A buffer's part of what is counted, and its lock if it got one.
pub(super) struct Lock {
    guard: Option<Box<dyn Send + Sync>>,
    bytes: Bytes,
    locking: Arc<Mutex<Locking>>,
}

impl Locker {
    pub(super) fn new(lock: Arc<dyn PageLock>) -> Self {
        Self { lock, limit: None, locking: Arc::default() }
    }

    pub(super) fn limit(&mut self, limit: Option<Bytes>) {
        self.limit = limit;
    }

    pub(super) fn locking(&self) -> Locking {
        self.locking.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Locks the memory, all of it or nothing.
    ///
    /// # Safety
    /// As for [`PageLock::lock`].
    pub(super) unsafe fn lock(&self, start: *mut u8, bytes: usize) -> Lock {
        let all = Bytes(bytes as u64);
        // Held while the driver locks: nobody else may take what is left of the limit meanwhile.
        let mut locking = self.locking.lock().unwrap_or_else(PoisonError::into_inner);
        locking.wanted.0 += all.0;
        let guard = match self.limit.filter(|limit| locking.locked + all > *limit) {
            Some(limit) => Err(format!("rig.host.locked allows {limit}")),
            // SAFETY: the caller's promise.
            None => unsafe { self.lock.lock(start, bytes) },
        };
        match &guard {
            Ok(_) => locking.locked.0 += all.0,
            Err(reason) => {
                locking.refused.get_or_insert_with(|| reason.clone());
            }
        }
        Lock { guard: guard.ok(), bytes: all, locking: Arc::clone(&self.locking) }
    }
}

impl Lock {
    pub(super) fn holds(&self) -> bool {
        self.guard.is_some()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let held = self.guard.take().is_some();
        let mut locking = self.locking.lock().unwrap_or_else(PoisonError::into_inner);
        locking.wanted.0 -= self.bytes.0;
        if held {
            locking.locked.0 -= self.bytes.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::{HostMemory, Watcher};

    /// Locks nothing, and refuses what is larger than a page.
    struct Pages;

    impl PageLock for Pages {
        unsafe fn lock(&self, _: *mut u8, bytes: usize) -> Result<Box<dyn Send + Sync>, String> {
            if bytes > 4096 { Err("the driver says no".to_owned()) } else { Ok(Box::new(())) }
        }
    }

    #[test]
    fn memory_is_locked_up_to_the_limit_and_what_is_not_is_counted() {
        let host = HostMemory::new(Watcher::default(), Some(Arc::new(Pages))).limited(Some(Bytes(6000)));
        let first = host.alloc(4000, "first").unwrap();
        let large = host.alloc(5000, "large").unwrap();
        let driver = host.alloc(2000, "small").unwrap();
        assert_eq!([&first, &large, &driver].map(|buf| buf.is_locked()), [true, false, true]);
        let limited = Some("rig.host.locked allows 5.9 KiB".to_owned());
        assert_eq!(host.locking(), Locking { locked: Bytes(6000), wanted: Bytes(11_000), refused: limited });
        drop((first, large));
        assert_eq!((host.locking().locked, host.locking().wanted), (Bytes(2000), Bytes(2000)));

        let host = HostMemory::new(Watcher::default(), Some(Arc::new(Pages)));
        let refused = host.alloc(5000, "large").unwrap();
        assert!(!refused.is_locked() && host.locking().refused.as_deref() == Some("the driver says no"));
        assert_eq!(HostMemory::default().locking(), Locking::default());
    }
}
