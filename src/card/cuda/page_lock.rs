//! Page-locked host memory: registered with the driver for all devices of the process.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::result::DriverError;
use cudarc::driver::sys;

use super::device::Context;
use super::error::say;
use crate::card::PageLock;

/// Memory is registered in pieces of this size, counted from the buffer's start; a copy is cut at their edges.
pub(super) const PIECE: usize = 1 << 30;

/// Registers host memory in the context of one card, portable to the others.
pub(super) struct CudaPageLock(pub(super) Arc<Context>);

struct Registered {
    context: Arc<Context>,
    pieces: Vec<*mut u8>,
}

// SAFETY: the pointers are only given back to the driver, which may be called from any thread.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl PageLock for CudaPageLock {
    unsafe fn lock(&self, start: *mut u8, bytes: usize) -> Result<Box<dyn Send + Sync>, String> {
        self.0.bind().map_err(say)?;
        let mut done = Registered { context: Arc::clone(&self.0), pieces: Vec::new() };
        for offset in (0..bytes).step_by(PIECE) {
            let piece = start.wrapping_add(offset);
            let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
            // SAFETY: the caller keeps these bytes allocated until the guard is dropped, which unregisters them. On an
            // error the guard made so far is dropped here.
            let status = unsafe { sys::cuMemHostRegister_v2(piece.cast::<c_void>(), PIECE.min(bytes - offset), flags) };
            status.result().map_err(|error| format!("page-locking byte {offset} of {bytes}: {}", say(error)))?;
            done.pieces.push(piece);
        }
        Ok(Box::new(done))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            for piece in &self.pieces {
                // SAFETY: registered in `lock`, unregistered once.
                let _ = unsafe { sys::cuMemHostUnregister(piece.cast::<c_void>()) };
            }
        }
    }
}

/// The address a device uses for page-locked host memory.
pub(super) fn device_address(host: *mut u8) -> Result<u64, DriverError> {
    let mut address = 0;
    // SAFETY: writes one address; the driver refuses memory that is not registered.
    unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut address, host.cast::<c_void>(), 0) }.result()?;
    Ok(address)
}
