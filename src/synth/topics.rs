//! How a synthetic model routes as real ones do: token embeddings share a common direction (so that some experts are
//! popular with every token) and the direction of their topic (so that neighbouring tokens route alike), and a text
//! stays with a topic for a while.

use super::random::{Random, Ring};
use super::shape::Shape;
use super::vocabulary::LEAST_VOCABULARY;
use crate::gguf::{Metadata, MetadataError};
use crate::units::TokenId;

/// What an embedding is made of: the parts relative to a token's own, which counts 1. They are scaled to unit size
/// together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// The direction that all tokens share. 0: every expert is as popular as any other.
    pub popularity: f32,
    /// The direction of the token's topic. 0: neighbours route independently of each other.
    pub locality: f32,
    /// Topics of the vocabulary.
    pub topics: usize,
}

impl Default for Routing {
    /// Chosen so that of 256 experts with 8 used, a text touches 40% after 130 tokens and 77% after 1,658, as measured
    /// on real models.
    fn default() -> Self {
        Self { popularity: 1.1, locality: 1.5, topics: 64 }
    }
}

/// Which tokens of a synthetic vocabulary belong to which topic: words do, in equal ranges; bytes, merges and control
/// tokens belong to none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topics {
    vocabulary: usize,
    count: usize,
    each: usize,
}

/// The metadata key that keeps the number of topics.
pub(super) const TOPICS_KEY: &str = "aqueduct.synth.topics";

/// Tokens without a topic that texts use: the printable bytes, which come first.
const COMMON: usize = 94;
/// How often a text uses one of them.
const COMMON_SHARE: f64 = 0.3;
/// Tokens after which a text turns to another topic, on average.
const TOPIC_LENGTH: f64 = 100.0;
/// Fewest words of a topic.
const LEAST_WORDS: usize = 4;

impl Topics {
    /// `count` topics in a vocabulary of `vocabulary` tokens; fewer where it is too small.
    pub fn new(vocabulary: usize, count: usize) -> Self {
        let words = vocabulary.saturating_sub(LEAST_VOCABULARY);
        let count = count.min(words / LEAST_WORDS).max(1);
        Self { vocabulary, count, each: words / count }
    }

    /// The topics of a model that this module wrote; `None` for any other model.
    ///
    /// # Errors
    /// When a key is there with another type than this module writes.
    pub fn of_model(metadata: &Metadata) -> Result<Option<Self>, MetadataError> {
        let Some(count) = metadata.find::<usize>(TOPICS_KEY)? else { return Ok(None) };
        let tokens = metadata.require::<&crate::gguf::Array>("tokenizer.ggml.tokens")?;
        Ok(Some(Self::new(tokens.len(), count)))
    }

    /// The topic of a token.
    pub fn topic_of(&self, token: TokenId) -> Option<usize> {
        let word = (token as usize).checked_sub(LEAST_VOCABULARY)?;
        word.checked_div(self.each).filter(|topic| *topic < self.count)
    }

    /// The word before a word, the last one before the first; `None` for tokens without a topic.
    pub(super) fn word_before(&self, token: TokenId) -> Option<TokenId> {
        self.topic_of(token)?;
        let word = token as usize - LEAST_VOCABULARY;
        let before = word.checked_sub(1).unwrap_or((self.count * self.each).saturating_sub(1));
        Some((LEAST_VOCABULARY + before) as TokenId)
    }

    /// A text of `tokens` tokens that stays with a topic for a hundred tokens on average; words of a topic come as
    /// often as words of a language do (the `n`-th most frequent at `1/n` of the first). The same seed gives the
    /// same text, and a longer text begins with the shorter one.
    pub fn text(&self, seed: u64, tokens: usize) -> Vec<TokenId> {
        let mut random = Random::new(seed, u64::from(u32::MAX));
        let common = Frequencies::new(COMMON.min(self.vocabulary));
        let words = Frequencies::new(self.each);
        let mut topic = random.below(self.count);
        let mut next = || {
            if random.unit() < 1.0 / TOPIC_LENGTH {
                topic = random.below(self.count);
            }
            let (kind, which) = (random.unit(), random.unit());
            if kind < COMMON_SHARE || self.each == 0 {
                common.pick(which) as TokenId
            } else {
                (LEAST_VOCABULARY + topic * self.each + words.pick(which)) as TokenId
            }
        };
        (0..tokens).map(|_| next()).collect()
    }
}

