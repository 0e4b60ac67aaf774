//! Card memory and page-locked host memory, and spans of both.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::borrow::{Borrowed, Borrows};
use super::locking::{Lock, Locker, Locking, PageLock};
use super::watch::{HostAccess, Watcher};
use super::{CardError, LeaseId};
use crate::units::{Bytes, CardId};

/// Identifies an allocation of a card; unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u64);

/// An allocation in card memory. It lives as long as its card.
#[derive(Clone, Debug)]
pub struct Region {
    /// The card that holds it.
    pub card: CardId,
    /// Its identity.
    pub id: RegionId,
    /// Its size.
    pub bytes: usize,
    /// What it is for, for messages.
    pub what: Arc<str>,
}

/// Bytes of a card's region: what commands read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The card.
    pub card: CardId,
    /// The region.
    pub region: RegionId,
    /// First byte inside the region.
    pub offset: usize,
    /// Length in bytes.
    pub bytes: usize,
    /// The lease through which the bytes are used, if they are borrowed.
    pub lease: Option<LeaseId>,
}

static NEXT_REGION: AtomicU64 = AtomicU64::new(1);

impl RegionId {
    /// A fresh id.
    pub fn fresh() -> Self {
        Self(NEXT_REGION.fetch_add(1, Ordering::Relaxed))
    }
}

impl Region {
    /// All of the region.
    pub fn whole(&self) -> Span {
        Span { card: self.card, region: self.id, offset: 0, bytes: self.bytes, lease: None }
    }

    /// `bytes` of it from `offset`.
    pub fn span(&self, offset: usize, bytes: usize) -> Span {
        self.whole().part(offset, bytes)
    }
}

impl Span {
    /// `bytes` of the span from `offset` bytes into it.
    ///
    /// # Panics
    /// In debug builds when the part does not lie inside; in all builds a card refuses a span outside its region.
    pub fn part(&self, offset: usize, bytes: usize) -> Self {
        debug_assert!(offset + bytes <= self.bytes, "{offset} + {bytes} of {} bytes", self.bytes);
        Self { offset: self.offset + offset, bytes, ..*self }
    }

    /// Rows `range` of a matrix of `row_bytes` each that starts the span.
    pub fn rows(&self, range: Range<usize>, row_bytes: usize) -> Self {
        self.part(range.start * row_bytes, range.len() * row_bytes)
    }

    /// The same bytes used through a lease.
    pub fn leased(&self, lease: LeaseId) -> Self {
        Self { lease: Some(lease), ..*self }
    }
}

/// Where host buffers come from: one maker a rig, so that its watcher sees every buffer.
#[derive(Clone, Default)]
pub struct HostMemory {
    watcher: Watcher,
    locker: Option<Locker>,
}

/// What keeps the bytes where they are.
enum Backing {
    Empty,
    Owned { _pages: memmap2::MmapMut },
    Mapped { _file: Arc<dyn AsRef<[u8]> + Send + Sync> },
}

struct HostInner {
    id: RegionId,
    what: Arc<str>,
    start: NonNull<u8>,
    bytes: usize,
    sealed: AtomicBool,
    borrows: Borrows,
    watcher: Watcher,
    lock: Option<Lock>,
    // Last: fields are dropped in this order, and the lock ends before its memory does.
    _backing: Backing,
}

// SAFETY: the memory is plain bytes. Slices of bytes that may be written are borrowed by range (`Borrows`), sealed
// memory is only read; what a device does beside them is ordered by events, drains and messages, which the ledger
// proves.
unsafe impl Send for HostInner {}
// SAFETY: as above.
unsafe impl Sync for HostInner {}

/// Host memory that cards copy from and to; page-locked where a card can lock it. Clones share the memory.
#[derive(Clone)]
pub struct HostBuf(Arc<HostInner>);

/// Bytes of a host buffer; keeps the buffer alive.
#[derive(Clone, Debug)]
pub struct HostSpan {
    buf: HostBuf,
    offset: usize,
    bytes: usize,
}

/// Zeroed, page-aligned memory that the system gives page by page when it is first touched; large memory on large pages
/// where the system has them.
pub(super) fn zeroed_pages(bytes: usize) -> std::io::Result<memmap2::MmapMut> {
    let pages = memmap2::MmapMut::map_anon(bytes)?;
    #[cfg(target_os = "linux")]
    if bytes >= LARGE {
        // Only advice: a system without large pages says no and nothing is lost.
        let _ = pages.advise(memmap2::Advice::HugePage);
    }
    Ok(pages)
}

/// From this size on, large pages save more time than the rest of the last one wastes.
#[cfg(target_os = "linux")]
const LARGE: usize = 64 << 20;

