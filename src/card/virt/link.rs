//! A slowed link: a resource that is busy until a moment, so that a copy takes the time its bytes take and no thread is
//! busy.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::units::Rate;

/// The rates of a card's link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkRates {
    /// Host to card.
    pub h2d: Rate,
    /// Card to host.
    pub d2h: Rate,
}

/// One direction of a card's link, shared by the card's streams in the order of their copies.
pub(super) struct Link {
    rate: Rate,
    free_at: Mutex<Option<Instant>>,
}

/// A sleep overshoots by about this much, so a shorter rest is left to the next copy: the link's own clock forgets
/// nothing.
const SHORTEST_SLEEP: Duration = Duration::from_micros(50);

impl Link {
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, free_at: Mutex::default() }
    }

    /// Takes the link for a copy of `bytes` that could start at `ready`; returns when it starts and ends.
    pub(super) fn take(&self, ready: Instant, bytes: usize) -> (Instant, Instant) {
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let start = free_at.map_or(ready, |free| free.max(ready));
        let end = start + Duration::from_secs_f64(bytes as f64 / self.rate.0);
        *free_at = Some(end);
        (start, end)
    }
}

/// Sleeps until the modelled end of a copy.
pub(super) fn sleep_until(end: Instant) {
    let rest = end.saturating_duration_since(Instant::now());
    if rest >= SHORTEST_SLEEP {
        std::thread::sleep(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_follow_each_other_at_the_rate() {
        let link = Link::new(Rate(1e6));
        let now = Instant::now();
        let first = link.take(now, 1_000);
        assert_eq!(first, (now, now + Duration::from_millis(1)));
        assert_eq!(link.take(now, 2_000), (first.1, now + Duration::from_millis(3)));
        let later = now + Duration::from_millis(10);
        assert_eq!(link.take(later, 0), (later, later), "an idle link begins when the copy is ready");
    }
}
