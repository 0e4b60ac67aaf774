//! What every card checks of a command before it takes it: that its fields agree with each other, that nothing it
//! writes overlaps what else it touches, and that its leases live.

use super::command::{Access, Command};
use super::{CardError, CardKind, HostSpan, Leases, Span, Stream};
use crate::units::CardId;

/// Alignment of kernels' card spans in bytes: they read words.
const WORD: usize = 4;

/// Checks all that can be told from the command alone, given its accesses.
///
/// # Errors
/// What does not fit, with the sizes.
pub fn command(kind: CardKind, command: &Command, accesses: &[Access]) -> Result<(), String> {
    command.operation().check(kind)?;
    overlaps(command, accesses)
}

/// Checks that every lease the accesses carry lives. `named` says what a span's region is for.
///
/// # Errors
/// [`CardError::Unordered`] that names the first ended lease.
pub fn leases(
    leases: &Leases,
    (card, on, command): (CardId, Stream, &str),
    accesses: &[Access],
    named: impl FnOnce(&Span) -> String,
) -> Result<(), CardError> {
    let ended = accesses.iter().find_map(|access| match access {
        Access::Read(span) | Access::Write(span) => {
            let lease = span.lease?;
            (!leases.is_live(lease)).then_some((span, lease))
        }
        Access::HostRead(_) | Access::HostWrite(_) => None,
    });
    let Some((span, lease)) = ended else { return Ok(()) };
    Err(CardError::Unordered(format!(
        "{card}: `{command}` on the {} stream uses bytes {}..{} of `{}` through lease {}, which has ended",
        on.name(),
        span.offset,
        span.offset + span.bytes,
        named(span),
        lease.0,
    )))
}

/// Alignment of the command's card spans in bytes: kernels read words, copies only bytes.
pub fn alignment(command: &Command) -> usize {
    if command.copied().is_some() { 1 } else { WORD }
}

fn overlaps(command: &Command, accesses: &[Access]) -> Result<(), String> {
    let allowed = command.operation().in_place().filter(|(input, output)| same_bytes(input, output));
    for (i, written) in accesses.iter().enumerate() {
        let clash = match written {
            Access::Write(out) => accesses.iter().enumerate().any(|(j, other)| match other {
                Access::Read(span) if j == 0 && allowed == Some((*span, *out)) => false,
                Access::Read(span) | Access::Write(span) => i != j && spans_overlap(span, out),
                Access::HostRead(_) | Access::HostWrite(_) => false,
            }),
            Access::HostWrite(out) => accesses.iter().enumerate().any(|(j, other)| match other {
                Access::HostRead(span) | Access::HostWrite(span) => i != j && host_spans_overlap(span, out),
                Access::Read(_) | Access::Write(_) => false,
            }),
            Access::Read(_) | Access::HostRead(_) => false,
        };
        if clash {
            return Err(match written {
                Access::Write(out) => {
                    let end = out.offset.saturating_add(out.bytes);
                    format!("bytes {}..{end} of region {} are written and used otherwise too", out.offset, out.region.0)
                }
                _ => "host bytes are written and used otherwise too".to_owned(),
            });
        }
    }
    Ok(())
}

fn same_bytes(a: &Span, b: &Span) -> bool {
    (a.region, a.offset, a.bytes) == (b.region, b.offset, b.bytes)
}

fn spans_overlap(a: &Span, b: &Span) -> bool {
    a.region == b.region && ranges_overlap((a.offset, a.bytes), (b.offset, b.bytes))
}

fn host_spans_overlap(a: &HostSpan, b: &HostSpan) -> bool {
    a.buf().id() == b.buf().id() && ranges_overlap((a.offset(), a.bytes()), (b.offset(), b.bytes()))
}

fn ranges_overlap((a, a_bytes): (usize, usize), (b, b_bytes): (usize, usize)) -> bool {
    a_bytes > 0 && b_bytes > 0 && a < b.saturating_add(b_bytes) && b < a.saturating_add(a_bytes)
}
