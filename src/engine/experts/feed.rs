//! The issuer's loop: entry by entry, issue or skip. It knows a link only as [`Link`], so it can be checked without a
//! card.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::gate::{Decision, Gate};
use super::handshake::{Handshake, Outcome};
use super::walk::{Entry, Walk};
use crate::card::CardError;

/// How long the issuer sleeps between two looks at the oldest queued copy.
const POLL: Duration = Duration::from_micros(20);

/// The copy stream as the issuer's loop sees it.
pub trait Link {
    /// What ends when a copy has arrived.
    type Event: Clone;

    /// Queues the copy of entry `k` behind the last reader of its slot.
    ///
    /// # Errors
    /// When the card refuses it.
    fn copy(&self, k: usize, entry: Entry, last_reader: Option<&Self::Event>) -> Result<Self::Event, CardError>;

    /// An entry is not copied.
    ///
    /// # Errors
    /// When there is no such expert.
    fn skipped(&self, entry: Entry) -> Result<(), CardError>;

    /// Whether a queued copy has arrived.
    ///
    /// # Errors
    /// When the card has failed.
    fn finished(&self, arrived: &Self::Event) -> Result<bool, CardError>;

    /// The oldest queued copy has been waited for that long.
    ///
    /// # Errors
    /// When that is too long: the card hangs.
    fn waited(&self, _how_long: Duration) -> Result<(), CardError> {
        Ok(())
    }
}

/// Walks all entries, until the end or until the handshake is stopped. With a gate, at most `depth` copies are kept
/// queued.
///
/// # Errors
/// The first refusal of the link.
pub fn feed<L: Link>(
    walk: &Walk,
    gate: Option<(&Gate, usize)>,
    handshake: &Handshake<L::Event>,
    link: &L,
) -> Result<(), CardError> {
    let mut queued: VecDeque<L::Event> = VecDeque::new();
    for (k, entry) in walk.entries().iter().enumerate() {
        let last_reader = match walk.before(k) {
            None => None,
            Some(before) => match handshake.released(before) {
                Some(last_reader) => last_reader,
                None => return Ok(()),
            },
        };
        if let Some((_, depth)) = gate
            && !wait_for_room(&mut queued, depth, handshake, link)?
        {
            return Ok(());
        }
        if let Some((gate, _)) = gate
            && gate.decide(walk, k) == Decision::Skip
        {
            link.skipped(*entry)?;
            // The slot's last reader stands for the next entry of the slot, too.
            handshake.release(k, last_reader);
            handshake.tell(Outcome::Skipped);
            continue;
        }
        let arrived = link.copy(k, *entry, last_reader.as_ref())?;
        if gate.is_some() {
            queued.push_back(arrived.clone());
        }
        handshake.tell(Outcome::Issued(arrived));
    }
    Ok(())
}

/// Waits until fewer than `depth` copies are queued; `false` means stop.
fn wait_for_room<L: Link>(
    queued: &mut VecDeque<L::Event>,
    depth: usize,
    handshake: &Handshake<L::Event>,
    link: &L,
) -> Result<bool, CardError> {
    let mut since = Instant::now();
    loop {
        while let Some(oldest) = queued.front()
            && link.finished(oldest)?
        {
            queued.pop_front();
            since = Instant::now();
        }
        if queued.len() < depth {
            return Ok(true);
        }
        if handshake.pause(POLL) {
            return Ok(false);
        }
        // Compute waits for this thread and not for the card, so it would not learn of a card that hangs.
        link.waited(since.elapsed())?;
    }
}
