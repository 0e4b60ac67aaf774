//! Rotary position embedding.

use super::cost::count;
use super::sizes::{WORD, exactly};
use super::{Access, Cost, Operation};
use crate::card::{CardKind, Span};
use crate::ops::Rope;

/// Rotates the heads of each row in place; row `r` is at position `first + r`.
#[derive(Clone, Debug)]
pub struct Rotate {
    /// f32 `[rows, heads * head_dim]`.
    pub x: Span,
    /// Tokens.
    pub rows: usize,
    /// Heads of a row.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Position of row 0.
    pub first: usize,
    /// Pairs and angles.
    pub rope: Rope,
}

impl Operation for Rotate {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn accesses(&self) -> Vec<Access> {
        vec![Access::Write(self.x)]
    }

    fn check(&self, _: CardKind) -> Result<(), String> {
        let Self { x, rows, heads, head_dim, rope, .. } = self;
        exactly("x", x.bytes, &[*rows, *heads, *head_dim, WORD])?;
        if *heads == 0 || *head_dim == 0 {
            return Err("rows of no elements cannot be rotated".to_owned());
        }
        if !rope.rotated.is_multiple_of(2) || rope.rotated > *head_dim || rope.frequencies.len() != rope.rotated / 2 {
            return Err(format!(
                "{} of {head_dim} elements rotate with {} frequencies",
                rope.rotated,
                rope.frequencies.len()
            ));
        }
        Ok(())
    }

    fn cost(&self) -> Cost {
        let bytes = count(&[self.rows, self.heads, self.rope.rotated, WORD]);
        Cost {
            card_read: bytes,
            card_written: bytes,
            // Each element: two products and their sum. The angles of a row serve all its heads.
            float: count(&[self.rows, self.heads, self.rope.rotated, 3]),
            ..Cost::default()
        }
    }
}
