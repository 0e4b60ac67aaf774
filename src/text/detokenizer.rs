use std::sync::Arc;

use super::{ControlTokens, StopStrings, TextError, TokenId, Tokenizer};

/// Text that is ready to be shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// Whole characters; empty while they are incomplete or may become a stop string.
    pub text: String,
    /// The index of the stop string that has ended the text, from the chunk on that found it.
    pub stopped: Option<usize>,
}

/// One answer's text, token by token.
///
/// The chunks together are the bytes of all tokens read as UTF-8, with U+FFFD for what is none, up to a stop string. A
/// character that may still be completed is replaced only at the end.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    control: ControlTokens,
    /// The begin of a character.
    partial: Vec<u8>,
    stops: StopStrings,
}

impl Detokenizer {
    /// A new answer. The text goes on where a prompt has ended, so no space prefix is taken away.
    pub fn new(tokenizer: Arc<Tokenizer>, control: ControlTokens, stops: StopStrings) -> Self {
        Self { tokenizer, control, partial: Vec::new(), stops }
    }

    /// Takes the next token.
    ///
    /// # Errors
    /// An id outside of the vocabulary, or a model without a tokenizer.
    pub fn push(&mut self, id: TokenId) -> Result<Chunk, TextError> {
        self.partial.extend_from_slice(self.tokenizer.shown_bytes(id, self.control)?);
        let text = take_chars(&mut self.partial);
        Ok(self.chunk(&text))
    }

    /// The answer has ended: gives all that was held back, unless a stop string ended it.
    pub fn finish(&mut self) -> Chunk {
        let text = String::from_utf8_lossy(&self.partial).into_owned();
        self.partial.clear();
        let mut chunk = self.chunk(&text);
        chunk.text.push_str(&self.stops.finish());
        chunk
    }

    fn chunk(&mut self, text: &str) -> Chunk {
        let text = self.stops.push(text);
        Chunk { text, stopped: self.stops.hit() }
    }
}

/// Takes the decided characters off the front of `bytes` and leaves the begin of one that is not complete.
fn take_chars(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut decided = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        decided += chunk.valid().len();
        let invalid = chunk.invalid();
        // Only the last chunk can be a character that the end of the bytes has cut off.
        let may_go_on = decided + invalid.len() == bytes.len()
            && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
        if !invalid.is_empty() && !may_go_on {
            text.push(char::REPLACEMENT_CHARACTER);
            decided += invalid.len();
        }
    }
    bytes.drain(..decided);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        /// Nothing is lost, nothing is replaced too early, every chunk is text.
        #[test]
        fn chunks_together_are_the_lossy_text(
            bytes in proptest::collection::vec(
                proptest::prop_oneof![
                    proptest::prelude::Just(b"a".to_vec()),
                    proptest::prelude::Just("é→🙂".as_bytes().to_vec()),
                    proptest::prelude::Just(vec![0xf0, 0x9f]),
                    proptest::collection::vec(0_u8.., 1..3),
                ],
                0..8,
            ),
            size in 1_usize..5,
        ) {
            let bytes = bytes.concat();
            let mut partial = Vec::new();
            let mut text = String::new();
            for piece in bytes.chunks(size) {
                partial.extend_from_slice(piece);
                text.push_str(&take_chars(&mut partial));
                proptest::prop_assert!(partial.len() < 4);
            }
            text.push_str(&String::from_utf8_lossy(&partial));
            proptest::prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
