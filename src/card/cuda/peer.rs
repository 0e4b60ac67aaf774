//! Other GPUs, seen from one: copying from their memory, and joining them by a wire.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use cudarc::driver::sys;

use super::arena::Arena;
use super::device::Context;
use super::error::say;
use crate::card::{Neighbour, Span};
use crate::units::CardId;

/// A GPU as others see it.
#[derive(Clone)]
pub(super) struct Peer {
    pub(super) context: Arc<Context>,
    pub(super) arena: Arc<Arena>,
}

/// The GPUs whose memory a card may read.
#[derive(Default)]
pub(super) struct Peers(RwLock<HashMap<CardId, Arc<Peer>>>);

impl Peer {
    /// The GPU behind a neighbour.
    pub(super) fn of(neighbour: &Neighbour) -> Result<Arc<Self>, String> {
        Arc::clone(&neighbour.inner).downcast().map_err(|_| format!("{} is no NVIDIA GPU", neighbour.card))
    }
}

impl Peers {
    /// Opens another GPU's memory to copies on the GPU of `own`.
    pub(super) fn open(&self, own: &Context, neighbour: &Neighbour) -> Result<(), String> {
        let peer = Peer::of(neighbour)?;
        // Both ways: which of the two GPUs drives a copy is the driver's choice.
        enable(own, &peer.context)?;
        enable(&peer.context, own)?;
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(neighbour.card, peer);
        Ok(())
    }

    /// The context and address of another GPU's span.
    pub(super) fn address(&self, span: &Span) -> Result<(Arc<Context>, u64), String> {
        let peers = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let peer = peers.get(&span.card).ok_or_else(|| format!("the memory of {} is not in reach", span.card))?;
        Ok((Arc::clone(&peer.context), peer.arena.address(span)?))
    }
}

/// Lets the GPU of one context read and write the memory of another's; two cards of one GPU can anyway.
fn enable(own: &Context, other: &Context) -> Result<(), String> {
    if own.device() == other.device() {
        return Ok(());
    }
    let mut can = 0;
    // SAFETY: writes one int; both devices came from the driver.
    unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, own.device(), other.device()) }.result().map_err(say)?;
    if can == 0 {
        let (own, other) = (own.device(), other.device());
        return Err(format!("the driver offers no peer access from CUDA device {own} to {other}"));
    }
    own.bind().map_err(say)?;
    // SAFETY: both contexts are retained.
    match unsafe { sys::cuCtxEnablePeerAccess(other.handle(), 0) } {
        sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        status => status.result().map_err(|error| format!("enabling peer access: {}", say(error))),
    }
}
