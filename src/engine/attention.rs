//! A layer's attention over resident, staged and new cells in a prompt, and over the card's and the host's cells in a
//! decode step.

use std::ops::Range;

use super::buffers::part_of;
use super::kv::Streamed;
use super::kv::host::HostRow;
use super::kv::staging::StagingParts;
use super::kv::tail::tile_start;
use super::layer::{F32, Part};
use super::sequence::SequenceId;
use super::stage::Stage;
use super::weights::Attention;
use super::{EngineError, waits};
use crate::card::command::{Attend, AttentionEnd, Cells, CopyIn, CopyOut, CopyWithin, Phase, StoreKv};
use crate::card::{Command, HostBuf, HostSpan, Span, Stream};
use crate::plan::Use;

/// Rows of queries, keys and values, rotated, and where the results go.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    /// f32 `[rows, heads * head_dim]`.
    pub q: Span,
    /// f32 `[rows, kv_heads * head_dim]`.
    pub k: Span,
    /// f32 `[rows, kv_heads * value_dim]`.
    pub v: Span,
    /// f32 `[rows, heads * value_dim]`.
    pub attended: Span,
}

/// The cells that one attention command takes.
#[derive(Default)]
struct CellRange {
    cells: Vec<Cells>,
    host_cells: Option<Cells<HostSpan>>,
    resume: bool,
    last: bool,
}

impl Heads {
    /// Some of the rows.
    fn rows(&self, mixer: &Attention, rows: Range<usize>) -> Self {
        let shape = &mixer.shape;
        let of = |span: Span, elements: usize| span.rows(rows.clone(), elements * F32);
        Self {
            q: of(self.q, shape.heads * shape.head_dim),
            k: of(self.k, shape.kv_heads * shape.head_dim),
            v: of(self.v, shape.kv_heads * shape.value_dim),
            attended: of(self.attended, shape.heads * shape.value_dim),
        }
    }
}

impl Stage {
    /// A wave's rows: their cells are stored, then they attend to all cells up to their own, tile by tile in absolute
    /// order.
    pub(super) fn attend_wave(
        &mut self,
        place: usize,
        mixer: &Attention,
        heads: &Heads,
        part: &Part,
    ) -> Result<(), EngineError> {
        let own = part.first..part.first + part.rows.len();
        let resident = self.kv.resident();
        self.store_resident(place, mixer, heads, part.sequence, own.start..own.end.min(resident))?;
        let mut cells = Vec::with_capacity(3);
        if resident > 0 {
            cells.push(self.kv.get(place, part.sequence, 0..own.end.min(resident))?);
        }
        let (mut resume, mut tiles) = (false, 0);
        if own.end > resident {
            let new = own.start.max(resident)..own.end;
            self.store_streamed(place, mixer, heads, part, &new)?;
            tiles = self.streamed.as_ref().and_then(|at| at.staging.as_ref()).map_or(0, |staging| staging.tiles());
            for tile in 0..tiles {
                cells.extend(self.staged(place, mixer, tile, new.start, tile + 1 == tiles)?);
                if tile + 1 < tiles {
                    let range = CellRange { cells: std::mem::take(&mut cells), resume, ..CellRange::default() };
                    self.attend_cells(Phase::Prompt, mixer, heads, own.start, range)?;
                    self.release(tile)?;
                    resume = true;
                }
            }
            let tail = &self.streamed()?.tail;
            cells.push(tail.get(&mixer.cells, new.start, tile_start(new.start)..new.end)?);
        }
        let last = CellRange { cells, resume, last: true, ..CellRange::default() };
        self.attend_cells(Phase::Prompt, mixer, heads, own.start, last)?;
        if tiles > 0 { self.release(tiles - 1) } else { Ok(()) }
    }

    /// A step's rows, each of another sequence. Of cells in host memory the card attends the older ones over its link,
    /// and the host pool its share of the newest at the same time.
    pub(super) fn attend_step(
        &mut self,
        place: usize,
        mixer: &Attention,
        heads: &Heads,
        parts: &[Part],
    ) -> Result<(), EngineError> {
        let resident = self.kv.resident();
        for part in parts.iter().filter(|part| part.first < resident) {
            let own = heads.rows(mixer, part.rows.clone());
            self.store_resident(place, mixer, &own, part.sequence, part.first..part.first + 1)?;
            let cells = vec![self.kv.get(place, part.sequence, 0..part.first + 1)?];
            self.attend_cells(
                Phase::Decode,
                mixer,
                &own,
                part.first,
                CellRange { cells, last: true, ..CellRange::default() },
            )?;
        }
        let host_cells: Vec<&Part> = parts.iter().filter(|part| part.first >= resident).collect();
        if host_cells.is_empty() { Ok(()) } else { self.attend_beyond(place, mixer, heads, &host_cells) }
    }

