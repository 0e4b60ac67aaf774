//! What can go wrong before a CUDA card runs: finding it, compiling its kernels, taking its memory.

use std::path::PathBuf;

use cudarc::driver::result::DriverError;
use thiserror::Error;

use crate::units::{Bytes, CardId};

/// An error while a CUDA card is opened or its kernels are built.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver is not installed.
    #[error("no NVIDIA driver: libcuda.so could not be loaded")]
    NoDriver,
    /// The driver has no such device.
    #[error("CUDA device {ordinal} does not exist: the driver sees {found}")]
    NoDevice {
        /// The device asked for.
        ordinal: usize,
        /// Devices there are.
        found: usize,
    },
    /// The device is older than the kernels can be.
    #[error("CUDA device {ordinal} ({name}) has compute capability {major}.{minor}: 7.5 or newer is needed")]
    TooOld {
        /// The device.
        ordinal: usize,
        /// Its name.
        name: String,
        /// Its compute capability.
        major: u32,
        /// Its compute capability.
        minor: u32,
    },
    /// A driver call failed.
    #[error("{doing}: {reason}")]
    Driver {
        /// What was being done.
        doing: String,
        /// What the driver said.
        reason: String,
    },
    /// The arena could not be taken.
    #[error("{card}: its budget of {wanted} could not be taken: {free} of {total} is free on the device ({reason})")]
    Arena {
        /// The card.
        card: CardId,
        /// The budget.
        wanted: Bytes,
        /// Free device memory.
        free: Bytes,
        /// Device memory.
        total: Bytes,
        /// What the driver said.
        reason: String,
    },
    /// No compiler was found.
    #[error(
        "the CUDA run-time compiler (libnvrtc.so) was not found. Looked at: {}. Install it (`pip install {package}`) or name its path",
        searched.join(", ")
    )]
    NoCompiler {
        /// All places that were tried.
        searched: Vec<String>,
        /// The Python package that holds it.
        package: &'static str,
    },
    /// A compiler library could not be used.
    #[error("{}: {reason}", path.display())]
    Compiler {
        /// The library.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Kernels did not compile.
    #[error("the {module} kernels do not compile for sm_{arch}:\n{log}")]
    Compile {
        /// The module.
        module: String,
        /// The architecture.
        arch: u32,
        /// The compiler's messages.
        log: String,
    },
    /// The kernel cache could not be written.
    #[error("the kernel cache: {0}")]
    Cache(#[from] std::io::Error),
    /// A compiled module lacks a kernel.
    #[error("the {module} kernels have no `{kernel}`: {reason}")]
    NoKernel {
        /// The module.
        module: String,
        /// The kernel.
        kernel: &'static str,
        /// What the driver said.
        reason: String,
    },
}

/// The driver's name and text of an error.
pub(super) fn say(error: DriverError) -> String {
    let name = error.error_name().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let text = error.error_string().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    format!("{name} ({text})")
}

/// Names what was being done when a driver call failed.
pub(super) fn while_doing(doing: impl Into<String>) -> impl FnOnce(DriverError) -> CudaError {
    move |error| CudaError::Driver { doing: doing.into(), reason: say(error) }
}
