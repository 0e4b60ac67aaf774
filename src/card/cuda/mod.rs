//! NVIDIA GPUs from compute capability 7.5 on.
//!
//! A [`CudaCard`] takes its whole memory at once, compiles what the model needs (or takes it from a cache on disk) and
//! runs each [`Stream`](super::Stream) as a stream of the driver. Nothing here needs CUDA at build time or, until a
//! card is opened, at run time.
#![allow(unsafe_code)]

mod arena;
mod bounce;
mod cache;
mod card;
mod compile;
mod device;
mod driver;
mod error;
mod event;
mod fault;
mod fill;
mod kernels;
mod launch;
mod line;
mod module;
mod nccl;
mod nvrtc;
mod page_lock;
mod peer;
mod product;
mod target;
mod trace;
mod wait;

pub use card::{CudaCard, CudaSettings};
pub use compile::{Built, Compiler, CompilerSettings};
pub use device::{CudaDevice, probe};
pub use driver::{LEAST_DRIVER, SYMBOLS, driver_version, has_driver};
pub use error::CudaError;
pub use module::{Module, TensorKv};
pub use nvrtc::{Compiled, Nvrtc};
pub use target::{Form, PACKAGED, Target, shared_limit};
