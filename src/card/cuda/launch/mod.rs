//! Commands as kernel launches, one file an operation: each is checked whole before its first kernel is queued.

mod attend;
mod combine;
mod copy;
mod experts;
mod gated_activation;
mod linear;
mod rms_norm;
mod rotate;
mod route;
mod rows;
mod store_kv;
mod table;

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Mutex;

use cudarc::driver::result::DriverError;
use cudarc::driver::sys;

use super::arena::Arena;
use super::bounce::Bounce;
use super::device::Context;
use super::error::say;
use super::fault::is_of_the_call;
use super::kernels::{Grid, Kernels};
use super::module::Module;
use super::nccl;
use super::peer::Peers;
use super::wait::Unended;
use crate::card::command::Command;
use crate::card::{HostSpan, Span};

/// What launching a command needs of its card, and how far it came.
pub(super) struct Launch<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) arena: &'a Arena,
    pub(super) peers: &'a Peers,
    pub(super) context: &'a Context,
    /// For copies from host memory that is not page-locked; `None` leaves them to the driver.
    pub(super) bounce: Option<&'a Mutex<Bounce>>,
    pub(super) stream: sys::CUstream,
    /// Compute capability.
    pub(super) arch: u32,
    /// Multiprocessors.
    pub(super) processors: usize,
    /// Shared memory a block may have.
    pub(super) shared: usize,
    /// Whether something of the command is queued.
    pub(super) begun: Cell<bool>,
    /// What a driver call told that is no matter of this command: the card has failed.
    pub(super) trouble: Cell<Option<Unended>>,
}

impl Launch<'_> {
    /// Queues a command. Host memory that it uses after this returns goes to `held`.
    pub(super) fn command(&self, command: &Command, held: &mut Vec<HostSpan>) -> Result<(), String> {
        match command {
            Command::CopyIn(operation) => self.copy_in(operation, held),
            Command::CopyOut(operation) => self.copy_out(operation, held),
            Command::CopyWithin(operation) => self.copy(operation),
            Command::CopyAcross(operation) => self.copy_across(operation),
            Command::WireSend(operation) => self.transfer(&operation.from, nccl::end(&operation.over, true)?),
            Command::WireReceive(operation) => self.transfer(&operation.to, nccl::end(&operation.over, false)?),
            Command::RmsNorm(operation) => self.rms_norm(operation),
            Command::Linear(operation) => self.linear(operation),
            Command::Rotate(operation) => self.rope(operation),
            Command::StoreKv(operation) => self.store_kv(operation),
            Command::Attend(operation) => self.attention(operation, held),
            Command::GatedActivation(operation) => self.gated_activation(operation),
            Command::Route(operation) => self.route(operation, held),
            Command::RunExperts(operation) => self.experts(operation),
            Command::Combine(operation) => self.combine(operation),
        }
    }

    /// The address of a span of at least `bytes`.
    fn at_least(&self, span: &Span, bytes: usize, what: &str) -> Result<u64, String> {
        if span.bytes < bytes {
            return Err(format!("{what} has {} bytes, {bytes} are needed", span.bytes));
        }
        let address = self.arena.address(span).map_err(|reason| format!("{what}: {reason}"))?;
        if address % 4 != 0 && bytes > 0 {
            return Err(format!("{what} is not aligned to 4 bytes"));
        }
        Ok(address)
    }

    /// The address of `count` f32 or u32.
    fn words(&self, span: &Span, count: usize, what: &str) -> Result<u64, String> {
        self.at_least(span, count.saturating_mul(4), what)
    }

    /// The address of bytes that kernels load 16 at a time.
    fn wide(&self, span: &Span, bytes: usize, what: &str) -> Result<u64, String> {
        let address = self.at_least(span, bytes, what)?;
        if address % 16 != 0 && bytes > 0 {
            return Err(format!("{what} is not aligned to 16 bytes"));
        }
        Ok(address)
    }

    /// Queues a kernel.
    ///
    /// # Safety
    /// As for [`Kernels::launch`].
    unsafe fn launch(
        &self,
        module: Module,
        kernel: &'static str,
        grid: Grid,
        arguments: &mut [*mut c_void],
    ) -> Result<(), String> {
        // SAFETY: the caller vouches for the arguments.
        let status = unsafe { self.kernels.launch(self.stream, module, kernel, grid, arguments) }?;
        status.map_err(|error| format!("{kernel}: {}", self.failed(error)))?;
        self.begun.set(true);
        Ok(())
    }

    /// The text of a driver's error, which is noted where the device has failed.
    fn failed(&self, error: DriverError) -> String {
        if !is_of_the_call(error) {
            self.trouble.set(Some(Unended::Driver(error)));
        }
        say(error)
    }
}
