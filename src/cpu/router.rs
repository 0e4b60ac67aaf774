//! From router logits to experts and weights.
#![allow(unsafe_code)]

use super::simd::{Kernel, LANES, Lanes, exp};
use super::{Disjoint, Isa, Team};
use crate::ops::{ExpertSet, RouterRule, RouterScores};

/// The least that weights are divided by when they are normalised.
const LEAST_SUM: f32 = 6.1035e-5;

/// Where [`route`] writes.
#[derive(Debug)]
pub struct RouteInto<'a> {
    /// `[rows, top_k]`: the chosen experts, best first.
    pub ids: &'a mut [u32],
    /// `[rows, top_k]`: their weights.
    pub weights: &'a mut [f32],
    /// `[experts + 1]` offsets, then `[rows * top_k]` entries `row * top_k + slot`, ascending inside each expert.
    pub groups: &'a mut [u32],
    /// The set of experts that any row uses: [`ExpertSet::bytes`] bytes of little endian words.
    pub routed: Option<&'a mut [u8]>,
}

/// A choice of experts, as [`route`] wrote it.
#[derive(Clone, Copy, Debug)]
pub struct Routing<'a> {
    /// Tokens.
    pub rows: usize,
    /// Experts of the layer.
    pub experts: usize,
    /// Experts a token uses.
    pub top_k: usize,
    /// `[rows, top_k]`: the chosen experts, best first.
    pub ids: &'a [u32],
    /// `[rows, top_k]`: their weights.
    pub weights: &'a [f32],
    /// As in [`RouteInto::groups`].
    pub groups: &'a [u32],
}

impl Routing<'_> {
    /// Checks that all of it is there and names only what exists.
    ///
    /// # Panics
    /// When it does not.
    pub(super) fn check(&self) {
        let Self { rows, experts, top_k, ids, weights, groups } = *self;
        let entries = rows * top_k;
        assert!(
            ids.len() == entries && weights.len() == entries && groups.len() == experts + 1 + entries,
            "routing of {rows} rows: {} ids, {} weights, {} groups",
            ids.len(),
            weights.len(),
            groups.len()
        );
        let (offsets, list) = groups.split_at(experts + 1);
        let inside = offsets.is_sorted() && offsets[experts] as usize <= entries;
        assert!(inside && list.iter().all(|entry| (*entry as usize) < entries), "routing: groups of {entries} entries");
    }
}

/// Chooses each row's experts from `logits`, f32 `[rows, experts]`: the `top_k` largest scores, ties to the lower id, a
/// score that is not a number last. A row with a logit that is not finite gets NaN for weights.
///
/// # Panics
/// When sizes do not fit together or the rule wants more experts than there are.
pub fn route(team: &Team, logits: &[f32], experts: usize, rule: &RouterRule, into: RouteInto<'_>) {
    let RouteInto { ids, weights, groups, routed } = into;
    let top_k = rule.top_k;
    assert!(0 < top_k && top_k <= experts, "route: {top_k} of {experts} experts");
    let rows = logits.len() / experts;
    assert!(
        logits.len() == rows * experts
            && ids.len() == rows * top_k
            && weights.len() == rows * top_k
            && groups.len() == experts + 1 + rows * top_k,
        "route: {} logits of {experts} experts, {} ids, {} weights, {} groups",
        logits.len(),
        ids.len(),
        weights.len(),
        groups.len()
    );
    let each = team.share(rows, 4);
    let (ids_to, weights_to) = (Disjoint::new(&mut *ids), Disjoint::new(weights));
    team.run_sized(logits.len() * 8, rows.div_ceil(each), |part| {
        let rows = part * each..rows.min((part + 1) * each);
        let chosen = rows.start * top_k..rows.end * top_k;
        // SAFETY: parts have rows of their own.
        let (ids, weights) = unsafe { (ids_to.slice(chosen.clone()), weights_to.slice(chosen)) };
        let logits = &logits[rows.start * experts..rows.end * experts];
        Isa::best().run(Rows { logits, experts, rule, ids, weights });
    });
    group(ids, experts, groups);
    if let Some(routed) = routed {
        write_set(&groups[..=experts], routed);
    }
}

/// Entries by expert: a counting sort.
fn group(ids: &[u32], experts: usize, groups: &mut [u32]) {
    let (offsets, entries) = groups.split_at_mut(experts + 1);
    offsets.fill(0);
    for id in ids {
        offsets[*id as usize] += 1;
    }
    let mut start = 0;
    for offset in offsets.iter_mut() {
        (*offset, start) = (start, start + *offset);
    }
    for (entry, id) in ids.iter().enumerate() {
        let offset = &mut offsets[*id as usize];
        entries[*offset as usize] = entry as u32;
        *offset += 1;
    }
    // Each offset has moved to its expert's end, which is the next one's start.
    offsets.copy_within(..experts, 1);
    offsets[0] = 0;
}

