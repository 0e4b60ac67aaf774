//! Runs a command on the CPU with exactly the slices it declares.
#![allow(unsafe_code)]

use bytemuck::{AnyBitPattern, Pod};

use super::{Checked, Shared, wire};
use crate::card::command::{self, AttentionEnd, Cells, ExpertsInto, HeldExpert, Into, LinearPart};
use crate::card::{Command, HostSpan, Span};
use crate::cpu::linear::{self, Epilogue, Pick, Product};
use crate::cpu::{self, CellSlice, ExpertBlob, ExpertsOut, Queries, RouteInto, Routing};

/// Runs the command on the calling thread and the team.
///
/// # Errors
/// What a kernel refused.
pub(super) fn run(shared: &Shared, checked: &Checked) -> Result<(), String> {
    let at = Bound { shared };
    let team = &*shared.team;
    match checked.command() {
        Command::CopyIn { from, to } => at.write(to)?.copy_from_slice(at.host_read(from)),
        Command::CopyOut { from, to } => at.host_write(to).copy_from_slice(at.read(from)?),
        Command::Copy { from, to } => at.write::<u8>(to)?.copy_from_slice(at.read(from)?),
        Command::CopyAcross { from, to } => {
            let other = shared.reached(from.card)?;
            // SAFETY: see `Bound`: events order the copy after what writes the other card's bytes, which the ledger proves, and `other`
            // keeps them.
            at.write::<u8>(to)?.copy_from_slice(unsafe { other.read(from) }?);
        }
        Command::Send { from, over } => wire::end(over, true)?.send(at.read(from)?)?,
        Command::Receive { to, over } => wire::end(over, false)?.receive(at.write(to)?)?,
        Command::RmsNorm { x, weight, eps, out, .. } => {
            let weight = at.read(weight)?;
            if same(x, out) {
                cpu::rms_norm_in_place(team, at.write(out)?, weight, *eps);
            } else {
                cpu::rms_norm(team, at.read(x)?, weight, *eps, at.write(out)?);
            }
        }
        Command::Linear { x, rows, parts, into, scratch, .. } => {
            let mut products = products(&at, parts, *into)?;
            let (x, scratch) = (at.read(x)?, at.write(scratch)?);
            linear::linear(shared.isa, team, x, *rows, &mut products, scratch).map_err(|e| e.to_string())?;
            for part in parts {
                if let Some(bias) = &part.bias {
                    cpu::add_bias(team, at.write(&part.out)?, at.read(bias)?);
                }
            }
        }
        Command::Rope { x, heads, head_dim, first, rope, .. } => {
            cpu::rope(team, at.write(x)?, *heads, *head_dim, *first, rope);
        }
        Command::GatedActivation { gate, up, activation, out, .. } => {
            let up = at.read(up)?;
            if same(gate, out) {
                cpu::gated_activation_in_place(team, *activation, at.write(out)?, up);
            } else {
                cpu::gated_activation(team, *activation, at.read(gate)?, up, at.write(out)?);
            }
        }
        Command::StoreKv { k, v, layout, cells } => {
            cpu::store_kv(team, layout, at.read(k)?, at.read(v)?, at.write(&cells.at)?);
        }
        Command::Attention { q, rows, first, shape, layout, cells, beyond, state, resume, end, .. } => {
            let queries = Queries { q: at.read(q)?, rows: *rows, first: *first, shape: *shape, layout: *layout };
            let slice =
                |cells: &Cells| Ok(CellSlice { bytes: at.read(&cells.at)?, first: cells.first, count: cells.count });
            let mut cells = cells.iter().map(slice).collect::<Result<Vec<_>, String>>()?;
            cells.extend(beyond.iter().map(|cells| CellSlice {
                bytes: at.host_read(&cells.at),
                first: cells.first,
                count: cells.count,
            }));
            let out = match end {
                AttentionEnd::Keep => None,
                AttentionEnd::Finish(out) => Some(at.write(out)?),
            };
            cpu::attend(team, &queries, &cells, at.write(state)?, *resume, out);
        }
        Command::Route { logits, rule, routing, routed } => {
            let into = RouteInto {
                ids: at.write(&routing.ids)?,
                weights: at.write(&routing.weights)?,
                groups: at.write(&routing.groups)?,
                routed: routed.as_ref().map(|routed| at.host_write(routed)),
            };
            cpu::route(team, at.read(logits)?, routing.experts, rule, into);
        }
        Command::Experts { x, routing, layout, experts, into, scratch } => {
            let routing = at.routing(routing, at.read(&routing.groups)?)?;
            let blob = |held: &HeldExpert| Ok(ExpertBlob { id: held.id, blob: at.read(&held.blob)? });
            let experts = experts.iter().map(blob).collect::<Result<Vec<_>, String>>()?;
            let out = match into {
                ExpertsInto::Accumulate(out) => ExpertsOut::Accumulate(at.write(out)?),
                ExpertsInto::Slots(out) => ExpertsOut::Slots(at.write(out)?),
            };
            cpu::run_experts(team, layout, at.read(x)?, &routing, &experts, out, at.write(scratch)?);
        }
        Command::Combine { routing, slots, host_slots, held, width, out } => {
            let routing = at.routing(routing, &[])?;
            let host_slots = host_slots.as_ref().map(|slots| at.read(slots)).transpose()?;
            cpu::combine(team, &routing, at.read(slots)?, host_slots, held, *width, at.write(out)?);
        }
    }
    Ok(())
}

/// Whether an output is its input: then only the mutable slice is made.
fn same(input: &Span, output: &Span) -> bool {
    (input.region, input.offset) == (output.region, output.offset)
}

fn products<'a>(at: &Bound<'a>, parts: &[LinearPart], into: Into) -> Result<Vec<Product<'a>>, String> {
    let epilogue = match into {
        Into::Store => Epilogue::Store,
        Into::Add => Epilogue::Add,
    };
    let product = |part: &LinearPart| {
        let weight = part.weight;
        let bytes = at.read(&weight.at)?;
        let weight = linear::Weight { ty: weight.ty, bytes, outs: weight.rows, cols: weight.cols };
        Ok(Product { weight, rows: Pick::All, y: at.write(&part.out)?, epilogue })
    };
    parts.iter().map(product).collect()
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
    fn read<T: AnyBitPattern>(&self, span: &Span) -> Result<&'a [T], String> {
        // SAFETY: see `Bound`: what is only read here is not written by this command nor, while it runs, by another.
        unsafe { self.shared.memory.read(span) }
    }

    fn write<T: Pod>(&self, span: &Span) -> Result<&'a mut [T], String> {
        // SAFETY: see `Bound`: what is written here is touched by nothing else of this command nor, while it runs, by another.
        unsafe { self.shared.memory.write(span) }
    }

    /// A choice as the kernels see it.
    fn routing(&self, routing: &command::Routing, groups: &'a [u32]) -> Result<Routing<'a>, String> {
        let &command::Routing { rows, experts, top_k, ids, weights, .. } = routing;
        Ok(Routing { rows, experts, top_k, ids: self.read(&ids)?, weights: self.read(&weights)?, groups })
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
