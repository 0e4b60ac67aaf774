//! Faults that tests inject into a virtual card.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The faults of a card; clones share them. Without any set, asking costs one atomic read.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    armed: AtomicBool,
    set: Mutex<Set>,
}

#[derive(Debug, Default)]
struct Set {
    waiting: Vec<Waiting>,
    held: bool,
    fired: usize,
}

#[derive(Debug)]
struct Waiting {
    place: Place,
    /// How many pass unharmed before it strikes.
    unharmed: usize,
}

/// Where a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    CopySubmitted,
    CopyRun,
    Alloc,
    Kernel(&'static str),
    Hung(&'static str),
    Corrupted,
    Stuck,
}

impl Faults {
    /// Refuses the `n`th copy from now (1 is the next) at submission.
    pub fn refuse_copy(&self, n: usize) {
        self.arm(Place::CopySubmitted, n);
    }

    /// Lets the `n`th copy from now fail in its stream, after it was accepted.
    pub fn fail_copy(&self, n: usize) {
        self.arm(Place::CopyRun, n);
    }

    /// Refuses the `n`th allocation or adoption from now, as if memory were full.
    pub fn refuse_alloc(&self, n: usize) {
        self.arm(Place::Alloc, n);
    }

    /// Panics in the `n`th command from now that has this [`crate::card::Command::name`], instead of running it.
    pub fn panic_in(&self, name: &'static str, n: usize) {
        self.arm(Place::Kernel(name), n);
    }

    /// Lets the `n`th command from now that has this name not begin before [`Faults::clear`]: its stream hangs.
    pub fn hang_in(&self, name: &'static str, n: usize) {
        self.set().held = true;
        self.arm(Place::Hung(name), n);
    }

    /// Lets the `n`th arrival from another card from now bring a wrong byte.
    pub fn corrupt_arrival(&self, n: usize) {
        self.arm(Place::Corrupted, n);
    }

    /// Lets the `n`th arrival from another card from now not end before [`Faults::clear`].
    pub fn hold_arrival(&self, n: usize) {
        self.set().held = true;
        self.arm(Place::Stuck, n);
    }

    /// Blocks while an arrival or a command is to be held.
    pub(super) fn wait_until_cleared(&self) {
        while self.set().held {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// How many faults have struck.
    pub fn fired(&self) -> usize {
        self.set().fired
    }

    /// Takes back the faults that have not struck, and lets go of what they hold.
    pub fn clear(&self) {
        let mut set = self.set();
        set.waiting.clear();
        set.held = false;
        self.0.armed.store(false, Ordering::Release);
    }

    fn set(&self) -> MutexGuard<'_, Set> {
        self.0.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arm(&self, place: Place, n: usize) {
        let mut set = self.set();
        set.waiting.push(Waiting { place, unharmed: n.saturating_sub(1) });
        self.0.armed.store(true, Ordering::Release);
    }

    /// Whether a fault strikes what now happens at `place`.
    pub(super) fn strikes(&self, place: Place) -> bool {
        if !self.0.armed.load(Ordering::Acquire) {
            return false;
        }
        let mut set = self.set();
        let mut struck = 0;
        set.waiting.retain_mut(|fault| {
            if fault.place != place {
                return true;
            }
            let strikes = fault.unharmed == 0;
            struck += usize::from(strikes);
            fault.unharmed = fault.unharmed.saturating_sub(1);
            !strikes
        });
        set.fired += struck;
        if set.waiting.is_empty() {
            self.0.armed.store(false, Ordering::Release);
        }
        struck > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_strikes_once_at_its_turn() {
        let faults = Faults::default();
        faults.fail_copy(2);
        faults.panic_in("rope", 1);
        let copies: Vec<bool> = (0..4).map(|_| faults.strikes(Place::CopyRun)).collect();
        assert_eq!(copies, [false, true, false, false]);
        assert!(!faults.strikes(Place::Kernel("linear")));
        assert!(faults.strikes(Place::Kernel("rope")));
        assert!(!faults.strikes(Place::Kernel("rope")));
        assert_eq!(faults.fired(), 2);
    }
}