/// Fresh pages; `None` for no bytes.
fn pages(bytes: usize, what: &str) -> Result<Option<memmap2::MmapMut>, CardError> {
    if bytes == 0 {
        return Ok(None);
    }
    let refused = |e: std::io::Error| CardError::HostMemory {
        what: what.to_owned(),
        wanted: Bytes(bytes as u64),
        reason: e.to_string(),
    };
    zeroed_pages(bytes).map(Some).map_err(refused)
}

impl HostMemory {
    /// A maker whose buffers report host accesses to `watcher` and are locked by `lock`.
    pub fn new(watcher: Watcher, lock: Option<Arc<dyn PageLock>>) -> Self {
        Self { watcher, locker: lock.map(Locker::new) }
    }

    /// The same maker, whose buffers are page-locked up to a limit: each whole, or not.
    pub fn limited(mut self, limit: Option<Bytes>) -> Self {
        if let Some(locker) = &mut self.locker {
            locker.limit(limit);
        }
        self
    }

    /// How much of the buffers is page-locked now; nothing where no card can lock memory.
    pub fn locking(&self) -> Locking {
        self.locker.as_ref().map(Locker::locking).unwrap_or_default()
    }

    /// The watcher of host accesses and messages.
    pub fn watcher(&self) -> &Watcher {
        &self.watcher
    }

    /// Zeroed memory of `bytes` (zero is legal), page-locked if a card can. A refused lock is reported by
    /// [`HostBuf::is_locked`], not an error.
    ///
    /// # Errors
    /// [`CardError::HostMemory`] when the system has no such memory.
    pub fn alloc(&self, bytes: usize, what: &str) -> Result<HostBuf, CardError> {
        Ok(self.locked(pages(bytes, what)?, what))
    }

    /// As [`HostMemory::alloc`], with what `fill` writes, and sealed. Filling comes before locking: threads that fill
    /// parts touch the pages side by side, which a lock would do one after the other.
    ///
    /// # Errors
    /// [`CardError::HostMemory`] when the system has no such memory; what `fill` fails with.
    pub fn filled<E: From<CardError>>(
        &self,
        bytes: usize,
        what: &str,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<HostBuf, E> {
        let mut pages = pages(bytes, what)?;
        fill(pages.as_deref_mut().unwrap_or_default())?;
        let buf = self.locked(pages, what);
        buf.seal();
        Ok(buf)
    }

    /// A buffer of these pages, page-locked if a card can.
    fn locked(&self, pages: Option<memmap2::MmapMut>, what: &str) -> HostBuf {
        let bytes = pages.as_ref().map_or(0, |pages| pages.len());
        let (start, backing) = match pages {
            None => (NonNull::dangling(), Backing::Empty),
            Some(mut pages) => {
                let start = NonNull::new(pages.as_mut_ptr()).unwrap_or(NonNull::dangling());
                (start, Backing::Owned { _pages: pages })
            }
        };
        let mut inner = HostInner {
            id: RegionId::fresh(),
            what: what.into(),
            start,
            bytes,
            sealed: AtomicBool::new(false),
            borrows: Borrows::default(),
            watcher: self.watcher.clone(),
            lock: None,
            _backing: backing,
        };
        if let Some(locker) = &self.locker
            && bytes > 0
        {
            // SAFETY: `HostInner` drops the guard before the memory.
            inner.lock = Some(unsafe { locker.lock(start.as_ptr(), bytes) });
        }
        HostBuf(Arc::new(inner))
    }

    /// A mapped file as a sealed buffer: read in place, never locked.
    pub fn map(&self, file: Arc<dyn AsRef<[u8]> + Send + Sync>, what: &str) -> HostBuf {
        let contents = (*file).as_ref();
        let (start, bytes) = (NonNull::from(contents).cast(), contents.len());
        HostBuf(Arc::new(HostInner {
            id: RegionId::fresh(),
            what: what.into(),
            start,
            bytes,
            sealed: AtomicBool::new(true),
            borrows: Borrows::default(),
            watcher: self.watcher.clone(),
            lock: None,
            _backing: Backing::Mapped { _file: file },
        }))
    }
}

impl HostBuf {
    /// Its identity; shares the id space of card regions.
    pub fn id(&self) -> RegionId {
        self.0.id
    }

