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
        "the CUDA run-time compiler (libnvrtc.so) was not found, and nothing that was compiled before serves this card. Install it: {install}. \
         Or name its path (--nvrtc). Looked at: {}",
        searched.join(", ")
    )]
    NoCompiler {
        /// All places that were tried.
        searched: Vec<String>,
        /// How it is installed.
        install: &'static str,
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
    #[error("the {module} kernels do not compile for {target}:\n{log}")]
    Compile {
        /// The module.
        module: String,
        /// What they were compiled for.
        target: String,
        /// The compiler's messages.
        log: String,
    },
    /// PTX of a newer compiler than the driver knows.
    #[error(
        "{}: PTX of NVRTC {}.{} does not load in a driver of CUDA {}.{}. Name an older compiler (--nvrtc) or update the driver",
        path.display(), version.0, version.1, driver.0, driver.1
    )]
    CompilerTooNew {
        /// The library.
        path: PathBuf,
        /// Its version.
        version: (u32, u32),
        /// The driver's version.
        driver: (u32, u32),
    },
    /// Kernels of another capability were asked for, which the card does not run.
    #[error(
        "a card of compute capability {}.{} does not run kernels for {}.{}: --kernels-for takes 75, 80, 86, 89 or 120 up to the card's own, and \
         90 on a card of 9.0",
        device / 10, device % 10, arch / 10, arch % 10
    )]
    NotOnThisCard {
        /// The capability asked for.
        arch: u32,
        /// The card's.
        device: u32,
    },
    /// The driver is older than what is called of it.
    #[error(
        "the NVIDIA driver is of CUDA {}.{}: CUDA {}.{} is needed (Linux driver 525.60.13 or newer). Update the driver, or use `--devices none` \
         for the CPU", found.0, found.1, least.0, least.1
    )]
    OldDriver {
        /// The CUDA version of the driver.
        found: (u32, u32),
        /// The least one.
        least: (u32, u32),
    },
    /// The driver's library lacks a function.
    #[error("the NVIDIA driver's library has no `{symbol}`. Install a driver of CUDA {}.{} or newer, or use `--devices none` for the CPU", least.0, least.1)]
    IncompleteDriver {
        /// The function.
        symbol: &'static str,
        /// The least driver.
        least: (u32, u32),
    },
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
