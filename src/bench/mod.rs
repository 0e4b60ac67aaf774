//! Paired measurements: alternating arms, medians, ratios, and whether a difference is more than noise.
//!
//! A time is only comparable inside one run, so every arm is measured in every pair, in ABBA order, and compared pair
//! by pair.

mod compare;
pub mod prompt;
mod text;

use serde::Serialize;

pub use compare::{Comparison, Verdict, compare, median};
pub use text::Text;

use crate::units::TokenId;

/// One measurement of an arm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Observation {
    /// Seconds until the prompt was read.
    pub prefill_seconds: f64,
    /// Seconds of all decode steps.
    pub decode_seconds: f64,
    /// Peak or other byte count of streamed experts.
    pub streamed_bytes: u64,
    /// Experts that were not copied.
    pub skipped: u64,
    /// Experts that were copied.
    pub streamed: u64,
}

/// The order in which arms are measured in pair `pair`: forth in even pairs, back in odd ones.
pub fn order(arms: usize, pair: usize) -> Vec<usize> {
    if pair.is_multiple_of(2) { (0..arms).collect() } else { (0..arms).rev().collect() }
}

/// The likeliest token; of equal ones that with the lowest id.
pub fn greedy(logits: &[f32]) -> TokenId {
    let best = logits.iter().enumerate().rev().max_by(|a, b| a.1.total_cmp(b.1));
    best.map_or(0, |(token, _)| token as TokenId)
}

#[cfg(test)]
mod tests {
    #[test]
    fn of_equal_logits_the_first_wins() {
        assert_eq!(super::greedy(&[0.0, 2.0, 2.0, -1.0]), 1);
        assert_eq!(super::greedy(&[]), 0);
    }

    #[test]
    fn two_arms_go_abba() {
        let order: Vec<usize> = (0..2).flat_map(|pair| super::order(2, pair)).collect();
        assert_eq!(order, [0, 1, 1, 0]);
    }
}
