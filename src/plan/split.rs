//! Which layers each card runs: contiguous ranges that fit by bytes and keep the slowest card's work smallest.

use std::ops::Range;
use std::rc::Rc;

use super::cost::{self, Work};
use super::kv::KvPlan;
use super::needs::Needs;
use super::pool;
use super::request::{CardBudget, Request};
use crate::card::CardKind;
use crate::units::Bytes;

/// How near to the best split the bound is found that keeps the exact search short.
const BISECTIONS: usize = 12;

/// What a stage of these layers needs of its card.
pub(super) fn stage_needs(
    request: &Request<'_>,
    card: &CardBudget,
    range: Range<usize>,
    wave: usize,
    cards: usize,
) -> Needs {
    let layers = Needs::of_layers(request, card, wave);
    let head = (range.end == layers.len()).then(|| Needs::of_head(request, card, wave));
    let own = layers.get(range).unwrap_or_default().iter().chain(&head);
    own.fold(Needs::of_stage(request, card, wave, cards), |sum, layer| sum.and(layer)).stage()
}

/// What a card's layers take of it in a wave: the slowest resource's seconds, then all resources' together to tell
/// apart what is equal.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
struct Time(f64, f64);

impl Time {
    const ANY: Self = Self(f64::INFINITY, f64::INFINITY);

    fn or_slower(self, other: Self) -> Self {
        if self < other { other } else { self }
    }
}

/// One card and what each layer needs of it.
struct Column<'a> {
    card: &'a CardBudget,
    layers: Rc<[Needs]>,
    head: Needs,
    stage: Needs,
}

/// The search for a split of one wave size.
pub(super) struct Split<'a> {
    request: &'a Request<'a>,
    columns: Vec<Column<'a>>,
    layers: usize,
    wave: usize,
    kv: KvPlan,
}

/// The first cards' best way to run the first layers, and where the last of them starts.
#[derive(Clone, Copy)]
struct Best {
    slowest: Time,
    start: usize,
}

impl<'a> Split<'a> {
    /// All that the search asks for more than once.
    pub fn new(request: &'a Request<'a>, wave: usize) -> Self {
        let layers = request.spec.layers.len();
        let cards = request.cards.len().min(layers);
        // Layers need the same of all cards of a kind.
        let mut of_kind: Vec<(CardKind, Rc<[Needs]>)> = Vec::new();
        let mut columns = Vec::with_capacity(cards);
        for card in request.cards.iter().take(cards) {
            let known = of_kind.iter().find(|(kind, _)| *kind == card.kind).map(|(_, layers)| Rc::clone(layers));
            let layers = known.unwrap_or_else(|| {
                let layers: Rc<[Needs]> = Needs::of_layers(request, card, wave).into();
                of_kind.push((card.kind, Rc::clone(&layers)));
                layers
            });
            let head = Needs::of_head(request, card, wave);
            columns.push(Column { card, layers, head, stage: Needs::of_stage(request, card, wave, cards) });
        }
        Self { request, columns, layers, wave, kv: KvPlan::choose(request) }
    }

    /// Whether cells are placed as in this search.
    pub fn has_cells_of(&self, request: &Request<'_>) -> bool {
        // The staging pool follows the smallest card's memory.
        KvPlan::choose(request) == self.kv
    }

    /// The search for the same layers on cards of which only the memory differs.
    pub fn resized<'b>(&self, request: &'b Request<'b>) -> Split<'b> {
        if !self.has_cells_of(request) {
            return Split::new(request, self.wave);
        }
        let columns = request.cards.iter().zip(&self.columns);
        let columns = columns.map(|(card, own)| Column { card, layers: Rc::clone(&own.layers), ..*own });
        Split { request, columns: columns.collect(), layers: self.layers, wave: self.wave, kv: self.kv }
    }

    /// Cards that run layers.
    pub fn cards(&self) -> usize {
        self.columns.len()
    }

    /// Whether there is any split.
    pub fn fits(&self) -> bool {
        self.within(Time::ANY)
    }

