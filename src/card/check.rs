//! What every card checks of a command before it takes it: that its fields agree with each other, that nothing it writes
//! overlaps what else it touches, and that its leases live.

use super::command::{Access, AttentionEnd, Cells, Command, ExpertsInto, HeldExpert, LinearPart, Phase, Routing};
use super::{CardError, CardKind, HostSpan, Leases, Span, Stream, scratch};
use crate::ops::{ATTENTION_TILE, AttentionShape, BlobLayout, CellLayout, ExpertSet};
use crate::units::CardId;

/// Bytes of an f32 or u32.
const WORD: usize = 4;

/// Checks all that can be told from the command alone, given its accesses.
///
/// # Errors
/// What does not fit, with the sizes.
pub fn command(kind: CardKind, command: &Command, accesses: &[Access]) -> Result<(), String> {
    fields(kind, command)?;
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

fn product(factors: &[usize]) -> Result<usize, String> {
    let all = factors.iter().try_fold(1usize, |all, factor| all.checked_mul(*factor));
    all.ok_or_else(|| format!("the product of {factors:?} is too large"))
}

fn exactly(what: &str, found: usize, factors: &[usize]) -> Result<(), String> {
    let wanted = product(factors)?;
    if found == wanted {
        return Ok(());
    }
    Err(format!("{what} has {found} bytes, but {wanted} ({factors:?}) are needed"))
}

fn at_least(what: &str, found: usize, wanted: usize) -> Result<(), String> {
    if found >= wanted {
        return Ok(());
    }
    Err(format!("{what} has {found} bytes, but at least {wanted} are needed"))
}

fn fields(kind: CardKind, command: &Command) -> Result<(), String> {
    match command {
        Command::CopyIn { from, to } => same_length(from.bytes(), to.bytes),
        Command::CopyOut { from, to } => same_length(from.bytes, to.bytes()),
        Command::Copy { from, to } => same_length(from.bytes, to.bytes),
        Command::CopyAcross { from, to } if from.card == to.card => Err(format!("both spans lie on {}", to.card)),
        Command::CopyAcross { from, to } => same_length(from.bytes, to.bytes),
        Command::Send { .. } | Command::Receive { .. } => Ok(()),
        Command::RmsNorm { x, weight, rows, cols, out, .. } => {
            if *cols == 0 {
                return Err("rows of no elements cannot be normalised".to_owned());
            }
            exactly("x", x.bytes, &[*rows, *cols, WORD])?;
            exactly("the weight", weight.bytes, &[*cols, WORD])?;
            exactly("the output", out.bytes, &[*rows, *cols, WORD])
        }
        Command::Linear { x, rows, parts, scratch, .. } => linear(kind, x, *rows, parts, scratch),
        Command::Rope { x, rows, heads, head_dim, rope, .. } => {
            exactly("x", x.bytes, &[*rows, *heads, *head_dim, WORD])?;
            if *heads == 0 || *head_dim == 0 {
                return Err("rows of no elements cannot be rotated".to_owned());
            }
            if !rope.rotated.is_multiple_of(2) || rope.rotated > *head_dim || rope.frequencies.len() != rope.rotated / 2
            {
                return Err(format!(
                    "{} of {head_dim} elements rotate with {} frequencies",
                    rope.rotated,
                    rope.frequencies.len()
                ));
            }
            Ok(())
        }
        Command::StoreKv { k, v, layout, cells } => {
            whole_cells(layout)?;
            exactly("K", k.bytes, &[cells.count, layout.kv_heads, layout.head_dim, WORD])?;
            exactly("V", v.bytes, &[cells.count, layout.kv_heads, layout.value_dim, WORD])?;
            exactly("the range of cells", cells.at.bytes, &[cells.count, layout.cell_bytes()])
        }
        Command::Attention { q, rows, shape, layout, cells, beyond, state, resume, end, phase, scratch, .. } => {
            exactly("q", q.bytes, &[*rows, shape.heads, shape.head_dim, WORD])?;
            exactly("the state", state.bytes, &[*rows, shape.heads, shape.value_dim + 2, WORD])?;
            if let AttentionEnd::Finish(out) = end {
                exactly("the output", out.bytes, &[*rows, shape.heads, shape.value_dim, WORD])?;
            }
            at_least("the scratch", scratch.bytes, scratch::attention(kind, *phase, *rows, shape))?;
            heads(shape, layout)?;
            if beyond.is_some() && *phase == Phase::Prompt {
                return Err("cells in host memory are attended in decode only; a prompt stages them".to_owned());
            }
            consecutive(layout, cells, beyond.as_ref(), *resume)
        }
        Command::GatedActivation { gate, up, elements, out, .. } => {
            exactly("the gate", gate.bytes, &[*elements, WORD])?;
            exactly("up", up.bytes, &[*elements, WORD])?;
            exactly("the output", out.bytes, &[*elements, WORD])
        }
        Command::Route { logits, rule, routing, routed } => {
            exactly("the logits", logits.bytes, &[routing.rows, routing.experts, WORD])?;
            if rule.top_k != routing.top_k {
                return Err(format!("the rule takes {} experts, the routing has {}", rule.top_k, routing.top_k));
            }
            choice(routing)?;
            routed.as_ref().map_or(Ok(()), |routed| {
                exactly("the routed set", routed.bytes(), &[ExpertSet::bytes(routing.experts)])
            })
        }
        Command::Experts { x, routing, layout, experts, into, scratch } => {
            exactly("x", x.bytes, &[routing.rows, layout.width, WORD])?;
            choice(routing)?;
            blobs(layout, routing, experts)?;
            match into {
                ExpertsInto::Accumulate(out) => exactly("the output", out.bytes, &[routing.rows, layout.width, WORD])?,
                ExpertsInto::Slots(out) => {
                    exactly("the slots", out.bytes, &[routing.rows, routing.top_k, layout.width, WORD])?;
                }
            }
            at_least("the scratch", scratch.bytes, scratch::experts(kind, routing.rows, routing.top_k, layout))
        }
        Command::Combine { routing, slots, host_slots, held, width, out } => {
            choice(routing)?;
            exactly("the slots", slots.bytes, &[routing.rows, routing.top_k, *width, WORD])?;
            if let Some(slots) = host_slots {
                exactly("the host's slots", slots.bytes, &[routing.rows, routing.top_k, *width, WORD])?;
            }
            exactly("the set of held experts", held.0.len() * 8, &[ExpertSet::bytes(routing.experts)])?;
            exactly("the output", out.bytes, &[routing.rows, *width, WORD])
        }
    }
}

fn same_length(from: usize, to: usize) -> Result<(), String> {
    if from == to {
        return Ok(());
    }
    Err(format!("the source has {from} bytes, the target {to}"))
}

fn linear(kind: CardKind, x: &Span, rows: usize, parts: &[LinearPart], work: &Span) -> Result<(), String> {
    let Some(first) = parts.first() else { return Err("there is no weight".to_owned()) };
    let cols = first.weight.cols;
    exactly("x", x.bytes, &[rows, cols, WORD])?;
    for (i, part) in parts.iter().enumerate() {
        let weight = &part.weight;
        if weight.cols != cols {
            return Err(format!("weight {i} has {} inputs, weight 0 has {cols}", weight.cols));
        }
        if weight.rows == 0 || cols == 0 {
            return Err(format!("weight {i} has {} outputs and {cols} inputs", weight.rows));
        }
        let row = weight.ty.row_bytes(cols).ok_or_else(|| no_whole_blocks(weight.ty.name(), cols))?;
        exactly("a weight", weight.at.bytes, &[weight.rows, row])?;
        if let Some(bias) = part.bias {
            exactly("a bias", bias.bytes, &[weight.rows, WORD])?;
        }
        exactly("an output", part.out.bytes, &[rows, weight.rows, WORD])?;
    }
    at_least("the scratch", work.bytes, scratch::linear(kind, rows, cols))
}

fn no_whole_blocks(ty: &str, cols: usize) -> String {
    format!("{cols} inputs are no whole number of {ty} blocks")
}

fn whole_cells(layout: &CellLayout) -> Result<(), String> {
    if layout.kv_heads > 0 && layout.head_dim > 0 && layout.value_dim > 0 {
        return Ok(());
    }
    Err(format!("cells of {} heads of {} and {} hold nothing", layout.kv_heads, layout.head_dim, layout.value_dim))
}

fn heads(shape: &AttentionShape, layout: &CellLayout) -> Result<(), String> {
    let fits =
        (shape.kv_heads, shape.head_dim, shape.value_dim) == (layout.kv_heads, layout.head_dim, layout.value_dim);
    if fits && shape.heads > 0 && shape.heads.is_multiple_of(shape.kv_heads) {
        return Ok(());
    }
    Err(format!(
        "{} query heads of {} and {} do not fit cells of {} heads of {} and {}",
        shape.heads, shape.head_dim, shape.value_dim, layout.kv_heads, layout.head_dim, layout.value_dim
    ))
}

fn consecutive(
    layout: &CellLayout,
    cells: &[Cells],
    beyond: Option<&Cells<HostSpan>>,
    resume: bool,
) -> Result<(), String> {
    let on_card = cells.iter().map(|part| (part.first, part.count, part.at.bytes));
    let on_host = beyond.iter().map(|part| (part.first, part.count, part.at.bytes()));
    let mut next = None;
    for (first, count, bytes) in on_card.chain(on_host) {
        exactly("a range of cells", bytes, &[count, layout.cell_bytes()])?;
        let begins = match next {
            Some(next) => first == next,
            None => resume || first == 0,
        };
        if !begins || !first.is_multiple_of(ATTENTION_TILE) {
            return Err(format!("cells from {first} do not begin where the earlier ones end, at a tile's edge"));
        }
        next = Some(first.checked_add(count).ok_or("the cells' numbers are too large")?);
    }
    Ok(())
}

fn choice(routing: &Routing) -> Result<(), String> {
    let &Routing { rows, experts, top_k, ids, weights, groups } = routing;
    if top_k == 0 || top_k > experts {
        return Err(format!("{top_k} of {experts} experts cannot be chosen"));
    }
    exactly("the ids", ids.bytes, &[rows, top_k, WORD])?;
    exactly("the weights", weights.bytes, &[rows, top_k, WORD])?;
    let entries = product(&[rows, top_k])?;
    exactly("the groups", groups.bytes, &[entries.saturating_add(experts + 1), WORD])
}

fn blobs(layout: &BlobLayout, routing: &Routing, experts: &[HeldExpert]) -> Result<(), String> {
    let sides = [(layout.hidden, layout.width), (layout.hidden, layout.width), (layout.width, layout.hidden)];
    for ((ty, offset), (rows, cols)) in layout.types.iter().zip(layout.offsets).zip(sides) {
        let row = ty.row_bytes(cols).ok_or_else(|| no_whole_blocks(ty.name(), cols))?;
        let end = product(&[rows, row])?.saturating_add(offset);
        at_least("the blob", layout.bytes, end)?;
    }
    let mut next = 0;
    for expert in experts {
        if expert.id.0 < next || expert.id.0 as usize >= routing.experts {
            return Err(format!("expert {} does not ascend or is not below {}", expert.id.0, routing.experts));
        }
        next = expert.id.0 + 1;
        exactly("a blob", expert.blob.bytes, &[layout.bytes])?;
    }
    Ok(())
}

/// What may be the same bytes although it is written: the command's first access and its output.
fn in_place(command: &Command) -> Option<(Span, Span)> {
    match command {
        Command::RmsNorm { x, out, .. } => Some((*x, *out)),
        Command::GatedActivation { gate, out, .. } => Some((*gate, *out)),
        _ => None,
    }
}

fn overlaps(command: &Command, accesses: &[Access]) -> Result<(), String> {
    let allowed = in_place(command).filter(|(input, output)| same_bytes(input, output));
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
