//! The choice of experts.

use super::Bound;
use crate::card::command::Route;
use crate::cpu::{self, RouteInto};

pub(super) fn run(of: &Route, at: &Bound<'_>) -> Result<(), String> {
    let Route { logits, rule, routing, routed } = of;
    let into = RouteInto {
        ids: at.write(&routing.ids)?,
        weights: at.write(&routing.weights)?,
        groups: at.write(&routing.groups)?,
        routed: routed.as_ref().map(|routed| at.host_write(routed)),
    };
    cpu::route(at.team(), at.read(logits)?, routing.experts, rule, into);
    Ok(())
}
