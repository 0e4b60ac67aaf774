//! A card whose calls a test hears, to act in between: cancel, panic, hold back.

use std::any::Any;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use aqueduct::card::{
    Card, CardError, CardKind, Command, Event, EventState, HostSpan, Leases, Neighbour, Region, Stream, Why, Wire,
};
use aqueduct::units::{Bytes, CardId};

/// What is done with a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    Submit(Stream, &'static str),
    Wait(Stream, Why),
    Sync(Why),
    Drain(Stream, Why),
}

impl Call {
    /// The place in the protocol, for a call that waits.
    pub fn why(self) -> Option<Why> {
        match self {
            Self::Submit(..) => None,
            Self::Wait(_, why) | Self::Sync(why) | Self::Drain(_, why) => Some(why),
        }
    }
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self {
            Self::Submit(on, name) => format!("submit `{name}` ({})", on.name()),
            Self::Wait(on, why) => format!("wait: {} ({})", why.0, on.name()),
            Self::Sync(why) => format!("sync: {}", why.0),
            Self::Drain(on, why) => format!("drain: {} ({})", why.0, on.name()),
        };
        f.pad(&text)
    }
}

/// Told of each call, before the card is and after it has answered.
pub trait Listen: Send + Sync {
    fn before(&self, _card: &dyn Card, _call: Call) {}
    fn after(&self, _card: &dyn Card, _call: Call) {}

    /// Whether the card is asked at all. Only waits can be left out.
    fn forwards(&self, _call: Call) -> bool {
        true
    }

    /// Hears of memory that is taken.
    fn allocates(&self, _bytes: Bytes) {}

    /// How long the host waits for the card, which then counts as hung, as a GPU's driver and this crate's card of it
    /// see it.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// Whether the card passes for a GPU, which uses no host memory in place.
    fn is_gpu(&self) -> bool {
        false
    }
}

/// A card with a listener.
pub struct Tap {
    card: Arc<dyn Card>,
    listener: Arc<dyn Listen>,
}

impl Tap {
    /// Puts the listener before every card of a rig.
    pub fn all(rig: &mut super::TestRig, listener: &Arc<impl Listen + 'static>) {
        for card in &mut rig.rig.cards {
            *card = Arc::new(Self { card: Arc::clone(card), listener: listener.clone() });
        }
    }

    fn waited(&self, call: Call, run: impl FnOnce(&dyn Card) -> Result<(), CardError>) -> Result<(), CardError> {
        if self.listener.forwards(call) { self.heard(call, run) } else { Ok(()) }
    }

    /// The error of a card that hangs: the event has not ended in time.
    fn ended(&self, card: &dyn Card, event: &Event) -> Result<Option<CardError>, CardError> {
        let Some(patience) = self.listener.patience() else { return Ok(None) };
        let deadline = Instant::now() + patience;
        while !card.finished(event)? {
            if Instant::now() >= deadline {
                return Ok(Some(CardError::Device { card: card.id(), reason: "it hangs".to_owned() }));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(None)
    }

    fn heard<T>(&self, call: Call, run: impl FnOnce(&dyn Card) -> T) -> T {
        self.listener.before(self.card.as_ref(), call);
        let result = run(self.card.as_ref());
        self.listener.after(self.card.as_ref(), call);
        result
    }
}

impl Card for Tap {
    fn id(&self) -> CardId {
        self.card.id()
    }

    fn kind(&self) -> CardKind {
        if self.listener.is_gpu() { CardKind::Cuda } else { self.card.kind() }
    }

    fn name(&self) -> String {
        self.card.name()
    }

    fn alloc(&self, bytes: Bytes, what: &str) -> Result<Region, CardError> {
        self.listener.allocates(bytes);
        self.card.alloc(bytes, what)
    }

    fn adopt(&self, host: &HostSpan, what: &str) -> Result<Option<Region>, CardError> {
        if self.listener.is_gpu() { Ok(None) } else { self.card.adopt(host, what) }
    }

    fn free_memory(&self) -> Result<Bytes, CardError> {
        self.card.free_memory()
    }

    fn submit(&self, on: Stream, command: Command) -> Result<(), CardError> {
        self.heard(Call::Submit(on, command.name()), |card| card.submit(on, command))
    }

    fn record(&self, on: Stream) -> Result<Event, CardError> {
        self.card.record(on)
    }

    fn wait(&self, on: Stream, event: &Event, why: Why) -> Result<(), CardError> {
        self.waited(Call::Wait(on, why), |card| card.wait(on, event, why))
    }

    fn finished(&self, event: &Event) -> Result<bool, CardError> {
        self.card.finished(event)
    }

    fn sync(&self, event: &Event, why: Why) -> Result<(), CardError> {
        self.waited(Call::Sync(why), |card| self.ended(card, event)?.map_or_else(|| card.sync(event, why), Err))
    }

    fn drain(&self, on: Stream, why: Why) -> Result<(), CardError> {
        self.waited(Call::Drain(on, why), |card| {
            let hung = if self.listener.patience().is_some() { self.ended(card, &card.record(on)?)? } else { None };
            hung.map_or_else(|| card.drain(on, why), Err)
        })
    }

    fn recover(&self) -> Result<(), CardError> {
        for on in Stream::ALL {
            let hung = if self.listener.patience().is_some() {
                self.ended(self.card.as_ref(), &self.card.record(on)?).ok().flatten()
            } else {
                None
            };
            hung.map_or(Ok(()), Err)?;
        }
        self.card.recover()
    }

    fn patience(&self) -> Duration {
        self.listener.patience().unwrap_or_else(|| self.card.patience())
    }

    fn waited(&self, on: Stream) -> Duration {
        self.card.waited(on)
    }

    fn neighbour(&self) -> Neighbour {
        self.card.neighbour()
    }

    fn reach(&self, from: &Neighbour) -> Result<(), String> {
        self.card.reach(from)
    }

    fn join(&self, to: &Neighbour, limit: Duration) -> Result<[Wire; 2], String> {
        self.card.join(to, limit)
    }

    fn leases(&self) -> &Arc<Leases> {
        self.card.leases()
    }
}

/// An event that a test ends.
#[derive(Default)]
pub struct Held {
    ended: Mutex<bool>,
    changed: Condvar,
}

impl EventState for Held {
    fn finished(&self) -> Result<bool, CardError> {
        Ok(*self.ended.lock().unwrap())
    }

    fn block(&self) -> Result<(), CardError> {
        drop(self.changed.wait_while(self.ended.lock().unwrap(), |ended| !*ended).unwrap());
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Held {
    /// Ends it.
    pub fn end(&self) {
        *self.ended.lock().unwrap() = true;
        self.changed.notify_all();
    }
}
