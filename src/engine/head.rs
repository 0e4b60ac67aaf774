//! The output head: logits of some rows of the hidden states.

use std::ops::Range;

use super::layer::F32;
use super::stage::Stage;
use super::{EngineError, waits};
use crate::card::command::{CopyOut, Epilogue, Phase};
use crate::card::{Command, Span, Stream};
use crate::plan::Use;

impl Stage {
    /// Logits of these rows, f32 `[rows, vocabulary]`; at most a head block of rows.
    pub(super) fn logits(&self, phase: Phase, hidden: Span, rows: Range<usize>) -> Result<Vec<f32>, EngineError> {
        let no_head = || EngineError::Internal("the last stage has no output head".to_owned());
        let head = self.head.as_ref().ok_or_else(no_head)?;
        let n = rows.len();
        let normed = self.normed(&(0..n))?;
        self.norm(hidden.rows(rows, self.width * F32), head.norm, n, self.width, normed)?;
        let bytes = n * head.output.weight.rows * F32;
        let logits = self.buffers.get(Use::Logits, bytes)?;
        let to = self.host.logits.span(0, bytes).ok_or_else(no_head)?;
        self.linear(phase, normed, n, vec![head.output.to(logits)], Epilogue::Store)?;
        self.compute(Command::CopyOut(CopyOut { from: logits, to: to.clone() }))?;
        let there = self.card.record(Stream::Compute)?;
        self.card.sync(&there, waits::LOGITS)?;
        Ok(to.read(bytemuck::pod_collect_to_vec)?)
    }
}
