//! Rotary position embedding.

use super::Bound;
use crate::card::command::Rotate;
use crate::cpu;

pub(super) fn run(of: &Rotate, at: &Bound<'_>) -> Result<(), String> {
    let Rotate { x, heads, head_dim, first, rope, .. } = of;
    cpu::rope(at.team(), at.write(x)?, *heads, *head_dim, *first, rope);
    Ok(())
}
