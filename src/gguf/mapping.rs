//! A mapped file whose pages may go away: a file that is shortened, or a disk that fails, while it is mapped.
//!
//! To read such a page raises SIGBUS, which would end the program without a word. A handler puts zeros in place of what
//! is gone, from the page on to the mapping's end, and marks the mapping; whoever uses what was read asks
//! [`Mapping::is_damaged`] first. The handler's list of mappings is the only global state: a signal has no other
//! argument.

#![allow(unsafe_code, reason = "mapping a file, and the handler for pages that are gone")]

use std::io;
use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use fs_err::File;
use memmap2::Mmap;

/// A read-only mapping of a whole file.
#[derive(Debug)]
pub struct Mapping {
    map: Mmap,
    entry: &'static Entry,
}

/// A place in the handler's list. Entries are never freed, only used again.
#[derive(Debug, Default)]
struct Entry {
    /// The mapping's address; 0 for an entry that is free.
    start: AtomicUsize,
    end: AtomicUsize,
    damaged: AtomicBool,
    next: AtomicPtr<Entry>,
}

/// The list, newest entry first. Only grows.
static LIST: AtomicPtr<Entry> = AtomicPtr::new(null_mut());

/// Held while entries are taken; the handler does not need it.
static TAKING: Mutex<()> = Mutex::new(());

/// What was done on SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

impl Mapping {
    /// Maps a file that is not empty.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn new(file: &File) -> io::Result<Self> {
        install()?;
        // SAFETY: the mapping is shared and read-only, and lives as long as the `Mapping` that hands out slices of it.
        // Others may change the file meanwhile. Bytes that change are plain bytes to every reader, who must not
        // trust them more than once, as with any file; pages that go away are replaced by the handler.
        // `Shard::check` finds both.
        let map = unsafe { Mmap::map(file) }?;
        let entry = take_entry();
        entry.damaged.store(false, Ordering::Relaxed);
        let start = map.as_ptr() as usize;
        entry.end.store(start + map.len(), Ordering::Relaxed);
        entry.start.store(start, Ordering::Release);
        Ok(Self { map, entry })
    }

    /// Whether pages were gone when they were read: what was read there is zero and not the file's.
    pub fn is_damaged(&self) -> bool {
        self.entry.damaged.load(Ordering::Acquire)
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Before the file is unmapped: its addresses may soon be others'.
        self.entry.start.store(0, Ordering::Release);
    }
}

/// A free entry, or a new one. `end` marks it as taken until `start` is set.
fn take_entry() -> &'static Entry {
    let _taking = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(free) = entries().find(|entry| entry.start.load(Ordering::Acquire) == 0) {
        free.start.store(usize::MAX, Ordering::Release);
        return free;
    }
    let entry: &'static Entry = Box::leak(Box::default());
    entry.start.store(usize::MAX, Ordering::Release);
    entry.next.store(LIST.load(Ordering::Acquire), Ordering::Release);
    LIST.store(std::ptr::from_ref(entry).cast_mut(), Ordering::Release);
    entry
}

fn entries() -> impl Iterator<Item = &'static Entry> {
    // SAFETY: entries are leaked boxes, so pointers to them stay valid, and nobody takes one as mutable.
    let at = |entry: &AtomicPtr<Entry>| unsafe { entry.load(Ordering::Acquire).as_ref() };
    std::iter::successors(at(&LIST), move |entry| at(&entry.next))
}

