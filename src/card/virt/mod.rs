//! Cards of host threads that really compute: every stream is a thread, memory is bounded, kernels run on the CPU's
//! worker team.

mod event;
mod faults;
mod link;
mod memory;
mod run;
mod stream;
mod wire;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

pub use faults::Faults;
pub use link::LinkRates;

use self::event::Mark;
use self::faults::Place;
use self::link::Link;
use self::memory::Memory;
use self::stream::{Item, Queue};
use super::command::Access;
use super::timeline::Timeline;
use super::{
    Card, CardError, CardKind, Command, Event, EventState, HostSpan, Leases, Neighbour, Region, Stream, Why, Wire,
    check,
};
use crate::card::command::{WireReceive, WireSend};
use crate::cpu::Team;
use crate::cpu::linear::Isa;
use crate::units::{Bytes, CardId};

/// How a virtual card is made.
pub struct VirtualOptions {
    /// Its place in the rig.
    pub id: CardId,
    /// Its name for people.
    pub name: String,
    /// The memory it may hold; allocated and adopted regions both count.
    pub budget: Bytes,
    /// The workers that run its kernels.
    pub team: Arc<Team>,
    /// Slows its link to these rates; `None` copies as fast as the host does.
    pub links: Option<LinkRates>,
    /// Faults that a test injects.
    pub faults: Faults,
    /// Where to record what ran when.
    pub timeline: Option<Timeline>,
}

/// A card made of host threads.
///
/// A kernel that panics or a copy that fails makes the card fail: what is queued behind it does not run, events end
/// with the failure, and commands are refused until [`Card::recover`]. A stream that waits for an event which ended
/// with a failure fails its own card too, since what it waited for did not happen. Dropping the card runs what is
/// queued and joins its threads.
pub struct VirtualCard {
    shared: Arc<Shared>,
    queues: [Queue; Stream::ALL.len()],
}

/// What the card and its threads share.
struct Shared {
    id: CardId,
    name: String,
    memory: Arc<Memory>,
    /// Memory of other cards that this one may copy from.
    reached: RwLock<HashMap<CardId, Arc<Memory>>>,
    team: Arc<Team>,
    isa: Isa,
    links: Option<Links>,
    faults: Faults,
    timeline: Option<Timeline>,
    failed: AtomicBool,
    failure: Mutex<Option<CardError>>,
    leases: Arc<Leases>,
    /// Nanoseconds that each stream has stood still for events.
    waited: [AtomicU64; Stream::ALL.len()],
}

struct Links {
    h2d: Link,
    d2h: Link,
}

/// A command whose fields agree, whose spans lie aligned in this card's regions, and which writes nothing that it uses
/// otherwise. Only [`Shared::check`] makes one.
struct Checked(Box<Command>);

impl Checked {
    fn command(&self) -> &Command {
        &self.0
    }
}

impl Shared {
    fn health(&self) -> Result<(), CardError> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)
    }

    /// Marks the card as failed; the first failure stands.
    fn fail(&self, error: CardError) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.failed.store(true, Ordering::Release);
    }

    fn check(&self, on: Stream, command: Command) -> Result<Checked, CardError> {
        let name = command.name();
        let accesses = command.accesses();
        check::leases(&self.leases, (self.id, on, name), &accesses, |span| self.memory.what(span))?;
        let refused = |reason| CardError::Refused { card: self.id, stream: on, command: name, reason };
        check::command(CardKind::Virtual, &command, &accesses).map_err(refused)?;
        let align = check::alignment(&command);
        match &command {
            Command::WireSend(WireSend { over, .. }) => wire::end(over, true).map(drop).map_err(refused)?,
            Command::WireReceive(WireReceive { over, .. }) => wire::end(over, false).map(drop).map_err(refused)?,
            _ => {}
        }
        let across = matches!(command, Command::CopyAcross(_));
        for access in &accesses {
            match access {
                Access::Read(span) if across => {
                    self.reached(span.card).and_then(|memory| memory.check(span, align, false)).map_err(refused)?;
                }
                Access::Read(span) => self.memory.check(span, align, false).map_err(refused)?,
                Access::Write(span) => self.memory.check(span, align, true).map_err(refused)?,
                Access::HostRead(_) => {}
                Access::HostWrite(span) if span.buf().is_sealed() => {
                    return Err(refused(format!("{:?} is sealed, nobody may write it", span.buf())));
                }
                Access::HostWrite(_) => {}
            }
        }
        Ok(Checked(Box::new(command)))
    }

    /// The memory of another card, if this one may copy from it.
    fn reached(&self, card: CardId) -> Result<Arc<Memory>, String> {
        let reached = self.reached.read().unwrap_or_else(PoisonError::into_inner);
        reached.get(&card).cloned().ok_or_else(|| format!("the memory of {card} is not in reach"))
    }
}

