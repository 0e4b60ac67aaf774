//! The FFNs of experts.

use super::Bound;
use crate::card::command::{ExpertsInto, HeldExpert, RunExperts};
use crate::cpu::{self, ExpertBlob, ExpertsOut};

pub(super) fn run(of: &RunExperts, at: &Bound<'_>) -> Result<(), String> {
    let RunExperts { x, routing, layout, experts, into, scratch } = of;
    let routing = at.routing(routing, at.read(&routing.groups)?)?;
    let blob = |held: &HeldExpert| Ok(ExpertBlob { id: held.id, blob: at.read(&held.blob)? });
    let experts = experts.iter().map(blob).collect::<Result<Vec<_>, String>>()?;
    let out = match into {
        ExpertsInto::Accumulate(out) => ExpertsOut::Accumulate(at.write(out)?),
        ExpertsInto::Slots(out) => ExpertsOut::Slots(at.write(out)?),
    };
    cpu::run_experts(at.team(), layout, at.read(x)?, &routing, &experts, out, at.write(scratch)?);
    Ok(())
}