    /// Rows of a step whose sequences have cells in host memory. Without a share of the host nothing here waits for it.
    fn attend_beyond(
        &mut self,
        place: usize,
        mixer: &Attention,
        heads: &Heads,
        parts: &[&Part],
    ) -> Result<(), EngineError> {
        let (shape, layout) = (mixer.shape, mixer.cells);
        let mut rows = Vec::with_capacity(parts.len());
        for (at, part) in parts.iter().enumerate() {
            let own = heads.rows(mixer, part.rows.clone());
            if let Some(copied) = &self.streamed()?.tail.copied {
                self.card.wait(Stream::Compute, copied, waits::TAIL_COPIED)?;
            }
            let to = self.streamed()?.host.get(place, part.sequence, part.first..part.first + 1)?;
            // One cell a row: where it stands in the tail does not matter.
            let cell = self.buffers.part(Use::Tail, at * layout.cell_bytes(), layout.cell_bytes())?;
            let cells = Cells { at: cell, first: part.first, count: 1 };
            self.compute(Command::StoreKv(StoreKv { k: own.k, v: own.v, layout, cells }))?;
            self.compute(Command::CopyOut(CopyOut { from: cell, to }))?;
            let split = self.host_share.first(self.kv.resident()..part.first + 1);
            let row = (split <= part.first).then(|| self.host_row(place, mixer, at, part, split)).transpose()?;
            if let Some(row) = &row {
                self.compute(Command::CopyOut(CopyOut { from: own.q, to: row.q.clone() }))?;
            }
            rows.push((split, row, own));
        }
        let asks = rows.iter().any(|(_, row, _)| row.is_some());
        let asked = asks.then(|| self.card.record(Stream::Compute)).transpose()?;
        let mut states = false;
        for ((split, row, own), part) in rows.iter().zip(parts) {
            states |= self.card_share(place, mixer, own, part, *split, row.as_ref())?;
        }
        let Some(asked) = asked else { return Ok(()) };
        let on_card = states.then(|| self.card.record(Stream::Compute)).transpose()?;
        self.host_attention.rouse();
        self.card.sync(&asked, waits::ASKED)?;
        let rows = || rows.iter().filter_map(|(_, row, own)| Some((row.as_ref()?, own)));
        for (row, _) in rows() {
            self.host_attention.partials(shape, layout, row)?;
            self.counters.attended_on_host(row.count());
        }
        if let Some(on_card) = &on_card {
            self.card.sync(on_card, waits::CARD_ATTENDED)?;
        }
        for (row, own) in rows() {
            self.host_attention.finish(shape, layout, row)?;
            self.compute(Command::CopyIn(CopyIn { from: row.attended.clone(), to: own.attended }))?;
        }
        Ok(())
    }

    /// The card attends a row's resident cells and, over its link, the streamed ones before `split`. Where the host
    /// goes on, it gets the state; whether there is one.
    fn card_share(
        &self,
        place: usize,
        mixer: &Attention,
        own: &Heads,
        part: &Part,
        split: usize,
        row: Option<&HostRow>,
    ) -> Result<bool, EngineError> {
        let resident = self.kv.resident();
        if split == 0 {
            return Ok(false);
        }
        let cells = if resident > 0 { vec![self.kv.get(place, part.sequence, 0..resident)?] } else { Vec::new() };
        let mut host_cells = None;
        if split > resident {
            let at = self.streamed()?.host.get(place, part.sequence, resident..split)?;
            self.counters.attended_over_link(split - resident, at.bytes());
            host_cells = Some(Cells { at, first: resident, count: split - resident });
        }
        self.attend_cells(
            Phase::Decode,
            mixer,
            own,
            part.first,
            CellRange { cells, host_cells, resume: false, last: row.is_none() },
        )?;
        if let Some(row) = row {
            let from = self.buffers.get(Use::AttentionState, row.state.bytes())?;
            self.compute(Command::CopyOut(CopyOut { from, to: row.state.clone() }))?;
        }
        Ok(row.is_some())
    }

    /// The host's side of the step's `at`-th row: its cells from `split` on.
    fn host_row(
        &self,
        place: usize,
        mixer: &Attention,
        at: usize,
        part: &Part,
        split: usize,
    ) -> Result<HostRow, EngineError> {
        let shape = &mixer.shape;
        let cells = &self.streamed()?.host;
        let most = HostRow::partial_bytes(shape, self.context - cells.first());
        let used = HostRow::partial_bytes(shape, part.first + 1 - split);
        let (state, out) = (shape.heads * (2 + shape.value_dim) * F32, shape.heads * shape.value_dim * F32);
        Ok(HostRow {
            position: part.first,
            first: split,
            cells: cells.get(place, part.sequence, split..part.first + 1)?,
            q: row_of(&self.host.queries, at, shape.heads * shape.head_dim * F32)?,
            state: row_of(&self.host.state, at, state)?,
            partials: part_of(&self.host.partials, at * most, used)?,
            attended: row_of(&self.host.attended, at, out)?,
        })
    }

