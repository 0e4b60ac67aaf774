//! A virtual card's memory: bounded, zeroed regions, and host memory used in place.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock};

use bytemuck::{AnyBitPattern, NoUninit};
use memmap2::MmapMut;

use crate::card::memory::zeroed_pages;
use crate::card::{CardError, HostSpan, Region, RegionId, Span};
use crate::units::{Bytes, CardId};

/// The regions of one card. A region lives as long as this.
pub(super) struct Memory {
    card: CardId,
    budget: Bytes,
    held: RwLock<Held>,
}

#[derive(Default)]
struct Held {
    used: u64,
    blocks: HashMap<RegionId, Block>,
}

struct Block {
    start: NonNull<u8>,
    bytes: usize,
    what: Arc<str>,
    backing: Backing,
}

/// What keeps a block's bytes where they are.
enum Backing {
    Empty,
    Owned { _pages: MmapMut },
    Adopted { _host: HostSpan },
}

// SAFETY: a block is plain bytes that stay in place as long as its backing. Who touches which when is ordered by the
// streams and events of the card, as the ledger proves.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Memory {
    pub(super) fn new(card: CardId, budget: Bytes) -> Self {
        Self { card, budget, held: RwLock::default() }
    }

    pub(super) fn free(&self) -> Bytes {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        Bytes(self.budget.0.saturating_sub(held.used))
    }

    pub(super) fn alloc(&self, bytes: Bytes, what: &str) -> Result<Region, CardError> {
        self.hold(bytes, what, || {
            if bytes.is_empty() {
                return Ok((NonNull::dangling(), Backing::Empty));
            }
            let mut pages = zeroed_pages(bytes.len()).map_err(|e| CardError::HostMemory {
                what: format!("{what} of {}", self.card),
                wanted: bytes,
                reason: e.to_string(),
            })?;
            let start = NonNull::new(pages.as_mut_ptr()).unwrap_or(NonNull::dangling());
            Ok((start, Backing::Owned { _pages: pages }))
        })
    }

    pub(super) fn adopt(&self, host: &HostSpan, what: &str) -> Result<Region, CardError> {
        if !host.buf().is_sealed() {
            return Err(CardError::Device {
                card: self.card,
                reason: format!("{what} cannot be used in place: {:?} may still be written, seal it first", host.buf()),
            });
        }
        self.hold(Bytes(host.bytes() as u64), what, || {
            let start = NonNull::new(host.start()).unwrap_or(NonNull::dangling());
            Ok((start, Backing::Adopted { _host: host.clone() }))
        })
    }

    fn hold(
        &self,
        bytes: Bytes,
        what: &str,
        make: impl FnOnce() -> Result<(NonNull<u8>, Backing), CardError>,
    ) -> Result<Region, CardError> {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        let free = Bytes(self.budget.0.saturating_sub(held.used));
        if bytes > free {
            return Err(self.full(bytes, free, what));
        }
        let (start, backing) = make()?;
        let what: Arc<str> = what.into();
        let region = Region { card: self.card, id: RegionId::fresh(), bytes: bytes.len(), what: Arc::clone(&what) };
        held.used += bytes.0;
        held.blocks.insert(region.id, Block { start, bytes: bytes.len(), what, backing });
        Ok(region)
    }

    /// The error of an allocation that found only `free` bytes.
    pub(super) fn full(&self, wanted: Bytes, free: Bytes, what: &str) -> CardError {
        CardError::OutOfMemory { card: self.card, what: what.to_owned(), wanted, free }
    }

    /// What the span's region is for.
    pub(super) fn what(&self, span: &Span) -> String {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        held.blocks
            .get(&span.region)
            .map_or_else(|| format!("region {}", span.region.0), |block| block.what.to_string())
    }

    /// Checks that the span lies in a region of this card, on a multiple of `align` bytes, and may be written if it is
    /// to be.
    pub(super) fn check(&self, span: &Span, align: usize, written: bool) -> Result<(), String> {
        self.start(span, align, written).map(|_| ())
    }

    /// The address of a span that passes the check of [`Memory::check`].
    fn start(&self, span: &Span, align: usize, written: bool) -> Result<NonNull<u8>, String> {
        if span.card != self.card {
            return Err(format!("it uses memory of {}", span.card));
        }
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        let Some(block) = held.blocks.get(&span.region) else {
            return Err(format!("region {} does not exist", span.region.0));
        };
        if span.offset.checked_add(span.bytes).is_none_or(|end| end > block.bytes) {
            return Err(format!(
                "{} bytes from {} do not lie inside `{}`, which has {}",
                span.bytes, span.offset, block.what, block.bytes
            ));
        }
        if span.bytes == 0 {
            return Ok(NonNull::dangling());
        }
        // SAFETY: `offset` was found inside the block.
        let start = unsafe { block.start.add(span.offset) };
        if !(start.as_ptr() as usize).is_multiple_of(align) {
            return Err(format!("byte {} of `{}` is not aligned to {align} bytes", span.offset, block.what));
        }
        if written && matches!(block.backing, Backing::Adopted { .. }) {
            return Err(format!("`{}` is host memory used in place, which commands may only read", block.what));
        }
        Ok(start)
    }

    /// The span's bytes as elements.
    ///
    /// # Safety
    /// While the slice lives nobody writes these bytes.
    pub(super) unsafe fn read<T: AnyBitPattern>(&self, span: &Span) -> Result<&[T], String> {
        let start = self.start(span, align_of::<T>(), false)?;
        let start = if span.bytes == 0 { NonNull::<T>::dangling() } else { start.cast() };
        // SAFETY: `start` found the bytes inside a block that lives as long as `self`, aligned; `T` takes any bits;
        // that nobody writes them is the caller's promise.
        Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), span.bytes / size_of::<T>()) })
    }

    /// The span's bytes as elements to write.
    ///
    /// # Safety
    /// While the slice lives nobody else touches these bytes.
    #[allow(
        clippy::mut_from_ref,
        reason = "the memory is shared as a card's memory is; the caller promises that it is alone"
    )]
    pub(super) unsafe fn write<T: AnyBitPattern + NoUninit>(&self, span: &Span) -> Result<&mut [T], String> {
        let start = self.start(span, align_of::<T>(), true)?;
        let start = if span.bytes == 0 { NonNull::<T>::dangling() } else { start.cast() };
        // SAFETY: as in `read`, in a block that is not adopted; that nobody else touches them is the caller's promise.
        Ok(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), span.bytes / size_of::<T>()) })
    }

    /// Changes the last byte of a span that a copy of this card has just written, as broken hardware might.
    pub(super) fn damage(&self, span: &Span) -> Result<(), String> {
        // SAFETY: the stream that calls this runs the command that may write the span.
        if let Some(last) = unsafe { self.write::<u8>(span) }?.last_mut() {
            *last ^= 1;
        }
        Ok(())
    }
}