impl VirtualCard {
    /// Makes the card and starts its threads.
    ///
    /// # Errors
    /// [`CardError::Device`] when the system refuses a thread.
    pub fn new(options: VirtualOptions) -> Result<Self, CardError> {
        let VirtualOptions { id, name, budget, team, links, faults, timeline } = options;
        if let Some(timeline) = &timeline {
            timeline.name_card(id, &name);
        }
        let links = links.map(|rates| Links { h2d: Link::new(rates.h2d), d2h: Link::new(rates.d2h) });
        let shared = Arc::new(Shared {
            id,
            name,
            memory: Arc::new(Memory::new(id, budget)),
            reached: RwLock::default(),
            team,
            isa: Isa::best(),
            links,
            faults,
            timeline,
            failed: AtomicBool::new(false),
            failure: Mutex::default(),
            leases: Arc::default(),
            waited: Default::default(),
        });
        let [compute, experts, kv_in, kv_out, hand_off] = Stream::ALL.map(|on| Queue::start(&shared, on));
        Ok(Self { queues: [compute?, experts?, kv_in?, kv_out?, hand_off?], shared })
    }

    fn push(&self, on: Stream, item: Item) -> Result<(), CardError> {
        if self.queues.get(on as usize).is_some_and(|queue| queue.push(item)) {
            return Ok(());
        }
        Err(CardError::Device { card: self.shared.id, reason: format!("the {} stream's thread is gone", on.name()) })
    }

    /// Waits until all that is queued on the stream has ended or been dropped.
    fn empty(&self, on: Stream) -> Result<(), CardError> {
        let mark = Arc::new(Mark::default());
        self.push(on, Item::Record(Arc::clone(&mark)))?;
        mark.block()
    }
}

impl Drop for VirtualCard {
    fn drop(&mut self) {
        // All queues end before any thread is joined, so that no thread stands idle while another works off its queue.
        self.queues.iter_mut().for_each(Queue::close);
    }
}

impl Card for VirtualCard {
    fn id(&self) -> CardId {
        self.shared.id
    }

    fn kind(&self) -> CardKind {
        CardKind::Virtual
    }

    fn name(&self) -> String {
        self.shared.name.clone()
    }

    fn alloc(&self, bytes: Bytes, what: &str) -> Result<Region, CardError> {
        if self.shared.faults.strikes(Place::Alloc) {
            return Err(self.shared.memory.full(bytes, Bytes(0), what));
        }
        self.shared.memory.alloc(bytes, what)
    }

    fn adopt(&self, host: &HostSpan, what: &str) -> Result<Option<Region>, CardError> {
        if self.shared.faults.strikes(Place::Alloc) {
            return Err(self.shared.memory.full(Bytes(host.bytes() as u64), Bytes(0), what));
        }
        self.shared.memory.adopt(host, what).map(Some)
    }

    fn free_memory(&self) -> Result<Bytes, CardError> {
        Ok(self.shared.memory.free())
    }

    fn submit(&self, on: Stream, command: Command) -> Result<(), CardError> {
        self.shared.health()?;
        let command = self.shared.check(on, command)?;
        if command.command().copied().is_some() && self.shared.faults.strikes(Place::CopySubmitted) {
            return Err(CardError::Refused {
                card: self.shared.id,
                stream: on,
                command: command.command().name(),
                reason: "the copy was not accepted (injected)".to_owned(),
            });
        }
        self.push(on, Item::Run { command, submitted: Instant::now() })
    }

    fn record(&self, on: Stream) -> Result<Event, CardError> {
        let mark = Arc::new(Mark::default());
        self.push(on, Item::Record(Arc::clone(&mark)))?;
        Ok(Event::new(self.shared.id, mark))
    }

    fn wait(&self, on: Stream, event: &Event, why: Why) -> Result<(), CardError> {
        self.push(on, Item::Wait(event.clone(), why))
    }

    fn finished(&self, event: &Event) -> Result<bool, CardError> {
        event.state().finished()
    }

    fn sync(&self, event: &Event, _why: Why) -> Result<(), CardError> {
        event.state().block()
    }

    fn drain(&self, on: Stream, _why: Why) -> Result<(), CardError> {
        self.empty(on)
    }

    fn recover(&self) -> Result<(), CardError> {
        for on in Stream::ALL {
            match self.empty(on) {
                Ok(()) | Err(CardError::Failed { .. }) => {}
                Err(lost) => return Err(lost),
            }
        }
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.shared.failed.store(false, Ordering::Release);
        Ok(())
    }

    fn waited(&self, on: Stream) -> Duration {
        let waited = self.shared.waited.get(on as usize).map_or(0, |waited| waited.load(Ordering::Relaxed));
        Duration::from_nanos(waited)
    }

    fn neighbour(&self) -> Neighbour {
        Neighbour { card: self.shared.id, inner: Arc::clone(&self.shared.memory) as _ }
    }

    fn reach(&self, from: &Neighbour) -> Result<(), String> {
        let memory = virtual_memory(from)?;
        self.shared.reached.write().unwrap_or_else(PoisonError::into_inner).insert(from.card, memory);
        Ok(())
    }

    fn join(&self, to: &Neighbour, _limit: Duration) -> Result<[Wire; 2], String> {
        virtual_memory(to).map(|_| wire::wire())
    }

    fn leases(&self) -> &Arc<Leases> {
        &self.shared.leases
    }
}

/// The memory of another virtual card.
fn virtual_memory(of: &Neighbour) -> Result<Arc<Memory>, String> {
    Arc::clone(&of.inner).downcast().map_err(|_| format!("{} is no virtual card", of.card))
}
