//! Choosing the next token from logits.
//!
//! The order is that of llama.cpp: penalties, top-k, top-p, min-p, temperature, draw. Everything is computed in f64
//! with the four basic operations only, in a fixed order, and the random numbers are ChaCha's: equal logits, settings
//! and seed give equal tokens on every machine.

mod exp;
mod penalty;
mod settings;
#[cfg(test)]
mod tests;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

pub use settings::{SamplerSettings, SettingsError};

use self::exp::exp;
use self::penalty::Penalties;
use crate::units::TokenId;

/// Why no token could be chosen.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// The model's output is broken.
    #[error("the logit of token {token} is {value}: the model's output is broken, so this request ends")]
    BadLogit {
        /// Which token.
        token: usize,
        /// NaN or infinity.
        value: f32,
    },
    /// There are not as many logits as the sampler was made for.
    #[error("{found} logits for a vocabulary of {wanted} tokens")]
    WrongLength {
        /// Logits given.
        found: usize,
        /// Tokens of the vocabulary.
        wanted: usize,
    },
    /// Every token is ruled out.
    #[error("no token is possible: all logits are -inf")]
    NonePossible,
}

/// Chooses tokens for one sequence.
#[derive(Clone, Debug)]
pub struct Sampler {
    settings: SamplerSettings,
    vocabulary: usize,
    penalties: Penalties,
    random: ChaCha8Rng,
    /// Kept between calls, as `weights` is: a vocabulary's worth of memory.
    candidates: Vec<Candidate>,
    weights: Vec<f64>,
}

/// A token that may still be chosen.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    token: TokenId,
    logit: f32,
}

impl Candidate {
    /// The better one first; of equals the one with the lower id.
    fn order(&self, other: &Self) -> std::cmp::Ordering {
        other.logit.total_cmp(&self.logit).then(self.token.cmp(&other.token))
    }
}

impl Sampler {
    /// A sampler for a model with `vocabulary` logits.
    ///
    /// # Errors
    /// A setting out of its range, by its name.
    pub fn new(settings: SamplerSettings, vocabulary: usize) -> Result<Self, SettingsError> {
        settings.check(vocabulary)?;
        Ok(Self {
            penalties: Penalties::new(&settings),
            random: ChaCha8Rng::seed_from_u64(settings.seed),
            candidates: Vec::new(),
            weights: Vec::new(),
            settings,
            vocabulary,
        })
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &SamplerSettings {
        &self.settings
    }

    /// Tells the sampler of a token of the sequence, of the prompt as well as of the answer, for the penalties. The
    /// caller also passes what [`Self::sample`] gave, once it is part of the sequence.
    pub fn accept(&mut self, token: TokenId) {
        self.penalties.accept(token);
    }

    /// Chooses the next token. `logits` has one value a token; `-inf` rules a token out.
    ///
    /// # Errors
    /// NaN or `+inf` among the logits, none left, or a wrong number of them.
    pub fn sample(&mut self, logits: &[f32]) -> Result<TokenId, SampleError> {
        if logits.len() != self.vocabulary {
            return Err(SampleError::WrongLength { found: logits.len(), wanted: self.vocabulary });
        }
        let bad = |value: &f32| value.is_nan() || *value == f32::INFINITY;
        if let Some((token, &value)) = logits.iter().enumerate().find(|(_, value)| bad(value)) {
            return Err(SampleError::BadLogit { token, value });
        }
        self.candidates.clear();
        // Adding zero makes -0 and 0 one logit, so that the lower id wins.
        self.candidates.extend((0..).zip(logits).map(|(token, &logit)| Candidate { token, logit: logit + 0.0 }));
        for (token, penalty) in self.penalties.iter() {
            if let Some(candidate) = self.candidates.get_mut(token as usize) {
                candidate.logit = penalty.apply(candidate.logit) + 0.0;
            }
        }
        let best = *self.candidates.iter().min_by(|a, b| a.order(b)).ok_or(SampleError::NonePossible)?;
        if best.logit == f32::NEG_INFINITY {
            return Err(SampleError::NonePossible);
        }
        if self.settings.temperature == 0.0 {
            return Ok(best.token);
        }
        self.keep_top_k();
        self.keep_top_p(best.logit);
        self.keep_min_p(best.logit);
        Ok(self.draw(best))
    }

    /// Keeps the k best, in order.
    fn keep_top_k(&mut self) {
        let keep = self.settings.top_k as usize;
        if keep > 0 && keep < self.candidates.len() {
            self.candidates.select_nth_unstable_by(keep - 1, Candidate::order);
            self.candidates.truncate(keep);
            self.candidates.sort_unstable_by(Candidate::order);
        }
    }

    /// Keeps the best ones that together have at least the probability p.
    fn keep_top_p(&mut self, best: f32) {
        if self.settings.top_p >= 1.0 {
            return;
        }
        let weight = |candidate: &Candidate| exp(f64::from(candidate.logit) - f64::from(best));
        let wanted = self.candidates.iter().map(weight).sum::<f64>() * f64::from(self.settings.top_p);
        // Sorting all of a vocabulary takes longer than a small model's step; most often a few hundred are enough.
        let mut sorted = 0;
        let mut sum = 0.0;
        let mut keep = 0;
        while sum < wanted && keep < self.candidates.len() {
            if keep == sorted {
                let end = (sorted * 4).clamp(256, self.candidates.len().max(256)).min(self.candidates.len());
                let Some(rest) = self.candidates.get_mut(sorted..) else { break };
                if end - sorted < rest.len() {
                    rest.select_nth_unstable_by(end - sorted, Candidate::order);
                }
                if let Some(next) = rest.get_mut(..end - sorted) {
                    next.sort_unstable_by(Candidate::order);
                }
                sorted = end;
            }
            sum += self.candidates.get(keep).map_or(0.0, weight);
            keep += 1;
        }
        self.candidates.truncate(keep.max(1));
    }

    /// Keeps those that are at least min-p times as probable as the best.
    fn keep_min_p(&mut self, best: f32) {
        let least = f64::from(self.settings.min_p);
        if least > 0.0 {
            self.candidates.retain(|candidate| exp(f64::from(candidate.logit) - f64::from(best)) >= least);
        }
    }

    /// Draws one of the candidates, `best` being one of them, at the temperature.
    fn draw(&mut self, best: Candidate) -> TokenId {
        let temperature = f64::from(self.settings.temperature);
        let weight = |candidate: &Candidate| exp((f64::from(candidate.logit) - f64::from(best.logit)) / temperature);
        self.weights.clear();
        self.weights.extend(self.candidates.iter().map(weight));
        let total: f64 = self.weights.iter().sum();
        // 53 random bits: a float in 0..1 that is the same everywhere.
        let point = (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 * total;
        let mut sum = 0.0;
        for (candidate, weight) in self.candidates.iter().zip(&self.weights) {
            sum += weight;
            if sum > point {
                return candidate.token;
            }
        }
        best.token
    }
}
