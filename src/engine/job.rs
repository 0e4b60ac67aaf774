//! Jobs: what goes through all stages, in one order.

use std::sync::Arc;

use super::sequence::SequenceId;
use super::ticket::Running;
use crate::plan::Waves;
use crate::units::TokenId;

/// One wave of a prompt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wave {
    /// The sequence.
    pub sequence: SequenceId,
    /// Position of the first token.
    pub first: usize,
    /// Tokens.
    pub rows: usize,
    /// Its number in the prompt.
    pub number: usize,
    /// All waves of the prompt.
    pub waves: Waves,
    /// Position after the prompt's last token.
    pub end: usize,
}

/// One row of a decode step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// The sequence. Several rows of one sequence have positions in a row, in ascending order.
    pub sequence: SequenceId,
    /// Position of the token.
    pub position: usize,
}

/// The rows that go through a layer together.
#[derive(Clone, Debug)]
pub(super) enum Rows {
    /// A wave of a prompt.
    Wave(Wave),
    /// A decode step.
    Step(Arc<[Row]>),
}

/// Whose logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Nobody's.
    None,
    /// The last row's.
    Last,
    /// Every row's.
    All,
}

/// Rows that go through all stages.
#[derive(Clone)]
pub(super) struct Run {
    /// The request they belong to.
    pub request: Arc<Running>,
    /// Number of the job in its request.
    pub number: usize,
    /// Number of its first row in the request.
    pub first: usize,
    pub rows: Rows,
    pub tokens: Arc<[TokenId]>,
    pub wanted: Wanted,
    /// Whether the request ends with this job.
    pub last: bool,
}

/// A job for every stage.
#[derive(Clone)]
pub(super) enum Job {
    /// Rows go through the stage.
    Run(Run),
    /// A prompt ends before its last wave: its ring and staging pool are given back.
    Release(Arc<Running>),
    /// After a failure, when all stages have ended their jobs: forget hand-offs.
    Settle,
}