/// `tokens` ids drawn evenly from a vocabulary: the text of a model whose topics are not known. The same seed gives the
/// same text, and a longer text begins with the shorter one.
pub fn even_text(vocabulary: usize, seed: u64, tokens: usize) -> Vec<TokenId> {
    let mut random = Random::new(seed, u64::from(u32::MAX));
    (0..tokens).map(|_| random.below(vocabulary) as TokenId).collect()
}

/// The sums of `1 + 1/2 + .. + 1/n`.
struct Frequencies(Vec<f64>);

impl Frequencies {
    fn new(count: usize) -> Self {
        let mut sum = 0.0;
        let add = |n: usize| {
            sum += 1.0 / n as f64;
            sum
        };
        Self((1..=count).map(add).collect())
    }

    /// The word at `which` (0 to 1) of all use.
    fn pick(&self, which: f64) -> usize {
        let total = self.0.last().copied().unwrap_or_default();
        self.0.partition_point(|sum| *sum < which * total).min(self.0.len().saturating_sub(1))
    }
}

const COMMON_DIRECTION: u64 = 1;
const TOPIC_DIRECTIONS: u64 = 2;
const OWN_DIRECTIONS: u64 = 3;
const HEAD_DIRECTIONS: u64 = 4;
const ROUTERS: u64 = 1 << 32;

/// The token embeddings and output rows of a synthetic model, row by row.
pub(super) struct Embeddings {
    topics: Topics,
    common: Vec<f32>,
    directions: Vec<Vec<f32>>,
    own: Ring,
    head: Ring,
    parts: [f32; 3],
}

impl Embeddings {
    pub fn new(shape: &Shape) -> Self {
        let Routing { popularity, locality, topics } = shape.routing;
        let size = (popularity.powi(2) + locality.powi(2) + 1.0).sqrt();
        let topics = Topics::new(shape.vocabulary, topics);
        let mut random = Random::new(shape.seed, TOPIC_DIRECTIONS);
        Self {
            topics,
            common: Random::new(shape.seed, COMMON_DIRECTION).normals(shape.width),
            directions: (0..topics.count).map(|_| random.normals(shape.width)).collect(),
            own: Ring::new(&mut Random::new(shape.seed, OWN_DIRECTIONS)),
            head: Ring::new(&mut Random::new(shape.seed, HEAD_DIRECTIONS)),
            parts: [popularity / size, locality / size, 1.0 / size],
        }
    }

    /// The embedding of a token, of unit size (each element has variance 1).
    pub fn row(&self, token: TokenId, out: &mut [f32]) {
        let [popularity, locality, own] = self.parts;
        let direction = self.topics.topic_of(token).and_then(|topic| self.directions.get(topic));
        let values = self.own.from(place(token)).zip(&self.common);
        match direction {
            Some(direction) => {
                for ((out, (value, common)), topic) in out.iter_mut().zip(values).zip(direction) {
                    *out = popularity * common + locality * topic + own * value;
                }
            }
            None => {
                let own = locality.hypot(own);
                for (out, (value, common)) in out.iter_mut().zip(values) {
                    *out = popularity * common + own * value;
                }
            }
        }
    }

    /// The output row of a token: the embedding of the word before it, so that a generated text walks through the words
    /// of its topic as a prompt does. Tokens that are no words have rows of their own, which no text leads to.
    pub fn head_row(&self, token: TokenId, out: &mut [f32]) {
        let size = 1.0 / (out.len() as f32).sqrt();
        match self.topics.word_before(token) {
            Some(before) => self.row(before, out),
            None => out.iter_mut().zip(self.head.from(place(token))).for_each(|(out, value)| *out = value),
        }
        out.iter_mut().for_each(|v| *v *= size);
    }
}

/// Where a token's own values begin in a ring: far from its neighbours'.
fn place(token: TokenId) -> usize {
    token as usize * 414_977
}

/// The router of a layer: `experts` rows of `width`, so that an input of unit size gives logits of variance 1.
pub(super) fn router(shape: &Shape, layer: usize, experts: usize) -> Vec<f32> {
    let size = 1.0 / (shape.width as f32).sqrt();
    let mut rows = Random::new(shape.seed, ROUTERS + layer as u64).normals(experts * shape.width);
    rows.iter_mut().for_each(|v| *v *= size);
    rows
}

