//! SentencePiece-style encoding: of all neighbours whose union is a token, the pair with the best score is joined
//! first.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::{TextError, TokenId, TokenType, Vocabulary};

/// Stands for a space in the vocabulary.
pub(super) const SPACE: char = '\u{2581}';

#[derive(Debug)]
pub(super) struct Spm {
    ids: HashMap<String, TokenId>,
    scores: Vec<f32>,
    /// The token of each byte, for characters that are no token.
    bytes: Vec<TokenId>,
}

/// A run of text that is or may become a token. Neighbours are linked; a joined right side has `end == start`.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    start: usize,
    end: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// A possible join of two neighbours: the best score first, then the leftmost.
#[derive(Debug)]
struct Join {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both sides when the join was proposed: if they have changed, it is void.
    bytes: usize,
}

impl Ord for Join {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Join {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Join {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Join {}

impl Spm {
    pub(super) fn new(vocabulary: &Vocabulary, unk: Option<TokenId>) -> Result<Self, TextError> {
        const SCORES: &str = "tokenizer.ggml.scores";
        if vocabulary.scores.is_empty() {
            return Err(TextError::MissingKey { key: SCORES });
        }
        if let Some(at) = vocabulary.scores.iter().position(|score| score.is_nan()) {
            return Err(TextError::BadKey { key: SCORES, problem: format!("entry {at} is not a number") });
        }
        let mut ids: HashMap<String, TokenId> = HashMap::with_capacity(vocabulary.tokens.len());
        for (id, token) in (0..).zip(&vocabulary.tokens) {
            // A text that stands twice belongs to the lower id.
            ids.entry(token.clone()).or_insert(id);
        }
        let bytes = (0..=u8::MAX).map(|byte| {
            let spelt = ids.get(&format!("<0x{byte:02X}>")).copied();
            let plain =
                || byte.is_ascii().then(|| ids.get(char::from(byte).encode_utf8(&mut [0; 4])).copied()).flatten();
            spelt.or_else(plain).or(unk).ok_or_else(|| TextError::BadKey {
                key: "tokenizer.ggml.tokens",
                problem: format!("no token for the byte 0x{byte:02X} and no unknown token"),
            })
        });
        let bytes = bytes.collect::<Result<_, TextError>>()?;
        Ok(Self { ids, scores: vocabulary.scores.clone(), bytes })
    }

    /// Appends the tokens of a text in which spaces are already [`SPACE`].
    pub(super) fn encode(&self, text: &str, out: &mut Vec<TokenId>) {
        let mut symbols = symbols(text);
        let mut joins = BinaryHeap::new();
        for right in 1..symbols.len() {
            self.propose(text, &symbols, Some(right - 1), Some(right), &mut joins);
        }
        while let Some(join) = joins.pop() {
            let (Some(&left), Some(&right)) = (symbols.get(join.left), symbols.get(join.right)) else { continue };
            let void = left.start == left.end || right.start == right.end || right.end - left.start != join.bytes;
            if void || left.next != Some(join.right) {
                continue;
            }
            if let Some(symbol) = symbols.get_mut(join.left) {
                *symbol = Symbol { end: right.end, next: right.next, ..left };
            }
            if let Some(symbol) = symbols.get_mut(join.right) {
                symbol.end = symbol.start;
            }
            if let Some(symbol) = right.next.and_then(|next| symbols.get_mut(next)) {
                symbol.previous = Some(join.left);
            }
            self.propose(text, &symbols, left.previous, Some(join.left), &mut joins);
            self.propose(text, &symbols, Some(join.left), right.next, &mut joins);
        }
        for symbol in symbols.iter().filter(|symbol| symbol.start < symbol.end) {
            let Some(piece) = text.get(symbol.start..symbol.end) else { continue };
            match self.ids.get(piece) {
                Some(&id) => out.push(id),
                None => out.extend(piece.bytes().filter_map(|byte| self.bytes.get(usize::from(byte)))),
            }
        }
    }

    fn propose(
        &self,
        text: &str,
        symbols: &[Symbol],
        left: Option<usize>,
        right: Option<usize>,
        joins: &mut BinaryHeap<Join>,
    ) {
        let join = || {
            let (left, right) = (left?, right?);
            let (start, end) = (symbols.get(left)?.start, symbols.get(right)?.end);
            let id = *self.ids.get(text.get(start..end)?)?;
            // Adding zero makes -0 and 0 one score: the leftmost of equals must win.
            let score = self.scores.get(id as usize)? + 0.0;
            Some(Join { score, left, right, bytes: end - start })
        };
        joins.extend(join());
    }
}

/// One symbol a character.
fn symbols(text: &str) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = text
        .char_indices()
        .enumerate()
        .map(|(at, (start, char))| Symbol {
            start,
            end: start + char.len_utf8(),
            previous: at.checked_sub(1),
            next: Some(at + 1),
        })
        .collect();
    if let Some(last) = symbols.last_mut() {
        last.next = None;
    }
    symbols
}

/// The bytes of a token of this kind of vocabulary.
pub(super) fn bytes(token: &str, kind: TokenType, out: &mut Vec<u8>) {
    match byte_of(token).filter(|_| kind == TokenType::Byte) {
        Some(byte) => out.push(byte),
        None => out.extend_from_slice(token.replace(SPACE, " ").as_bytes()),
    }
}

/// The byte that `<0xXX>` spells.
pub(super) fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}
