//! The waves of a prompt.

/// How a prompt is cut: into as few waves as it takes, of equal size but for one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waves {
    /// Waves.
    pub count: usize,
    /// Rows of the shortest, which is the last.
    pub shortest: usize,
    /// The first so many have one row more.
    longer: usize,
}

impl Waves {
    /// A prompt of `tokens` tokens in waves of at most `wave`.
    pub fn of(tokens: usize, wave: usize) -> Self {
        let count = tokens.div_ceil(wave.max(1)).max(1);
        Self { count, shortest: tokens / count, longer: tokens % count }
    }

    /// Rows of a wave.
    pub fn rows(&self, number: usize) -> usize {
        self.shortest + usize::from(number < self.longer)
    }

    /// Whether its experts are streamed ahead of the routers: where every wave has `floor` rows. So a wave of a prompt
    /// below the floor has at most `rows_below` rows.
    pub fn reach(&self, floor: usize) -> bool {
        self.shortest >= floor
    }
}

/// Most rows of a wave of a prompt below the floor: its shortest wave has fewer than `floor`, others have one row more.
pub(super) fn rows_below(floor: usize, wave: usize) -> usize {
    floor.min(wave)
}
