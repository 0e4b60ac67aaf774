//! A card's memory: one allocation, taken when the card is opened and handed out from its beginning. To look for
//! kernels that leave their region, each can be an allocation of its own between guard bands: tools see what goes far,
//! and the bands what goes near.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::device::Context;
use super::error::{CudaError, say};
use crate::card::{CardError, REGION_ALIGN, Region, RegionId, Span};
use crate::units::{Bytes, CardId};

/// What the arena holds before and after the budget, for kernels that read whole words around a region.
const MARGIN: usize = REGION_ALIGN;

pub(super) struct Arena {
    card: CardId,
    context: Arc<Context>,
    /// All memory, or the margin alone where regions are guarded.
    start: u64,
    guarded: bool,
    regions: RwLock<Regions>,
}

/// Bytes of guard bands.
const BAND: u8 = 0xa7;

struct Regions {
    of: HashMap<RegionId, (u64, usize, Arc<str>)>,
    room: Room,
}

/// A budget that is handed out from its beginning; a region takes its size rounded up to [`REGION_ALIGN`], as the plan
/// counts it.
struct Room {
    budget: usize,
    used: usize,
}

impl Room {
    fn free(&self) -> usize {
        self.budget - self.used
    }

    /// Where `bytes` go, or `None` past the budget.
    fn take(&mut self, bytes: usize) -> Option<usize> {
        let end = self.used.checked_add(bytes.checked_next_multiple_of(REGION_ALIGN)?)?;
        (end <= self.budget).then(|| std::mem::replace(&mut self.used, end))
    }
}

impl Arena {
    /// Takes `budget` bytes of the context that is current.
    pub(super) fn take(card: CardId, context: &Arc<Context>, budget: Bytes, guarded: bool) -> Result<Self, CudaError> {
        let bytes = if guarded { 2 * MARGIN } else { budget.len().saturating_add(2 * MARGIN) };
        // SAFETY: a context is current; the memory is freed once, in `drop`.
        let start = unsafe { result::malloc_sync(bytes) }.map_err(|error| {
            let (free, total) = result::mem_get_info().unwrap_or((0, 0));
            CudaError::Arena {
                card,
                wanted: budget,
                free: Bytes(free as u64),
                total: Bytes(total as u64),
                reason: say(error),
            }
        })?;
        let regions = RwLock::new(Regions { of: HashMap::new(), room: Room { budget: budget.len(), used: 0 } });
        Ok(Self { card, context: Arc::clone(context), start, guarded, regions })
    }

    pub(super) fn alloc(&self, bytes: Bytes, what: &str) -> Result<Region, CardError> {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let free = Bytes(regions.room.free() as u64);
        let Some(offset) = regions.room.take(bytes.len()) else {
            return Err(CardError::OutOfMemory { card: self.card, what: what.to_owned(), wanted: bytes, free });
        };
        let id = RegionId::fresh();
        let what: Arc<str> = what.into();
        let at = if self.guarded {
            let refused = |reason| CardError::Device { card: self.card, reason };
            self.guarded_region(bytes.len()).map_err(|error| refused(format!("a guarded region: {}", say(error))))?
        } else {
            self.start + (MARGIN + offset) as u64
        };
        regions.of.insert(id, (at, bytes.len(), Arc::clone(&what)));
        Ok(Region { card: self.card, id, bytes: bytes.len(), what })
    }

    /// An allocation between two bands.
    fn guarded_region(&self, bytes: usize) -> Result<u64, DriverError> {
        self.context.bind()?;
        // SAFETY: a context is current; the memory is freed once, in `drop`; the bands lie in it.
        unsafe {
            let start = result::malloc_sync(bytes + 2 * MARGIN)?;
            let at = start + MARGIN as u64;
            for band in [start, at + bytes as u64] {
                sys::cuMemsetD8_v2(band, BAND, MARGIN).result()?;
            }
            Ok(at)
        }
    }

    /// Whether the bands of all guarded regions are as they were made; the context is current and nothing runs.
    pub(super) fn check_guards(&self) -> Result<(), String> {
        if !self.guarded {
            return Ok(());
        }
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let mut wrong = Vec::new();
        for (at, bytes, what) in regions.of.values() {
            for (band, side) in [(at - MARGIN as u64, "before"), (at + *bytes as u64, "behind")] {
                let mut found = [0_u8; MARGIN];
                // SAFETY: as many bytes of the region's allocation.
                unsafe { sys::cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), band, MARGIN) }.result().map_err(say)?;
                if let Some(place) = found.iter().position(|byte| *byte != BAND) {
                    wrong.push(format!("`{what}` ({bytes} bytes): byte {place} {side} it"));
                }
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(format!("written outside regions: {}", wrong.join("; "))) }
    }

    pub(super) fn free(&self) -> Bytes {
        Bytes(self.regions.read().unwrap_or_else(PoisonError::into_inner).room.free() as u64)
    }

    /// The address of [`MARGIN`] bytes whose content means nothing.
    pub(super) fn margin(&self) -> u64 {
        self.start
    }

    /// The device address of a span that lies in its region.
    pub(super) fn address(&self, span: &Span) -> Result<u64, String> {
        if span.card != self.card {
            return Err(format!("a span of {} was given to {}", span.card, self.card));
        }
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let region = regions.of.get(&span.region).ok_or_else(|| format!("there is no region {}", span.region.0))?;
        let (at, bytes) = (region.0, region.1);
        if span.offset.checked_add(span.bytes).is_none_or(|end| end > bytes) {
            let (offset, long) = (span.offset, span.bytes);
            return Err(format!("bytes {offset} to {offset} + {long} are outside their region of {bytes}"));
        }
        Ok(at + span.offset as u64)
    }

    /// What a span's region is for.
    pub(super) fn what(&self, span: &Span) -> String {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        regions.of.get(&span.region).map_or_else(|| format!("region {}", span.region.0), |region| region.2.to_string())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated in `take`; the card drained its streams before it dropped the arena.
            let _ = unsafe { result::memory_free(self.start) };
            let regions = self.regions.get_mut().unwrap_or_else(PoisonError::into_inner);
            for (at, ..) in regions.of.values().filter(|_| self.guarded) {
                // SAFETY: allocated in `guarded_region`, as above.
                let _ = unsafe { result::memory_free(at - MARGIN as u64) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{REGION_ALIGN, Room};

    #[test]
    fn regions_fill_a_budget_to_its_last_byte_and_no_further() {
        let mut room = Room { budget: 4 * REGION_ALIGN, used: 0 };
        assert_eq!(room.take(0), Some(0));
        assert_eq!(room.take(1), Some(0));
        assert_eq!(room.take(REGION_ALIGN + 1), Some(REGION_ALIGN));
        assert_eq!((room.take(REGION_ALIGN + 1), room.free()), (None, REGION_ALIGN));
        assert_eq!(room.take(usize::MAX), None);
        assert_eq!(room.take(REGION_ALIGN), Some(3 * REGION_ALIGN));
        assert_eq!((room.take(1), room.free()), (None, 0));
    }
}
