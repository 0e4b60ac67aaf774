//! The arena: the host's page-locked memory that holds every expert as one blob.

use std::panic::resume_unwind;
use std::sync::Arc;

use crate::card::{CardError, HostBuf, HostMemory, HostSpan};
use crate::engine::EngineError;
use crate::gguf::GgufError;
use crate::model::{ExpertsSpec, Ffn, Model};
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
    /// Reads every expert of the model into page-locked memory, one layer after the other; `progress` is told the bytes read.
    ///
    /// # Errors
    /// When memory is short or the file cannot be read.
    pub fn load(model: &Model, host: &HostMemory, progress: &dyn Fn(Bytes)) -> Result<Self, EngineError> {
        let mut layers = Vec::with_capacity(model.spec.layers.len());
        for (i, layer) in model.spec.layers.iter().enumerate() {
            layers.push(match &layer.ffn {
                Ffn::Dense(_) => None,
                Ffn::Experts(experts) => Some(load_layer(model, host, i, experts, progress)?),
            });
        }
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

fn load_layer(
    model: &Model,
    host: &HostMemory,
    layer: usize,
    experts: &ExpertsSpec,
    progress: &dyn Fn(Bytes),
) -> Result<LayerBlobs, EngineError> {
    let layout = experts.blob();
    let what = format!("experts of layer {layer}");
    let buf = host.filled(experts.experts * layout.bytes, &what, |bytes| -> Result<(), EngineError> {
        Ok(read_blobs(model, experts, layout.bytes, bytes)?)
    })?;
    progress(Bytes(buf.bytes() as u64));
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
