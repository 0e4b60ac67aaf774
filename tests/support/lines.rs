//! Lines of a model's source that order memory or wake threads, and one of them whose effect a test takes away.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic::Location;

thread_local! {
    /// The lines, as they come up. A model runs all its threads on one.
    static LINES: RefCell<BTreeSet<u32>> = const { RefCell::new(BTreeSet::new()) };
    /// The line without effect.
    static WITHOUT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Takes the effect of a line from now on.
pub fn take(line: Option<u32>) {
    WITHOUT.set(line);
}

/// The lines so far.
pub fn seen() -> BTreeSet<u32> {
    LINES.with_borrow(Clone::clone)
}

/// Notes the calling line; whether it has its effect.
#[track_caller]
pub fn acts() -> bool {
    let line = Location::caller().line();
    LINES.with_borrow_mut(|lines| lines.insert(line));
    WITHOUT.get() != Some(line)
}
