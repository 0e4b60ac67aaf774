//! Copies.

use super::Bound;
use crate::card::command::{CopyAcross, CopyIn, CopyOut, CopyWithin};

pub(super) fn into_card(of: &CopyIn, at: &Bound<'_>) -> Result<(), String> {
    at.write(&of.to)?.copy_from_slice(at.host_read(&of.from));
    Ok(())
}

pub(super) fn out_of_card(of: &CopyOut, at: &Bound<'_>) -> Result<(), String> {
    at.host_write(&of.to).copy_from_slice(at.read(&of.from)?);
    Ok(())
}

pub(super) fn within(of: &CopyWithin, at: &Bound<'_>) -> Result<(), String> {
    at.write::<u8>(&of.to)?.copy_from_slice(at.read(&of.from)?);
    Ok(())
}

pub(super) fn across(of: &CopyAcross, at: &Bound<'_>) -> Result<(), String> {
    let other = at.shared.reached(of.from.card)?;
    // SAFETY: see `Bound`: events order the copy after what writes the other card's bytes, which the ledger proves, and
    // `other` keeps them.
    at.write::<u8>(&of.to)?.copy_from_slice(unsafe { other.read(&of.from) }?);
    Ok(())
}
