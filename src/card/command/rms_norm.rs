//! Root mean square norm.

use super::cost::count;
use super::sizes::{WORD, exactly};
use super::{Access, Cost, Operation};
use crate::card::{CardKind, Span};

/// `out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight`, for `rows` rows of `cols`. `out` may be `x`.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    /// f32 `[rows, cols]`.
    pub x: Span,
    /// f32 `[cols]`.
    pub weight: Span,
    /// Added to the mean square.
    pub eps: f32,
    /// Rows (tokens, or tokens times heads).
    pub rows: usize,
    /// Elements normalised together.
    pub cols: usize,
    /// f32 `[rows, cols]`.
    pub out: Span,
}

impl Operation for RmsNorm {
    fn name(&self) -> &'static str {
        "rms norm"
    }

    fn accesses(&self) -> Vec<Access> {
        vec![Access::Read(self.x), Access::Read(self.weight), Access::Write(self.out)]
    }

    fn check(&self, _: CardKind) -> Result<(), String> {
        let &Self { rows, cols, .. } = self;
        if cols == 0 {
            return Err("rows of no elements cannot be normalised".to_owned());
        }
        exactly("x", self.x.bytes, &[rows, cols, WORD])?;
        exactly("the weight", self.weight.bytes, &[cols, WORD])?;
        exactly("the output", self.out.bytes, &[rows, cols, WORD])
    }

    fn cost(&self) -> Cost {
        Cost {
            card_read: self.x.bytes as u64 + self.weight.bytes as u64,
            card_written: self.out.bytes as u64,
            // The square and its sum, the factor and the weight.
            float: count(&[self.rows, self.cols, 4]),
            ..Cost::default()
        }
    }

    fn in_place(&self) -> Option<(Span, Span)> {
        Some((self.x, self.out))
    }
}
