//! Rotary position embedding.

use super::super::kernels::{Grid, arguments, int};
use super::super::module::Module;
use super::Launch;
use crate::card::command::Rotate;
use crate::ops::RopeKind;

/// Pairs of a head that a launch can carry the frequencies of.
const MOST_PAIRS: usize = 256;

#[repr(C)]
struct Frequencies([f32; MOST_PAIRS]);

impl Launch<'_> {
    pub(super) fn rope(&self, of: &Rotate) -> Result<(), String> {
        let Rotate { x, rows, heads, head_dim, first, rope } = of;
        let (rows, heads, head_dim, first) = (*rows, *heads, *head_dim, *first);
        let at = self.words(x, rows * heads * head_dim, "x")?;
        let pairs = rope.rotated / 2;
        if pairs > MOST_PAIRS || rope.rotated > head_dim || rope.frequencies.len() < pairs {
            return Err(format!("{} elements of heads of {head_dim} cannot be rotated", rope.rotated));
        }
        let mut frequencies = Frequencies([0.0; MOST_PAIRS]);
        for (to, from) in frequencies.0.iter_mut().zip(rope.frequencies.iter()) {
            *to = *from;
        }
        let magnitude = rope.magnitude;
        let neox = i32::from(rope.kind == RopeKind::Neox);
        let grid = Grid::row(rows, 256);
        let (heads, head_dim, rotated, first) = (int(heads)?, int(head_dim)?, int(rope.rotated)?, int(first)?);
        // SAFETY: (float*, int, int, int, int, int, float, Frequencies).
        unsafe {
            self.launch(
                Module::Base,
                "rope",
                grid,
                arguments![at, heads, head_dim, rotated, first, neox, magnitude, frequencies],
            )
        }
    }
}
