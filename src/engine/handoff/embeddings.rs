//! The first stage's way in.

use std::sync::Arc;

use super::Free;
use crate::card::command::CopyIn;
use crate::card::{Card, Command, Event, HostBuf, HostMemory, Span, Stream};
use crate::engine::layer::F32;
use crate::engine::{EngineError, waits};

/// The first stage's way in: embeddings are written by the host and copied to the card.
pub(in crate::engine) struct Embeddings {
    buffer: HostBuf,
    taken: Option<Event>,
}

impl Embeddings {
    /// A buffer of `bytes`.
    pub fn new(host: &HostMemory, bytes: usize) -> Result<Self, EngineError> {
        Ok(Self { buffer: host.alloc(bytes, "embeddings")?, taken: None })
    }

    /// Lets `write` fill the rows and copies them into `hidden`, which is free after `free`. Returns the event of their
    /// arrival.
    pub fn send(
        &mut self,
        card: &Arc<dyn Card>,
        hidden: Span,
        free: Option<&Free>,
        write: impl FnOnce(&mut [f32]) -> Result<(), EngineError>,
    ) -> Result<Event, EngineError> {
        if let Some(taken) = self.taken.take() {
            card.sync(&taken, waits::EMBEDDINGS_TAKEN)?;
        }
        let too_long = || EngineError::Internal(format!("{} rows exceed the wave", hidden.bytes / F32));
        let from = self.buffer.span(0, hidden.bytes).ok_or_else(too_long)?;
        from.write(|bytes| write(bytemuck::cast_slice_mut(bytes)))??;
        Free::wait(free, card.as_ref())?;
        card.submit(Stream::HandOff, Command::CopyIn(CopyIn { from, to: hidden }))?;
        let arrived = card.record(Stream::HandOff)?;
        self.taken = Some(arrived.clone());
        Ok(arrived)
    }

    /// Forgets the last copy, after a drain.
    pub fn reset(&mut self) {
        self.taken = None;
    }
}
