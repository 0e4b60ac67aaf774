//! Rows as text: two lines each, one for each arm.

use super::{ArmSeen, Observation, Row};
use crate::bench::{Comparison, Verdict};
use crate::engine::Counts;
use crate::units::Bytes;

/// The line above all rows; ratios are first arm by second.
pub const HEADER: &str = "resident  prompt        arm    prefill s  request s   over links  skipped  cells staged  copied ahead  before t/s   after t/s  \
                          ratio of pairs";

/// A row's two lines.
pub fn row(row: &Row) -> String {
    let [first, second] = &row.arms;
    let pairs = first.observations.len();
    let outcome = |what: &str, compared: &Comparison| {
        if row.streams_nothing {
            return "streams nothing".to_owned();
        }
        let (least, most) = compared.range();
        let verdict = match compared.verdict {
            Verdict::Faster => format!("{} is faster", second.name),
            Verdict::Slower => format!("{} is slower", second.name),
            Verdict::InsideNoise => "inside the noise".to_owned(),
            Verdict::TooFewPairs => "too few pairs to say".to_owned(),
        };
        format!("{what} {:.3} ({least:.3} to {most:.3} over {pairs} pairs): {verdict}", compared.ratio)
    };
    let replies = if row.same_replies { "replies the same" } else { "replies DIFFER" };
    format!(
        "{:8}  {:12}  {}  {}\n{:8}  {:12}  {}  {}; {replies}\n",
        row.resident,
        row.case.name,
        arm(first, row.steps),
        outcome("prefill", &row.prefill),
        "",
        "",
        arm(second, row.steps),
        outcome("request", &row.request),
    )
}

/// The line of a case that the planner refused.
pub fn refused(resident: &str, case: &str, why: &str) -> String {
    format!("{resident:8}  {case:12}  refused: {why}\n")
}

fn arm(arm: &ArmSeen, (before, after): (usize, usize)) -> String {
    let rate = |steps: usize, seconds: f64| {
        if steps > 0 && seconds > 0.0 { format!("{:.2}", steps as f64 / seconds) } else { "-".to_owned() }
    };
    let bytes = |of: fn(&Counts) -> u64| Bytes(arm.median(|seen| of(&seen.counts()) as f64) as u64).to_string();
    let skipped = arm.median(skipped_share);
    format!(
        "{:5}  {:>9.3}  {:>9.3}  {:>11}  {:>7}  {:>12}  {:>12}  {:>10}  {:>10}",
        arm.name,
        arm.median(|seen| seen.prefill_seconds),
        arm.median(Observation::request_seconds),
        bytes(over_links),
        format!("{:.1}%", 100.0 * skipped),
        bytes(|counts| counts.kv_staged_bytes),
        bytes(|counts| counts.kv_prefetched_bytes),
        rate(before, arm.median(|seen| seen.before_seconds)),
        rate(after, arm.median(|seen| seen.after_seconds)),
    )
}

/// Experts and cells to the cards, and new cells to the host.
fn over_links(counts: &Counts) -> u64 {
    counts.streamed_bytes + counts.kv_staged_bytes + counts.kv_prefetched_bytes + counts.kv_written_bytes
}

/// Experts that were not copied, of those that a prompt without the gate copies.
fn skipped_share(seen: &Observation) -> f64 {
    let counts = seen.counts();
    let all = counts.streamed + counts.skipped;
    if all > 0 { counts.skipped as f64 / all as f64 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::compare;
    use crate::bench::prompt::Case;

    fn seen(prefill_seconds: f64, streamed: u64, skipped: u64) -> Observation {
        let stage =
            Counts { streamed, skipped, streamed_bytes: streamed << 20, kv_staged_bytes: 1536, ..Counts::default() };
        Observation { before_seconds: 0.5, prefill_seconds, after_seconds: 2.0, stages: vec![stage, stage] }
    }

    fn measured(streams_nothing: bool) -> Row {
        let off = ArmSeen { name: "off".to_owned(), observations: vec![seen(4.0, 20, 0); 4] };
        let on = ArmSeen { name: "on".to_owned(), observations: vec![seen(2.0, 15, 5); 4] };
        Row {
            resident: "8192".to_owned(),
            case: Case { name: "2K@32K".to_owned(), cached: 32_768, new: 2048 },
            steps: (0, 64),
            prefill: compare(&[4.0; 4], &[2.0; 4]),
            request: compare(&[6.0; 4], &[4.0; 4]),
            arms: [off, on],
            streams_nothing,
            same_replies: true,
        }
    }

    #[test]
    fn each_arm_has_a_line_under_the_header() {
        let text = format!("{HEADER}\n{}", row(&measured(false)));
        insta::assert_snapshot!(text, @"
        resident  prompt        arm    prefill s  request s   over links  skipped  cells staged  copied ahead  before t/s   after t/s  ratio of pairs
        8192      2K@32K        off        4.000      6.000     40.0 MiB     0.0%       3.0 KiB           0 B           -       32.00  prefill 2.000 (2.000 to 2.000 over 4 pairs): on is faster
                                on         2.000      4.000     30.0 MiB    25.0%       3.0 KiB           0 B           -       32.00  request 1.500 (1.500 to 1.500 over 4 pairs): on is faster; replies the same
        ");
    }

    #[test]
    fn a_row_in_which_both_arms_do_the_same_shows_no_difference() {
        let text = row(&measured(true));
        assert_eq!(text.matches("streams nothing").count(), 2, "{text}");
        assert!(!text.contains("faster"), "{text}");
    }

    #[test]
    fn differing_replies_stand_out() {
        let text = row(&Row { same_replies: false, ..measured(false) });
        assert!(text.ends_with("replies DIFFER\n"), "{text}");
    }
}
