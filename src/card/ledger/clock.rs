//! Vector clocks.

/// One in-order line of actions: a card's stream or a host thread, by its place in the ledger.
pub(super) type Line = usize;

/// How far each line has come, as seen by one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Clock(Vec<u64>);

impl Clock {
    /// How many actions of the line are known to have ended before what comes next.
    pub(super) fn get(&self, line: Line) -> u64 {
        self.0.get(line).copied().unwrap_or(0)
    }

    /// Counts one more action of the line itself and returns its number, from 1.
    pub(super) fn tick(&mut self, line: Line) -> u64 {
        self.raise(line, self.get(line) + 1);
        self.get(line)
    }

    /// Learns that the line has come to `time`.
    pub(super) fn raise(&mut self, line: Line, time: u64) {
        if self.0.len() <= line {
            self.0.resize(line + 1, 0);
        }
        if let Some(known) = self.0.get_mut(line) {
            *known = time.max(*known);
        }
    }

    /// Learns all that `other` knows.
    pub(super) fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (known, told) in self.0.iter_mut().zip(&other.0) {
            *known = (*told).max(*known);
        }
    }

    /// Every line with what is known of it.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Line, u64)> + '_ {
        self.0.iter().copied().enumerate().filter(|(_, time)| *time > 0)
    }
}