fn write_set(offsets: &[u32], routed: &mut [u8]) {
    let experts = offsets.len() - 1;
    assert_eq!(routed.len(), ExpertSet::bytes(experts), "route: bytes for the set of {experts} experts");
    routed.fill(0);
    for expert in 0..experts {
        if offsets[expert] < offsets[expert + 1] {
            routed[expert / 8] |= 1 << (expert % 8);
        }
    }
}

struct Rows<'a> {
    logits: &'a [f32],
    experts: usize,
    rule: &'a RouterRule,
    ids: &'a mut [u32],
    weights: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { logits, experts, rule, ids, weights } = self;
        let mut scores = vec![f32::NEG_INFINITY; experts.next_multiple_of(LANES)];
        let rows = logits.chunks_exact(experts).zip(ids.chunks_exact_mut(rule.top_k));
        for ((logits, ids), weights) in rows.zip(weights.chunks_exact_mut(rule.top_k)) {
            scores[..experts].copy_from_slice(logits);
            scores[experts..].fill(f32::NEG_INFINITY);
            match rule.scores {
                RouterScores::Softmax => softmax::<L>(&mut scores),
                RouterScores::Sigmoid => sigmoid::<L>(&mut scores),
            }
            choose(&scores[..experts], ids, weights);
            // An expert without a number is never chosen, so that the choice alone would hide it: zero while all logits
            // are finite.
            let finite = logits.iter().fold(0.0f32, |sum, logit| logit.mul_add(0.0, sum));
            let mut sum = 0.0;
            for (id, weight) in ids.iter().zip(&mut *weights) {
                *weight = scores[*id as usize];
                sum += *weight;
            }
            for weight in weights {
                if rule.normalise {
                    *weight /= if sum > LEAST_SUM { sum } else { LEAST_SUM };
                }
                *weight = if finite == 0.0 { *weight * rule.scale } else { f32::NAN };
            }
        }
    }
}

/// Softmax of whole vectors; the sum has eight running sums, element `i` in sum `i % 8`.
#[inline(always)]
fn softmax<L: Lanes>(scores: &mut [f32]) {
    let start = scores.as_mut_ptr();
    let places = (0..scores.len() / LANES).map(|chunk| start.wrapping_add(chunk * LANES));
    let mut max = L::splat(f32::NEG_INFINITY);
    for at in places.clone() {
        // SAFETY: each place holds a whole vector.
        max = unsafe { L::load(at) }.max(max);
    }
    let (max, mut sum) = (L::splat(max.largest()), L::splat(0.0));
    for at in places.clone() {
        // SAFETY: as above.
        unsafe {
            let score = exp(L::load(at).sub(max));
            score.store(at);
            sum = sum.add(score);
        }
    }
    let sum = L::splat(sum.sum());
    for at in places {
        // SAFETY: as above.
        unsafe { L::load(at).div(sum).store(at) };
    }
}

#[inline(always)]
fn sigmoid<L: Lanes>(scores: &mut [f32]) {
    for chunk in scores.chunks_exact_mut(LANES) {
        let one = L::splat(1.0);
        // SAFETY: the chunk is a whole vector.
        unsafe { one.div(one.add(exp(L::splat(0.0).sub(L::load(chunk.as_ptr()))))).store(chunk.as_mut_ptr()) };
    }
}

