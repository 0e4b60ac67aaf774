//! What a command moves and computes.

use std::ops::Add;

/// Bytes by tier and operations of one command: what a model of time multiplies with rates.
///
/// Every byte counts once however often a kernel loads it, work memory does not count (it stays in caches), and a
/// multiply-add is two operations. Where the work depends on values that only the card knows (which experts a token
/// chose), it is the most there can be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes read from the card's own memory.
    pub card_read: u64,
    /// Bytes written to the card's own memory.
    pub card_written: u64,
    /// Bytes read from host memory, over the card's link.
    pub host_read: u64,
    /// Bytes written to host memory, over the card's link.
    pub host_written: u64,
    /// Bytes that leave the card for another one.
    pub sent: u64,
    /// Bytes that arrive from another card.
    pub received: u64,
    /// Operations of products with weights and cells: those that tensor cores and byte dot products serve.
    pub tensor: u64,
    /// Other operations, in f32; a square root, a division or an exponential counts as one.
    pub float: u64,
}

impl Cost {
    /// Bytes of the card's own memory, read and written.
    pub const fn card(&self) -> u64 {
        self.card_read.saturating_add(self.card_written)
    }

    /// All operations.
    pub const fn operations(&self) -> u64 {
        self.tensor.saturating_add(self.float)
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            card_read: self.card_read.saturating_add(other.card_read),
            card_written: self.card_written.saturating_add(other.card_written),
            host_read: self.host_read.saturating_add(other.host_read),
            host_written: self.host_written.saturating_add(other.host_written),
            sent: self.sent.saturating_add(other.sent),
            received: self.received.saturating_add(other.received),
            tensor: self.tensor.saturating_add(other.tensor),
            float: self.float.saturating_add(other.float),
        }
    }
}

/// A product of counts, at the largest where it does not fit.
pub(super) fn count(factors: &[usize]) -> u64 {
    factors.iter().fold(1, |all: u64, factor| all.saturating_mul(*factor as u64))
}
