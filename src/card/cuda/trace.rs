//! What ran when on a GPU: driver events around every command, read when a stream is drained. Kernels between events do
//! not overlap, so a traced run is somewhat slower.

use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::device::Context;
use crate::card::timeline::{Entry, Timeline, Track, Work};
use crate::card::{Command, Stream};
use crate::units::CardId;

/// The record of one card.
pub(super) struct Trace {
    timeline: Timeline,
    card: CardId,
    context: Arc<Context>,
    /// Passed when the timeline stood at `began` nanoseconds.
    base: sys::CUevent,
    began: u64,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    spare: Vec<sys::CUevent>,
    pending: Vec<Pending>,
}

/// A command between two events.
struct Pending {
    start: sys::CUevent,
    end: sys::CUevent,
    on: Stream,
    name: &'static str,
    work: Work,
    bytes: Option<u64>,
}

// SAFETY: events are handles that the driver lets any thread use.
unsafe impl Send for Trace {}
// SAFETY: as above; what changes stands behind a lock.
unsafe impl Sync for Trace {}

impl Trace {
    /// Begins a record; the context is current.
    pub(super) fn begin(
        timeline: Timeline,
        card: CardId,
        name: &str,
        context: &Arc<Context>,
    ) -> Result<Self, DriverError> {
        timeline.name_card(card, name);
        let base = event()?;
        let mut trace = Self { timeline, card, context: Arc::clone(context), base, began: 0, kept: Mutex::default() };
        // SAFETY: the event lives until `drop`; the stream is the context's own.
        unsafe {
            result::event::record(base, std::ptr::null_mut())?;
            result::event::synchronize(base)?;
        }
        trace.began = trace.timeline.now();
        Ok(trace)
    }

    /// Marks the start of a command on a stream; the context is current.
    pub(super) fn start(&self, stream: sys::CUstream) -> Result<sys::CUevent, DriverError> {
        let spare = self.kept.lock().unwrap_or_else(PoisonError::into_inner).spare.pop();
        let start = spare.map_or_else(event, Ok)?;
        // SAFETY: both handles live.
        unsafe { result::event::record(start, stream) }?;
        Ok(start)
    }

    /// Marks the end of the command that began at `start`.
    pub(super) fn end(
        &self,
        start: sys::CUevent,
        on: Stream,
        stream: sys::CUstream,
        command: &Command,
    ) -> Result<(), DriverError> {
        let end = self.start(stream)?;
        let (work, bytes) = Work::of(command);
        let pending = Pending { start, end, on, name: command.name(), work, bytes };
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).pending.push(pending);
        Ok(())
    }

    /// Writes down what has ended.
    pub(super) fn collect(&self) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Kept { spare, pending } = &mut *kept;
        pending.retain(|ran| {
            // SAFETY: the events live until `drop`, and `end` was passed.
            let times = unsafe {
                if result::event::query(ran.end).is_err() {
                    return true;
                }
                [ran.start, ran.end].map(|event| elapsed(self.base, event))
            };
            if let [Ok(start), Ok(end)] = times.map(|time| time.map(|ms| self.began + (f64::from(ms) * 1e6) as u64)) {
                let track = Track::Stream(self.card, ran.on);
                let (name, work, bytes) = (ran.name, ran.work, ran.bytes);
                self.timeline.record(Entry { track, name, work, start, end, bytes, label: None });
            }
            spare.extend([ran.start, ran.end]);
            false
        });
    }
}

/// Milliseconds between two events that were passed. (The bindings would call a function that drivers have only since
/// CUDA 12.8.)
///
/// # Safety
/// Both events live.
unsafe fn elapsed(from: sys::CUevent, to: sys::CUevent) -> Result<f32, DriverError> {
    let mut milliseconds = 0.0;
    // SAFETY: writes one float; the caller vouches for the events.
    unsafe { sys::cuEventElapsedTime(&raw mut milliseconds, from, to) }.result()?;
    Ok(milliseconds)
}

/// An event that knows when it was passed.
fn event() -> Result<sys::CUevent, DriverError> {
    result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)
}

impl Drop for Trace {
    fn drop(&mut self) {
        if self.context.bind().is_err() {
            return;
        }
        self.collect();
        let kept = self.kept.get_mut().unwrap_or_else(PoisonError::into_inner);
        let pending = kept.pending.drain(..).flat_map(|ran| [ran.start, ran.end]);
        for event in kept.spare.drain(..).chain(pending).chain([self.base]) {
            // SAFETY: made by `event`, in one place only.
            let _ = unsafe { result::event::destroy(event) };
        }
    }
}
