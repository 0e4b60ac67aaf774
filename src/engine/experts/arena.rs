//! The arena: the host's page-locked memory that holds every expert as one blob.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use crate::card::{CardError, HostBuf, HostMemory, HostSpan};
use crate::engine::EngineError;
use crate::gguf::GgufError;
use crate::model::{ExpertsSpec, Ffn, LayerSpec, Model};
use crate::ops::BlobLayout;
use crate::units::{Bytes, ExpertId};

/// The experts of one layer: blob `e` starts at `e * layout.bytes`.
pub(in crate::engine) struct LayerBlobs {
    buf: HostBuf,
    layout: Arc<BlobLayout>,
    experts: usize,
}

/// All experts of a model.
pub(in crate::engine) struct Arena {
    layers: Vec<Option<LayerBlobs>>,
}

impl Arena {
    /// Reads every expert of the model into page-locked memory; `progress` is told the bytes read. While the pages of one layer are locked, another
    /// is read.
    ///
    /// # Errors
    /// When memory is short or the file cannot be read.
    pub fn load(model: &Model, host: &HostMemory, progress: &dyn Fn(Bytes)) -> Result<Self, EngineError> {
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
                        let blobs = load_layer(model, host, i, experts);
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
        Ok(Self { layers })
    }

    /// The blob of an expert.
    ///
    /// # Errors
    /// When the model has no such expert.
    pub fn blob(&self, layer: usize, expert: ExpertId) -> Result<HostSpan, CardError> {
        let found = self.layer(layer).and_then(|blobs| {
            let inside = (expert.0 as usize) < blobs.experts;
            inside.then(|| blobs.buf.span(expert.0 as usize * blobs.layout.bytes, blobs.layout.bytes)).flatten()
        });
        found.ok_or_else(|| CardError::HostMemory {
            what: format!("expert {} of layer {layer}", expert.0),
            wanted: Bytes(0),
            reason: "the arena has no such expert".to_owned(),
        })
    }

    /// The experts of a layer, `None` for a dense one.
    pub fn layer(&self, layer: usize) -> Option<&LayerBlobs> {
        self.layers.get(layer).and_then(Option::as_ref)
    }
}

impl LayerBlobs {
    /// Shape of the layer's blobs.
    pub fn layout(&self) -> &Arc<BlobLayout> {
        &self.layout
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
) -> Result<LayerBlobs, EngineError> {
    let layout = experts.blob();
    let what = format!("experts of layer {layer}");
    let buf = host.filled(experts.experts * layout.bytes, &what, |bytes| -> Result<(), EngineError> {
        Ok(read_blobs(model, experts, layout.bytes, bytes)?)
    })?;
    Ok(LayerBlobs { buf, layout: Arc::new(layout), experts: experts.experts })
}

/// Most threads that read a layer: enough for the rate of the host's memory or of a fast disk.
const READERS: usize = 8;

/// Reads all blobs of a layer, several at a time.
fn read_blobs(model: &Model, experts: &ExpertsSpec, blob: usize, bytes: &mut [u8]) -> Result<(), GgufError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(READERS);
    let each = experts.experts.div_ceil(threads).max(1);
    let read = |first: usize, part: &mut [u8]| {
        let mut blobs = part.chunks_mut(blob.max(1)).enumerate();
        blobs.try_for_each(|(i, out)| model.read_expert(experts, first + i, out))
    };
    std::thread::scope(|scope| {
        let parts = bytes.chunks_mut((each * blob).max(1)).enumerate();
        let readers: Vec<_> = parts.map(|(i, part)| scope.spawn(move || read(i * each, part))).collect();
        let ended = readers.into_iter().map(|reader| reader.join().unwrap_or_else(|cause| resume_unwind(cause)));
        ended.fold(Ok(()), Result::and)
    })
}
