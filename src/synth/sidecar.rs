//! The trained part of the sample mixture of experts, which the program carries (`data/README.md` tells what it is).

use half::f16;
use safetensors::{Dtype, SafeTensors};

use super::sample::SampleError;

const BYTES: &[u8] = include_bytes!("data/router.safetensors");

/// Layers of the sample.
pub(super) const LAYERS: usize = 30;
/// Elements of its residual stream.
pub(super) const WIDTH: usize = 576;
/// Experts of each layer.
pub(super) const EXPERTS: usize = 16;
/// Blocks of 32 hidden units that make an expert.
pub(super) const BLOCKS_AN_EXPERT: usize = 3;
/// Hidden units of a layer of the dense model.
pub(super) const DENSE_UNITS: usize = EXPERTS * BLOCKS_AN_EXPERT * 32;

/// Routers, norms, scales, and which blocks form which expert, as f32.
pub(super) struct Sidecar {
    /// `[layer][expert][input]`.
    pub router: Vec<f32>,
    /// `[layer][expert][output channel]`.
    pub down_scale: Vec<f32>,
    /// `[layer][hidden unit of the dense model]`.
    pub up_scale: Vec<f32>,
    /// `[layer][output channel]`.
    pub attn_out_scale: Vec<f32>,
    /// `[layer][entry of k_values]`, multiplies `down_scale`.
    pub k_scale: Vec<f32>,
    /// `[layer][channel]`.
    pub attn_norm: Vec<f32>,
    /// `[layer][channel]`.
    pub ffn_norm: Vec<f32>,
    /// `[channel]`.
    pub output_norm: Vec<f32>,
    /// Numbers of experts used that the scales are for.
    pub k_values: Vec<usize>,
    /// `[layer][expert][3]`: blocks of the dense model, 0 to 47.
    pub block_expert: Vec<usize>,
}

impl Sidecar {
    /// Reads the embedded data.
    ///
    /// # Errors
    /// [`SampleError::Sidecar`] for a build with damaged data.
    pub fn read() -> Result<Self, SampleError> {
        let file = SafeTensors::deserialize(BYTES).map_err(|e| SampleError::Sidecar { reason: e.to_string() })?;
        let floats = |name: &str, shape: &[usize]| -> Result<Vec<f32>, SampleError> {
            let tensor = find(&file, name, shape)?;
            match tensor.dtype() {
                Dtype::F16 => Ok(numbers(tensor.data()).map(|bytes| f16::from_le_bytes(bytes).to_f32()).collect()),
                Dtype::F32 => Ok(numbers(tensor.data()).map(f32::from_le_bytes).collect()),
                other => Err(SampleError::Sidecar { reason: format!("`{name}` is of type {other:?}") }),
            }
        };
        let integers = |name: &str, shape: &[usize], end: i32| -> Result<Vec<usize>, SampleError> {
            let tensor = find(&file, name, shape)?;
            let values: Vec<i32> = numbers(tensor.data()).map(i32::from_le_bytes).collect();
            if tensor.dtype() != Dtype::I32 || values.iter().any(|v| !(0..end).contains(v)) {
                return Err(SampleError::Sidecar {
                    reason: format!("`{name}` is no i32 array of numbers below {end}"),
                });
            }
            Ok(values.into_iter().map(|v| v as usize).collect())
        };
        let blocks = (EXPERTS * BLOCKS_AN_EXPERT) as i32;
        Ok(Self {
            router: floats("router", &[LAYERS, EXPERTS, WIDTH])?,
            down_scale: floats("down_scale", &[LAYERS, EXPERTS, WIDTH])?,
            up_scale: floats("up_scale", &[LAYERS, DENSE_UNITS])?,
            attn_out_scale: floats("attn_out_scale", &[LAYERS, WIDTH])?,
            k_scale: floats("k_scale", &[LAYERS, 3])?,
            attn_norm: floats("attn_norm", &[LAYERS, WIDTH])?,
            ffn_norm: floats("ffn_norm", &[LAYERS, WIDTH])?,
            output_norm: floats("output_norm", &[WIDTH])?,
            k_values: integers("k_values", &[3], EXPERTS as i32 + 1)?,
            block_expert: integers("block_expert", &[LAYERS, EXPERTS, BLOCKS_AN_EXPERT], blocks)?,
        })
    }
}

fn find<'f>(
    file: &SafeTensors<'f>,
    name: &str,
    shape: &[usize],
) -> Result<safetensors::tensor::TensorView<'f>, SampleError> {
    let tensor = file.tensor(name).map_err(|e| SampleError::Sidecar { reason: e.to_string() })?;
    if tensor.shape() != shape {
        return Err(SampleError::Sidecar { reason: format!("`{name}` is {:?}, expected {shape:?}", tensor.shape()) });
    }
    Ok(tensor)
}

fn numbers<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> + '_ {
    bytes.as_chunks().0.iter().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_belongs_to_one_expert() {
        let sidecar = Sidecar::read().unwrap();
        assert_eq!(sidecar.k_values, [12, 10, 8]);
        for layer in sidecar.block_expert.chunks_exact(EXPERTS * BLOCKS_AN_EXPERT) {
            let mut blocks = layer.to_vec();
            blocks.sort_unstable();
            assert_eq!(blocks, (0..EXPERTS * BLOCKS_AN_EXPERT).collect::<Vec<_>>());
        }
        assert!(sidecar.router.iter().chain(&sidecar.down_scale).all(|v| v.is_finite()));
    }
}
