//! The NVIDIA devices of this machine, and a device's context.

use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::driver;
use super::error::{CudaError, while_doing};
use crate::units::Bytes;

/// A device the driver sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaDevice {
    /// Its number for the driver (after `CUDA_VISIBLE_DEVICES`).
    pub ordinal: usize,
    /// Its name, such as `NVIDIA H200`.
    pub name: String,
    /// Its UUID, as `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
    pub uuid: String,
    /// Its PCI address, such as `0000:01:00.0`.
    pub pci: String,
    /// Compute capability, such as 90 for 9.0.
    pub arch: u32,
    /// Device memory.
    pub memory: Bytes,
    /// Multiprocessors.
    pub processors: u32,
    /// Shared memory a block may have.
    pub shared: usize,
}

fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<i32, DriverError> {
    // SAFETY: `device` came from `cuDeviceGet`.
    unsafe { result::device::get_attribute(device, which) }
}

/// The devices that CUDA cards can be opened on. Empty where there is no driver or no device; never panics.
///
/// # Errors
/// When the driver is there but too old, or does not answer.
pub fn probe() -> Result<Vec<CudaDevice>, CudaError> {
    if !driver::has_driver() {
        return Ok(Vec::new());
    }
    driver::check()?;
    match result::init() {
        Ok(()) => {}
        Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => return Ok(Vec::new()),
        Err(error) => return Err(while_doing("starting the CUDA driver")(error)),
    }
    let count = result::device::get_count().map_err(while_doing("counting the CUDA devices"))?;
    (0..usize::try_from(count).unwrap_or(0)).map(describe).collect()
}

fn describe(ordinal: usize) -> Result<CudaDevice, CudaError> {
    use sys::CUdevice_attribute as A;
    let doing = || while_doing(format!("asking CUDA device {ordinal}"));
    let device = result::device::get(i32::try_from(ordinal).unwrap_or(i32::MAX)).map_err(doing())?;
    let number = |which| attribute(device, which).map(|n| u32::try_from(n).unwrap_or(0));
    let major = number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR).map_err(doing())?;
    let minor = number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR).map_err(doing())?;
    let processors = number(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).map_err(doing())?;
    let shared = number(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN).map_err(doing())? as usize;
    let name = result::device::get_name(device).map_err(doing())?;
    let uuid = uuid_bytes(device).map_err(doing())?;
    // SAFETY: `device` came from `cuDeviceGet`.
    let memory = unsafe { result::device::total_mem(device) }.map_err(doing())?;
    Ok(CudaDevice {
        ordinal,
        name,
        uuid: uuid_text(&uuid),
        pci: pci_text(device).map_err(doing())?,
        arch: major * 10 + minor,
        memory: Bytes(memory as u64),
        processors,
        shared,
    })
}

fn uuid_bytes(device: sys::CUdevice) -> Result<[u8; 16], DriverError> {
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: writes 16 bytes.
    unsafe { sys::cuDeviceGetUuid_v2(&raw mut uuid, device) }.result()?;
    Ok(uuid.bytes.map(|byte| byte.cast_unsigned()))
}

fn uuid_text(bytes: &[u8; 16]) -> String {
    let mut text = String::from("GPU-");
    for (i, byte) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

fn pci_text(device: sys::CUdevice) -> Result<String, DriverError> {
    let mut text = [0_i8; 16];
    // SAFETY: the driver writes at most 16 bytes, the last of them zero.
    unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), 16, device) }.result()?;
    Ok(text.iter().take_while(|c| **c != 0).map(|c| char::from(c.cast_unsigned())).collect())
}

/// A device's primary context, kept while it lives.
pub(super) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// Set where the device hangs: a call to free what it may still use would hang, too.
    abandoned: AtomicBool,
}

// SAFETY: a context may be current on any number of threads; the driver serialises what it must.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The primary context of a device.
    pub(super) fn retain(ordinal: usize) -> Result<Self, DriverError> {
        let device = result::device::get(i32::try_from(ordinal).unwrap_or(i32::MAX))?;
        // SAFETY: `device` came from `cuDeviceGet`; `drop` releases it once.
        let context = unsafe { result::primary_ctx::retain(device) }?;
        Ok(Self { device, context, abandoned: AtomicBool::new(false) })
    }

    /// The driver's number of its device.
    pub(super) fn device(&self) -> sys::CUdevice {
        self.device
    }

    /// The driver's handle.
    pub(super) fn handle(&self) -> sys::CUcontext {
        self.context
    }

    /// Leaves all that was made in the context to the end of the process: it can be bound no more.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
    }

    /// Makes it the calling thread's context.
    pub(super) fn bind(&self) -> Result<(), DriverError> {
        if self.abandoned.load(Ordering::Acquire) {
            return Err(DriverError(sys::CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED));
        }
        // SAFETY: the context is retained until `drop`.
        unsafe { result::ctx::set_current(self.context) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.abandoned.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: retained once in `retain`; everything made in it holds an `Arc` of this and is gone.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}