/// The share of (layer, expert) pairs that a text touches, estimated from embeddings and routers alone: as if no layer
/// added anything to the residual stream. 0 for a dense shape. The running model is what counts; on it the figures are
/// a few percent off.
pub fn coverage(shape: &Shape, text: &[TokenId]) -> f64 {
    let Some(experts) = shape.experts else { return 0.0 };
    let mut tokens = text.to_vec();
    tokens.sort_unstable();
    tokens.dedup();
    let embeddings = Embeddings::new(shape);
    let mut row = vec![0.0; shape.width];
    let mut touched = vec![vec![false; experts.count]; shape.layers];
    let routers: Vec<Vec<f32>> = (0..shape.layers).map(|layer| router(shape, layer, experts.count)).collect();
    for token in tokens {
        embeddings.row(token, &mut row);
        for (router, touched) in routers.iter().zip(&mut touched) {
            let logit = |weights: &[f32]| weights.iter().zip(&row).map(|(w, x)| w * x).sum::<f32>();
            let mut order: Vec<(f32, usize)> = router
                .chunks_exact(shape.width)
                .map(logit)
                .enumerate()
                .map(|(expert, logit)| (logit, expert))
                .collect();
            order.sort_by(|a, b| b.0.total_cmp(&a.0));
            for (_, expert) in order.into_iter().take(experts.used) {
                if let Some(touched) = touched.get_mut(expert) {
                    *touched = true;
                }
            }
        }
    }
    let count = touched.iter().flatten().filter(|t| **t).count();
    count as f64 / (shape.layers * experts.count) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coverage_is_that_of_real_models() {
        let shape = Shape::named("qwen3moe-256").unwrap();
        let topics = Topics::new(shape.vocabulary, shape.routing.topics);
        for (tokens, wanted) in [(130, 0.40), (1658, 0.77)] {
            let seeds = 4;
            let found = (0..seeds).map(|seed| coverage(&shape, &topics.text(seed, tokens))).sum::<f64>() / seeds as f64;
            println!("{tokens} tokens touch {:.1}% of the experts, real models {:.0}%", found * 100.0, wanted * 100.0);
            assert!((found - wanted).abs() < 0.05, "{tokens} tokens: {found}");
        }
        let even = Shape { routing: Routing { popularity: 0.0, locality: 0.0, ..shape.routing }, ..shape };
        assert!(
            coverage(&even, &topics.text(1, 130)) > 0.7,
            "without popularity and locality, few tokens touch most experts"
        );
    }

    #[test]
    fn texts_are_reproducible_and_stay_with_a_topic() {
        let topics = Topics::new(8192, 64);
        let text = topics.text(3, 5000);
        assert_eq!(text.get(..100), topics.text(3, 100).get(..));
        assert_ne!(text.get(..100), topics.text(4, 100).get(..));
        assert!(text.iter().all(|t| *t < 8192));
        let of: Vec<usize> = text.iter().filter_map(|t| topics.topic_of(*t)).collect();
        let turns = of.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!((20..120).contains(&turns), "{turns} turns to another topic");
        let share = of.len() as f64 / text.len() as f64;
        assert!((share - 0.7).abs() < 0.03, "{share} of the tokens are words");
    }

    #[test]
    fn small_vocabularies_have_few_topics() {
        for vocabulary in [LEAST_VOCABULARY, LEAST_VOCABULARY + 1, LEAST_VOCABULARY + 32] {
            let topics = Topics::new(vocabulary, 64);
            assert!(topics.text(1, 1000).iter().all(|t| (*t as usize) < vocabulary));
        }
        let topics = Topics::new(LEAST_VOCABULARY + 32, 64);
        let first = LEAST_VOCABULARY as TokenId;
        assert_eq!((topics.count, topics.each), (8, 4));
        assert_eq!(topics.topic_of(first - 1), None);
        assert_eq!(
            (topics.topic_of(first), topics.topic_of(first + 31), topics.topic_of(first + 32)),
            (Some(0), Some(7), None)
        );
        assert_eq!(topics.word_before(first), Some(first + 31));
        assert_eq!(topics.word_before(first + 5), Some(first + 4));
    }
}
