//! The plan in words: its notes, and the table a person reads.

use std::fmt;

use super::{HandOffWay, KvPlan, Plan, Request, StagePlan, Use};
use crate::ops::ATTENTION_TILE;
use crate::topology::Share;
use crate::units::{Bytes, CardId};

/// Sentences about decisions that are not visible in the numbers.
pub(super) fn notes(request: &Request<'_>, plan: &Plan) -> Vec<String> {
    let mut notes = Vec::new();
    let spare = request.cards.len() - plan.stages.len();
    if spare > 0 {
        notes.push(format!(
            "{spare} of {} cards stay idle: the model has only {} layers",
            request.cards.len(),
            request.spec.layers.len()
        ));
    }
    if let (Share::Percent(percent), false) = (request.settings.kv.host_share, plan.kv.streams()) {
        notes.push(format!(
            "kv.host_share is {percent}%, but every cell lives on a card: there is nothing to share in decode"
        ));
    }
    let wanted = request.settings.kv.resident_cells.of(request.settings.context) as usize;
    if plan.kv.streams() && plan.kv.resident != wanted {
        notes.push(format!(
            "run.kv.resident_cells {wanted}: {} cells stay on a card, since attention takes whole tiles of {ATTENTION_TILE}",
            plan.kv.resident
        ));
    }
    notes
}

/// Bytes of a stage by what a reader asks for.
struct Shares {
    weights: Bytes,
    kv: Bytes,
    pool: Bytes,
    work: Bytes,
}

impl StagePlan {
    fn shares(&self) -> Shares {
        let of = |uses: &[Use]| -> Bytes { uses.iter().map(|of| Bytes(self.bytes(*of) as u64)).sum() };
        let weights = of(&[Use::Weights, Use::Head]);
        let kv = of(&[Use::Kv]);
        let pool = of(&[Use::Pool]);
        let work = Bytes(self.total().0 - weights.0 - kv.0 - pool.0);
        Shares { weights, kv, pool, work }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wide = self.stages.iter().map(|stage| stage.name.len()).max().unwrap_or(0).max(4);
        writeln!(
            f,
            "{:wide$}  {:>7}  {:>11}  {:>11}  {:>11}  {:>11}  {:>11}  {:>11}  {:>15}  {:>4}",
            "card", "layers", "weights", "kv cells", "experts", "work", "total", "budget", "experts on card", "ring"
        )?;
        for stage in &self.stages {
            let shares = stage.shares();
            let layers = format!("{}-{}", stage.layers.start, stage.layers.end.saturating_sub(1));
            let (held, ring) = stage.experts.as_ref().map_or_else(
                || ("-".to_owned(), "-".to_owned()),
                |experts| (format!("{} of {}", experts.residents.len(), experts.experts), experts.ring.to_string()),
            );
            writeln!(
                f,
                "{:wide$}  {:>7}  {:>11}  {:>11}  {:>11}  {:>11}  {:>11}  {:>11}  {:>15}  {:>4}{}",
                stage.name,
                layers,
                shares.weights,
                shares.kv,
                shares.pool,
                shares.work,
                stage.total(),
                stage.budget,
                held,
                ring,
                if stage.head { "  + output head" } else { "" }
            )?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "host      experts {} in one arena, buffers {}, of {} declared",
            self.host.arena, self.host.buffers, self.host.budget
        )?;
        writeln!(
            f,
            "context   {} tokens, {} sequence{}, cache in {:?}, {}",
            self.context,
            self.sequences,
            if self.sequences == 1 { "" } else { "s" },
            self.kv.kind,
            self.cells()
        )?;
        for stage in &self.stages {
            if let Some(share) = &stage.host_share {
                writeln!(f, "          {}", share.describe(&stage.name))?;
            }
        }
        writeln!(f, "prompt    waves of at most {} tokens, {}", self.wave, self.streaming())?;
        for stage in &self.stages {
            if let Some(experts) = stage.experts.as_ref().filter(|experts| experts.ring > 0) {
                writeln!(
                    f,
                    "          {}: at most {} of experts cross its link in a wave; {} residents give way to the ring",
                    stage.name, experts.streamed, experts.displaced
                )?;
            }
        }
        for hand_off in &self.hand_offs {
            let (from, to) = (self.name_of(hand_off.from), self.name_of(hand_off.to));
            let tested = if hand_off.way == HandOffWay::Host { "" } else { ", once its test has passed" };
            writeln!(f, "hand-off  {from} to {to} {}{tested}: {}", hand_off.way.name(), hand_off.why)?;
        }
        for note in &self.notes {
            writeln!(f, "note      {note}")?;
        }
        Ok(())
    }
}

impl Plan {
    /// A card's name in the topology.
    pub fn name_of(&self, card: CardId) -> String {
        let stage = self.stages.iter().find(|stage| stage.card == card);
        stage.map_or_else(|| card.to_string(), |stage| stage.name.clone())
    }

    fn cells(&self) -> String {
        let KvPlan { resident, streamed, staging, tile, prefetch, .. } = self.kv;
        if !self.kv.streams() {
            return "all cells on the cards".to_owned();
        }
        let ahead = if prefetch { "copied ahead of their layer" } else { "copied when their layer needs them" };
        format!(
            "{resident} cells of each on the cards, {streamed} in host memory\n          streamed cells pass through a staging \
             pool of {staging} in tiles of {tile}, {ahead}"
        )
    }

    fn streaming(&self) -> String {
        if self.stages.iter().all(|stage| stage.experts.as_ref().is_none_or(|experts| experts.ring == 0)) {
            return "no expert is streamed".to_owned();
        }
        let floor = self.prompt.floor;
        let below =
            if self.prompt.host_pool { "the host pool computes what no card holds" } else { "only routed ones" };
        let (depth, upto) = (self.prompt.depth, self.prompt.routed_upto);
        if upto < floor.max(1) {
            return format!("experts streamed from {floor} tokens on, below it {below}");
        }
        let waves = if upto < self.wave { format!(" in waves of up to {upto}") } else { String::new() };
        format!(
            "experts streamed from {floor} tokens on, {depth} copies ahead, unrouted ones skipped{waves}; below it {below}"
        )
    }
}
