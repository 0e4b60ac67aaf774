//! What failed on a card: the first failure stops every later command until the card is recovered.

use std::sync::{Mutex, PoisonError};

use cudarc::driver::result::DriverError;
use cudarc::driver::sys;

use super::error::say;
use super::wait::Unended;
use crate::card::{CardError, Stream};
use crate::units::CardId;

pub(super) struct Fault {
    card: CardId,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The last command queued on each stream, for messages.
    last: [&'static str; Stream::ALL.len()],
    failed: Option<CardError>,
    hung: bool,
}

impl Fault {
    pub(super) fn new(card: CardId) -> Self {
        Self { card, state: Mutex::default() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a command for later messages, or gives the failure that stops it.
    pub(super) fn begin(&self, on: Stream, command: &'static str) -> Result<(), CardError> {
        let mut state = self.lock();
        if let Some(failed) = &state.failed {
            return Err(failed.clone());
        }
        if let Some(last) = state.last.get_mut(on as usize) {
            *last = command;
        }
        Ok(())
    }

    /// The failure, if there is one.
    pub(super) fn check(&self) -> Result<(), CardError> {
        self.lock().failed.clone().map_or(Ok(()), Err)
    }

    /// The device reported an error that belongs to something queued earlier.
    pub(super) fn lose(&self, on: Stream, error: DriverError) -> CardError {
        let mut state = self.lock();
        let command = state.last.get(on as usize).copied().unwrap_or_default();
        let reason = format!("{}, in this or an earlier command", say(error));
        state.failed.get_or_insert(CardError::Failed { card: self.card, stream: on, command, reason }).clone()
    }

    /// The host has waited for a stream in vain.
    pub(super) fn unended(&self, on: Stream, unended: Unended) -> CardError {
        match unended {
            Unended::Driver(error) => self.lose(on, error),
            Unended::Hung(waited) => {
                let mut state = self.lock();
                let command = state.last.get(on as usize).copied().unwrap_or_default();
                state.hung = true;
                let error = CardError::Hung { card: self.card, stream: on, command, waited };
                state.failed.get_or_insert(error).clone()
            }
        }
    }

    /// Whether the device was given up: it may still read and write what it was given.
    pub(super) fn hung(&self) -> bool {
        self.lock().hung
    }

    /// A command was queued in part only.
    pub(super) fn broken(&self, on: Stream, command: &'static str, reason: String) -> CardError {
        let error = CardError::Failed { card: self.card, stream: on, command, reason };
        self.lock().failed.get_or_insert(error).clone()
    }

    /// Forgets the failure.
    pub(super) fn forget(&self) {
        self.lock().failed = None;
    }
}

/// Whether an error of a call says something about that call alone. Every other one is of the device, or of what was
/// queued earlier, and the driver tells it at whatever call comes next.
pub(super) fn is_of_the_call(error: DriverError) -> bool {
    use sys::CUresult as R;
    matches!(
        error.0,
        R::CUDA_ERROR_INVALID_VALUE
            | R::CUDA_ERROR_OUT_OF_MEMORY
            | R::CUDA_ERROR_INVALID_DEVICE
            | R::CUDA_ERROR_INVALID_IMAGE
            | R::CUDA_ERROR_INVALID_HANDLE
            | R::CUDA_ERROR_NOT_FOUND
            | R::CUDA_ERROR_NOT_SUPPORTED
            | R::CUDA_ERROR_NOT_PERMITTED
            | R::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
            | R::CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING
            | R::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
            | R::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED
            | R::CUDA_ERROR_INVALID_CLUSTER_SIZE
            | R::CUDA_ERROR_NO_BINARY_FOR_GPU
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn lost(code: sys::CUresult) -> DriverError {
        DriverError(code)
    }

    #[test]
    fn failures_of_the_device_are_told_from_refusals_of_a_call() {
        use sys::CUresult as R;
        for of_the_call in
            [R::CUDA_ERROR_INVALID_VALUE, R::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, R::CUDA_ERROR_OUT_OF_MEMORY]
        {
            assert!(is_of_the_call(lost(of_the_call)), "{of_the_call:?}");
        }
        for of_the_device in [
            R::CUDA_ERROR_ILLEGAL_ADDRESS,
            R::CUDA_ERROR_MISALIGNED_ADDRESS,
            R::CUDA_ERROR_LAUNCH_FAILED,
            R::CUDA_ERROR_LAUNCH_TIMEOUT,
            R::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            R::CUDA_ERROR_ECC_UNCORRECTABLE,
            R::CUDA_ERROR_CONTEXT_IS_DESTROYED,
            R::CUDA_ERROR_UNKNOWN,
        ] {
            assert!(!is_of_the_call(lost(of_the_device)), "{of_the_device:?}");
        }
    }

    #[test]
    fn the_first_failure_stands_until_it_is_forgotten() {
        let fault = Fault::new(CardId(1));
        fault.begin(Stream::Experts, "copy in").unwrap();
        let hung = fault.unended(Stream::Experts, Unended::Hung(Duration::from_secs(600)));
        let text = hung.to_string();
        assert!(text.contains("copy in") && text.contains("600 s") && text.contains("experts"), "{text}");
        assert!(fault.hung());
        assert_eq!(fault.begin(Stream::Compute, "rope"), Err(hung.clone()));
        assert_eq!(fault.broken(Stream::Compute, "rope", String::new()), hung);
        fault.forget();
        assert!(fault.check().is_ok());
    }
}
