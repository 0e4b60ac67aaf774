//! How hidden states cross from one stage to the next, and why.

use serde::Serialize;

use super::error::PlanError;
use super::request::{CardBudget, Crossing, Request};
use crate::card::CardKind;
use crate::topology::HandOff;
use crate::units::CardId;

/// A way of hidden states from card to card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HandOffWay {
    /// Through two page-locked host buffers.
    Host,
    /// The receiving card copies from the sending card's memory.
    Peer,
    /// Both cards enter a wire: NCCL's send and receive.
    Nccl,
}

/// One boundary between two stages. The two other ways need the host's buffers too: their test brings its data through
/// them, and where it fails, or a wire is cut, they take over.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HandOffPlan {
    /// The card that sends.
    pub from: CardId,
    /// The card that receives.
    pub to: CardId,
    /// The way; all but the host's is tested when the model is loaded.
    pub way: HandOffWay,
    /// Why it is this one.
    pub why: String,
}

impl HandOffWay {
    /// The name used in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "through host memory",
            Self::Peer => "by peer copy",
            Self::Nccl => "by NCCL",
        }
    }

    /// The way that a setting asks for; `None` where the planner decides.
    pub const fn asked(setting: HandOff) -> Option<Self> {
        match setting {
            HandOff::Auto => None,
            HandOff::Host => Some(Self::Host),
            HandOff::Peer => Some(Self::Peer),
            HandOff::Nccl => Some(Self::Nccl),
        }
    }
}

/// The boundaries between these stages.
pub(super) fn choose(request: &Request<'_>, stages: usize) -> Vec<HandOffPlan> {
    let cards = request.cards.iter().take(stages);
    let pairs = cards.clone().zip(cards.skip(1));
    let of = |(from, to): (&CardBudget, &CardBudget)| {
        let (way, why) = way(request.settings.hand_off, from.kind == to.kind, &to.crossing);
        HandOffPlan { from: from.id, to: to.id, way, why }
    };
    pairs.map(of).collect()
}

fn way(setting: HandOff, same_kind: bool, crossing: &Crossing) -> (HandOffWay, String) {
    let Crossing { staged, peer } = *crossing;
    let asked = || "run.hand_off asks for it".to_owned();
    match (setting, peer) {
        (HandOff::Host, _) => (HandOffWay::Host, asked()),
        (HandOff::Nccl, _) => (HandOffWay::Nccl, asked()),
        (HandOff::Auto | HandOff::Peer, None) => (HandOffWay::Host, "rig.peer does not name the two cards".to_owned()),
        (HandOff::Auto | HandOff::Peer, Some(_)) if !same_kind => {
            (HandOffWay::Host, "the two cards are of different kinds".to_owned())
        }
        (HandOff::Peer, Some(_)) => (HandOffWay::Peer, asked()),
        (HandOff::Auto, Some(peer)) if peer.0 > staged.0 => {
            (HandOffWay::Peer, format!("{peer} from card to card, {staged} through host memory"))
        }
        (HandOff::Auto, Some(peer)) => {
            (HandOffWay::Host, format!("{staged} through host memory, no more than {peer} from card to card"))
        }
    }
}

/// Refuses NCCL where a card is none of NVIDIA's.
pub(super) fn check(request: &Request<'_>) -> Result<(), PlanError> {
    let cards = if request.cards.len() > 1 { request.cards.as_slice() } else { &[] };
    let other = cards.iter().find(|card| request.settings.hand_off == HandOff::Nccl && card.kind != CardKind::Cuda);
    let Some(card) = other else { return Ok(()) };
    let why = format!("NCCL joins NVIDIA GPUs, and {} is a virtual card; say `auto`, `host` or `peer`", card.name);
    Err(PlanError::Unsupported { setting: "run.hand_off", why })
}

/// What to say of a setting that has nothing to act on.
pub(super) fn note(request: &Request<'_>, stages: usize) -> Option<String> {
    let word = match request.settings.hand_off {
        HandOff::Peer => "peer",
        HandOff::Nccl => "nccl",
        HandOff::Auto | HandOff::Host => return None,
    };
    (stages < 2).then(|| format!("run.hand_off is {word}, but there is one stage: nothing is handed off"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Rate;

    #[test]
    fn a_way_is_taken_where_it_is_allowed_and_pays() {
        let crossing = |peer: Option<f64>| Crossing { staged: Rate(10e9), peer: peer.map(Rate) };
        let of = |setting, same, peer| way(setting, same, &crossing(peer)).0;
        use HandOffWay::{Host, Nccl, Peer};
        assert_eq!(of(HandOff::Auto, true, None), Host);
        assert_eq!(of(HandOff::Auto, true, Some(9e9)), Host);
        assert_eq!(of(HandOff::Auto, true, Some(20e9)), Peer);
        assert_eq!(of(HandOff::Auto, false, Some(20e9)), Host);
        assert_eq!(of(HandOff::Peer, true, Some(9e9)), Peer);
        assert_eq!(of(HandOff::Peer, true, None), Host);
        assert_eq!(of(HandOff::Host, true, Some(20e9)), Host);
        assert_eq!(of(HandOff::Nccl, true, None), Nccl);
    }
}
