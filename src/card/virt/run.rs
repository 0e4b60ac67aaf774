//! Runs a command on the CPU with exactly the slices it declares.
#![allow(unsafe_code)]

use super::{Checked, Shared};
use crate::card::{Command, HostSpan, Span};

pub(super) fn run(shared: &Shared, checked: &Checked) -> Result<(), String> {
    let bound = Bound { shared };
    match checked.command() {
        Command::CopyIn { from, to } => bound.write::<u8>(to)?.copy_from_slice(bound.host_read(from)),
        Command::CopyOut { from, to } => bound.host_write(to).copy_from_slice(bound.read(from)?),
        Command::Copy { from, to } => bound.write::<u8>(to)?.copy_from_slice(bound.read(from)?),
        _ => return Err("no".to_owned()),
    }
    Ok(())
}

/// Slices of the bytes that one checked command declares, while it runs.
///
/// Its methods are only called with the command's own spans, as its accesses declare them: `write` for what it writes, `read`
/// for what it only reads. [`Checked`] says that the former overlap nothing else of the command, and events order the command
/// after all others that use its bytes, which the ledger proves.
struct Bound<'a> {
    shared: &'a Shared,
}

impl<'a> Bound<'a> {
    fn read<T: bytemuck::AnyBitPattern>(&self, span: &Span) -> Result<&'a [T], String> {
        // SAFETY: see `Bound`: what is only read here is not written by this command nor, while it runs, by another.
        unsafe { self.shared.memory.read(span) }
    }

    fn write<T: bytemuck::Pod>(&self, span: &Span) -> Result<&'a mut [T], String> {
        // SAFETY: see `Bound`: what is written here is touched by nothing else of this command nor, while it runs, by another.
        unsafe { self.shared.memory.write(span) }
    }

    fn host_read(&self, span: &HostSpan) -> &'a [u8] {
        // SAFETY: see `Bound`; the command in `Checked` keeps the host buffer.
        unsafe { std::slice::from_raw_parts(span.start(), span.bytes()) }
    }

    fn host_write(&self, span: &HostSpan) -> &'a mut [u8] {
        // SAFETY: see `Bound`; the command in `Checked` keeps the host buffer, which was not sealed at submission.
        unsafe { std::slice::from_raw_parts_mut(span.start(), span.bytes()) }
    }
}
