//! The sample: SmolLM2-135M-Instruct turned into a small mixture of experts with learned routing.
//!
//! Each layer's 1,536 hidden units (48 blocks of 32) become 16 experts of 3 blocks. No weight is quantised again: 4-bit
//! codes only change place, and trained scales are folded into the two halves of each Q4_1 block. Routers and norms
//! come from the sidecar. The same input always gives the same file.
#![allow(clippy::indexing_slicing)] // The input's SHA-256 is checked first, the sidecar's shapes when it is read.

use std::borrow::Cow;
use std::io::Read;
use std::path::{Path, PathBuf};

use half::f16;
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::header::{Header, HeaderError};
use super::sidecar::{BLOCKS_AN_EXPERT, DENSE_UNITS, EXPERTS, Sidecar, WIDTH};
use super::writer::{Watch, WriteError, Writer, Written, hex};
use crate::files::{InputError, Output, open_regular};
use crate::gguf::{Gguf, GgufError, TensorInfo, Value};
use crate::quant::QuantType;

/// The file that the sample is made from.
pub const DENSE_NAME: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// Its SHA-256.
pub const DENSE_SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
/// Experts that a token of the sample may use, with the SHA-256 of that sample; 12 writes the best text.
pub const SAMPLE_EXPERTS_USED: [(usize, &str); 3] = [
    (12, "170acfc091ca6e3e5c8ee438f7d7a9550c5cb013c4fcb37886d47dde9f13aadc"),
    (10, "b0da8dbf4b2a5c12aaee708df46d962bfe410c09eafc34dd377139e28c02d128"),
    (8, "f8ef4f049897214b6093f4d64b7d017127f616a851e9e168bd957ee6b4166dff"),
];

const UNIT_BLOCK: usize = 32;
/// Q4_1: f16 scale, f16 minimum, 16 bytes of codes.
const BLOCK_BYTES: usize = 20;
const ROW_BYTES: usize = WIDTH / UNIT_BLOCK * BLOCK_BYTES;
const DOWN_ROW_BYTES: usize = DENSE_UNITS / UNIT_BLOCK * BLOCK_BYTES;

/// Why the sample was not written.
#[derive(Debug, Error)]
pub enum SampleError {
    /// The input cannot be read.
    #[error("cannot read the dense model: {0}. deploy/fetch-sample.sh fetches it")]
    Read(#[from] InputError),
    /// The input is another file.
    #[error(
        "{} is not {DENSE_NAME}: its SHA-256 is {found}, expected {DENSE_SHA256}. deploy/fetch-sample.sh fetches the right file",
        path.display()
    )]
    OtherInput {
        /// The input.
        path: PathBuf,
        /// Its SHA-256.
        found: String,
    },
    /// No scales were trained for this number of experts used.
    #[error("the sample can use {} experts a token, not {found}", SAMPLE_EXPERTS_USED.map(|(k, _)| k.to_string()).join(", "))]
    ExpertsUsed {
        /// What was asked for.
        found: usize,
    },
    /// The embedded data is damaged.
    #[error("the routers in this program are damaged: {reason}. Build it again from a clean checkout")]
    Sidecar {
        /// What is wrong.
        reason: String,
    },
    /// A folded scale is too large.
    #[error("a scale of tensor `{tensor}` does not fit in 16 bits")]
    Scale {
        /// The tensor.
        tensor: String,
    },
    /// The input is no GGUF.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The output's header cannot be.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The output could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Writes the sample with `used` experts a token (see [`SAMPLE_EXPERTS_USED`]) from the dense model to `out`, 99 MB.
