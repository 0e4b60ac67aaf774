use std::collections::{BTreeMap, VecDeque};

use super::SamplerSettings;
use crate::units::TokenId;

/// What the last tokens of the sequence do to their logits.
#[derive(Clone, Debug)]
pub(super) struct Penalties {
    repetition: f32,
    presence: f32,
    frequency: f32,
    /// How many tokens back; `None` for all.
    window: Option<usize>,
    recent: VecDeque<TokenId>,
    counts: BTreeMap<TokenId, u32>,
}

/// One token's penalty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Penalty {
    repetition: f32,
    offset: f32,
}

impl Penalties {
    pub(super) fn new(settings: &SamplerSettings) -> Self {
        let (repetition, presence, frequency) =
            (settings.repetition_penalty, settings.presence_penalty, settings.frequency_penalty);
        let neutral = repetition == 1.0 && presence == 0.0 && frequency == 0.0;
        let window = if neutral { Some(0) } else { usize::try_from(settings.penalty_window).ok() };
        Self { repetition, presence, frequency, window, recent: VecDeque::new(), counts: BTreeMap::new() }
    }

    pub(super) fn accept(&mut self, token: TokenId) {
        if self.window == Some(0) {
            return;
        }
        *self.counts.entry(token).or_default() += 1;
        let Some(window) = self.window else { return };
        self.recent.push_back(token);
        if self.recent.len() > window
            && let Some(oldest) = self.recent.pop_front()
            && let Some(count) = self.counts.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&oldest);
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (TokenId, Penalty)> {
        self.counts.iter().map(|(&token, &count)| {
            let offset = count as f32 * self.frequency + self.presence;
            (token, Penalty { repetition: self.repetition, offset })
        })
    }
}

impl Penalty {
    /// Repetition scales towards less likely, presence and frequency subtract.
    pub(super) fn apply(self, logit: f32) -> f32 {
        let scaled = if logit <= 0.0 { logit * self.repetition } else { logit / self.repetition };
        scaled - self.offset
    }
}
