//! Byte-level byte pair encoding: words, a token for each of their bytes, merges by rank.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::alphabet::Alphabet;
use super::join::{Symbol, join};
use super::pre::Split;
use super::texts::Texts;
use super::{TextError, TokenId, Vocabulary};

#[derive(Debug)]
pub(super) struct Bpe {
    split: Split,
    alphabet: Alphabet,
    /// The token of each byte; a byte without one is left out of the text.
    bytes: Vec<Option<TokenId>>,
    /// The rank of a pair, the best first, and its token.
    merges: HashMap<(TokenId, TokenId), (u32, TokenId)>,
}

impl Bpe {
    pub(super) fn new(vocabulary: &Vocabulary, texts: &Texts) -> Result<Self, TextError> {
        let name = vocabulary.pre.as_deref().ok_or(TextError::MissingKey { key: "tokenizer.ggml.pre" })?;
        let split = Split::named(name)?;
        if vocabulary.merges.is_empty() {
            return Err(TextError::MissingKey { key: "tokenizer.ggml.merges" });
        }
        let alphabet = Alphabet::new();
        let id = |byte| {
            let mut char = String::new();
            alphabet.write_chars(&[byte], &mut char);
            texts.find(&char)
        };
        let bytes = (0..=u8::MAX).map(id).collect();
        Ok(Self { split, bytes, merges: merges(&vocabulary.merges, texts)?, alphabet })
    }

    pub(super) fn add_bos(&self) -> bool {
        self.split.add_bos
    }

    /// Appends the tokens of a text without special tokens.
    pub(super) fn encode(&self, texts: &Texts, text: &str, out: &mut Vec<TokenId>) {
        let mut chars = String::new();
        self.split.run(text, |word| {
            if self.split.ignore_merges {
                chars.clear();
                self.alphabet.write_chars(word.as_bytes(), &mut chars);
                if let Some(id) = texts.find(&chars) {
                    return out.push(id);
                }
            }
            let token = |byte: u8| self.bytes.get(usize::from(byte)).copied().flatten();
            let known = word.bytes().enumerate().map(|(at, byte)| Symbol { start: at, end: at + 1, id: token(byte) });
            let joined = join(known.filter(|symbol| symbol.id.is_some()).collect(), |left, right| {
                let (rank, id) = self.merges.get(&(left.id?, right.id?))?;
                Some((Reverse(*rank), *id))
            });
            out.extend(joined.filter_map(|symbol| symbol.id));
        });
    }

    /// The bytes of a normal token.
    pub(super) fn bytes(&self, token: &str, out: &mut Vec<u8>) {
        self.alphabet.write_bytes(token, out);
    }
}

/// The merges by the ids of both sides.
fn merges(merges: &[String], texts: &Texts) -> Result<HashMap<(TokenId, TokenId), (u32, TokenId)>, TextError> {
    // Only for this while: a look into a map is faster than a search, and there are as many merges as tokens.
    let mut ids: HashMap<&str, TokenId> = HashMap::with_capacity(texts.len());
    for (id, text) in (0..).zip(texts.iter()) {
        ids.entry(text).or_insert(id);
    }
    let mut ranked = HashMap::with_capacity(merges.len());
    let mut union = String::new();
    for (rank, merge) in (0..).zip(merges) {
        let wrong = |problem| TextError::BadMerge { index: rank as usize, merge: merge.clone(), problem };
        let (left, right) = parts(merge).ok_or_else(|| wrong("two tokens with a space between them are wanted"))?;
        union.clear();
        union.push_str(left);
        union.push_str(right);
        let ids = (ids.get(left), ids.get(right), ids.get(union.as_str()));
        let (Some(left), Some(right), Some(id)) = ids else {
            return Err(wrong("a side or the result is not in the vocabulary"));
        };
        // A merge that stands twice has its first rank.
        ranked.entry((*left, *right)).or_insert((rank, *id));
    }
    Ok(ranked)
}

/// Both sides of a merge. A side may itself begin with a space in hand-made vocabularies, hence not the very first character.
fn parts(merge: &str) -> Option<(&str, &str)> {
    let (space, _) = merge.char_indices().skip(1).find(|&(_, char)| char == ' ')?;
    Some((merge.get(..space)?, merge.get(space + 1..)?))
}
