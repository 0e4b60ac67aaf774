//! Root mean square norm.

use super::{Bound, same};
use crate::card::command::RmsNorm;
use crate::cpu;

pub(super) fn run(of: &RmsNorm, at: &Bound<'_>) -> Result<(), String> {
    let RmsNorm { x, weight, eps, out, .. } = of;
    let weight = at.read(weight)?;
    if same(x, out) {
        cpu::rms_norm_in_place(at.team(), at.write(out)?, weight, *eps);
    } else {
        cpu::rms_norm(at.team(), at.read(x)?, weight, *eps, at.write(out)?);
    }
    Ok(())
}
