//! The last accesses of each byte of a region.

use std::ops::Range;

use super::clock::{Clock, Line};

/// One access, by the line and number of the action that made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) line: Line,
    pub(super) time: u64,
    /// The command, or what a host thread did.
    pub(super) name: &'static str,
    /// The bytes of the whole access.
    pub(super) bytes: Range<usize>,
}

impl Mark {
    fn before(&self, clock: &Clock) -> bool {
        clock.get(self.line) >= self.time
    }
}

/// An earlier access that nothing orders before a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conflict {
    pub(super) earlier: Mark,
    pub(super) earlier_wrote: bool,
}

/// The accesses of one region that a later one may conflict with: for each byte the last write and the reads since,
/// without those that a kept read is ordered after. Pieces ascend and do not overlap; bytes outside them were never
/// touched.
#[derive(Debug, Default)]
pub(super) struct History {
    pieces: Vec<Piece>,
}

#[derive(Debug)]
struct Piece {
    bytes: Range<usize>,
    written: Option<Mark>,
    read: Vec<Mark>,
}

impl History {
    /// The first earlier access that conflicts with one whose action knows `clock`.
    pub(super) fn conflict(&self, bytes: &Range<usize>, writes: bool, clock: &Clock) -> Option<Conflict> {
        let first = self.pieces.partition_point(|piece| piece.bytes.end <= bytes.start);
        let touched = self.pieces.iter().skip(first).take_while(|piece| piece.bytes.start < bytes.end);
        for piece in touched {
            let unordered = |mark: &&Mark| !mark.before(clock);
            if let Some(mark) = piece.written.iter().find(unordered) {
                return Some(Conflict { earlier: mark.clone(), earlier_wrote: true });
            }
            if writes && let Some(mark) = piece.read.iter().find(unordered) {
                return Some(Conflict { earlier: mark.clone(), earlier_wrote: false });
            }
        }
        None
    }

    /// Notes a read by an action that knows `clock`.
    pub(super) fn read(&mut self, mark: &Mark, clock: &Clock) {
        let bytes = mark.bytes.clone();
        let first = self.split(bytes.start);
        let end = self.split(bytes.end);
        let mut gaps = Vec::new();
        let mut next = bytes.start;
        for piece in self.pieces.iter_mut().take(end).skip(first) {
            if piece.bytes.start > next {
                gaps.push(next..piece.bytes.start);
            }
            next = piece.bytes.end;
            piece.read.retain(|earlier| !earlier.before(clock));
            piece.read.push(mark.clone());
        }
        if next < bytes.end {
            gaps.push(next..bytes.end);
        }
        for gap in gaps {
            let at = self.pieces.partition_point(|piece| piece.bytes.end <= gap.start);
            self.pieces.insert(at, Piece { bytes: gap, written: None, read: vec![mark.clone()] });
        }
    }

    /// Notes a write.
    pub(super) fn write(&mut self, mark: &Mark) {
        let first = self.split(mark.bytes.start);
        let end = self.split(mark.bytes.end);
        let piece = Piece { bytes: mark.bytes.clone(), written: Some(mark.clone()), read: Vec::new() };
        self.pieces.splice(first..end, [piece]);
    }

    /// Cuts the piece that holds byte `at` inside it, if one does; returns the first piece that starts at or after
    /// `at`.
    fn split(&mut self, at: usize) -> usize {
        let index = self.pieces.partition_point(|piece| piece.bytes.end <= at);
        let Some(piece) = self.pieces.get_mut(index).filter(|piece| piece.bytes.start < at) else { return index };
        let rest = Piece { bytes: at..piece.bytes.end, written: piece.written.clone(), read: piece.read.clone() };
        piece.bytes.end = at;
        self.pieces.insert(index + 1, rest);
        index + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(line: Line, time: u64, bytes: Range<usize>) -> Mark {
        Mark { line, time, name: "x", bytes }
    }

    fn clock(entries: &[(Line, u64)]) -> Clock {
        let mut clock = Clock::default();
        entries.iter().for_each(|(line, time)| clock.raise(*line, *time));
        clock
    }

    #[test]
    fn only_bytes_that_overlap_conflict() {
        let mut history = History::default();
        history.write(&mark(0, 1, 10..20));
        history.write(&mark(0, 2, 15..30));
        let knows_first = clock(&[(0, 1)]);
        assert_eq!(history.conflict(&(0..10), true, &Clock::default()), None);
        assert_eq!(history.conflict(&(10..15), false, &knows_first), None);
        assert_eq!(history.conflict(&(10..16), false, &knows_first).map(|c| c.earlier.time), Some(2));
        assert_eq!(history.conflict(&(30..40), true, &Clock::default()), None);
        assert_eq!(history.pieces.len(), 2);
    }

    #[test]
    fn a_write_waits_for_reads_and_a_read_does_not() {
        let mut history = History::default();
        history.write(&mark(0, 1, 0..8));
        history.read(&mark(1, 1, 2..12), &clock(&[(0, 1), (1, 1)]));
        let knows_write = clock(&[(0, 1)]);
        assert_eq!(history.conflict(&(0..12), false, &knows_write), None);
        let found = history.conflict(&(0..12), true, &knows_write).unwrap();
        assert_eq!((found.earlier.line, found.earlier_wrote), (1, false));
        assert_eq!(history.conflict(&(0..2), true, &knows_write), None, "bytes 0..2 were not read");
        assert!(history.conflict(&(8..12), true, &knows_write).is_some(), "a read of untouched bytes counts");
    }

    #[test]
    fn reads_that_a_later_read_is_ordered_after_are_forgotten() {
        let mut history = History::default();
        for time in 1..1_000 {
            history.read(&mark(3, time, 0..8), &clock(&[(3, time)]));
        }
        assert_eq!(history.pieces.iter().map(|piece| piece.read.len()).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn pieces_stay_sorted_and_apart() {
        let mut history = History::default();
        let mut seed = 1u64;
        for time in 1..2_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let start = (seed >> 33) as usize % 64;
            let range = start..start + 1 + (seed >> 50) as usize % 16;
            if seed >> 20 & 1 == 0 {
                history.write(&mark(0, time, range));
            } else {
                history.read(&mark(0, time, range), &Clock::default());
            }
            let pieces = &history.pieces;
            assert!(pieces.iter().all(|piece| !piece.bytes.is_empty()));
            assert!(pieces.windows(2).all(|pair| pair[0].bytes.end <= pair[1].bytes.start));
        }
    }
}
