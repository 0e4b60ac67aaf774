//! A virtual card's events.

use std::any::Any;
use std::sync::OnceLock;
use std::time::Instant;

use crate::card::{CardError, EventState};

/// A mark that ends once.
#[derive(Default)]
pub(super) struct Mark {
    end: OnceLock<End>,
}

struct End {
    /// When, by the modelled clock of the link if the last command was a copy over a slowed one.
    at: Instant,
    result: Result<(), CardError>,
}

impl Mark {
    pub(super) fn end(&self, at: Instant, result: Result<(), CardError>) {
        self.end.get_or_init(|| End { at, result });
    }

    /// When the mark ended, if it has.
    pub(super) fn ended_at(&self) -> Option<Instant> {
        self.end.get().map(|end| end.at)
    }
}

impl EventState for Mark {
    fn finished(&self) -> Result<bool, CardError> {
        match self.end.get() {
            None => Ok(false),
            Some(End { result, .. }) => result.clone().map(|()| true),
        }
    }

    fn block(&self) -> Result<(), CardError> {
        self.end.wait().result.clone()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
