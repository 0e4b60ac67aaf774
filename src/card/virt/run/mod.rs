//! Runs a command on the CPU with exactly the slices it declares: one file an operation.
#![allow(unsafe_code)]

mod attend;
mod combine;
mod copy;
mod experts;
mod gated_activation;
mod linear;
mod rms_norm;
mod rotate;
mod route;
mod store_kv;
mod wire;

use bytemuck::{AnyBitPattern, Pod};

use super::{Checked, Shared};
use crate::card::command::{Access, Routing};
use crate::card::{Command, HostAccess, HostSpan, Span};
use crate::cpu::{self, Team};

/// Runs the command on the calling thread and the team.
///
/// # Errors
/// What a kernel refused.
pub(super) fn run(shared: &Shared, checked: &Checked) -> Result<(), String> {
    let accesses = checked.command().accesses();
    // Held while the command runs, so that the slices of host memory below alias nothing.
    let borrowed = accesses.iter().filter_map(|access| match access {
        Access::HostRead(span) => Some(span.borrow(HostAccess::Read)),
        Access::HostWrite(span) => Some(span.borrow(HostAccess::Write)),
        Access::Read(_) | Access::Write(_) => None,
    });
    let _borrowed = borrowed.collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
    let at = &Bound { shared };
    match checked.command() {
        Command::CopyIn(operation) => copy::into_card(operation, at),
        Command::CopyOut(operation) => copy::out_of_card(operation, at),
        Command::CopyWithin(operation) => copy::within(operation, at),
        Command::CopyAcross(operation) => copy::across(operation, at),
        Command::WireSend(operation) => wire::send(operation, at),
        Command::WireReceive(operation) => wire::receive(operation, at),
        Command::RmsNorm(operation) => rms_norm::run(operation, at),
        Command::Linear(operation) => linear::run(operation, at),
        Command::Rotate(operation) => rotate::run(operation, at),
        Command::StoreKv(operation) => store_kv::run(operation, at),
        Command::Attend(operation) => attend::run(operation, at),
        Command::GatedActivation(operation) => gated_activation::run(operation, at),
        Command::Route(operation) => route::run(operation, at),
        Command::RunExperts(operation) => experts::run(operation, at),
        Command::Combine(operation) => combine::run(operation, at),
    }
}

/// Whether an output is its input: then only the mutable slice is made.
fn same(input: &Span, output: &Span) -> bool {
    (input.region, input.offset) == (output.region, output.offset)
}

/// Slices of the bytes that one checked command declares, while it runs.
///
/// Its methods are only called with the command's own spans, as its accesses declare them: `write` for what it writes,
/// `read` for what it only reads. [`Checked`] says that the former overlap nothing else of the command, and events
/// order the command after all others that use its bytes, which the ledger proves.
pub(super) struct Bound<'a> {
    shared: &'a Shared,
}

impl<'a> Bound<'a> {
    fn team(&self) -> &'a Team {
        &self.shared.team
    }

    fn read<T: AnyBitPattern>(&self, span: &Span) -> Result<&'a [T], String> {
        // SAFETY: see `Bound`: what is only read here is not written by this command nor, while it runs, by another.
        unsafe { self.shared.memory.read(span) }
    }

    fn write<T: Pod>(&self, span: &Span) -> Result<&'a mut [T], String> {
        // SAFETY: see `Bound`: what is written here is touched by nothing else of this command nor, while it runs, by
        // another.
        unsafe { self.shared.memory.write(span) }
    }

    /// A choice as the kernels see it.
    fn routing(&self, routing: &Routing, groups: &'a [u32]) -> Result<cpu::Routing<'a>, String> {
        let &Routing { rows, experts, top_k, ids, weights, .. } = routing;
        Ok(cpu::Routing { rows, experts, top_k, ids: self.read(&ids)?, weights: self.read(&weights)?, groups })
    }

    fn host_read(&self, span: &HostSpan) -> &'a [u8] {
        // SAFETY: see `Bound`; the command in `Checked` keeps the host buffer, and `run` has borrowed the span.
        unsafe { std::slice::from_raw_parts(span.start(), span.bytes()) }
    }

    fn host_write(&self, span: &HostSpan) -> &'a mut [u8] {
        // SAFETY: see `Bound`; the command in `Checked` keeps the host buffer, and `run` has borrowed the span for
        // writing.
        unsafe { std::slice::from_raw_parts_mut(span.start(), span.bytes()) }
    }
}
