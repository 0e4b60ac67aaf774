//! Reading prompts with a switch off and on: one engine, so the same memory and the same residents for both arms.
//!
//! A row is one case with one number of resident cells. Its arms alternate in ABBA order over one sequence, which is
//! cut back to the cached tokens before each observation.

mod case;
mod measure;
mod table;

use serde::Serialize;

pub use case::{Case, CaseError, tokens};
pub use measure::{Task, measure};
pub use table::{HEADER, refused, row};

use super::{Comparison, median};
use crate::engine::Counts;
use crate::plan::Plan;

/// The switches that the arms set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Varied {
    /// `kv.prefetch`.
    Prefetch,
    /// `prompt.routed_stream`.
    Routed,
    /// Both.
    Both,
}

/// One way to read the prompt.
#[derive(Clone, Debug)]
pub struct Arm {
    /// Its name.
    pub name: String,
    /// Its plan; the plans of both arms give memory in the same way.
    pub plan: Plan,
}

/// One measurement of an arm.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Observation {
    /// Seconds of the decode steps before the prompt, each of one token.
    pub before_seconds: f64,
    /// Seconds until the new tokens were read.
    pub prefill_seconds: f64,
    /// Seconds of the decode steps after them.
    pub after_seconds: f64,
    /// What each stage did while the new tokens were read.
    pub stages: Vec<Counts>,
}

impl Observation {
    /// Seconds of the new tokens and the answer.
    pub fn request_seconds(&self) -> f64 {
        self.prefill_seconds + self.after_seconds
    }

    /// What all stages did while the new tokens were read.
    pub fn counts(&self) -> Counts {
        self.stages.iter().fold(Counts::default(), |all, stage| all.plus(stage))
    }
}

/// What an arm did in a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ArmSeen {
    /// Its name.
    pub name: String,
    /// One for each pair, in the order of measuring.
    pub observations: Vec<Observation>,
}

impl ArmSeen {
    /// The median of a number over the observations.
    pub fn median(&self, of: impl Fn(&Observation) -> f64) -> f64 {
        median(&self.times(of))
    }

    fn times(&self, of: impl Fn(&Observation) -> f64) -> Vec<f64> {
        self.observations.iter().map(of).collect()
    }
}

/// A case, measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Cells of a sequence that stay on the card, as asked for.
    pub resident: String,
    /// What was read.
    pub case: Case,
    /// Decode steps before the prompt and after it.
    pub steps: (usize, usize),
    /// Both arms.
    pub arms: [ArmSeen; 2],
    /// Seconds until the new tokens were read, first arm against second.
    pub prefill: Comparison,
    /// Seconds of the request, first arm against second.
    pub request: Comparison,
    /// Whether nothing of what the varied switches act on happened, in neither arm: then the arms do the same, and a
    /// difference is noise.
    pub streams_nothing: bool,
    /// Whether logits after the prompt and answers were the same bits in all observations.
    pub same_replies: bool,
}

impl Varied {
    /// Whether the arms set `prompt.routed_stream`.
    pub fn routed(self) -> bool {
        matches!(self, Self::Routed | Self::Both)
    }

    /// Whether the arms set `kv.prefetch`.
    pub fn prefetch(self) -> bool {
        matches!(self, Self::Prefetch | Self::Both)
    }

    /// Whether there was anything for the varied switches to act on.
    fn acts_on(self, counts: &Counts) -> bool {
        self.routed() && counts.streamed + counts.skipped > 0
            || self.prefetch() && counts.kv_staged_bytes + counts.kv_prefetched_bytes > 0
    }
}
