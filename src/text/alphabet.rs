//! The byte alphabet of byte-level BPE: every byte has a printable character, so that a vocabulary can be written as
//! text.

use std::collections::HashMap;

/// Both directions of the alphabet.
#[derive(Debug)]
pub(super) struct Alphabet {
    chars: [char; 256],
    bytes: HashMap<char, u8>,
}

impl Alphabet {
    /// Printable Latin-1 bytes stand for themselves; the others, in order, for the characters from U+0100 on.
    pub(super) fn new() -> Self {
        let mut next = 0x100_u32;
        let chars = std::array::from_fn(|byte| {
            if matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) {
                char::from(byte as u8)
            } else {
                let char = char::from_u32(next).unwrap_or(char::REPLACEMENT_CHARACTER);
                next += 1;
                char
            }
        });
        let bytes = (0..=u8::MAX).zip(chars).map(|(byte, char)| (char, byte)).collect();
        Self { chars, bytes }
    }

    /// Appends the characters of `bytes`.
    pub(super) fn write_chars(&self, bytes: &[u8], out: &mut String) {
        out.extend(bytes.iter().filter_map(|&byte| self.chars.get(usize::from(byte))));
    }

    /// Appends the bytes that `text` stands for. A character outside of the alphabet stands for its own UTF-8: such
    /// tokens are words that someone added to a vocabulary by hand.
    pub(super) fn write_bytes(&self, text: &str, out: &mut Vec<u8>) {
        for char in text.chars() {
            match self.bytes.get(&char) {
                Some(&byte) => out.push(byte),
                None => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_printable_char() {
        let alphabet = Alphabet::new();
        let all: Vec<u8> = (0..=255).collect();
        let mut text = String::new();
        alphabet.write_chars(&all, &mut text);
        assert!(text.chars().all(|char| !char.is_whitespace() && !char.is_control()));
        let mut back = Vec::new();
        alphabet.write_bytes(&text, &mut back);
        assert_eq!(back, all);
        assert_eq!(alphabet.chars[usize::from(b' ')], 'Ġ');
        assert_eq!(alphabet.chars[usize::from(b'\n')], 'Ċ');
    }
}
