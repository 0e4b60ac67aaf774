//! A stream of a virtual card: a host thread with an in-order queue.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Instant;

use super::event::Mark;
use super::faults::Place;
use super::link::sleep_until;
use super::{Checked, Shared, run};
use crate::card::command::{CopyAcross, CopyIn, CopyOut, WireReceive, WireSend};
use crate::card::timeline::{Entry, Timeline, Track, Work};
use crate::card::{CardError, Command, Event, Stream, Why};

/// What stands in a queue.
pub(super) enum Item {
    Run { command: Checked, submitted: Instant },
    Record(Arc<Mark>),
    Wait(Event, Why),
}

/// The host's end of a stream; dropping it runs what is queued and joins the thread.
pub(super) struct Queue {
    send: Option<Sender<Item>>,
    thread: Option<JoinHandle<()>>,
}

impl Queue {
    pub(super) fn start(shared: &Arc<Shared>, on: Stream) -> Result<Self, CardError> {
        let (send, receive) = mpsc::channel();
        let worker = Worker { shared: Arc::clone(shared), on, ready: Instant::now() };
        let thread = std::thread::Builder::new()
            .name(format!("{} {}", shared.id, on.name()))
            .spawn(move || worker.work(&receive))
            .map_err(|e| CardError::Device {
                card: shared.id,
                reason: format!("the thread of the {} stream did not start: {e}", on.name()),
            })?;
        Ok(Self { send: Some(send), thread: Some(thread) })
    }

    /// Appends an item; `false` when the thread is gone.
    pub(super) fn push(&self, item: Item) -> bool {
        self.send.as_ref().is_some_and(|send| send.send(item).is_ok())
    }

    /// Lets the thread end after what is queued.
    pub(super) fn close(&mut self) {
        self.send = None;
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.close();
        if let Some(thread) = self.thread.take() {
            // The thread catches the panics of kernels, so there is nothing in its result.
            let _ = thread.join();
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    on: Stream,
    /// When the stream became free for its next command: the modelled end of a copy, else the real end of the last
    /// item.
    ready: Instant,
}

impl Worker {
    fn work(mut self, receive: &Receiver<Item>) {
        for item in receive {
            match item {
                Item::Run { command, submitted } => self.run(&command, submitted),
                Item::Record(mark) => mark.end(self.ready, self.shared.health()),
                Item::Wait(event, why) => self.wait(&event, why),
            }
        }
    }

    fn run(&mut self, checked: &Checked, submitted: Instant) {
        let command = checked.command();
        if self.shared.health().is_err() {
            // The other card would wait for ever.
            if let Command::WireSend(WireSend { over, .. }) | Command::WireReceive(WireReceive { over, .. }) = command {
                over.end().cut();
            }
            return;
        }
        let start = self.shared.timeline.as_ref().map(Timeline::now);
        match catch_unwind(AssertUnwindSafe(|| self.execute(checked, submitted))) {
            Ok(Ok(span)) => {
                if let (Some(timeline), Some(start)) = (&self.shared.timeline, start) {
                    let (work, bytes) = Work::of(command);
                    let (start, end) = span
                        .map_or_else(|| (start, timeline.now()), |(start, end)| (timeline.at(start), timeline.at(end)));
                    let track = Track::Stream(self.shared.id, self.on);
                    timeline.record(Entry { track, name: command.name(), work, start, end, bytes, label: None });
                }
            }
            Ok(Err(reason)) => self.fail(command.name(), reason),
            Err(panic) => self.fail(command.name(), format!("it panicked: {}", panic_text(&*panic))),
        }
    }

    /// Runs the command; for what passes a slowed link, tells from when to when the link and the command were busy.
    fn execute(&mut self, checked: &Checked, submitted: Instant) -> Result<Option<(Instant, Instant)>, String> {
        let command = checked.command();
        let faults = &self.shared.faults;
        if faults.strikes(Place::Kernel(command.name())) {
            // Past the panic hook: the panic is wanted, nobody needs to read about it.
            resume_unwind(Box::new("injected"));
        }
        if faults.strikes(Place::Hung(command.name())) {
            faults.wait_until_cleared();
        }
        if command.copied().is_some() && faults.strikes(Place::CopyRun) {
            return Err("the copy failed (injected)".to_owned());
        }
        let carried = self.shared.link(command).map(|(link, bytes)| link.take(self.ready.max(submitted), bytes));
        let begun = Instant::now();
        run::run(&self.shared, checked)?;
        if let Command::CopyAcross(CopyAcross { to, .. }) | Command::WireReceive(WireReceive { to, .. }) = command {
            if faults.strikes(Place::Stuck) {
                faults.wait_until_cleared();
            }
            if faults.strikes(Place::Corrupted) {
                self.shared.memory.damage(to)?;
            }
        }
        match carried {
            Some((start, end)) => {
                // By the link's clock, not by when this thread woke: queued copies follow each other without a gap.
                // Where the host copies more slowly than the link would, its time counts.
                self.ready = end.max(start + begun.elapsed());
                sleep_until(end);
                let kernel = command.copied().is_none();
                Ok(Some((start, if kernel { self.ready } else { end })))
            }
            None => {
                self.ready = Instant::now();
                Ok(None)
            }
        }
    }

    fn wait(&mut self, event: &Event, why: Why) {
        let start = self.shared.timeline.as_ref().map(Timeline::now);
        let begun = Instant::now();
        let result = event.state().block();
        let passed = event.state().as_any().downcast_ref::<Mark>().and_then(Mark::ended_at);
        self.ready = self.ready.max(passed.unwrap_or_else(Instant::now));
        if let Some(waited) = self.shared.waited.get(self.on as usize) {
            waited.fetch_add(self.ready.saturating_duration_since(begun).as_nanos() as u64, Ordering::Relaxed);
        }
        if let (Some(timeline), Some(start)) = (&self.shared.timeline, start) {
            let end = timeline.now();
            if end.saturating_sub(start) >= SHOWN {
                let track = Track::Stream(self.shared.id, self.on);
                let label = Some(why.0.into());
                timeline.record(Entry { track, name: "wait", work: Work::Wait, start, end, bytes: None, label });
            }
        }
        if let Err(error) = result
            && self.shared.health().is_ok()
        {
            self.fail("wait", format!("what it waited for ({}) did not happen: {error}", why.0));
        }
    }

    fn fail(&self, command: &'static str, reason: String) {
        let error = CardError::Failed { card: self.shared.id, stream: self.on, command, reason };
        tracing::debug!(%error, "a virtual card failed");
        self.shared.fail(error);
    }
}

/// Waits shorter than this many nanoseconds are not drawn.
const SHOWN: u64 = 1_000;

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a text")
}

impl Shared {
    /// The slowed link that a copy or a kernel's reading of host memory passes, with its bytes.
    fn link(&self, command: &Command) -> Option<(&super::link::Link, usize)> {
        let links = self.links.as_ref()?;
        match command {
            // From card to card over the receiver's own link, as where there is no other between them.
            Command::CopyIn(CopyIn { to, .. }) | Command::CopyAcross(CopyAcross { to, .. }) => {
                Some((&links.h2d, to.bytes))
            }
            Command::CopyOut(CopyOut { from, .. }) => Some((&links.d2h, from.bytes)),
            _ => Some((&links.h2d, command.read_over_link())).filter(|(_, bytes)| *bytes > 0),
        }
    }
}