    /// Stores rows that belong to resident cells.
    fn store_resident(
        &self,
        place: usize,
        mixer: &Attention,
        heads: &Heads,
        sequence: SequenceId,
        cells: Range<usize>,
    ) -> Result<(), EngineError> {
        if cells.is_empty() {
            return Ok(());
        }
        let own = heads.rows(mixer, 0..cells.len());
        let cells = self.kv.get(place, sequence, cells)?;
        self.compute(Command::StoreKv(StoreKv { k: own.k, v: own.v, layout: mixer.cells, cells }))
    }

    /// Stores the wave's rows from `new.start` on in the tail, and copies them to host memory beside what follows.
    fn store_streamed(
        &mut self,
        place: usize,
        mixer: &Attention,
        heads: &Heads,
        part: &Part,
        new: &Range<usize>,
    ) -> Result<(), EngineError> {
        let Self { card, streamed, counters, .. } = self;
        let streamed = streamed.as_mut().ok_or_else(all_resident)?;
        if let Some(copied) = &streamed.tail.copied {
            card.wait(Stream::Compute, copied, waits::TAIL_COPIED)?;
        }
        let own = heads.rows(mixer, new.start - part.first..new.end - part.first);
        let cells = streamed.tail.get(&mixer.cells, new.start, new.clone())?;
        card.submit(Stream::Compute, Command::StoreKv(StoreKv { k: own.k, v: own.v, layout: mixer.cells, cells }))?;
        let stored = card.record(Stream::Compute)?;
        card.wait(Stream::KvOut, &stored, waits::CELLS_STORED)?;
        let to = streamed.host.get(place, part.sequence, new.clone())?;
        card.submit(Stream::KvOut, Command::CopyOut(CopyOut { from: cells.at, to }))?;
        counters.cells_written(cells.at.bytes);
        let copied = card.record(Stream::KvOut)?;
        if let Some(written) = streamed.written.get_mut(place) {
            *written = Some(copied.clone());
        }
        streamed.tail.copied = Some(copied);
        Ok(())
    }

    /// Brings a tile of the layer's cached prefix, which ends at cell `end`. Of the last one, the cells of an attention
    /// tile that the wave goes on with are put before the wave's own; what stays in the pool is returned.
    fn staged(
        &mut self,
        place: usize,
        mixer: &Attention,
        tile: usize,
        end: usize,
        last: bool,
    ) -> Result<Option<Cells>, EngineError> {
        let Self { card, streamed, counters, layouts, .. } = self;
        let Streamed { host, tail, written, staging, .. } = streamed.as_mut().ok_or_else(all_resident)?;
        let staging = staging.as_mut().ok_or_else(all_resident)?;
        let parts = StagingParts { card, counters, host, written, layouts };
        let at = staging.arrive(&parts, place, tile)?;
        let cells = staging.cells(tile);
        let whole = if last { tile_start(end) } else { cells.end };
        let bytes = mixer.cells.cell_bytes();
        if whole < cells.end {
            let from = at.part((whole - cells.start) * bytes, (cells.end - whole) * bytes);
            let to = tail.get(&mixer.cells, end, whole..cells.end)?.at;
            card.submit(Stream::Compute, Command::CopyWithin(CopyWithin { from, to }))?;
        }
        let count = whole - cells.start;
        Ok((count > 0).then(|| Cells { at: at.part(0, count * bytes), first: cells.start, count }))
    }

    /// The last reader of a staged tile is queued.
    fn release(&mut self, tile: usize) -> Result<(), EngineError> {
        let Self { card, streamed, counters, layouts, .. } = self;
        let Streamed { host, written, staging, .. } = streamed.as_mut().ok_or_else(all_resident)?;
        let staging = staging.as_mut().ok_or_else(all_resident)?;
        staging.release(&StagingParts { card, counters, host, written, layouts }, tile)
    }

    /// One attention command of rows from position `first` on.
    fn attend_cells(
        &self,
        phase: Phase,
        mixer: &Attention,
        heads: &Heads,
        first: usize,
        range: CellRange,
    ) -> Result<(), EngineError> {
        let shape = mixer.shape;
        let rows = heads.attended.bytes / (shape.heads * shape.value_dim * F32).max(1);
        let state = rows * shape.heads * (2 + shape.value_dim) * F32;
        self.compute(Command::Attend(Attend {
            q: heads.q,
            rows,
            first,
            shape,
            layout: mixer.cells,
            cells: range.cells,
            host_cells: range.host_cells,
            state: self.buffers.get(Use::AttentionState, state)?,
            resume: range.resume,
            end: if range.last { AttentionEnd::Finish(heads.attended) } else { AttentionEnd::Keep },
            phase,
            scratch: self.buffers.whole(Use::Scratch)?,
        }))
    }

    fn streamed(&self) -> Result<&Streamed, EngineError> {
        self.streamed.as_ref().ok_or_else(all_resident)
    }
}

fn all_resident() -> EngineError {
    EngineError::Internal("every cell lives on the card, but a streamed one is asked for".to_owned())
}

fn row_of(buf: &HostBuf, row: usize, bytes: usize) -> Result<HostSpan, EngineError> {
    part_of(buf, row * bytes, bytes)
}
