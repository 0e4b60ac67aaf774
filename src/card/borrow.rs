//! Which bytes of a host buffer are slices of someone now.
//!
//! A buffer is shared by the host's threads and by the cards, and events and messages order them, as a ledger proves.
//! That proof is made in tests, not by the compiler; so every slice of a buffer that may be written is borrowed here
//! first, by range, as a `RefCell` does for a whole value. A mistake in the protocol is then an error of the request
//! and never two slices of the same bytes, one of them mutable.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::HostAccess;

/// The borrowed ranges of one buffer.
#[derive(Debug, Default)]
pub(super) struct Borrows {
    now: Mutex<Vec<(Range<usize>, HostAccess)>>,
    /// How many of them write; changes only while `now` is locked.
    writing: AtomicUsize,
}

/// A borrowed range; ends when dropped, also while a panic unwinds.
#[derive(Debug)]
pub(super) struct Borrowed<'a> {
    of: &'a Borrows,
    range: Range<usize>,
    access: HostAccess,
}

impl Borrows {
    /// Borrows a range, if `allowed` says so while nobody else can borrow; `None` where that would alias, or is not
    /// allowed.
    pub(super) fn take(
        &self,
        range: Range<usize>,
        access: HostAccess,
        allowed: impl FnOnce() -> bool,
    ) -> Option<Borrowed<'_>> {
        let mut now = self.now();
        let clashes = |(other, how): &(Range<usize>, HostAccess)| {
            let both_read = access == HostAccess::Read && *how == HostAccess::Read;
            !both_read && !range.is_empty() && other.start < range.end && range.start < other.end
        };
        if !allowed() || now.iter().any(clashes) {
            return None;
        }
        if access == HostAccess::Write {
            self.writing.fetch_add(1, Ordering::Relaxed);
        }
        now.push((range.clone(), access));
        Some(Borrowed { of: self, range, access })
    }

    /// Runs `change` while nobody can borrow.
    pub(super) fn alone(&self, change: impl FnOnce()) {
        let _now = self.now();
        change();
    }

    /// Whether nothing is written at the moment. Where nothing can become written any more, that stays so.
    pub(super) fn none_write(&self) -> bool {
        self.writing.load(Ordering::Acquire) == 0
    }

    fn now(&self) -> MutexGuard<'_, Vec<(Range<usize>, HostAccess)>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        let mut now = self.of.now();
        // Equal reads are as good as each other.
        if let Some(at) = now.iter().position(|(range, how)| *range == self.range && *how == self.access) {
            now.swap_remove(at);
        }
        if self.access == HostAccess::Write {
            self.of.writing.fetch_sub(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::card::{CardError, HostMemory};

    #[test]
    fn slices_of_the_same_bytes_never_meet_a_mutable_one() {
        let buf = HostMemory::default().alloc(64, "test").unwrap();
        let (left, right, both) = (buf.span(0, 32).unwrap(), buf.span(32, 32).unwrap(), buf.whole());
        let refused = |result: Result<(), CardError>| assert!(matches!(result, Err(CardError::Unordered(_))));
        left.write(|one| {
            refused(left.write(|_| ()));
            refused(both.write(|_| ()));
            refused(both.read(|_| ()));
            right.write(|other| (one[0], other[0]) = (1, 2)).unwrap();
            right.read(|other| assert_eq!(other[0], 2)).unwrap();
        })
        .unwrap();
        both.read(|all| {
            assert_eq!((all[0], all[32]), (1, 2));
            left.read(|_| refused(right.write(|_| ()))).unwrap();
        })
        .unwrap();
        both.write(|_| ()).unwrap();
    }

    #[test]
    fn a_panic_gives_the_bytes_back() {
        let span = HostMemory::default().alloc(8, "test").unwrap().whole();
        let own = span.clone();
        let thread = std::thread::spawn(move || own.write(|_| std::panic::resume_unwind(Box::new("wanted"))));
        assert!(thread.join().is_err());
        span.write(|_| ()).unwrap();
    }

    #[test]
    fn sealed_bytes_are_shown_once_their_last_writer_is_gone() {
        let span = HostMemory::default().alloc(8, "test").unwrap().whole();
        span.write(|bytes| {
            span.buf().seal();
            assert!(span.sealed().is_none());
            bytes.fill(3);
        })
        .unwrap();
        assert_eq!(span.sealed(), Some(&[3; 8][..]));
        assert!(span.write(|_| ()).is_err());
        span.read(|bytes| assert_eq!(bytes, [3; 8])).unwrap();
    }
}