/// Sets the handler once for the whole program.
fn install() -> io::Result<()> {
    let _taking = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if BEFORE.get().is_some() {
        return Ok(());
    }
    // SAFETY: `sigaction` is plain data for which zeros are valid; both pointers are to live values.
    let before = unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut before) != 0 {
            return Err(io::Error::last_os_error());
        }
        before
    };
    // First what the handler needs, then the handler.
    BEFORE.get_or_init(|| before);
    // SAFETY: as above; the handler has the signature that SA_SIGINFO asks for and calls only what is safe in a
    // handler.
    let set = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &action, null_mut())
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Replaces pages that are gone; any other SIGBUS is dealt with as before. Allocates and locks nothing.
extern "C" fn handler(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes a valid `siginfo_t` to a handler set with SA_SIGINFO.
    let address = unsafe { (*info).si_addr() } as usize;
    for entry in entries() {
        let (start, end) = (entry.start.load(Ordering::Acquire), entry.end.load(Ordering::Relaxed));
        if (start..end).contains(&address) && replace(address, end) {
            entry.damaged.store(true, Ordering::Release);
            return;
        }
    }
    pass_on(signal, info, context);
}

/// Zeros from the page of `address` to `end`. What lies between was not all gone, but the file is of no use any more,
/// and one signal is enough.
fn replace(address: usize, end: usize) -> bool {
    // SAFETY: `sysconf` has no precondition and takes no lock for this value.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let first = address - address % page;
    let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: the pages belong to a live mapping of this module (a reader holds it, or it would not have been read),
    // which is read-only: zeros there are as valid as any bytes. `mmap` is a bare system call, which leaves
    // `errno` alone where it succeeds.
    unsafe { libc::mmap(first as *mut libc::c_void, end - first, protection, flags, -1, 0) != libc::MAP_FAILED }
}

fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if let Some(before) = BEFORE.get() {
        if before.sa_sigaction != libc::SIG_DFL && before.sa_sigaction != libc::SIG_IGN {
            if before.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: a handler set with SA_SIGINFO has this signature, and its arguments are those of this one.
                let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    unsafe { std::mem::transmute(before.sa_sigaction) };
                handler(signal, info, context);
            } else {
                // SAFETY: a handler set without SA_SIGINFO takes the signal's number only.
                let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(before.sa_sigaction) };
                handler(signal);
            }
            return;
        }
        // SAFETY: `before` is what the system gave. With it in place the load is tried again, and ends the program.
        unsafe { libc::sigaction(signal, before, null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of this many pages of ones, mapped.
    fn mapped(pages: u64) -> (tempfile::NamedTempFile, Mapping) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs_err::write(file.path(), vec![1; 4096 * pages as usize]).unwrap();
        let mapping = Mapping::new(&File::open(file.path()).unwrap()).unwrap();
        (file, mapping)
    }

    #[test]
    fn pages_that_are_gone_read_as_zeros_and_are_marked() {
        let ((file, short), (_other, whole)) = (mapped(64), mapped(64));
        assert!(short.iter().all(|byte| *byte == 1) && !short.is_damaged());
        file.as_file().set_len(10 * 4096).unwrap();
        assert!(short[..10 * 4096].iter().all(|byte| *byte == 1) && !short.is_damaged(), "what is left is as it was");
        let readers: Vec<usize> = std::thread::scope(|scope| {
            let sum = |first: usize| short[first..].iter().map(|byte| usize::from(*byte)).sum();
            let readers = [63, 40, 20, 10].map(|page| scope.spawn(move || sum(page * 4096)));
            readers.map(|reader| reader.join().unwrap()).into()
        });
        assert_eq!(readers, [0; 4], "zeros in place of pages that are gone");
        assert!(short.is_damaged());
        assert!(whole.iter().all(|byte| *byte == 1) && !whole.is_damaged(), "another mapping is marked");
    }

    #[test]
    fn entries_are_used_again() {
        let count = || entries().count();
        let first: Vec<_> = (0..20).map(|_| mapped(1)).collect();
        let most = count();
        drop(first);
        for _ in 0..50 {
            let (file, mapping) = mapped(2);
            file.as_file().set_len(0).unwrap();
            assert!(!mapping.is_damaged(), "the mark of an earlier mapping is left");
            assert_eq!(mapping[5000], 0);
            assert!(mapping.is_damaged());
        }
        // Other tests map files meanwhile.
        assert!(count() < most + 40, "{} entries, {most} before", count());
    }
}
