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
    let scaling = Scaling::read(source, base, rotated)?;
    let factors = if family.rope_factors { read_factors(source, rotated / 2)? } else { None };
    let frequency = |pair: usize| {
        let plain = f64::from(base).powf(-2.0 * pair as f64 / rotated as f64);
        let factor = factors.as_ref().and_then(|factors| factors.get(pair)).map_or(1.0, |&factor| f64::from(factor));
        scaling.frequency(pair, plain / factor) as f32
    };
    let frequencies: Vec<f32> = (0..rotated / 2).map(frequency).collect();
    Ok(Rope { kind: family.rope, rotated, frequencies: frequencies.into(), magnitude: scaling.magnitude() })
}

/// How a file stretches its rope over a longer context.
enum Scaling {
    /// Positions are divided by a factor, 1 for none.
    Linear(f64),
    /// Slow pairs are divided as for linear scaling, fast ones kept, and those between blended.
    Yarn(Yarn),
}

/// YaRN (arXiv 2309.00071): pairs that turn often within the original context keep their frequency, those that turn
/// less than once take the divided one, with a ramp between them over the pair's number.
struct Yarn {
    factor: f64,
    /// The share of the ramp that acts: 1, or what the file says.
    extrapolated: f64,
    /// The pairs between which the ramp falls.
    low: f64,
    high: f64,
    attention: f64,
}

impl Scaling {
    fn read(source: &Source<'_>, base: f32, rotated: usize) -> Result<Self, ModelError> {
        match source.find::<&str>("rope.scaling.type")?.unwrap_or("linear") {
            "none" => Ok(Self::Linear(1.0)),
            "linear" => Ok(Self::Linear(factor(source)?)),
            "yarn" => Ok(Self::Yarn(Yarn::read(source, f64::from(base), rotated)?)),
            other => {
                let what = format!("`{}` = `{other}`", source.key("rope.scaling.type"));
                Err(source.unsupported(what, "supported: none, linear, yarn"))
            }
        }
    }

    /// Radians per position of a pair whose own are `plain`.
    fn frequency(&self, pair: usize, plain: f64) -> f64 {
        match self {
            Self::Linear(factor) => plain / factor,
            Self::Yarn(Yarn { factor, extrapolated, low, high, .. }) => {
                // The least width keeps a ramp between equal pairs a step.
                let ramp = 1.0 - ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                let kept = extrapolated * ramp;
                plain / factor * (1.0 - kept) + plain * kept
            }
        }
    }

    /// What cosines and sines are multiplied by: a longer context flattens the softmax, which this makes good.
    fn magnitude(&self) -> f32 {
        match self {
            Self::Linear(_) => 1.0,
            Self::Yarn(Yarn { factor, extrapolated, attention, .. }) => {
                let own = if *extrapolated == 0.0 { 1.0 } else { 1.0 + 0.1 * factor.ln() };
                (own * attention) as f32
            }
        }
    }
}

impl Yarn {
    fn read(source: &Source<'_>, base: f64, rotated: usize) -> Result<Self, ModelError> {
        let original = match source.maybe_size("rope.scaling.original_context_length")? {
            Some(original) => original,
            None => source.size("context_length")?,
        };
        if base <= 1.0 {
            return Err(source.parameter("rope.freq_base", base, "a number above 1 (YaRN)"));
        }
        let positive = |name: &str, missing: f32| match source.find::<f32>(name)? {
            None => Ok(f64::from(missing)),
            Some(value) if value.is_finite() && value > 0.0 => Ok(f64::from(value)),
            Some(value) => Err(source.parameter(name, value, "a number above 0")),
        };
        let extrapolated = match source.find::<f32>("rope.scaling.yarn_ext_factor")? {
            // Files give -1 where they leave it to the reader.
            None => 1.0,
            Some(value) if value < 0.0 => 1.0,
            Some(value) if value <= 1.0 => f64::from(value),
            Some(value) => return Err(source.parameter("rope.scaling.yarn_ext_factor", value, "a number up to 1")),
        };
        // The pair that turns so often within the original context.
        let pair = |turns: f64| {
            rotated as f64 * (original as f64 / (turns * 2.0 * std::f64::consts::PI)).ln() / (2.0 * base.ln())
        };
        let low = pair(positive("rope.scaling.yarn_beta_fast", 32.0)?).floor().max(0.0);
        let high = pair(positive("rope.scaling.yarn_beta_slow", 1.0)?).ceil().min(rotated as f64 - 1.0);
        let attention = positive("rope.scaling.attn_factor", 1.0)? * positive("rope.scaling.yarn_attn_factor", 1.0)?;
        Ok(Self { factor: factor(source)?, extrapolated, low, high, attention })
    }
}

/// How many times the context was stretched.
fn factor(source: &Source<'_>) -> Result<f64, ModelError> {
    for name in ["rope.scaling.factor", "rope.scale_linear"] {
        match source.find::<f32>(name)? {
            // Some files give 0 where there is no scaling.
            None | Some(0.0) => {}
            Some(factor) if factor.is_finite() && factor > 0.0 => return Ok(f64::from(factor)),
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
