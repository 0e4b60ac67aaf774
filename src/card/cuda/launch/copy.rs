//! Copies.

use std::sync::{Mutex, PoisonError};

use cudarc::driver::result::DriverError;
use cudarc::driver::sys;

use super::super::bounce::Bounce;
use super::super::nccl::End;
use super::super::page_lock::PIECE;
use super::super::wait::{self, PATIENCE, Unended};
use super::Launch;
use crate::card::command::{CopyAcross, CopyIn, CopyOut, CopyWithin};
use crate::card::{HostSpan, Span};

/// The parts of a host span that lie in one page-locked piece each: offset and bytes inside the span.
pub(super) fn pieces(span: &HostSpan) -> impl Iterator<Item = (usize, usize)> {
    let (start, total) = (span.offset(), span.bytes());
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == total {
            return None;
        }
        let bytes = (PIECE - (start + done) % PIECE).min(total - done);
        let piece = (done, bytes);
        done += bytes;
        Some(piece)
    })
}

impl Launch<'_> {
    pub(super) fn copy_in(&self, of: &CopyIn, held: &mut Vec<HostSpan>) -> Result<(), String> {
        let CopyIn { from, to } = of;
        let address = self.host_copy(from, to)?;
        if let Some(bounce) = self.bounce.filter(|_| !from.buf().is_locked()) {
            return self.copy_through(bounce, from, address);
        }
        // Before the first piece: where a later one is refused, this one is under way.
        held.push(from.clone());
        for (offset, bytes) in pieces(from) {
            let host = from.start().wrapping_add(offset);
            // SAFETY: `host_copy` checked both sides; `held` keeps the host memory until the stream has passed the
            // copy.
            let status = unsafe { sys::cuMemcpyHtoDAsync_v2(address + offset as u64, host.cast(), bytes, self.stream) };
            self.queued(status.result())?;
        }
        Ok(())
    }

    pub(super) fn copy_out(&self, of: &CopyOut, held: &mut Vec<HostSpan>) -> Result<(), String> {
        let CopyOut { from, to } = of;
        if to.buf().is_sealed() {
            return Err(format!("the host buffer `{}` is sealed", to.buf().what()));
        }
        let address = self.host_copy(to, from)?;
        held.push(to.clone());
        for (offset, bytes) in pieces(to) {
            let host = to.start().wrapping_add(offset);
            // SAFETY: as in `copy_in`; the buffer is not sealed, so that nobody holds a slice of it.
            let status = unsafe { sys::cuMemcpyDtoHAsync_v2(host.cast(), address + offset as u64, bytes, self.stream) };
            self.queued(status.result())?;
        }
        if !to.buf().is_locked() {
            // The driver's own staging ends late: whoever reads this memory at a submission, as `copy_through` does,
            // must find it written. SAFETY: the stream lives as long as the card.
            unsafe { wait::stream(self.stream, PATIENCE) }.map_err(|unended| self.unended(unended))?;
        }
        Ok(())
    }

    /// Copies from memory that is not page-locked. It is read now and not when the stream comes to it: what wrote it
    /// has ended, since host threads are ordered before the submission, and copies out to such memory are waited
    /// for.
    fn copy_through(&self, bounce: &Mutex<Bounce>, from: &HostSpan, to: u64) -> Result<(), String> {
        let mut bounce = bounce.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the span lies inside its buffer, which nobody writes now, as said above.
        let bytes = unsafe { std::slice::from_raw_parts(from.start(), from.bytes()) };
        self.begun.set(self.begun.get() || !bytes.is_empty());
        // SAFETY: `host_copy` found as many bytes on the card.
        unsafe { bounce.copy(bytes, to, self.stream) }.map_err(|unended| self.unended(unended))
    }

    pub(super) fn copy(&self, of: &CopyWithin) -> Result<(), String> {
        let CopyWithin { from, to } = of;
        if from.bytes != to.bytes {
            return Err(format!("{} bytes are copied to {}", from.bytes, to.bytes));
        }
        let source = self.bytes(from, "the source")?;
        let target = self.bytes(to, "the target")?;
        if from.bytes == 0 {
            return Ok(());
        }
        // SAFETY: both spans lie in the arena.
        self.queued(unsafe { sys::cuMemcpyDtoDAsync_v2(target, source, from.bytes, self.stream) }.result())
    }

    pub(super) fn copy_across(&self, of: &CopyAcross) -> Result<(), String> {
        let CopyAcross { from, to } = of;
        let (context, source) = self.peers.address(from).map_err(|reason| format!("the source: {reason}"))?;
        let target = self.bytes(to, "the target")?;
        if to.bytes == 0 {
            return Ok(());
        }
        // SAFETY: both spans lie in their cards' arenas, of which the other one is kept by `peers`, and are as long as
        // each other.
        let status = unsafe {
            if context.device() == self.context.device() {
                sys::cuMemcpyDtoDAsync_v2(target, source, to.bytes, self.stream)
            } else {
                let (own, other) = (self.context.handle(), context.handle());
                sys::cuMemcpyPeerAsync(target, own, source, other, to.bytes, self.stream)
            }
        };
        self.queued(status.result())
    }

    /// This card's half of a transfer over a wire.
    pub(super) fn transfer(&self, span: &Span, end: &End) -> Result<(), String> {
        let address = self.bytes(span, "the span")?;
        if span.bytes == 0 {
            return Ok(());
        }
        // Nobody can tell how much of a transfer that fails is queued.
        self.begun.set(true);
        // SAFETY: the span lies in the arena, which outlives the stream.
        unsafe { end.transfer(address, span.bytes, self.stream) }
    }

    /// The card's side of a copy from or to the host.
    fn host_copy(&self, host: &HostSpan, card: &Span) -> Result<u64, String> {
        if host.bytes() != card.bytes {
            return Err(format!("{} bytes on the host meet {} on the card", host.bytes(), card.bytes));
        }
        self.bytes(card, "the span")
    }

    /// The address of a span of any alignment.
    fn bytes(&self, span: &Span, what: &str) -> Result<u64, String> {
        self.at_least(span, 0, what)
    }

    fn queued(&self, status: Result<(), DriverError>) -> Result<(), String> {
        status.map_err(|error| self.failed(error))?;
        self.begun.set(true);
        Ok(())
    }

    /// Notes a wait that failed.
    fn unended(&self, unended: Unended) -> String {
        match unended {
            Unended::Driver(error) => self.failed(error),
            Unended::Hung(_) => {
                self.trouble.set(Some(unended));
                "the device hangs".to_owned()
            }
        }
    }
}
