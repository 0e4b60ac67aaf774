//! K and V into cells.

use super::Bound;
use crate::card::command::StoreKv;
use crate::cpu;

pub(super) fn run(of: &StoreKv, at: &Bound<'_>) -> Result<(), String> {
    cpu::store_kv(at.team(), &of.layout, at.read(&of.k)?, at.read(&of.v)?, at.write(&of.cells.at)?);
    Ok(())
}
