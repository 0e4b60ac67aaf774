//! The tokens that benches read.

use crate::gguf::MetadataError;
use crate::model::Model;
use crate::synth::{Topics, even_text};
use crate::units::TokenId;

/// Where a bench's prompts come from.
#[derive(Clone, Copy, Debug)]
pub enum Text {
    /// A synthetic model's own topics: texts that route as real ones do.
    Topics(Topics),
    /// Ids drawn evenly from a vocabulary of this size.
    Even(usize),
}

impl Text {
    /// The texts for `model`.
    ///
    /// # Errors
    /// [`MetadataError`] when a synthetic model's topics cannot be read.
    pub fn of(model: &Model) -> Result<Self, MetadataError> {
        Ok(Topics::of_model(model.gguf().metadata())?.map_or(Self::Even(model.spec.vocab), Self::Topics))
    }

    /// A text; the same seed gives the same one, and a longer text begins with the shorter one.
    pub fn tokens(&self, seed: u64, tokens: usize) -> Vec<TokenId> {
        match self {
            Self::Topics(topics) => topics.text(seed, tokens),
            Self::Even(vocabulary) => even_text(*vocabulary, seed, tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_texts_use_the_whole_vocabulary_and_repeat_by_seed() {
        let text = Text::Even(50);
        let tokens = text.tokens(3, 2_000);
        assert_eq!(text.tokens(3, 100), tokens[..100]);
        assert_ne!(text.tokens(4, 100), tokens[..100]);
        let mut counts = [0; 50];
        for token in tokens {
            counts[token as usize] += 1;
        }
        assert!(counts.iter().all(|count| (10..90).contains(count)), "{counts:?}");
    }
}
