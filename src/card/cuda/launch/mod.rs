//! Commands as kernel launches: each is checked whole before its first kernel is queued.

mod attention;
mod copy;
mod elementwise;
mod experts;
mod linear;
mod router;
mod table;

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Mutex;

use cudarc::driver::sys;

use super::arena::Arena;
use super::bounce::Bounce;
use super::device::Context;
use super::kernels::{Grid, Kernels};
use super::module::Module;
use super::nccl;
use super::peer::Peers;
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
}

impl Launch<'_> {
    /// Queues a command. Host memory that it uses after this returns goes to `held`.
    pub(super) fn command(&self, command: &Command, held: &mut Vec<HostSpan>) -> Result<(), String> {
        match command {
            Command::CopyIn { from, to } => self.copy_in(from, to, held),
            Command::CopyOut { from, to } => self.copy_out(from, to, held),
            Command::Copy { from, to } => self.copy(from, to),
            Command::CopyAcross { from, to } => self.copy_across(from, to),
            Command::Send { from, over } => self.transfer(from, nccl::end(over, true)?),
            Command::Receive { to, over } => self.transfer(to, nccl::end(over, false)?),
            Command::RmsNorm { x, weight, eps, rows, cols, out } => self.rms_norm(x, weight, *eps, [*rows, *cols], out),
            Command::Rope { x, rows, heads, head_dim, first, rope } => {
                self.rope(x, [*rows, *heads, *head_dim], *first, rope)
            }
            Command::StoreKv { k, v, layout, cells } => self.store_kv(k, v, layout, cells),
            Command::GatedActivation { gate, up, elements, activation, out } => {
                self.gated_activation(gate, up, *elements, *activation, out)
            }
            Command::Linear { x, rows, parts, into, phase, scratch } => {
                self.linear(x, *rows, parts, *into, *phase, scratch)
            }
            Command::Attention { q, rows, first, shape, layout, cells, beyond, state, resume, end, phase, scratch } => {
                let attention = attention::Attention {
                    rows: *rows,
                    first: *first,
                    shape,
                    layout,
                    resume: *resume,
                    beyond: beyond.as_ref(),
                    end: *end,
                    phase: *phase,
                };
                self.attention(&attention, q, cells, state, scratch, held)
            }
            Command::Route { logits, rule, routing, routed } => {
                self.route(logits, rule, routing, routed.as_ref(), held)
            }
            Command::Experts { x, routing, layout, experts, into, scratch } => {
                self.experts(x, routing, layout, experts, *into, scratch)
            }
            Command::Combine { routing, slots, host_slots, held, width, out } => {
                self.combine(routing, slots, host_slots.as_ref(), held, *width, out)
            }
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
        unsafe { self.kernels.launch(self.stream, module, kernel, grid, arguments) }?;
        self.begun.set(true);
        Ok(())
    }
}
