//! Waiting for the device by the host: at full speed for a moment, then at ease, and never for ever.
//!
//! The driver's own waits either spin on a core that the host pool wants, or end late; none of them ends where the
//! device hangs. So the host asks, in pauses that grow with the time it has waited.

use std::time::{Duration, Instant};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

/// How long the host waits for anything that is queued. A stage may wait for all layers of the one before it, whose
/// experts may come over a slow link: minutes are possible, so it is longer than any of that.
pub(super) const PATIENCE: Duration = Duration::from_secs(600);

/// How long a card that is closed is waited for: nothing is queued any more that takes long.
pub(super) const CLOSING: Duration = Duration::from_secs(30);

/// Decode steps wait for a layer many times in a row; so short a wait is not worth giving the core away.
const SPIN: Duration = Duration::from_micros(200);

/// A pause is this part of the time waited so far, so that a wait ends at most so much late.
const SHARE: u32 = 16;
const LONGEST: Duration = Duration::from_millis(1);

/// Why a wait ended without what was waited for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unended {
    /// The device reported an error.
    Driver(DriverError),
    /// The time is over.
    Hung(Duration),
}

/// The pause before the device is asked again; `None` asks at once.
fn pause(waited: Duration) -> Option<Duration> {
    (waited >= SPIN).then(|| (waited / SHARE).clamp(Duration::from_micros(20), LONGEST))
}

/// Asks until it has ended, for at most `limit`.
fn until(limit: Duration, mut ended: impl FnMut() -> Result<(), DriverError>) -> Result<(), Unended> {
    let began = Instant::now();
    loop {
        match ended() {
            Ok(()) => return Ok(()),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => {}
            Err(error) => return Err(Unended::Driver(error)),
        }
        let waited = began.elapsed();
        if waited >= limit {
            return Err(Unended::Hung(waited));
        }
        match pause(waited) {
            Some(pause) => std::thread::sleep(pause),
            None => std::hint::spin_loop(),
        }
    }
}

/// Waits until an event has been passed.
///
/// # Safety
/// The event lives; its context is current.
pub(super) unsafe fn event(event: sys::CUevent, limit: Duration) -> Result<(), Unended> {
    // SAFETY: the caller's promise.
    until(limit, || unsafe { result::event::query(event) })
}

/// Waits until all that is queued on a stream has run.
///
/// # Safety
/// The stream lives; its context is current.
pub(super) unsafe fn stream(stream: sys::CUstream, limit: Duration) -> Result<(), Unended> {
    // SAFETY: the caller's promise.
    until(limit, || unsafe { sys::cuStreamQuery(stream) }.result())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOT_READY: DriverError = DriverError(sys::CUresult::CUDA_ERROR_NOT_READY);

    #[test]
    fn what_never_ends_is_given_up() {
        let limit = Duration::from_millis(30);
        let began = Instant::now();
        let mut asked = 0;
        let hung = until(limit, || {
            asked += 1;
            Err(NOT_READY)
        });
        assert!(matches!(hung, Err(Unended::Hung(waited)) if waited >= limit), "{hung:?}");
        assert!(began.elapsed() < Duration::from_secs(10) && asked > 10, "{asked} times");
    }

    #[test]
    fn an_end_and_an_error_end_the_wait() {
        let mut left = 5;
        let mut ended = || {
            left -= 1;
            if left == 0 { Ok(()) } else { Err(NOT_READY) }
        };
        assert!(until(Duration::from_secs(60), &mut ended).is_ok());
        let lost = DriverError(sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        let found = until(Duration::from_secs(60), || Err(lost));
        assert!(matches!(found, Err(Unended::Driver(error)) if error == lost));
    }

    #[test]
    fn pauses_are_short_beside_what_was_waited() {
        assert_eq!(pause(Duration::ZERO), None);
        assert_eq!(pause(SPIN - Duration::from_nanos(1)), None);
        for micros in [200, 500, 3_000, 20_000, 5_000_000] {
            let waited = Duration::from_micros(micros);
            let pause = pause(waited).unwrap();
            assert!(pause <= LONGEST && pause <= waited / 8, "{pause:?} after {waited:?}");
        }
    }
}
