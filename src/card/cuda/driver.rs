//! The NVIDIA driver's library: whether it is there, how old it is, and whether it has what is called.
//!
//! The bindings look a function up when it is first called, and panic where the library lacks it. So everything that is
//! called is listed here and looked up once, before anything else.

use std::ffi::c_void;
use std::sync::OnceLock;

use cudarc::driver::result::DriverError;
use cudarc::driver::sys;

use super::error::{CudaError, while_doing};

/// The oldest CUDA version of a driver: the first whose cards and compilers (NVRTC 12) are tried.
pub const LEAST_DRIVER: (u32, u32) = (12, 0);

/// The newest CUDA there is a compiler of.
const NEWEST: (u32, u32) = (13, u32::MAX);

/// All that is called of the driver. The newest, `cuLaunchKernelEx`, came with CUDA 11.8.
pub const SYMBOLS: &[&str] = &[
    "cuCtxEnablePeerAccess",
    "cuCtxSetCurrent",
    "cuDeviceCanAccessPeer",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuLaunchKernelEx",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyPeerAsync",
    "cuMemsetD8_v2",
    "cuModuleGetFunction",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// Whether the driver library is there; asked once.
pub fn has_driver() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    *PRESENT.get_or_init(|| {
        // SAFETY: loads the driver library and drops the handle again; nothing of it is called.
        unsafe { sys::is_culib_present() }
    })
}

/// Refuses a driver that is too old or lacks a function; [`has_driver`] has said that there is one.
pub(super) fn check() -> Result<(), CudaError> {
    // SAFETY: the library is there; a symbol is looked up, not called.
    let has = |symbol: &str| unsafe { sys::culib().get::<*const c_void>(symbol.as_bytes()) }.is_ok();
    judge(has, || version().map_err(while_doing("asking the driver's version")))
}

/// As [`check`], of any library.
fn judge(has: impl Fn(&str) -> bool, version: impl FnOnce() -> Result<(u32, u32), CudaError>) -> Result<(), CudaError> {
    let missing = || SYMBOLS.iter().find(|symbol| !has(symbol));
    if has("cuDriverGetVersion") {
        let found = version()?;
        if found < LEAST_DRIVER {
            return Err(CudaError::OldDriver { found, least: LEAST_DRIVER });
        }
    }
    missing().map_or(Ok(()), |symbol| Err(CudaError::IncompleteDriver { symbol, least: LEAST_DRIVER }))
}

/// The CUDA version whose kernels the driver loads; the newest one where there is no driver.
pub fn driver_version() -> (u32, u32) {
    let found = if has_driver() { version().ok() } else { None };
    found.filter(|(major, _)| *major > 0).unwrap_or(NEWEST)
}

/// The CUDA version the driver supports, such as 13.0.
fn version() -> Result<(u32, u32), DriverError> {
    let mut version = 0;
    // SAFETY: writes one int.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result()?;
    let version = u32::try_from(version).unwrap_or(0);
    Ok((version / 1000, version % 1000 / 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_incomplete_drivers_are_told() {
        let judged = |version: (u32, u32), lacks: &str| judge(|symbol| symbol != lacks, || Ok(version));
        assert!(judged((12, 0), "").is_ok() && judged((13, 0), "").is_ok());
        let old = judged((11, 8), "").unwrap_err().to_string();
        assert!(old.contains("CUDA 11.8") && old.contains("12.0 is needed") && old.contains("--devices none"), "{old}");
        // A driver of CUDA 11.4 lacks functions, too: its age is the better reason.
        assert!(matches!(judged((11, 4), "cuLaunchKernelEx"), Err(CudaError::OldDriver { .. })));
        let incomplete = judged((12, 4), "cuLaunchKernelEx").unwrap_err().to_string();
        assert!(incomplete.contains("cuLaunchKernelEx"), "{incomplete}");
        assert!(matches!(judged((12, 4), "cuDriverGetVersion"), Err(CudaError::IncompleteDriver { .. })));
    }
}