    /// What it is for.
    pub fn what(&self) -> &Arc<str> {
        &self.0.what
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Whether it is page-locked.
    pub fn is_locked(&self) -> bool {
        self.0.lock.as_ref().is_some_and(Lock::holds)
    }

    /// Ends all writing: from now on the memory is only read, by anyone.
    pub fn seal(&self) {
        self.0.borrows.alone(|| self.0.sealed.store(true, Ordering::Release));
    }

    /// Whether writing has ended.
    pub fn is_sealed(&self) -> bool {
        self.0.sealed.load(Ordering::Acquire)
    }

    /// `bytes` from `offset`, or `None` outside the buffer.
    pub fn span(&self, offset: usize, bytes: usize) -> Option<HostSpan> {
        let end = offset.checked_add(bytes)?;
        (end <= self.0.bytes).then(|| HostSpan { buf: self.clone(), offset, bytes })
    }

    /// All of it.
    pub fn whole(&self) -> HostSpan {
        HostSpan { buf: self.clone(), offset: 0, bytes: self.0.bytes }
    }
}

impl std::fmt::Debug for HostBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "host buffer `{}` of {}", self.0.what, Bytes(self.0.bytes as u64))
    }
}

impl HostSpan {
    /// The buffer.
    pub fn buf(&self) -> &HostBuf {
        &self.buf
    }

    /// First byte inside the buffer.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// `bytes` of the span from `offset` bytes into it, or `None` outside.
    pub fn part(&self, offset: usize, bytes: usize) -> Option<Self> {
        let end = offset.checked_add(bytes)?;
        (end <= self.bytes).then(|| Self { buf: self.buf.clone(), offset: self.offset + offset, bytes })
    }

    /// The bytes of sealed memory; `None` while the buffer may still be written.
    pub fn sealed(&self) -> Option<&[u8]> {
        let unwritten = self.buf.is_sealed() && self.buf.0.borrows.none_write();
        // SAFETY: the span lies inside the buffer. A sealed buffer is not borrowed for writing again, and cards refuse
        // commands that write it; those that did when it was sealed are gone.
        unwritten.then(|| unsafe { std::slice::from_raw_parts(self.start(), self.bytes) })
    }

    /// Borrows the bytes: while the result lives, nobody has a slice of them that this access could not stand beside.
    ///
    /// # Errors
    /// [`CardError::Unordered`] where someone has, [`CardError::HostMemory`] for writing a sealed buffer.
    pub(super) fn borrow(&self, access: HostAccess) -> Result<Borrowed<'_>, CardError> {
        let inner = &*self.buf.0;
        let range = self.offset..self.offset + self.bytes;
        // Asked under the lock, so that nobody seals between the question and the borrow.
        let allowed = || access == HostAccess::Read || !self.buf.is_sealed();
        if let Some(borrowed) = inner.borrows.take(range.clone(), access, allowed) {
            return Ok(borrowed);
        }
        if !allowed() {
            return Err(self.sealed_error());
        }
        Err(CardError::Unordered(format!(
            "bytes {}..{} of {:?} are written by one and used by another at the same time",
            range.start, range.end, self.buf
        )))
    }

    /// The host reads the bytes: they must be ordered after every command and thread that wrote them.
    ///
    /// # Errors
    /// [`CardError::Unordered`] from a watching ledger, or when the bytes are just being written.
    pub fn read<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Result<R, CardError> {
        self.buf.0.watcher.host_access(self, HostAccess::Read)?;
        let _borrowed = self.borrow(HostAccess::Read)?;
        // SAFETY: the span lies inside the buffer, and is borrowed for reading.
        Ok(read(unsafe { std::slice::from_raw_parts(self.start(), self.bytes) }))
    }

    /// The host writes the bytes: they must be ordered after every command and thread that used them.
    ///
    /// # Errors
    /// [`CardError::Unordered`] from a watching ledger, or when the bytes are just being used;
    /// [`CardError::HostMemory`] for a sealed buffer.
    pub fn write<R>(&self, write: impl FnOnce(&mut [u8]) -> R) -> Result<R, CardError> {
        if self.buf.is_sealed() {
            return Err(self.sealed_error());
        }
        self.buf.0.watcher.host_access(self, HostAccess::Write)?;
        let _borrowed = self.borrow(HostAccess::Write)?;
        // SAFETY: the span lies inside the buffer, and is borrowed for writing: this is the only slice of its bytes.
        Ok(write(unsafe { std::slice::from_raw_parts_mut(self.start(), self.bytes) }))
    }

    /// The error of writing a sealed buffer.
    fn sealed_error(&self) -> CardError {
        CardError::HostMemory {
            what: self.buf.what().to_string(),
            wanted: Bytes(self.bytes as u64),
            reason: "it is sealed".to_owned(),
        }
    }

    /// The address of the first byte, for cards.
    pub fn start(&self) -> *mut u8 {
        // SAFETY: `offset` is at most the buffer's size.
        unsafe { self.buf.0.start.as_ptr().add(self.offset) }
    }
}