    /// Exact search: the contiguous split whose slowest card is fastest; `None` when nothing fits.
    pub fn best(&self) -> Option<Vec<Range<usize>>> {
        let limit = self.limit()?;
        // Row c holds, for each end, the best way in which the first c cards run the layers before it.
        let mut rows = vec![vec![None; self.layers + 1]];
        if let Some(nothing) = rows.first_mut().and_then(|row| row.first_mut()) {
            *nothing = Some(Best { slowest: Time(0.0, 0.0), start: 0 });
        }
        for column in &self.columns {
            let row = self.extend(column, rows.last()?, limit);
            rows.push(row);
        }
        let mut ranges = Vec::with_capacity(self.columns.len());
        let mut end = self.layers;
        for row in rows.iter().skip(1).rev() {
            let best = (*row.get(end)?)?;
            ranges.push(best.start..end);
            end = best.start;
        }
        ranges.reverse();
        Some(ranges)
    }

    /// A time that the best split does not pass, by a little; `None` when nothing fits.
    fn limit(&self) -> Option<Time> {
        if !self.fits() {
            return None;
        }
        let (mut low, mut high) = (0.0, f64::INFINITY);
        for step in 0..BISECTIONS + 64 {
            // From a microsecond on by powers of four until one is enough, then by halves.
            let middle = if high == f64::INFINITY { 1e-6 * 4_f64.powi(step as i32) } else { f64::midpoint(low, high) };
            if self.within(Time(middle, f64::INFINITY)) {
                high = middle
            } else {
                low = middle
            }
            if high - low <= high / 64.0 {
                break;
            }
        }
        Some(Time(high, f64::INFINITY))
    }

    /// Whether a split fits of which no card takes longer than `limit`.
    fn within(&self, limit: Time) -> bool {
        let mut places = self.edge(0);
        for column in &self.columns {
            places = reached(&self.ends(column, limit), &places);
        }
        places.last() == Some(&true)
    }

    /// For each card, where it may start behind the cards before it, and where it may end before the cards after it.
    pub fn gaps(&self) -> Vec<Gap> {
        let ends: Vec<_> = self.columns.iter().map(|column| self.ends(column, Time::ANY)).collect();
        let (mut starts, mut stops) = (vec![self.edge(0)], vec![self.edge(self.layers)]);
        for ends in &ends {
            starts.extend(starts.last().map(|before| reached(ends, before)));
        }
        for ends in ends.iter().skip(1).rev() {
            stops.extend(stops.last().map(|after| reaching(ends, after)));
        }
        starts.into_iter().zip(stops.into_iter().rev()).map(|(starts, ends)| Gap { starts, ends }).collect()
    }

    /// Whether a card with this much memory closes its gap.
    pub fn closes(&self, index: usize, memory: Bytes, gap: &Gap) -> bool {
        let Some(Column { card, layers, head, stage }) = self.columns.get(index) else { return false };
        let card = CardBudget { memory, ..(*card).clone() };
        let column = Column { card: &card, layers: Rc::clone(layers), head: *head, stage: *stage };
        let ends = self.ends(&column, Time::ANY);
        let mut open = ends.into_iter().zip(&gap.starts).filter(|(_, start)| **start);
        open.any(|(ends, _)| gap.ends.get(ends).is_some_and(|ends| ends.contains(&true)))
    }

    /// No place but this one.
    fn edge(&self, at: usize) -> Vec<bool> {
        (0..=self.layers).map(|place| place == at).collect()
    }

    /// The ends that a card reaches from each start. The longer a range, the more it needs: so the furthest end is
    /// found with a window that only moves on.
    fn ends(&self, column: &Column<'_>, limit: Time) -> Vec<Range<usize>> {
        let mut window = Window::new(&column.layers);
        let fits = |needs: Needs| self.time(column, needs).is_some_and(|time| time <= limit);
        let mut all = Vec::with_capacity(self.layers);
        for start in 0..self.layers {
            while window.end < self.layers && fits(window.with_next()) {
                window.push();
            }
            all.push(self.allowed(column.card, start).map_or(0..0, |(first, most)| {
                let last = window.end.min(most);
                // The last layer brings the head with it.
                let with_head = last == self.layers && fits(window.sum().and(&column.head));
                first..if with_head { last + 1 } else { (last + 1).min(self.layers) }
            }));
            window.pop(start);
        }
        all
    }

    /// The first and the last end of a range from `start` on that the pins let the card run; `None` where there is
    /// none.
    fn allowed(&self, card: &CardBudget, start: usize) -> Option<(usize, usize)> {
        let (mut first, mut last) = (start + 1, self.layers);
        for pin in &self.request.settings.pins.layers {
            let pinned = pin.first as usize..pin.last.map_or(self.layers, |last| last as usize + 1).min(self.layers);
            if pinned.is_empty() {
                continue;
            }
            if pin.card == card.id {
                first = first.max(pinned.end);
                if start > pinned.start {
                    return None;
                }
            } else if start < pinned.end {
                last = last.min(pinned.start);
            }
        }
        (first <= last).then_some((first, last))
    }

