//! A card's memory: one allocation, taken when the card is opened and handed out from its beginning.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use cudarc::driver::result;

use super::device::Context;
use super::error::{CudaError, say};
use crate::card::{CardError, Region, RegionId, Span};
use crate::units::{Bytes, CardId};

/// Alignment of regions.
const ALIGN: usize = 256;

/// What the arena holds beyond the budget, for the alignment of regions and for kernels that read whole words.
const SLACK: usize = 1 << 20;

pub(super) struct Arena {
    card: CardId,
    context: Arc<Context>,
    start: u64,
    budget: usize,
    regions: RwLock<Regions>,
}

#[derive(Default)]
struct Regions {
    of: HashMap<RegionId, (u64, usize, Arc<str>)>,
    promised: usize,
    end: usize,
}

impl Arena {
    /// Takes `budget` bytes of the context that is current.
    pub(super) fn take(card: CardId, context: &Arc<Context>, budget: Bytes) -> Result<Self, CudaError> {
        let bytes = budget.len().saturating_add(SLACK);
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
        let regions = RwLock::new(Regions { end: ALIGN, ..Regions::default() });
        Ok(Self { card, context: Arc::clone(context), start, budget: budget.len(), regions })
    }

    pub(super) fn alloc(&self, bytes: Bytes, what: &str) -> Result<Region, CardError> {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let free = self.budget - regions.promised;
        let room = (self.budget + SLACK).saturating_sub(regions.end + ALIGN);
        if bytes.len() > free.min(room) {
            return Err(CardError::OutOfMemory {
                card: self.card,
                what: what.to_owned(),
                wanted: bytes,
                free: Bytes(free.min(room) as u64),
            });
        }
        let id = RegionId::fresh();
        let at = self.start + regions.end as u64;
        let what: Arc<str> = what.into();
        regions.of.insert(id, (at, bytes.len(), Arc::clone(&what)));
        regions.promised += bytes.len();
        regions.end += bytes.len().next_multiple_of(ALIGN);
        Ok(Region { card: self.card, id, bytes: bytes.len(), what })
    }

    pub(super) fn free(&self) -> Bytes {
        Bytes((self.budget - self.regions.read().unwrap_or_else(PoisonError::into_inner).promised) as u64)
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
}

impl Arena {
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
