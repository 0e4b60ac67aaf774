//! Experts on the host: the arena, memory that holds blobs and is page-locked where a card can lock it, and the model's
//! file for those that have no place there.

use std::collections::{BTreeMap, VecDeque};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use crate::card::command::CopyIn;
use crate::card::{Card, CardError, Command, Event, HostBuf, HostMemory, HostSpan, Span, Stream};
use crate::engine::EngineError;
use crate::gguf::GgufError;
use crate::model::{ExpertsSpec, Ffn, LayerSpec, Model};
use crate::ops::BlobLayout;
use crate::plan::memory::FILE_BLOBS;
use crate::plan::{Home, Homes};
use crate::units::{Bytes, CardId, ExpertId};

/// The experts of one layer: those that live in the arena lie one after the other in ascending id.
pub(in crate::engine) struct LayerBlobs {
    buf: HostBuf,
    layout: Arc<BlobLayout>,
    /// The place of each expert in `buf`; `None` for one that does not live there.
    places: Vec<Option<usize>>,
}

/// All experts of a model.
pub(in crate::engine) struct Arena {
    model: Arc<Model>,
    layers: Vec<Option<LayerBlobs>>,
    /// Makes buffers for blobs on their way from the file: never page-locked, since each is used once.
    passing: HostMemory,
    /// By card, the ends of copies out of such buffers.
    leaving: Mutex<BTreeMap<CardId, VecDeque<Event>>>,
}

/// How long the thread that reads blobs from the file sleeps between two looks at the oldest copy of one.
const POLL: Duration = Duration::from_micros(20);

impl Arena {
    /// Reads the experts that live in the arena into page-locked memory; `progress` is told the bytes read. While the
    /// pages of one layer are locked, another is read.
    ///
    /// # Errors
    /// When memory is short or the file cannot be read.
    pub fn load(
        model: &Arc<Model>,
        homes: &Homes,
        host: &HostMemory,
        progress: &dyn Fn(Bytes),
    ) -> Result<Self, EngineError> {
        let specs = &model.spec.layers;
        let mut layers: Vec<Option<LayerBlobs>> = specs.iter().map(|_| None).collect();
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let (send, loaded) = mpsc::channel();
            for _ in 0..AT_ONCE {
                let (send, next) = (send.clone(), &next);
                scope.spawn(move || {
                    while let Some((i, layer)) = take(next, specs) {
                        let Ffn::Experts(experts) = &layer.ffn else { continue };
                        let blobs = load_layer(model, host, i, experts, homes.of_layer(i));
                        let failed = blobs.is_err();
                        if send.send((i, blobs)).is_err() || failed {
                            break;
                        }
                    }
                });
            }
            drop(send);
            // After an error nobody receives, and the threads end.
            for (i, blobs) in loaded {
                let blobs = blobs?;
                progress(Bytes(blobs.buf.bytes() as u64));
                if let Some(layer) = layers.get_mut(i) {
                    *layer = Some(blobs);
                }
            }
            Ok::<(), EngineError>(())
        })?;
        let passing = HostMemory::new(host.watcher().clone(), None);
        Ok(Self { model: Arc::clone(model), layers, passing, leaving: Mutex::default() })
    }

    /// Queues the copy of an expert's blob to `to`. A blob that lives in the file is read first, and no
    /// more than [`FILE_BLOBS`] of a card wait for their copies.
    ///
    /// # Errors
    /// When the model has no such expert, the file cannot be read, or the card refuses the copy.
    pub fn copy_in(&self, card: &Arc<dyn Card>, layer: usize, expert: ExpertId, to: Span) -> Result<(), CardError> {
        if let Some(from) = self.blob(layer, expert)? {
            return card.submit(Stream::Experts, Command::CopyIn(CopyIn { from, to }));
        }
        self.wait_for_room(card)?;
        let what = format!("expert {} of layer {layer}", expert.0);
        let bytes = self.layer(layer, expert)?.layout.bytes;
        let buf = self.passing.filled(bytes, &what, |out| self.read(layer, expert, out))?;
        card.submit(Stream::Experts, Command::CopyIn(CopyIn { from: buf.whole(), to }))?;
        let copied = card.record(Stream::Experts)?;
        self.leaving().entry(card.id()).or_default().push_back(copied);
        Ok(())
    }

    /// Waits until fewer blobs than the most wait for their copies to this card.
    fn wait_for_room(&self, card: &Arc<dyn Card>) -> Result<(), CardError> {
        loop {
            let mut all = self.leaving();
            let leaving = all.entry(card.id()).or_default();
            while let Some(oldest) = leaving.front()
                && card.finished(oldest)?
            {
                leaving.pop_front();
            }
            if leaving.len() < FILE_BLOBS {
                return Ok(());
            }
            drop(all);
            std::thread::sleep(POLL);
        }
    }

    /// Forgets copies that a failed card will never end.
    pub fn recovered(&self, card: CardId) {
        self.leaving().remove(&card);
    }

    fn leaving(&self) -> std::sync::MutexGuard<'_, BTreeMap<CardId, VecDeque<Event>>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The blob of an expert that lives in the arena; `None` of one that does not.
    ///
    /// # Errors
    /// When the model has no such expert.
    pub fn blob(&self, layer: usize, expert: ExpertId) -> Result<Option<HostSpan>, CardError> {
        let blobs = self.layer(layer, expert)?;
        let place = blobs.places.get(expert.0 as usize).copied().flatten();
        Ok(place.and_then(|place| blobs.buf.span(place * blobs.layout.bytes, blobs.layout.bytes)))
    }

    /// Reads the blob of an expert from the model's file.
    ///
    /// # Errors
    /// When the model has no such expert or the file cannot be read.
    pub fn read(&self, layer: usize, expert: ExpertId, out: &mut [u8]) -> Result<(), CardError> {
        let no_expert = || Self::missing(layer, expert, "the model has no such expert".to_owned());
        let spec = self.model.spec.layers.get(layer).and_then(LayerSpec::experts).ok_or_else(no_expert)?;
        let read = self.model.read_expert(spec, expert.0 as usize, out);
        read.map_err(|error| Self::missing(layer, expert, error.to_string()))
    }

    /// Lets the system read the blob of an expert that lives in the file into its cache meanwhile.
    pub fn read_ahead(&self, layer: usize, expert: ExpertId) {
        let in_file = self.blob(layer, expert).is_ok_and(|blob| blob.is_none());
        if let Some(spec) = self.model.spec.layers.get(layer).and_then(LayerSpec::experts).filter(|_| in_file) {
            self.model.read_expert_ahead(spec, expert.0 as usize);
        }
    }

    /// Bytes of an expert's blob.
    ///
    /// # Errors
    /// When the model has no such expert.
    pub fn bytes(&self, layer: usize, expert: ExpertId) -> Result<usize, CardError> {
        Ok(self.layer(layer, expert)?.layout.bytes)
    }

    /// Shape of a layer's blobs; `None` for a dense one.
    pub fn layout(&self, layer: usize) -> Option<&Arc<BlobLayout>> {
        Some(&self.layers.get(layer)?.as_ref()?.layout)
    }

    fn layer(&self, layer: usize, expert: ExpertId) -> Result<&LayerBlobs, CardError> {
        let blobs = self.layers.get(layer).and_then(Option::as_ref);
        let blobs = blobs.filter(|blobs| (expert.0 as usize) < blobs.places.len());
        blobs.ok_or_else(|| Self::missing(layer, expert, "the model has no such expert".to_owned()))
    }

    fn missing(layer: usize, expert: ExpertId, reason: String) -> CardError {
        CardError::HostMemory { what: format!("expert {} of layer {layer}", expert.0), wanted: Bytes(0), reason }
    }
}