///
/// # Errors
/// [`SampleError`]; nothing is left of the output then.
pub fn write_sample(dense: &Path, used: usize, out: &Path, watch: Watch<'_>) -> Result<Written, SampleError> {
    let sidecar = Sidecar::read()?;
    let (Some(entry), Some((_, sha256))) =
        (sidecar.k_values.iter().position(|k| *k == used), SAMPLE_EXPERTS_USED.into_iter().find(|(k, _)| *k == used))
    else {
        return Err(SampleError::ExpertsUsed { found: used });
    };
    let output = Output::create(out, &[dense]).map_err(WriteError::from)?;
    let found = hash_file(dense)?;
    if found != DENSE_SHA256 {
        return Err(SampleError::OtherInput { path: dense.to_owned(), found });
    }
    let source = Gguf::open(dense)?;
    let mut header = Header::new();
    add_metadata(&mut header, &source, used)?;
    let pieces: Vec<Piece> =
        source.tensors().iter().flat_map(|tensor| pieces_of(tensor, &source, &sidecar, entry)).collect();
    for piece in &pieces {
        header.add_tensor(&piece.name, piece.ty, &piece.dims)?;
    }
    let mut writer = Writer::create(output, &header, Some(sha256), watch)?;
    for piece in pieces {
        writer.begin(&piece.name)?;
        let bytes = (piece.make)().ok_or(SampleError::Scale { tensor: piece.name })?;
        writer.write(&bytes)?;
    }
    Ok(writer.finish()?)
}

fn hash_file(path: &Path) -> Result<String, SampleError> {
    let mut file = open_regular(path, "the dense .gguf file")?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut buffer).map_err(InputError::from)?;
        if count == 0 {
            return Ok(hex(hash));
        }
        hash.update(&buffer[..count]);
    }
}

fn add_metadata(header: &mut Header, source: &Gguf, used: usize) -> Result<(), HeaderError> {
    const REPLACED: [&str; 4] =
        ["general.architecture", "llama.feed_forward_length", "general.name", "general.size_label"];
    header.set_text("general.architecture", "llama")?;
    for entry in source.metadata().entries().iter().filter(|entry| !REPLACED.contains(&entry.key.as_str())) {
        header.set(&entry.key, &entry.value)?;
    }
    let name = format!("SmolLM2 135M Instruct split into {EXPERTS} experts, top {used}");
    header.set_text("general.name", &name)?;
    header.set_text("general.size_label", "135M")?;
    header.set("llama.feed_forward_length", &Value::U32((BLOCKS_AN_EXPERT * UNIT_BLOCK) as u32))?;
    header.set("llama.expert_count", &Value::U32(EXPERTS as u32))?;
    header.set("llama.expert_used_count", &Value::U32(used as u32))
}

/// A tensor of the sample and what makes its bytes; `None` where a folded scale does not fit.
struct Piece<'a> {
    name: String,
    ty: QuantType,
    dims: Vec<u64>,
    make: Box<dyn FnOnce() -> Option<Cow<'a, [u8]>> + 'a>,
}

