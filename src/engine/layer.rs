//! What a layer's rows go through, as commands on the compute stream: the same for prompts and decode steps.

use std::ops::Range;

use super::EngineError;
use super::attention::Heads;
use super::sequence::SequenceId;
use super::stage::Stage;
use super::weights::{Layer, LayerFfn};
use crate::card::command::{Epilogue, GatedActivation, Linear, LinearPart, Phase, RmsNorm, Rotate, Routing};
use crate::card::{Command, Span, Stream};
use crate::plan::Use;

/// Consecutive rows of one sequence among the rows of a wave or step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The sequence.
    pub sequence: SequenceId,
    /// Rows, counted in the wave.
    pub rows: Range<usize>,
    /// Position of the first row.
    pub first: usize,
}

/// Bytes of an f32.
pub(super) const F32: usize = 4;

impl Stage {
    pub(super) fn compute(&self, command: Command) -> Result<(), EngineError> {
        Ok(self.card.submit(Stream::Compute, command)?)
    }

    /// Rows of a wave's normalised hidden states.
    pub(super) fn normed(&self, rows: &Range<usize>) -> Result<Span, EngineError> {
        let row = self.width * F32;
        self.buffers.part(Use::Normed, rows.start * row, rows.len() * row)
    }

    pub(super) fn norm(&self, x: Span, weight: Span, rows: usize, cols: usize, out: Span) -> Result<(), EngineError> {
        self.compute(Command::RmsNorm(RmsNorm { x, weight, eps: self.eps, rows, cols, out }))
    }

    pub(super) fn linear(
        &self,
        phase: Phase,
        x: Span,
        rows: usize,
        parts: Vec<LinearPart>,
        into: Epilogue,
    ) -> Result<(), EngineError> {
        self.compute(Command::Linear(Linear {
            x,
            rows,
            parts,
            epilogue: into,
            phase,
            scratch: self.buffers.whole(Use::Scratch)?,
        }))
    }

    /// The attention mixer for `rows` of the wave or step, which are the rows of `parts`.
    pub(super) fn attend(
        &mut self,
        phase: Phase,
        place: usize,
        layer: &Layer,
        hidden: Span,
        rows: &Range<usize>,
        parts: &[Part],
    ) -> Result<(), EngineError> {
        let mixer = &layer.attention;
        let shape = mixer.shape;
        let n = rows.len();
        let x = hidden.rows(rows.clone(), self.width * F32);
        let normed = self.normed(rows)?;
        self.norm(x, layer.mixer_norm, n, self.width, normed)?;

        let (q_row, k_row) = (shape.heads * shape.head_dim * F32, shape.kv_heads * shape.head_dim * F32);
        let (v_row, out_row) = (shape.kv_heads * shape.value_dim * F32, shape.heads * shape.value_dim * F32);
        let q = self.buffers.get(Use::Queries, n * q_row)?;
        let k = self.buffers.get(Use::Keys, n * k_row)?;
        let v = self.buffers.get(Use::Values, n * v_row)?;
        self.linear(phase, normed, n, vec![mixer.q.to(q), mixer.k.to(k), mixer.v.to(v)], Epilogue::Store)?;
        if let Some(weight) = mixer.q_norm {
            self.norm(q, weight, n * shape.heads, shape.head_dim, q)?;
        }
        if let Some(weight) = mixer.k_norm {
            self.norm(k, weight, n * shape.kv_heads, shape.head_dim, k)?;
        }

        let attended = self.buffers.get(Use::Attended, n * out_row)?;
        for part in parts {
            let own = part.rows.start - rows.start..part.rows.end - rows.start;
            for (x, heads, row) in [(q, shape.heads, q_row), (k, shape.kv_heads, k_row)] {
                self.compute(Command::Rotate(Rotate {
                    x: x.rows(own.clone(), row),
                    rows: own.len(),
                    heads,
                    head_dim: shape.head_dim,
                    first: part.first,
                    rope: self.rope.clone(),
                }))?;
            }
        }
        let heads = Heads { q, k, v, attended };
        match (phase, parts) {
            (Phase::Prompt, [part]) => self.attend_wave(place, mixer, &heads, part)?,
            (Phase::Prompt, _) => return Err(EngineError::Internal("a wave is one sequence's".to_owned())),
            (Phase::Decode, parts) => self.attend_step(place, mixer, &heads, parts)?,
        }
        self.linear(phase, attended, n, vec![mixer.output.to(x)], Epilogue::Add)
    }

    /// The FFN's norm and, for a dense FFN, all of it; for experts the router's logits.
    pub(super) fn feed_forward(
        &self,
        phase: Phase,
        layer: &Layer,
        hidden: Span,
        rows: &Range<usize>,
    ) -> Result<(), EngineError> {
        let n = rows.len();
        let x = hidden.rows(rows.clone(), self.width * F32);
        let normed = self.normed(rows)?;
        self.norm(x, layer.ffn_norm, n, self.width, normed)?;
        match &layer.ffn {
            LayerFfn::Dense { gate, up, down, activation } => {
                let elements = n * gate.weight.rows;
                let g = self.buffers.get(Use::Gate, elements * F32)?;
                let u = self.buffers.get(Use::Up, elements * F32)?;
                self.linear(phase, normed, n, vec![gate.to(g), up.to(u)], Epilogue::Store)?;
                self.compute(Command::GatedActivation(GatedActivation {
                    gate: g,
                    up: u,
                    elements,
                    activation: *activation,
                    out: g,
                }))?;
                self.linear(phase, g, n, vec![down.to(x)], Epilogue::Add)
            }
            LayerFfn::Experts { router, experts, .. } => {
                let row = experts * F32;
                let logits = self.buffers.part(Use::RouterLogits, rows.start * row, n * row)?;
                self.linear(phase, normed, n, vec![router.to(logits)], Epilogue::Store)
            }
        }
    }

    /// Where the choice of `rows` rows is kept.
    pub(super) fn routing(&self, rows: usize, experts: usize, top_k: usize) -> Result<Routing, EngineError> {
        let picks = rows * top_k;
        Ok(Routing {
            rows,
            experts,
            top_k,
            ids: self.buffers.get(Use::RoutedIds, picks * F32)?,
            weights: self.buffers.get(Use::RoutedWeights, picks * F32)?,
            groups: self.buffers.get(Use::RoutedGroups, (experts + 1 + picks) * F32)?,
        })
    }
}
