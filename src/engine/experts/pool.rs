//! The expert pool of a card: its slots, and who lives in them.

use std::panic::resume_unwind;
use std::sync::Arc;

use super::arena::Arena;
use crate::card::{Card, CardError, Event, Region, Span, Stream};
use crate::engine::{EngineError, waits};
use crate::ops::ExpertSet;
use crate::plan::ExpertsPlan;
use crate::plan::memory::FILE_BLOBS;
use crate::units::{Bytes, ExpertId};

/// Threads that read residents from the file when the model is loaded.
const READ_AT_ONCE: usize = 4;

/// One resident and where its blob is.
struct Resident {
    layer: usize,
    expert: ExpertId,
    blob: Span,
}

/// A card's slots. The residents come first; the last `displaced` of them give way to the ring during a streamed
/// prompt, the `staged` before those to the staging pool during a prompt with streamed cells. The `free` slots of the
/// ring never hold one.
pub(in crate::engine) struct Pool {
    card: Arc<dyn Card>,
    arena: Arc<Arena>,
    residents: Vec<Resident>,
    staged: usize,
    displaced: usize,
    staging: Span,
    slots: Vec<Span>,
    free: Vec<Span>,
    /// The resident that an expert is, by layer and expert.
    index: Vec<Vec<Option<usize>>>,
    lent: Lent,
    back: Option<Back>,
}

/// Which residents have given way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lent {
    ring: bool,
    staging: bool,
}

/// Copies of residents that nobody has seen arrive yet.
struct Back {
    copied: Event,
    /// Whether compute waits for them.
    awaited: bool,
}

impl Pool {
    /// Takes the slots and copies the residents in.
    ///
    /// # Errors
    /// When memory is short or a copy is refused.
    pub fn load(
        card: &Arc<dyn Card>,
        arena: &Arc<Arena>,
        plan: &ExpertsPlan,
        progress: &dyn Fn(Bytes),
    ) -> Result<Self, EngineError> {
        let kept = plan.stays();
        let mut residents = Vec::with_capacity(plan.residents.len());
        let mut slots = Vec::new();
        for at in plan.residents.iter().take(kept) {
            let expert = ExpertId(at.expert as u32);
            let region = card.alloc(Bytes(plan.slot_bytes as u64), "resident expert")?;
            let blob = region.span(0, arena.bytes(at.layer, expert)?);
            residents.push(Resident { layer: at.layer, expert, blob });
        }
        let lent: Region = card.alloc(Bytes((plan.ring * plan.slot_bytes) as u64), "prompt ring")?;
        for slot in 0..plan.ring {
            slots.push(lent.span(slot * plan.slot_bytes, plan.slot_bytes));
        }
        let bytes = Bytes((plan.staging * plan.slot_bytes) as u64);
        let staging = card.alloc(bytes, "staging pool")?.whole();
        let staged = (0..plan.staged).map(|slot| staging.part(slot * plan.slot_bytes, plan.slot_bytes));
        let places = staged.chain(slots.iter().copied());
        for (at, slot) in plan.residents.iter().skip(kept).zip(places) {
            let expert = ExpertId(at.expert as u32);
            let bytes = arena.bytes(at.layer, expert)?;
            residents.push(Resident { layer: at.layer, expert, blob: slot.part(0, bytes) });
        }
        let free = slots.iter().skip(plan.displaced).copied().collect();
        let index = index(&residents);
        let mut pool = Self {
            card: Arc::clone(card),
            arena: Arc::clone(arena),
            residents,
            staged: plan.staged,
            displaced: plan.displaced,
            staging,
            slots,
            free,
            index,
            lent: Lent::default(),
            back: None,
        };
        pool.load_residents(kept, progress)?;
        pool.copy_residents(|index| index >= kept)?;
        Ok(pool)
    }

    /// Copies the residents that never give way, which no arena holds: several threads read the file.
    fn load_residents(&self, kept: usize, progress: &dyn Fn(Bytes)) -> Result<(), EngineError> {
        let kept = self.residents.get(..kept).unwrap_or_default();
        for some in kept.chunks(READ_AT_ONCE * FILE_BLOBS) {
            let copy = |part: &[Resident]| {
                part.iter().try_for_each(|at| self.arena.copy_in(&self.card, at.layer, at.expert, at.blob))
            };
            std::thread::scope(|scope| {
                let readers: Vec<_> = some.chunks(FILE_BLOBS).map(|part| scope.spawn(move || copy(part))).collect();
                let ended =
                    readers.into_iter().map(|reader| reader.join().unwrap_or_else(|cause| resume_unwind(cause)));
                ended.fold(Ok(()), Result::and)
            })?;
            progress(some.iter().map(|at| Bytes(at.blob.bytes as u64)).sum());
        }
        Ok(())
    }

