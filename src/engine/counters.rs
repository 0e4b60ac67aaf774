//! What a stage did, in numbers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::Serialize;

/// The running counts and the counts at one moment, from one list.
macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Running counts of one stage; shared between its threads and whoever reads them.
        #[derive(Debug, Default)]
        pub struct Counters { $($name: AtomicU64,)* }

        /// The counts at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// The counts now.
            pub fn read(&self) -> Counts {
                Counts { $($name: self.$name.load(Relaxed),)* }
            }
        }

        impl Counts {
            /// Both together.
            pub fn plus(&self, other: &Self) -> Self {
                Self { $($name: self.$name + other.$name,)* }
            }

            /// What was added since an earlier moment.
            pub fn since(&self, before: &Self) -> Self {
                Self { $($name: self.$name - before.$name,)* }
            }
        }
    };
}

counts! {
    /// Prompt waves run.
    waves,
    /// Waves and steps handed to the next stage.
    hand_offs,
    /// Experts copied through ring slots.
    streamed,
    /// Their bytes.
    streamed_bytes,
    /// Experts that were not copied because no token routes to them.
    skipped,
    /// Their bytes.
    skipped_bytes,
    /// Copies into a ring slot that had held another expert of the same prompt.
    slot_reuses,
    /// Streamed experts that compute read.
    arrivals,
    /// Those that had not arrived when compute was told to wait for them.
    arrival_waits,
    /// Ring slots that were filled or being filled, summed over `arrivals`.
    ring_filled,
    /// Microseconds of a CPU core that the issuer took.
    issuer_cpu_us,
    /// Expert products computed by the host pool: in decode steps, and below the floor where prompts use it.
    host_experts,
    /// Expert products computed by the card beside it.
    resident_experts,
    /// Bytes of new KV cells copied to host memory.
    kv_written_bytes,
    /// Bytes of streamed KV cells copied when their layer needed them.
    kv_staged_bytes,
    /// Bytes of streamed KV cells copied ahead of their layer.
    kv_prefetched_bytes,
    /// Tiles of streamed cells that were copied ahead.
    kv_tiles,
    /// Those that had not arrived when compute was told to wait for them.
    kv_waits,
    /// Streamed cells attended by the host pool in decode steps, over all layers.
    kv_host_cells,
    /// Streamed cells attended by the card in decode steps, over all layers, which it read over its link.
    kv_link_cells,
    /// Their bytes.
    kv_link_bytes,
    /// Microseconds the compute stream stood still for an event; 0 on cards that do not measure it.
    compute_waited_us,
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

    /// Compute reads a streamed expert, while `filled` ring slots hold one or wait for one.
    pub(super) fn arrived(&self, waits: bool, filled: usize) {
        self.arrivals.fetch_add(1, Relaxed);
        self.arrival_waits.fetch_add(u64::from(waits), Relaxed);
        self.ring_filled.fetch_add(filled as u64, Relaxed);
    }

    pub(super) fn issued(&self, cpu: Duration) {
        self.issuer_cpu_us.fetch_add(cpu.as_micros() as u64, Relaxed);
    }

    pub(super) fn decoded(&self, host: usize, resident: usize) {
        self.host_experts.fetch_add(host as u64, Relaxed);
        self.resident_experts.fetch_add(resident as u64, Relaxed);
    }

    pub(super) fn cells_written(&self, bytes: usize) {
        self.kv_written_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(super) fn cells_staged(&self, bytes: usize) {
        self.kv_staged_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(super) fn cells_prefetched(&self, bytes: usize) {
        self.kv_prefetched_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(super) fn cells_waited(&self, waits: bool) {
        self.kv_tiles.fetch_add(1, Relaxed);
        self.kv_waits.fetch_add(u64::from(waits), Relaxed);
    }

    pub(super) fn attended_on_host(&self, cells: usize) {
        self.kv_host_cells.fetch_add(cells as u64, Relaxed);
    }

    pub(super) fn attended_over_link(&self, cells: usize, bytes: usize) {
        self.kv_link_cells.fetch_add(cells as u64, Relaxed);
        self.kv_link_bytes.fetch_add(bytes as u64, Relaxed);
    }
}
