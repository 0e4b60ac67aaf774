//! The plan in words: the table a person reads.

use std::fmt;

use super::handoff::HandOffWay;
use super::kv::KvPlan;
use super::memory::Use;
use super::parts::{HostPlan, Plan, StagePlan};
use crate::units::{Bytes, CardId};

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
        self.host.write(f)?;
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

impl HostPlan {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { arena, buffers, cards, in_place, budget, .. } = self;
        let experts = match (arena.is_empty(), self.file_experts) {
            (false, _) => format!("experts {arena} in one arena"),
            (true, 0) => "no expert needs a place".to_owned(),
            (true, _) => "no room for experts".to_owned(),
        };
        writeln!(f, "host      {experts}, buffers {buffers}, of {budget} declared")?;
        if !cards.is_empty() {
            let whose = if self.shared { "of the same memory" } else { "beside it" };
            writeln!(f, "          virtual cards take {cards} {whose}")?;
        }
        writeln!(f, "          {in_place} of the model's file used in place")?;
        if self.file_experts > 0 {
            let seconds = self.file_bytes.0 as f64 / self.disk.0;
            writeln!(
                f,
                "          {} experts, {}, have no place in memory: they are read from the model's file when they are wanted, \
                 {seconds:.1} s at {} for all of them",
                self.file_experts, self.file_bytes, self.disk
            )?;
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