/// The largest scores, best first; `keys` is work space of as many.
#[inline(always)]
fn choose(scores: &[f32], ids: &mut [u32], keys: &mut [f32]) {
    let mut filled = 0;
    for (id, score) in scores.iter().enumerate() {
        let key = if score.is_nan() { f32::NEG_INFINITY } else { *score };
        if filled == keys.len() {
            if key <= keys[filled - 1] {
                continue;
            }
        } else {
            filled += 1;
        }
        // Equal keys stay before: they have lower ids.
        let mut place = filled - 1;
        while place > 0 && keys[place - 1] < key {
            (keys[place], ids[place]) = (keys[place - 1], ids[place - 1]);
            place -= 1;
        }
        (keys[place], ids[place]) = (key, id as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::sample;
    use crate::units::ExpertId;

    struct Routed {
        ids: Vec<u32>,
        weights: Vec<f32>,
        groups: Vec<u32>,
        set: ExpertSet,
    }

    fn routed(workers: usize, logits: &[f32], experts: usize, rule: &RouterRule) -> Routed {
        let chosen = logits.len() / experts * rule.top_k;
        let (mut ids, mut weights) = (vec![7; chosen], vec![0.0; chosen]);
        let (mut groups, mut set) = (vec![9; experts + 1 + chosen], vec![0xAA; ExpertSet::bytes(experts)]);
        let into = RouteInto { ids: &mut ids, weights: &mut weights, groups: &mut groups, routed: Some(&mut set) };
        route(&Team::new(workers).unwrap(), logits, experts, rule, into);
        Routed { ids, weights, groups, set: ExpertSet::from_bytes(&set) }
    }

    fn rules(top_k: usize) -> impl Iterator<Item = RouterRule> {
        [(RouterScores::Softmax, true, 1.0), (RouterScores::Softmax, false, 1.0), (RouterScores::Sigmoid, true, 2.5)]
            .into_iter()
            .map(move |(scores, normalise, scale)| RouterRule { scores, top_k, normalise, scale })
    }

    #[test]
    fn choices_are_those_of_the_definition() {
        let mut ties = 0;
        for (experts, top_k) in [(4, 2), (8, 8), (128, 8), (60, 4), (512, 10), (1, 1)] {
            for rule in rules(top_k) {
                let rows = 150;
                let mut logits = sample::floats(experts as u64, rows * experts);
                // Coarse logits tie often.
                logits.iter_mut().for_each(|x| *x = (*x * 20.0).round() / 4.0 + 0.0);
                let found = routed(1, &logits, experts, &rule);
                for workers in [2, 3] {
                    let other = routed(workers, &logits, experts, &rule);
                    assert_eq!((&other.ids, &other.groups), (&found.ids, &found.groups));
                    sample::assert_same(&other.weights, &found.weights);
                }
                for (row, logits) in logits.chunks(experts).enumerate() {
                    let ids = &found.ids[row * top_k..][..top_k];
                    let mut order: Vec<usize> = (0..experts).collect();
                    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
                    assert_eq!(order[..top_k], ids.iter().map(|id| *id as usize).collect::<Vec<_>>());
                    ties += usize::from(experts > top_k && logits[order[top_k - 1]] == logits[order[top_k]]);
                    let max = logits.iter().copied().fold(f32::MIN, f32::max);
                    let soft: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
                    let score = |id: u32| match rule.scores {
                        RouterScores::Softmax => f64::from(logits[id as usize] - max).exp() / soft,
                        RouterScores::Sigmoid => 1.0 / (1.0 + f64::from(-logits[id as usize]).exp()),
                    };
                    let sum: f64 = if rule.normalise { ids.iter().map(|id| score(*id)).sum() } else { 1.0 };
                    for (id, weight) in ids.iter().zip(&found.weights[row * top_k..]) {
                        let wanted = score(*id) / sum * f64::from(rule.scale);
                        assert!((f64::from(*weight) - wanted).abs() < 2e-6 * wanted + 1e-9, "{weight}, not {wanted}");
                    }
                }
                let (offsets, entries) = found.groups.split_at(experts + 1);
                assert_eq!(offsets[experts] as usize, found.ids.len());
                for expert in 0..experts {
                    let group = &entries[offsets[expert] as usize..offsets[expert + 1] as usize];
                    assert!(group.is_sorted() && group.iter().all(|entry| found.ids[*entry as usize] == expert as u32));
                    assert_eq!(found.set.contains(ExpertId(expert as u32)), !group.is_empty());
                }
            }
        }
        println!("{ties} rows had a tie at the edge of the choice");
        assert!(ties > 100);
    }

    #[test]
    fn what_is_not_a_number_is_chosen_last_and_shows() {
        for rule in rules(2) {
            let found = routed(1, &[f32::NAN; 8], 4, &rule);
            assert_eq!(found.ids, [0, 1, 0, 1]);
            assert!(found.weights.iter().all(|weight| weight.is_nan()));
        }
        let rule = RouterRule { scores: RouterScores::Sigmoid, top_k: 2, normalise: false, scale: 1.0 };
        assert_eq!(routed(1, &[f32::NAN, -3.0, f32::NEG_INFINITY, 9.0], 4, &rule).ids, [3, 1]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for rule in rules(2) {
                let found = routed(1, &[1.0, bad, 2.0, 3.0, 1.0, 0.0, 2.0, 3.0], 4, &rule);
                let shows: Vec<bool> = found.weights.iter().map(|weight| weight.is_nan()).collect();
                assert_eq!(shows, [true, true, false, false], "{bad} {rule:?}");
            }
        }
    }

    #[test]
    fn both_builds_give_the_same_bits() {
        sample::both_builds(|isa, seed| {
            let experts = 3 + seed as usize % 70;
            let logits: Vec<f32> = sample::floats(seed, 2 * experts).iter().map(|x| x * 30.0).collect();
            let rule = rules(3).nth(seed as usize % 3).unwrap();
            let (mut ids, mut weights) = (vec![0; 6], vec![0.0; 6]);
            isa.run(Rows { logits: &logits, experts, rule: &rule, ids: &mut ids, weights: &mut weights });
            weights.extend(ids.iter().map(|id| *id as f32));
            weights
        });
    }
}