    fn copy_residents(&mut self, wanted: impl Fn(usize) -> bool) -> Result<(), CardError> {
        let wanted = self.residents.iter().enumerate().filter(|(index, _)| wanted(*index));
        for (_, resident) in wanted {
            self.arena.copy_in(&self.card, resident.layer, resident.expert, resident.blob)?;
        }
        self.back = Some(Back { copied: self.card.record(Stream::Experts)?, awaited: false });
        Ok(())
    }

    /// Slots of the ring for a streamed prompt; while they are lent, displaced residents are not on the card.
    pub fn ring(&self) -> &[Span] {
        &self.slots
    }

    /// Slots that no resident takes: the ring of prompts below the floor.
    pub fn free(&self) -> &[Span] {
        &self.free
    }

    /// The ring is lent: displaced residents are gone.
    pub fn lend(&mut self) {
        self.lent.ring = true;
    }

    /// Lends the slots of the staging pool: the residents in them are gone.
    pub fn lend_staging(&mut self) -> Span {
        self.lent.staging = true;
        self.staging
    }

    /// The end of copies of residents that may not have arrived yet.
    pub fn refilled(&self) -> Option<&Event> {
        self.back.as_ref().map(|back| &back.copied)
    }

    /// The leases have ended: residents that gave way are copied back, which compute waits for at its next use.
    ///
    /// # Errors
    /// When a copy is refused; the displaced residents stay away then, and the next call tries again.
    pub fn take_back(&mut self) -> Result<(), CardError> {
        let here: Vec<bool> = (0..self.residents.len()).map(|index| self.is_here(index)).collect();
        if here.contains(&false) {
            self.copy_residents(|index| here.get(index) == Some(&false))?;
        }
        self.lent = Lent::default();
        Ok(())
    }

    /// A request that compute worked for has ended well: the residents it waited for are there.
    pub fn confirm(&mut self) {
        if self.back.as_ref().is_some_and(|back| back.awaited) {
            self.back = None;
        }
    }

    /// A request has not ended well: residents whose copies failed are gone until they are taken back again.
    pub fn doubt(&mut self) {
        if let Some(back) = self.back.take()
            && self.card.sync(&back.copied, waits::RESIDENTS_BACK).is_err()
        {
            self.lent = Lent { ring: true, staging: true };
        }
    }

    /// Makes compute wait for residents that are still being copied.
    ///
    /// # Errors
    /// When the card refuses the wait.
    pub fn wait_for_residents(&mut self) -> Result<(), CardError> {
        match &mut self.back {
            Some(back) if !back.awaited => {
                self.card.wait(Stream::Compute, &back.copied, waits::RESIDENTS_BACK)?;
                back.awaited = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// The blob of an expert that is on the card now.
    pub fn get(&self, layer: usize, expert: ExpertId) -> Option<Span> {
        let index = self.resident(layer, expert)?;
        self.is_here(index).then(|| self.residents.get(index).map(|resident| resident.blob)).flatten()
    }

    fn is_here(&self, index: usize) -> bool {
        let ring = self.residents.len() - self.displaced;
        match index {
            index if index >= ring => !self.lent.ring,
            index if index >= ring - self.staged => !self.lent.staging,
            _ => true,
        }
    }

    /// Which resident an expert is.
    fn resident(&self, layer: usize, expert: ExpertId) -> Option<usize> {
        *self.index.get(layer)?.get(expert.0 as usize)?
    }

    /// The experts of a layer that are on the card now.
    pub fn held(&self, layer: usize, experts: usize) -> ExpertSet {
        ExpertSet::new(experts, (0..experts as u32).map(ExpertId).filter(|expert| self.get(layer, *expert).is_some()))
    }

    /// The experts of a layer that a streamed prompt copies, ascending.
    pub fn streamed(&self, layer: usize, experts: usize) -> Vec<ExpertId> {
        let ring = self.residents.len() - self.displaced;
        let stays = |index: usize| index < ring && self.is_here(index);
        let stays = |expert: &ExpertId| self.resident(layer, *expert).is_some_and(stays);
        (0..experts as u32).map(ExpertId).filter(|expert| !stays(expert)).collect()
    }
}

/// The residents by layer and expert.
fn index(residents: &[Resident]) -> Vec<Vec<Option<usize>>> {
    let mut index: Vec<Vec<Option<usize>>> = Vec::new();
    for (i, resident) in residents.iter().enumerate() {
        let (layer, expert) = (resident.layer, resident.expert.0 as usize);
        index.resize(index.len().max(layer + 1), Vec::new());
        if let Some(of_layer) = index.get_mut(layer) {
            of_layer.resize(of_layer.len().max(expert + 1), None);
            of_layer.iter_mut().skip(expert).take(1).for_each(|place| *place = Some(i));
        }
    }
    index
}
