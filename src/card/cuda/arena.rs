//! A card's memory: one allocation, taken when the card is opened and handed out from its beginning.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use cudarc::driver::result;

use super::device::Context;
use super::error::{CudaError, say};
use crate::card::{CardError, REGION_ALIGN, Region, RegionId, Span};
use crate::units::{Bytes, CardId};

/// What the arena holds before and after the budget, for kernels that read whole words around a region.
const MARGIN: usize = REGION_ALIGN;

pub(super) struct Arena {
    card: CardId,
    context: Arc<Context>,
    start: u64,
    regions: RwLock<Regions>,
}

struct Regions {
    of: HashMap<RegionId, (u64, usize, Arc<str>)>,
    room: Room,
}

/// A budget that is handed out from its beginning; a region takes its size rounded up to [`REGION_ALIGN`], as the plan counts it.
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
    pub(super) fn take(card: CardId, context: &Arc<Context>, budget: Bytes) -> Result<Self, CudaError> {
        let bytes = budget.len().saturating_add(2 * MARGIN);
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
        Ok(Self { card, context: Arc::clone(context), start, regions })
    }

    pub(super) fn alloc(&self, bytes: Bytes, what: &str) -> Result<Region, CardError> {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let free = Bytes(regions.room.free() as u64);
        let Some(offset) = regions.room.take(bytes.len()) else {
            return Err(CardError::OutOfMemory { card: self.card, what: what.to_owned(), wanted: bytes, free });
        };
        let id = RegionId::fresh();
        let what: Arc<str> = what.into();
        let at = self.start + (MARGIN + offset) as u64;
        regions.of.insert(id, (at, bytes.len(), Arc::clone(&what)));
        Ok(Region { card: self.card, id, bytes: bytes.len(), what })
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