    /// A card's time for a wave through the layers in `needs`: what does not live on it crosses the link meanwhile.
    /// `None` when they do not fit.
    fn time(&self, column: &Column<'_>, needs: Needs) -> Option<Time> {
        let (card, needs) = (column.card, column.stage.and(&needs).stage());
        let fixed = needs.total();
        let free = card.memory.len().checked_sub(fixed)?;
        if free < pool::smallest(self.request, card, &needs) {
            return None;
        }
        let experts = needs.expert_bytes.saturating_sub(free);
        let read = fixed + needs.expert_bytes;
        let work = Work { operations: needs.operations, read, experts, ..Work::default() };
        let seconds = cost::seconds(card, &self.request.host, &work);
        Some(Time(seconds.ahead(), seconds.apart()))
    }

    /// The best ways with one more card.
    fn extend(&self, column: &Column<'_>, before: &[Option<Best>], limit: Time) -> Vec<Option<Best>> {
        let mut row: Vec<Option<Best>> = vec![None; before.len()];
        for (start, best) in before.iter().enumerate() {
            let Some(best) = best else { continue };
            let Some((first, most)) = self.allowed(column.card, start) else { continue };
            let mut needs = Needs::default();
            for (last, layer) in column.layers.iter().enumerate().take(most).skip(start) {
                needs = needs.and(layer);
                let end = last + 1;
                let all = if end == self.layers { needs.and(&column.head) } else { needs };
                let Some(own) = self.time(column, all).filter(|own| *own <= limit) else { break };
                if end < first {
                    continue;
                }
                let slowest = own.or_slower(best.slowest);
                if let Some(place) = row.get_mut(end)
                    && place.is_none_or(|found| slowest < found.slowest)
                {
                    *place = Some(Best { slowest, start });
                }
            }
        }
        row
    }
}

/// Where a card may start and end, as the cards around it leave it.
pub(super) struct Gap {
    starts: Vec<bool>,
    ends: Vec<bool>,
}

/// The places that are reached from these starts.
fn reached(ends: &[Range<usize>], starts: &[bool]) -> Vec<bool> {
    // How many ranges of ends begin or stop at each place.
    let mut steps = vec![0_i64; starts.len() + 1];
    for (ends, _) in ends.iter().zip(starts).filter(|(ends, start)| **start && !ends.is_empty()) {
        steps.iter_mut().skip(ends.start).take(1).for_each(|step| *step += 1);
        steps.iter_mut().skip(ends.end).take(1).for_each(|step| *step -= 1);
    }
    let open = steps.into_iter().scan(0, |open, step| {
        *open += step;
        Some(*open > 0)
    });
    open.take(starts.len()).collect()
}

/// The starts from which one of these places is reached.
fn reaching(ends: &[Range<usize>], places: &[bool]) -> Vec<bool> {
    let mut starts: Vec<bool> =
        ends.iter().map(|ends| places.get(ends.clone()).is_some_and(|ends| ends.contains(&true))).collect();
    starts.push(false);
    starts
}

/// The sum of needs over a range of layers whose ends only move on: sums from each start to a middle, and one from
/// there on.
struct Window<'a> {
    layers: &'a [Needs],
    before: Vec<Needs>,
    after: Needs,
    end: usize,
}

impl<'a> Window<'a> {
    fn new(layers: &'a [Needs]) -> Self {
        Self { layers, before: Vec::new(), after: Needs::default(), end: 0 }
    }

    fn sum(&self) -> Needs {
        self.before.last().map_or(self.after, |before| before.and(&self.after))
    }

    fn with_next(&self) -> Needs {
        self.layers.get(self.end).map_or_else(|| self.sum(), |next| self.sum().and(next))
    }

    fn push(&mut self) {
        if let Some(next) = self.layers.get(self.end) {
            self.after = self.after.and(next);
            self.end += 1;
        }
    }

    /// Leaves out the layer `start`, the first one.
    fn pop(&mut self, start: usize) {
        if self.end <= start {
            self.end = start + 1;
            return;
        }
        if self.before.is_empty() {
            let mut sum = Needs::default();
            for layer in self.layers.get(start..self.end).unwrap_or_default().iter().rev() {
                sum = layer.and(&sum);
                self.before.push(sum);
            }
            self.after = Needs::default();
        }
        self.before.pop();
    }
}
