//! Byte-level byte pair encoding: words, their bytes as characters, merges by rank.

use std::collections::HashSet;

use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Vocab};

use super::alphabet::Alphabet;
use super::pre::Split;
use super::{TextError, TokenId, Vocabulary};

#[derive(Debug)]
pub(super) struct Bpe {
    split: Split,
    alphabet: Alphabet,
    merger: BPE,
}

impl Bpe {
    pub(super) fn new(vocabulary: &Vocabulary) -> Result<Self, TextError> {
        let name = vocabulary.pre.as_deref().ok_or(TextError::MissingKey { key: "tokenizer.ggml.pre" })?;
        let split = Split::named(name)?;
        if vocabulary.merges.is_empty() {
            return Err(TextError::MissingKey { key: "tokenizer.ggml.merges" });
        }
        let mut ids = Vocab::default();
        for (id, token) in (0..).zip(&vocabulary.tokens) {
            // A text that stands twice belongs to the lower id.
            ids.entry(token.clone()).or_insert(id);
        }
        let merger = BPE::builder()
            .vocab_and_merges(ids, merges(vocabulary)?)
            .ignore_merges(split.ignore_merges)
            .build()
            .map_err(|error| unknown_part(vocabulary).unwrap_or(TextError::Build { problem: error.to_string() }))?;
        Ok(Self { split, alphabet: Alphabet::new(), merger })
    }

    pub(super) fn add_bos(&self) -> bool {
        self.split.add_bos
    }

    /// Appends the tokens of a text without special tokens.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<TokenId>) -> Result<(), TextError> {
        let mut chars = String::new();
        let mut problem = None;
        self.split.run(&self.split.normal(text), |word| {
            chars.clear();
            self.alphabet.write_chars(word.as_bytes(), &mut chars);
            match self.merger.tokenize(&chars) {
                Ok(tokens) => out.extend(tokens.iter().map(|token| token.id)),
                Err(error) => problem = Some(TextError::Build { problem: error.to_string() }),
            }
        });
        problem.map_or(Ok(()), Err)
    }

    /// The bytes of a normal token.
    pub(super) fn bytes(&self, token: &str, out: &mut Vec<u8>) {
        self.alphabet.write_bytes(token, out);
    }
}

/// The merges as pairs, each once.
fn merges(vocabulary: &Vocabulary) -> Result<Vec<(String, String)>, TextError> {
    let mut seen = HashSet::with_capacity(vocabulary.merges.len());
    let mut pairs = Vec::with_capacity(vocabulary.merges.len());
    for (index, merge) in vocabulary.merges.iter().enumerate() {
        let problem = "two tokens with a space between them are wanted";
        let (left, right) = parts(merge).ok_or_else(|| TextError::BadMerge { index, merge: merge.clone(), problem })?;
        if seen.insert((left, right)) {
            pairs.push((left.to_owned(), right.to_owned()));
        }
    }
    Ok(pairs)
}

/// Both sides of a merge. A side may itself begin with a space in hand-made vocabularies, hence not the very first
/// character.
fn parts(merge: &str) -> Option<(&str, &str)> {
    let (space, _) = merge.char_indices().skip(1).find(|&(_, char)| char == ' ')?;
    Some((merge.get(..space)?, merge.get(space + 1..)?))
}

/// The first merge with a side or a result that is no token. Looked for only when the library has refused the merges.
fn unknown_part(vocabulary: &Vocabulary) -> Option<TextError> {
    let known: HashSet<&str> = vocabulary.tokens.iter().map(String::as_str).collect();
    let bad = |merge: &&String| {
        parts(merge).is_none_or(|(left, right)| {
            !known.contains(left) || !known.contains(right) || !known.contains(format!("{left}{right}").as_str())
        })
    };
    let index = vocabulary.merges.iter().position(|merge| bad(&merge))?;
    let merge = vocabulary.merges.get(index)?.clone();
    Some(TextError::BadMerge { index, merge, problem: "a side or the result is not in the vocabulary" })
}