/// Layers that are loaded at the same time.
const AT_ONCE: usize = 2;

/// The next layer that nobody has taken.
fn take<'a>(next: &AtomicUsize, layers: &'a [LayerSpec]) -> Option<(usize, &'a LayerSpec)> {
    let i = next.fetch_add(1, Ordering::Relaxed);
    layers.get(i).map(|layer| (i, layer))
}

fn load_layer(
    model: &Model,
    host: &HostMemory,
    layer: usize,
    experts: &ExpertsSpec,
    homes: &[Home],
) -> Result<LayerBlobs, EngineError> {
    let layout = experts.blob();
    let what = format!("experts of layer {layer}");
    let mut members = Vec::new();
    let places = homes.iter().enumerate().map(|(expert, home)| {
        let place = members.len();
        (*home == Home::Arena).then(|| {
            members.push(expert);
            place
        })
    });
    let places = places.collect();
    let buf = host.filled(members.len() * layout.bytes, &what, |bytes| -> Result<(), EngineError> {
        Ok(read_blobs(model, experts, &members, layout.bytes, bytes)?)
    })?;
    Ok(LayerBlobs { buf, layout: Arc::new(layout), places })
}

/// Most threads that read a layer: enough for the rate of the host's memory or of a fast disk.
const READERS: usize = 8;

/// Reads blobs of a layer, several at a time.
fn read_blobs(
    model: &Model,
    experts: &ExpertsSpec,
    members: &[usize],
    blob: usize,
    bytes: &mut [u8],
) -> Result<(), GgufError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(READERS);
    let each = members.len().div_ceil(threads).max(1);
    let read = |members: &[usize], part: &mut [u8]| {
        let mut blobs = part.chunks_mut(blob.max(1)).zip(members);
        blobs.try_for_each(|(out, expert)| model.read_expert(experts, *expert, out))
    };
    std::thread::scope(|scope| {
        let parts = bytes.chunks_mut((each * blob).max(1)).zip(members.chunks(each));
        let readers: Vec<_> = parts.map(|(part, members)| scope.spawn(move || read(members, part))).collect();
        let ended = readers.into_iter().map(|reader| reader.join().unwrap_or_else(|cause| resume_unwind(cause)));
        ended.fold(Ok(()), Result::and)
    })
}
