//! Page-locked buffers through which copies pass whose host memory is not page-locked.

use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::device::Context;
use super::fill::Fillers;
use super::wait::{self, PATIENCE, Unended};

/// Bytes of a buffer: large enough for the link's full rate.
const BYTES: usize = 4 << 20;

/// While the thread that queues a copy and its helpers fill one, the link empties the others.
const BUFFERS: usize = 4;

/// A card's buffers, used in turn by all its streams.
pub(super) struct Bounce {
    context: Arc<Context>,
    buffers: Vec<Buffer>,
    next: usize,
    fillers: Fillers,
}

struct Buffer {
    start: *mut u8,
    /// The end of the last copy out of it.
    emptied: sys::CUevent,
}

// SAFETY: the buffers are reached only through `&mut Bounce`; events are handles that the driver lets any thread use.
unsafe impl Send for Bounce {}

impl Bounce {
    /// Takes the buffers; the context is current.
    pub(super) fn take(context: &Arc<Context>) -> Result<Self, DriverError> {
        let buffers = Vec::with_capacity(BUFFERS);
        let mut all = Self { context: Arc::clone(context), buffers, next: 0, fillers: Fillers::of_host() };
        for _ in 0..BUFFERS {
            let emptied = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
            // SAFETY: the memory is freed once, in `drop`.
            match unsafe { result::malloc_host(BYTES, sys::CU_MEMHOSTALLOC_PORTABLE) } {
                Ok(start) => {
                    let start = start.cast::<u8>();
                    // SAFETY: `BYTES` were taken just now. They are written so that a slice of them may be made.
                    unsafe { start.write_bytes(0, BYTES) };
                    all.buffers.push(Buffer { start, emptied });
                }
                Err(error) => {
                    // SAFETY: created above, in no list.
                    let _ = unsafe { result::event::destroy(emptied) };
                    return Err(error);
                }
            }
        }
        Ok(all)
    }

    /// Copies the bytes to the card's memory on a stream. They are read before this returns; the context is current.
    ///
    /// # Safety
    /// `to` and what follows it for as many bytes is memory of the card, which the stream's order lets this copy write.
    pub(super) unsafe fn copy(&mut self, from: &[u8], to: u64, stream: sys::CUstream) -> Result<(), Unended> {
        for (piece, offset) in from.chunks(BYTES).zip((0..).step_by(BYTES)) {
            let none = DriverError(sys::CUresult::CUDA_ERROR_NOT_INITIALIZED);
            let buffer = self.buffers.get(self.next).ok_or(Unended::Driver(none))?;
            // SAFETY: the event lives until `drop`.
            unsafe { wait::event(buffer.emptied, PATIENCE) }?;
            // SAFETY: the buffer lives until `drop` and holds `BYTES`, all of them written once, of which a piece has
            // at most as many. Its last copy has ended, and `&mut self` says that nobody else fills it.
            let room = unsafe { std::slice::from_raw_parts_mut(buffer.start, piece.len()) };
            self.fillers.fill(piece, room);
            // SAFETY: event and buffer as above; the stream belongs to the current context; the caller vouches for the
            // target.
            let queued = unsafe {
                let copied = sys::cuMemcpyHtoDAsync_v2(to + offset, buffer.start.cast(), piece.len(), stream).result();
                copied.and_then(|()| result::event::record(buffer.emptied, stream))
            };
            queued.map_err(Unended::Driver)?;
            self.next = (self.next + 1) % self.buffers.len();
        }
        Ok(())
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            for buffer in self.buffers.drain(..) {
                // SAFETY: taken in `take`; the card has drained the streams that read it.
                unsafe {
                    let _ = result::event::destroy(buffer.emptied);
                    let _ = result::free_host(buffer.start.cast());
                }
            }
        }
    }
}
