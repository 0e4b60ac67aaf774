//! The arguments of sampling.

use crate::sampler::SamplerSettings;

/// Tokens of an answer: a number, or -1 for as many as the model gives and the context holds.
pub fn answer_tokens(text: &str) -> Result<usize, String> {
    match text {
        "-1" => Ok(usize::MAX),
        _ => text.parse().map_err(|_| {
            format!("`{text}` is no number of tokens; give a whole number, or -1 to go on until the model or the context ends")
        }),
    }
}

/// How tokens are chosen.
#[derive(clap::Args)]
pub struct SamplingArgs {
    /// 0 takes the best token, 1 draws as the model says.
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    temperature: f32,
    /// Draws from the K best tokens only; 0 for all.
    #[arg(long, value_name = "K", default_value_t = 0, allow_negative_numbers = true)]
    top_k: i64,
    /// Draws from the best tokens that together have this probability.
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    top_p: f32,
    /// Draws from tokens at least this many times as probable as the best.
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    min_p: f32,
    /// Divides the logits of recent tokens; 1 for none.
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    repetition_penalty: f32,
    /// Subtracted from the logits of recent tokens.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    presence_penalty: f32,
    /// Subtracted from the logits of recent tokens for each time they occur.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// How many of the last tokens are recent; -1 for all.
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true)]
    penalty_window: i64,
    /// Equal seeds give equal texts.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

impl SamplingArgs {
    /// The settings, with all checked that can be without a model.
    ///
    /// # Errors
    /// [`super::Mistake`] with the option's name.
    pub fn settings(&self) -> anyhow::Result<SamplerSettings> {
        let settings = SamplerSettings {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_window: self.penalty_window,
            seed: self.seed,
        };
        let checked = settings.check(usize::MAX);
        checked.map_err(|error| super::Mistake::of(&format!("--{}", error.field.replace('_', "-")), error))?;
        Ok(settings)
    }
}
