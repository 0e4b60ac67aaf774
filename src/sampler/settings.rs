use std::ops::RangeInclusive;

/// How tokens are chosen. [`Default`] is greedy: the best token, without penalties.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct SamplerSettings {
    /// 0 takes the best token; 1 draws as the model says; more is wilder. 0 to 100.
    pub temperature: f32,
    /// Only the k best; 0 for all. At most the vocabulary.
    pub top_k: i64,
    /// Only the best that together have this probability; 1 for all. Above 0, at most 1.
    pub top_p: f32,
    /// Only those at least this many times as probable as the best; 0 for all. 0 to 1.
    pub min_p: f32,
    /// Divides (or, below 0, multiplies) the logits of recent tokens; 1 for none. 0.01 to 100.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of recent tokens; 0 for none. -100 to 100.
    pub presence_penalty: f32,
    /// Subtracted from the logits of recent tokens once for each time they occur; 0 for none. -100 to 100.
    pub frequency_penalty: f32,
    /// How many of the last tokens are recent; 0 for none, -1 for all of the sequence.
    pub penalty_window: i64,
    /// Equal seeds give equal draws.
    pub seed: u64,
}

impl Default for SamplerSettings {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: 64,
            seed: 0,
        }
    }
}

/// A setting out of its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {found}, but must be {allowed}")]
pub struct SettingsError {
    /// The setting's name, as in [`SamplerSettings`] and in requests.
    pub field: &'static str,
    /// Its value.
    pub found: String,
    /// What it may be.
    pub allowed: String,
}

impl SamplerSettings {
    /// Checks every setting for a model with `vocabulary` tokens.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn check(&self, vocabulary: usize) -> Result<(), SettingsError> {
        float("temperature", self.temperature, 0.0..=100.0)?;
        whole("top_k", self.top_k, 0..=i64::try_from(vocabulary).unwrap_or(i64::MAX))?;
        float("top_p", self.top_p, f32::MIN_POSITIVE..=1.0)?;
        float("min_p", self.min_p, 0.0..=1.0)?;
        float("repetition_penalty", self.repetition_penalty, 0.01..=100.0)?;
        float("presence_penalty", self.presence_penalty, -100.0..=100.0)?;
        float("frequency_penalty", self.frequency_penalty, -100.0..=100.0)?;
        whole("penalty_window", self.penalty_window, -1..=i64::from(i32::MAX))
    }
}

fn float(field: &'static str, found: f32, allowed: RangeInclusive<f32>) -> Result<(), SettingsError> {
    // NaN is in no range.
    if allowed.contains(&found) {
        return Ok(());
    }
    let allowed = match *allowed.start() {
        f32::MIN_POSITIVE => format!("above 0 and at most {}", allowed.end()),
        start => format!("between {start} and {}", allowed.end()),
    };
    Err(SettingsError { field, found: found.to_string(), allowed })
}

fn whole(field: &'static str, found: i64, allowed: RangeInclusive<i64>) -> Result<(), SettingsError> {
    if allowed.contains(&found) {
        return Ok(());
    }
    let allowed = format!("between {} and {}", allowed.start(), allowed.end());
    Err(SettingsError { field, found: found.to_string(), allowed })
}
