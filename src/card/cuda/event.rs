//! Events of a CUDA card. Driver events are reused: making one costs more than recording it.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::device::Context;
use super::fault::Fault;
use super::wait::{self, PATIENCE, Unended};
use crate::card::{CardError, EventState, Stream};

/// Driver events that nobody uses.
pub(super) struct Events {
    context: Arc<Context>,
    spare: Mutex<Vec<sys::CUevent>>,
}

// SAFETY: events are handles that the driver lets any thread use.
unsafe impl Send for Events {}
// SAFETY: as above.
unsafe impl Sync for Events {}

impl Events {
    pub(super) fn new(context: &Arc<Context>) -> Arc<Self> {
        Arc::new(Self { context: Arc::clone(context), spare: Mutex::default() })
    }

    /// Records the end of what is queued on a stream; the context is current.
    pub(super) fn record(
        self: &Arc<Self>,
        stream: sys::CUstream,
        name: Stream,
        fault: &Arc<Fault>,
    ) -> Result<Arc<Recorded>, DriverError> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let event = match spare {
            Some(event) => event,
            None => result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?,
        };
        let recorded = Arc::new(Recorded { events: Arc::clone(self), event, name, fault: Arc::clone(fault) });
        // SAFETY: both handles belong to the current context and live.
        unsafe { result::event::record(event, stream) }?;
        Ok(recorded)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            for event in self.spare.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
                // SAFETY: created in `record`, in no other list.
                let _ = unsafe { result::event::destroy(event) };
            }
        }
    }
}

/// One recorded event.
pub(super) struct Recorded {
    events: Arc<Events>,
    event: sys::CUevent,
    name: Stream,
    fault: Arc<Fault>,
}

// SAFETY: as for `Events`.
unsafe impl Send for Recorded {}
// SAFETY: as for `Events`.
unsafe impl Sync for Recorded {}

impl Recorded {
    pub(super) fn event(&self) -> sys::CUevent {
        self.event
    }

    /// Whether it has been passed, or failed.
    pub(super) fn passed(&self) -> Result<bool, CardError> {
        self.fault.check()?;
        self.events.context.bind().map_err(|error| self.fault.lose(self.name, error))?;
        // SAFETY: the event lives until `drop`.
        match unsafe { result::event::query(self.event) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(self.fault.lose(self.name, error)),
        }
    }
}

impl EventState for Recorded {
    fn finished(&self) -> Result<bool, CardError> {
        self.passed()
    }

    fn block(&self) -> Result<(), CardError> {
        self.fault.check()?;
        self.events.context.bind().map_err(|error| self.fault.lose(self.name, error))?;
        // SAFETY: the event lives until `drop`.
        unsafe { wait::event(self.event, PATIENCE) }.map_err(|unended| {
            if let Unended::Hung(_) = unended {
                self.events.context.abandon();
            }
            self.fault.unended(self.name, unended)
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.events.spare.lock().unwrap_or_else(PoisonError::into_inner).push(self.event);
    }
}
