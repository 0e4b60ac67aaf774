//! What a stage did, in numbers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// Running counts of one stage; shared between its threads and whoever reads them.
#[derive(Debug, Default)]
pub struct Counters {
    waves: AtomicU64,
    hand_offs: AtomicU64,
    streamed: AtomicU64,
    streamed_bytes: AtomicU64,
    skipped: AtomicU64,
    skipped_bytes: AtomicU64,
    slot_reuses: AtomicU64,
    host_experts: AtomicU64,
    resident_experts: AtomicU64,
}

/// The counts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Prompt waves run.
    pub waves: u64,
    /// Waves and steps handed to the next stage.
    pub hand_offs: u64,
    /// Experts copied through ring slots.
    pub streamed: u64,
    /// Their bytes.
    pub streamed_bytes: u64,
    /// Experts that were not copied because no token routes to them.
    pub skipped: u64,
    /// Their bytes.
    pub skipped_bytes: u64,
    /// Copies into a ring slot that had held another expert of the same prompt.
    pub slot_reuses: u64,
    /// Expert products of decode steps computed by the host pool.
    pub host_experts: u64,
    /// Expert products of decode steps computed by the card.
    pub resident_experts: u64,
}

impl Counts {
    /// Both together.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            waves: self.waves + other.waves,
            hand_offs: self.hand_offs + other.hand_offs,
            streamed: self.streamed + other.streamed,
            streamed_bytes: self.streamed_bytes + other.streamed_bytes,
            skipped: self.skipped + other.skipped,
            skipped_bytes: self.skipped_bytes + other.skipped_bytes,
            slot_reuses: self.slot_reuses + other.slot_reuses,
            host_experts: self.host_experts + other.host_experts,
            resident_experts: self.resident_experts + other.resident_experts,
        }
    }

    /// What was added since an earlier moment.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            waves: self.waves - before.waves,
            hand_offs: self.hand_offs - before.hand_offs,
            streamed: self.streamed - before.streamed,
            streamed_bytes: self.streamed_bytes - before.streamed_bytes,
            skipped: self.skipped - before.skipped,
            skipped_bytes: self.skipped_bytes - before.skipped_bytes,
            slot_reuses: self.slot_reuses - before.slot_reuses,
            host_experts: self.host_experts - before.host_experts,
            resident_experts: self.resident_experts - before.resident_experts,
        }
    }
}

impl Counters {
    pub(super) fn wave(&self) {
        self.waves.fetch_add(1, Relaxed);
    }

    pub(super) fn hand_off(&self) {
        self.hand_offs.fetch_add(1, Relaxed);
    }

    pub(super) fn streamed(&self, bytes: usize, reused: bool) {
        self.streamed.fetch_add(1, Relaxed);
        self.streamed_bytes.fetch_add(bytes as u64, Relaxed);
        self.slot_reuses.fetch_add(u64::from(reused), Relaxed);
    }

    pub(super) fn skipped(&self, bytes: usize) {
        self.skipped.fetch_add(1, Relaxed);
        self.skipped_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(super) fn decoded(&self, host: usize, resident: usize) {
        self.host_experts.fetch_add(host as u64, Relaxed);
        self.resident_experts.fetch_add(resident as u64, Relaxed);
    }

    /// The counts now.
    pub fn read(&self) -> Counts {
        Counts {
            waves: self.waves.load(Relaxed),
            hand_offs: self.hand_offs.load(Relaxed),
            streamed: self.streamed.load(Relaxed),
            streamed_bytes: self.streamed_bytes.load(Relaxed),
            skipped: self.skipped.load(Relaxed),
            skipped_bytes: self.skipped_bytes.load(Relaxed),
            slot_reuses: self.slot_reuses.load(Relaxed),
            host_experts: self.host_experts.load(Relaxed),
            resident_experts: self.resident_experts.load(Relaxed),
        }
    }
}
