//! The rotary position embedding that a file asks for.

use super::error::ModelError;
use super::source::{Dim, Source};
use crate::ops::Rope;

/// The tensor that divides the frequencies one by one.
const FACTORS: &str = "rope_freqs.weight";

/// Reads the rope of heads of `head_dim` elements.
pub(super) fn read(source: &Source<'_>, head_dim: usize) -> Result<Rope, ModelError> {
    let family = source.architecture.family();
    let rotated = source.maybe_size("rope.dimension_count")?.unwrap_or(head_dim);
    if family.whole_head_rotates && rotated != head_dim {
        let wanted = format!("{head_dim}, the size of a head, as `{}` rotates whole heads", source.architecture);
        return Err(source.parameter("rope.dimension_count", rotated, wanted));
    }
    if !rotated.is_multiple_of(2) || rotated > head_dim {
        let wanted = format!("an even number up to {head_dim}, the size of a head,");
        return Err(source.parameter("rope.dimension_count", rotated, wanted));
    }
    let base = source.find::<f32>("rope.freq_base")?.unwrap_or(10_000.0);
    if !(base.is_finite() && base >= 1.0) {
        return Err(source.parameter("rope.freq_base", base, "a number of 1 or more"));
    }
    let linear = linear_factor(source)?;
    let factors = if family.rope_factors { read_factors(source, rotated / 2)? } else { None };
    let frequency = |pair: usize| {
        let plain = f64::from(base).powf(-2.0 * pair as f64 / rotated as f64);
        let factor = factors.as_ref().and_then(|factors| factors.get(pair)).map_or(1.0, |&factor| f64::from(factor));
        (plain / f64::from(linear) / factor) as f32
    };
    Ok(Rope { kind: family.rope, rotated, frequencies: (0..rotated / 2).map(frequency).collect() })
}

/// What positions are divided by.
fn linear_factor(source: &Source<'_>) -> Result<f32, ModelError> {
    let kind = source.find::<&str>("rope.scaling.type")?.unwrap_or("linear");
    match kind {
        "none" => return Ok(1.0),
        "linear" => {}
        other => {
            let what = format!("`{}` = `{other}`", source.key("rope.scaling.type"));
            return Err(source.unsupported(what, "supported: none, linear"));
        }
    }
    for name in ["rope.scaling.factor", "rope.scale_linear"] {
        match source.find::<f32>(name)? {
            // Some files give 0 where there is no scaling.
            None | Some(0.0) => {}
            Some(factor) if factor.is_finite() && factor > 0.0 => return Ok(factor),
            Some(factor) => return Err(source.parameter(name, factor, "a number above 0")),
        }
    }
    Ok(1.0)
}

fn read_factors(source: &Source<'_>, pairs: usize) -> Result<Option<Vec<f32>>, ModelError> {
    let length = Dim(pairs, "half of the elements that rotate");
    let Some(tensor) = source.maybe_vector(FACTORS, length)? else { return Ok(None) };
    let bytes = source.gguf.slice(tensor.shard, tensor.offset, tensor.bytes);
    let (values, _) = bytes.as_chunks();
    let factors: Vec<f32> = values.iter().map(|value| f32::from_le_bytes(*value)).collect();
    match factors.iter().position(|factor| !(factor.is_finite() && *factor > 0.0)) {
        None => Ok(Some(factors)),
        Some(at) => Err(ModelError::TensorValue {
            file: source.gguf.tensor(FACTORS).map_or_else(|| source.file(), |info| source.file_of(info)),
            tensor: FACTORS.to_owned(),
            offset: tensor.offset + 4 * at as u64,
            found: factors.get(at).copied().unwrap_or_default(),
            wanted: "a number above 0",
        }),
    }
}
