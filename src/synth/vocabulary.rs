//! The tokenizer of synthetic models: byte-level BPE with a few merges, ChatML control tokens, and invented words that
//! fill the vocabulary, so that prompts can be typed and what such a model writes can be read aloud.

use super::header::{Header, HeaderError};
use crate::gguf::Value;

/// The most frequent pairs of English letters, in the order in which they merge. `Ġ` is a space.
const MERGES: [(&str, &str); 28] = [
    ("Ġ", "t"),
    ("h", "e"),
    ("i", "n"),
    ("e", "r"),
    ("a", "n"),
    ("r", "e"),
    ("o", "n"),
    ("Ġ", "a"),
    ("Ġt", "he"),
    ("o", "r"),
    ("e", "n"),
    ("a", "t"),
    ("e", "d"),
    ("i", "s"),
    ("Ġ", "o"),
    ("Ġo", "f"),
    ("Ġ", "s"),
    ("Ġ", "w"),
    ("in", "g"),
    ("an", "d"),
    ("i", "t"),
    ("o", "u"),
    ("Ġ", "and"),
    ("Ġt", "o"),
    ("Ġ", "in"),
    ("a", "l"),
    ("Ġ", "is"),
    ("Ġ", "Ġ"),
];

const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// Tokens of the smallest vocabulary: bytes, merges and control tokens. Words follow.
pub const LEAST_VOCABULARY: usize = 256 + MERGES.len() + CONTROL.len();

/// Tokens of the largest vocabulary: there are no more words.
pub const MOST_VOCABULARY: usize = LEAST_VOCABULARY + 6_400 + 512_000;

const TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n\
                        {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

const NORMAL: i32 = 1;
const CONTROL_TYPE: i32 = 3;

/// Adds the tokenizer of a vocabulary of `size` tokens, at least [`LEAST_VOCABULARY`].
pub(super) fn add_tokenizer(header: &mut Header, size: usize) -> Result<(), HeaderError> {
    let mut tokens: Vec<String> = byte_characters().map(String::from).collect();
    tokens.extend(MERGES.iter().map(|(a, b)| format!("{a}{b}")));
    let control = tokens.len();
    tokens.extend(CONTROL.map(String::from));
    tokens.extend((0..size.saturating_sub(LEAST_VOCABULARY)).map(word));
    let types: Vec<i32> = (0..tokens.len())
        .map(|id| if (control..control + CONTROL.len()).contains(&id) { CONTROL_TYPE } else { NORMAL })
        .collect();
    let merges: Vec<String> = MERGES.iter().map(|(a, b)| format!("{a} {b}")).collect();

    header.set_text("tokenizer.ggml.model", "gpt2")?;
    header.set_text("tokenizer.ggml.pre", "qwen2")?;
    header.set_texts("tokenizer.ggml.tokens", &tokens)?;
    header.set_integers("tokenizer.ggml.token_type", &types)?;
    header.set_texts("tokenizer.ggml.merges", &merges)?;
    let [end_of_text, _, end_of_turn] = [0, 1, 2].map(|n| Value::U32((control + n) as u32));
    header.set("tokenizer.ggml.bos_token_id", &end_of_text)?;
    header.set("tokenizer.ggml.eos_token_id", &end_of_turn)?;
    header.set("tokenizer.ggml.padding_token_id", &end_of_text)?;
    header.set("tokenizer.ggml.add_bos_token", &Value::Bool(false))?;
    header.set_text("tokenizer.chat_template", TEMPLATE)
}

/// The characters that stand for bytes in byte-level BPE, printable bytes first.
fn byte_characters() -> impl Iterator<Item = char> {
    let printable = (b'!'..=b'~').chain(0xa1..=0xac).chain(0xae..=0xff);
    let others = (0..=255u8).filter(|b| !matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff));
    printable.map(char::from).chain(others.zip('\u{100}'..).map(|(_, c)| c))
}

/// A word that no other number gives: two syllables, or three past the first 6,400.
fn word(number: usize) -> String {
    const CONSONANTS: [char; 16] = ['b', 'd', 'f', 'g', 'h', 'k', 'l', 'm', 'n', 'p', 'r', 's', 't', 'v', 'w', 'z'];
    const VOWELS: [char; 5] = ['a', 'e', 'i', 'o', 'u'];
    let (syllables, number) = if number < 6_400 { (2, number) } else { (3, number - 6_400) };
    let all = 80usize.pow(syllables);
    // 7,919 is prime to 80: neighbours get words that differ at both ends.
    let mut rest = number.wrapping_mul(7_919) % all;
    let mut text = String::from('\u{120}');
    for _ in 0..syllables {
        text.extend(CONSONANTS.get(rest % 80 / 5));
        text.extend(VOWELS.get(rest % 5));
        rest /= 80;
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn bytes_have_the_usual_characters() {
        let bytes: Vec<char> = byte_characters().collect();
        assert_eq!(bytes.len(), 256);
        assert_eq!(bytes.iter().collect::<HashSet<_>>().len(), 256);
        assert_eq!(bytes[..3], ['!', '"', '#']);
        // Byte 0 is the first that is not printable, the space the 33rd, 0xad the last.
        assert_eq!((bytes[188], bytes[188 + 32], bytes[255]), ('\u{100}', 'Ġ', '\u{143}'));
    }

    #[test]
    fn every_token_is_another() {
        let mut seen: HashSet<String> = byte_characters().map(String::from).collect();
        seen.extend(MERGES.iter().map(|(a, b)| format!("{a}{b}")));
        assert_eq!(seen.len(), 256 + MERGES.len());
        let words = 160_000;
        seen.extend((0..words).map(word));
        assert_eq!(seen.len(), 256 + MERGES.len() + words);
    }

    #[test]
    fn merges_join_what_is_there() {
        let mut there: HashSet<String> = byte_characters().map(String::from).collect();
        for (a, b) in MERGES {
            assert!(there.contains(a) && there.contains(b), "{a} {b}");
            assert!(there.insert(format!("{a}{b}")), "{a}{b} twice");
        }
    }
}