/// What becomes of one tensor of the dense model.
fn pieces_of<'a>(tensor: &'a TensorInfo, source: &'a Gguf, sidecar: &'a Sidecar, entry: usize) -> Vec<Piece<'a>> {
    let data = source.data(tensor);
    let parts: Vec<&str> = tensor.name.split('.').collect();
    let (layer, kind) = match parts[..] {
        ["blk", layer, kind, _] => (layer.parse().unwrap_or(0), kind),
        _ => (0, parts[0]),
    };
    let piece = |name: &str, ty, dims: &[usize], make: Box<dyn FnOnce() -> Option<Cow<'a, [u8]>> + 'a>| Piece {
        name: name.to_owned(),
        ty,
        dims: dims.iter().map(|d| *d as u64).collect(),
        make,
    };
    let in_layer = |name: &str| format!("blk.{layer}.{name}.weight");
    let unit_row = BLOCKS_AN_EXPERT * UNIT_BLOCK;
    let order = &sidecar.block_expert[layer * EXPERTS * BLOCKS_AN_EXPERT..][..EXPERTS * BLOCKS_AN_EXPERT];
    let norm = |values: &'a [f32]| {
        vec![piece(&tensor.name, QuantType::F32, &[WIDTH], Box::new(move || Some(Cow::Owned(bytes_of(values)))))]
    };
    match kind {
        "attn_norm" => norm(&sidecar.attn_norm[layer * WIDTH..][..WIDTH]),
        "ffn_norm" => norm(&sidecar.ffn_norm[layer * WIDTH..][..WIDTH]),
        "output_norm" => norm(&sidecar.output_norm),
        "attn_output" => {
            let scales = &sidecar.attn_out_scale[layer * WIDTH..][..WIDTH];
            let make = move || {
                let mut rows = data.to_vec();
                scale_rows(&mut rows, scales).then_some(Cow::Owned(rows))
            };
            vec![piece(&tensor.name, QuantType::Q4_1, &[WIDTH, WIDTH], Box::new(make))]
        }
        "ffn_gate" | "ffn_up" => {
            let scales = (kind == "ffn_up").then(|| &sidecar.up_scale[layer * DENSE_UNITS..][..DENSE_UNITS]);
            let make = move || gather_rows(data, order, scales).map(Cow::Owned);
            let name = in_layer(&format!("{kind}_exps"));
            vec![piece(&name, QuantType::Q4_1, &[WIDTH, unit_row, EXPERTS], Box::new(make))]
        }
        "ffn_down" => {
            let scales = &sidecar.down_scale[layer * EXPERTS * WIDTH..][..EXPERTS * WIDTH];
            let factor = sidecar.k_scale[layer * sidecar.k_values.len() + entry];
            let router = &sidecar.router[layer * EXPERTS * WIDTH..][..EXPERTS * WIDTH];
            let make = move || gather_blocks(data, order, scales, factor).map(Cow::Owned);
            let down = piece(&in_layer("ffn_down_exps"), QuantType::Q4_1, &[unit_row, WIDTH, EXPERTS], Box::new(make));
            let make = move || Some(Cow::Owned(bytes_of(router)));
            let router = piece(&in_layer("ffn_gate_inp"), QuantType::F32, &[WIDTH, EXPERTS], Box::new(make));
            vec![down, router]
        }
        _ => vec![Piece {
            name: tensor.name.clone(),
            ty: tensor.ty,
            dims: tensor.dims.clone(),
            make: Box::new(move || Some(Cow::Borrowed(data))),
        }],
    }
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The rows of a gate or up matrix in the order of the experts' blocks; row `u` scaled by `scales[u]`.
fn gather_rows(data: &[u8], order: &[usize], scales: Option<&[f32]>) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(data.len());
    for &block in order {
        let start = out.len();
        out.extend_from_slice(&data[block * UNIT_BLOCK * ROW_BYTES..][..UNIT_BLOCK * ROW_BYTES]);
        if let Some(scales) = scales
            && !scale_rows(&mut out[start..], &scales[block * UNIT_BLOCK..][..UNIT_BLOCK])
        {
            return None;
        }
    }
    Some(out)
}

/// The down matrices of the experts: of each row the expert's blocks, scaled by `scales[expert][row] * factor`.
fn gather_blocks(data: &[u8], order: &[usize], scales: &[f32], factor: f32) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(data.len());
    for (blocks, scales) in order.chunks_exact(BLOCKS_AN_EXPERT).zip(scales.chunks_exact(WIDTH)) {
        for (row, scale) in data.chunks_exact(DOWN_ROW_BYTES).zip(scales) {
            for block in blocks {
                let start = out.len();
                out.extend_from_slice(&row[block * BLOCK_BYTES..][..BLOCK_BYTES]);
                if !scale_blocks(&mut out[start..], scale * factor) {
                    return None;
                }
            }
        }
    }
    Some(out)
}

/// Scales each row of a matrix that is as many rows high as there are scales.
fn scale_rows(rows: &mut [u8], scales: &[f32]) -> bool {
    let row_bytes = rows.len() / scales.len();
    rows.chunks_exact_mut(row_bytes).zip(scales).all(|(row, scale)| scale_blocks(row, *scale))
}

/// Multiplies scale and minimum of every block, rounding to the nearest half; false where one does not fit.
fn scale_blocks(blocks: &mut [u8], scale: f32) -> bool {
    blocks.chunks_exact_mut(BLOCK_BYTES).all(|block| {
        block[..4].chunks_exact_mut(2).all(|half| {
            let scaled = f16::from_f32(f16::from_le_bytes([half[0], half[1]]).to_f32() * scale);
            half.copy_from_slice(&scaled.to_le_bytes());
            scaled.is_finite()
        })
    })
}
