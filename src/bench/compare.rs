//! Comparing two arms pair by pair.

use serde::Serialize;

/// What pairs of times say about two arms.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Median of the first arm, in seconds.
    pub first_median: f64,
    /// Median of the second arm, in seconds.
    pub second_median: f64,
    /// `first / second` of each pair: above 1 the second arm is faster.
    pub ratios: Vec<f64>,
    /// Median of the ratios.
    pub ratio: f64,
    /// Whether the difference is more than noise.
    pub verdict: Verdict,
}

/// Whether a difference is more than noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The second arm was faster in every pair, by more than an arm differs from itself.
    Faster,
    /// The second arm was slower in every pair, by more than an arm differs from itself.
    Slower,
    /// Pairs disagree, or an arm differs from itself by as much.
    InsideNoise,
    /// Too few pairs to say.
    TooFewPairs,
}

impl Comparison {
    /// The least and the largest ratio.
    pub fn range(&self) -> (f64, f64) {
        let least = self.ratios.iter().copied().fold(f64::INFINITY, f64::min);
        (least, self.ratios.iter().copied().fold(0.0, f64::max))
    }
}

/// Pairs from which on a verdict is given.
const PAIRS: usize = 4;

/// The middle value; the mean of the two middle ones of an even number. Zero for none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match (sorted.get(half), sorted.len() % 2) {
        (Some(middle), 1) => *middle,
        (Some(upper), _) => (upper + sorted.get(half.wrapping_sub(1)).unwrap_or(upper)) / 2.0,
        (None, _) => 0.0,
    }
}

/// Compares times of two arms, measured pair by pair.
pub fn compare(first: &[f64], second: &[f64]) -> Comparison {
    let ratios: Vec<f64> = first.iter().zip(second).map(|(a, b)| a / b).collect();
    let ratio = median(&ratios);
    let verdict = if ratios.len() < PAIRS {
        Verdict::TooFewPairs
    } else {
        // An arm's own unrest: the median distance of its times from their median, as a share of it.
        let unrest = spread(first).max(spread(second));
        let beyond = (ratio - 1.0).abs() > unrest;
        if ratios.iter().all(|ratio| *ratio > 1.0) && beyond {
            Verdict::Faster
        } else if ratios.iter().all(|ratio| *ratio < 1.0) && beyond {
            Verdict::Slower
        } else {
            Verdict::InsideNoise
        }
    };
    Comparison { first_median: median(first), second_median: median(second), ratios, ratio, verdict }
}

fn spread(times: &[f64]) -> f64 {
    let middle = median(times);
    let distances: Vec<f64> = times.iter().map(|time| (time - middle).abs()).collect();
    if middle > 0.0 { median(&distances) / middle } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_even_and_no_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn ratios_are_taken_pair_by_pair() {
        let compared = compare(&[2.0, 6.0, 4.0, 9.0], &[1.0, 2.0, 4.0, 4.5]);
        assert_eq!(compared.ratios, [2.0, 3.0, 1.0, 2.0]);
        assert_eq!((compared.ratio, compared.range()), (2.0, (1.0, 3.0)));
        assert_eq!((compared.first_median, compared.second_median), (5.0, 3.0));
    }

    #[test]
    fn a_difference_needs_agreeing_pairs_beyond_an_arms_own_unrest() {
        assert_eq!(compare(&[2.0, 2.1, 2.0, 2.0], &[1.0, 1.1, 1.0, 1.0]).verdict, Verdict::Faster);
        assert_eq!(compare(&[1.0, 1.0, 1.1, 1.0], &[2.0, 2.0, 2.1, 2.0]).verdict, Verdict::Slower);
        assert_eq!(compare(&[1.0, 1.2, 1.0, 1.0], &[1.1, 1.0, 1.1, 1.1]).verdict, Verdict::InsideNoise);
        assert_eq!(compare(&[1.01, 2.01, 4.01, 3.01], &[1.0, 2.0, 4.0, 3.0]).verdict, Verdict::InsideNoise);
        assert_eq!(compare(&[2.0, 2.0, 2.0], &[1.0, 1.0, 1.0]).verdict, Verdict::TooFewPairs);
    }
}
