//! The staging pool: pool slots lent during a prompt, through which streamed cells pass, one attention layer at a time.
//!
//! A layer's cached prefix passes as one tile where the pool holds it, else in tiles; tile `t` takes place `t mod
//! places`. The walk over (layer, tile) is known when a wave begins. With prefetch off a tile is copied on the compute
//! stream when it is wanted. With prefetch on it is copied on the kv-in stream as soon as the last reader of its place
//! is queued, behind that reader's event.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::cells::HostCells;
use crate::card::command::CopyIn;
use crate::card::{Card, Command, Event, Lease, Span, Stream};
use crate::engine::counters::Counters;
use crate::engine::sequence::SequenceId;
use crate::engine::{EngineError, waits};
use crate::ops::CellLayout;
use crate::plan::KvPlan;

/// Streams that use the pool, drained when the lease ends.
const USERS: [Stream; 2] = [Stream::KvIn, Stream::Compute];

/// A tile crosses the link in copies of at most this many bytes, so that copies of experts come in between.
const PIECE: usize = 4 << 20;

/// What the staging pool needs of its stage.
pub(in crate::engine) struct StagingParts<'a> {
    pub card: &'a Arc<dyn Card>,
    pub counters: &'a Counters,
    /// Where the cells come from.
    pub host: &'a HostCells,
    /// For each layer, the end of the copy of its newest cells to host memory.
    pub written: &'a [Option<Event>],
    /// The layout of each layer's cells.
    pub layouts: &'a [CellLayout],
}

/// A place of the pool.
#[derive(Clone)]
enum Place {
    /// Its last reader is queued, and ends with the event.
    Free(Option<Event>),
    /// It holds a tile that is not read yet.
    Taken,
}

/// The staging pool of a prompt.
pub(in crate::engine) struct Staging {
    lease: Lease,
    kv: KvPlan,
    sequence: SequenceId,
    /// The wave's cached prefix in host memory.
    prefix: Range<usize>,
    places: Vec<Place>,
    /// The next entry of the walk to be copied ahead: `layer * tiles + tile`.
    next: usize,
    /// Arrivals of tiles that were copied ahead and not asked for yet, in order.
    ready: VecDeque<Event>,
    last_reader: Option<Event>,
}

impl Staging {
    /// Lends `span`, whose residents may still be on their way back until `refilled`.
    ///
    /// # Errors
    /// When the card refuses the wait.
    pub fn start(card: &Arc<dyn Card>, span: Span, kv: KvPlan, refilled: Option<&Event>) -> Result<Self, EngineError> {
        if let Some(refilled) = refilled.filter(|_| kv.prefetch) {
            card.wait(Stream::KvIn, refilled, waits::RESIDENTS_BACK)?;
        }
        let lease = Lease::new(Arc::clone(card), &[span], &USERS, waits::STAGING_RETURNED);
        Ok(Self {
            lease,
            kv,
            sequence: SequenceId(0),
            prefix: 0..0,
            places: Vec::new(),
            next: 0,
            ready: VecDeque::new(),
            last_reader: None,
        })
    }

    /// Drains and ends the lease.
    ///
    /// # Errors
    /// What the drain found.
    pub fn end(self) -> Result<(), EngineError> {
        Ok(self.lease.end()?)
    }

    /// A wave begins at position `first` of a sequence. With prefetch on, its first layer's tiles are copied now.
    ///
    /// # Errors
    /// When the card refuses a copy.
    pub fn begin(&mut self, parts: &StagingParts<'_>, sequence: SequenceId, first: usize) -> Result<(), EngineError> {
        self.sequence = sequence;
        self.prefix = self.kv.resident..first.max(self.kv.resident);
        let places = if self.tiled() { self.kv.staging / self.kv.tile } else { 1 };
        // Places of this wave may overlap others of the last one: all wait for its last reader.
        self.places = vec![Place::Free(self.last_reader.clone()); places];
        self.next = 0;
        self.copy_ahead(parts)
    }

    fn tiled(&self) -> bool {
        self.prefix.len() > self.kv.staging
    }

    /// Tiles of a layer's cached prefix.
    pub fn tiles(&self) -> usize {
        if self.tiled() { self.prefix.len().div_ceil(self.kv.tile) } else { usize::from(!self.prefix.is_empty()) }
    }

