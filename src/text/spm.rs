//! SentencePiece-style encoding: of all neighbours whose union is a token, the pair with the best score is joined first.

use super::join::{Symbol, join};
use super::texts::Texts;
use super::{TextError, TokenId, TokenType, Vocabulary};

/// Stands for a space in the vocabulary.
pub(super) const SPACE: char = '\u{2581}';

#[derive(Debug)]
pub(super) struct Spm {
    /// By id, in an order of whole numbers.
    scores: Vec<i32>,
    /// The token of each byte, for characters that are no token.
    bytes: Vec<TokenId>,
}

impl Spm {
    pub(super) fn new(vocabulary: &Vocabulary, texts: &Texts, unk: Option<TokenId>) -> Result<Self, TextError> {
        const SCORES: &str = "tokenizer.ggml.scores";
        if vocabulary.scores.is_empty() {
            return Err(TextError::MissingKey { key: SCORES });
        }
        if let Some(at) = vocabulary.scores.iter().position(|score| score.is_nan()) {
            return Err(TextError::BadKey { key: SCORES, problem: format!("entry {at} is not a number") });
        }
        let bytes = (0..=u8::MAX).map(|byte| {
            let spelt = texts.find(&format!("<0x{byte:02X}>"));
            let plain = || byte.is_ascii().then(|| texts.find(char::from(byte).encode_utf8(&mut [0; 4]))).flatten();
            spelt.or_else(plain).or(unk).ok_or_else(|| TextError::BadKey {
                key: "tokenizer.ggml.tokens",
                problem: format!("no token for the byte 0x{byte:02X} and no unknown token"),
            })
        });
        let bytes = bytes.collect::<Result<_, TextError>>()?;
        Ok(Self { scores: vocabulary.scores.iter().map(|score| rank(*score)).collect(), bytes })
    }

    /// Appends the tokens of a text in which spaces are already [`SPACE`].
    pub(super) fn encode(&self, texts: &Texts, text: &str, out: &mut Vec<TokenId>) {
        let piece = |start: usize, end: usize| text.get(start..end).unwrap_or_default();
        let symbols = text.char_indices().map(|(start, char)| {
            let end = start + char.len_utf8();
            Symbol { start, end, id: texts.find(piece(start, end)) }
        });
        let joined = join(symbols.collect(), |left, right| {
            let id = texts.find(piece(left.start, right.end))?;
            Some((*self.scores.get(id as usize)?, id))
        });
        for symbol in joined {
            match symbol.id {
                Some(id) => out.push(id),
                None => {
                    let bytes = piece(symbol.start, symbol.end).bytes();
                    out.extend(bytes.filter_map(|byte| self.bytes.get(usize::from(byte))));
                }
            }
        }
    }
}

/// A number with the order of the scores. -0 and 0 are one: the leftmost of equals must win.
fn rank(score: f32) -> i32 {
    let bits = (score + 0.0).to_bits().cast_signed();
    // Negative numbers of this format grow with their bits.
    if bits < 0 { bits ^ i32::MAX } else { bits }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_the_order_of_scores() {
        let scores = [f32::NEG_INFINITY, -1e9, -2.5, -2.0, -1e-40, 0.0, 1e-40, 1.0, f32::INFINITY];
        assert!(scores.map(rank).is_sorted_by(|a, b| a < b), "{:?}", scores.map(rank));
        assert_eq!(rank(-0.0), rank(0.0));
    }
}