    /// Cells of a tile.
    pub fn cells(&self, tile: usize) -> Range<usize> {
        if !self.tiled() {
            return self.prefix.clone();
        }
        let start = self.prefix.start + tile * self.kv.tile;
        start..self.prefix.end.min(start + self.kv.tile)
    }

    /// Makes compute have a layer's tile, and says where it stands. Tiles are asked for in the order of the walk.
    ///
    /// # Errors
    /// When the card refuses a wait or copy.
    pub fn arrive(&mut self, parts: &StagingParts<'_>, layer: usize, tile: usize) -> Result<Span, EngineError> {
        if self.kv.prefetch {
            let early = || EngineError::Internal(format!("tile {tile} of layer {layer} was not copied ahead"));
            let ready = self.ready.pop_front().ok_or_else(early)?;
            parts.counters.cells_waited(!parts.card.finished(&ready)?);
            parts.card.wait(Stream::Compute, &ready, waits::CELLS_READY)?;
            self.place(parts, layer, tile)
        } else {
            let bytes = self.copy(parts, Stream::Compute, layer, tile)?;
            parts.counters.cells_staged(bytes);
            self.place(parts, layer, tile)
        }
    }

    /// The last reader of a tile is queued on the compute stream.
    ///
    /// # Errors
    /// When the card refuses a copy that may start now.
    pub fn release(&mut self, parts: &StagingParts<'_>, tile: usize) -> Result<(), EngineError> {
        if !self.kv.prefetch {
            return Ok(());
        }
        let read = parts.card.record(Stream::Compute)?;
        let places = self.places.len().max(1);
        if let Some(place) = self.places.get_mut(tile % places) {
            *place = Place::Free(Some(read.clone()));
        }
        self.last_reader = Some(read);
        self.copy_ahead(parts)
    }

    /// Copies what the walk has next, as long as its place has no reader to come.
    fn copy_ahead(&mut self, parts: &StagingParts<'_>) -> Result<(), EngineError> {
        let tiles = self.tiles();
        if !self.kv.prefetch || tiles == 0 {
            return Ok(());
        }
        while self.next < tiles * parts.layouts.len() {
            let (layer, tile) = (self.next / tiles, self.next % tiles);
            let places = self.places.len().max(1);
            let Some(place) = self.places.get_mut(tile % places) else { return Ok(()) };
            let Place::Free(reader) = std::mem::replace(place, Place::Taken) else { return Ok(()) };
            if let Some(reader) = reader {
                parts.card.wait(Stream::KvIn, &reader, waits::CELLS_RELEASED)?;
            }
            let bytes = self.copy(parts, Stream::KvIn, layer, tile)?;
            parts.counters.cells_prefetched(bytes);
            self.ready.push_back(parts.card.record(Stream::KvIn)?);
            self.next += 1;
        }
        Ok(())
    }

    /// Queues the copy of a tile, behind the one that brought its newest cells to host memory. Returns its bytes.
    fn copy(&self, parts: &StagingParts<'_>, on: Stream, layer: usize, tile: usize) -> Result<usize, EngineError> {
        if let Some(written) = parts.written.get(layer).and_then(Option::as_ref) {
            parts.card.wait(on, written, waits::CELLS_WRITTEN)?;
        }
        let from = parts.host.get(layer, self.sequence, self.cells(tile))?;
        let to = self.place(parts, layer, tile)?;
        let too_large = || EngineError::Internal("a tile is larger than its place".to_owned());
        let mut at = 0;
        while at < to.bytes {
            let bytes = PIECE.min(to.bytes - at);
            let from = from.part(at, bytes).ok_or_else(too_large)?;
            parts.card.submit(on, Command::CopyIn(CopyIn { from, to: to.part(at, bytes) }))?;
            at += bytes;
        }
        Ok(to.bytes)
    }

    /// Where a tile stands.
    fn place(&self, parts: &StagingParts<'_>, layer: usize, tile: usize) -> Result<Span, EngineError> {
        let missing =
            || EngineError::Internal(format!("the staging pool has no place for tile {tile} of layer {layer}"));
        let bytes = parts.layouts.get(layer).ok_or_else(missing)?.cell_bytes();
        let start = tile % self.places.len().max(1) * self.kv.tile * bytes;
        let length = self.cells(tile).len() * bytes;
        let span = self.lease.spans().first().filter(|span| start + length <= span.bytes).ok_or_else(missing)?;
        Ok(span.part(start, length))
    }
}
