//! How byte-level BPE cuts text into words before it merges.
//!
//! The published patterns end in `\s+(?!\S)|\s+`: white space gives its last character to the word that follows. A
//! pattern with a look-ahead needs a backtracking engine, whose time and stack a long run of spaces can exhaust. So the
//! patterns here have plain `\s+`, run in linear time, and [`Split::run`] gives the last character back.

use std::borrow::Cow;

use tokenizers::utils::SysRegex;
use unicode_normalization::{IsNormalized, UnicodeNormalization as _, is_nfc_quick};

use super::TextError;
use super::families::{Cut, FAMILIES, Spaces};

/// One compiled pass.
#[derive(Debug)]
enum Pass {
    Pattern {
        pattern: SysRegex,
        spaces: Spaces,
    },
    /// Runs of digits in groups of three from the right; with `word`, only where the run ends a word.
    Thousands {
        digits: SysRegex,
        word: bool,
    },
}

/// Cuts text into words.
#[derive(Debug)]
pub(super) struct Split {
    passes: Vec<Pass>,
    /// A word that is a token is that token, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// A sequence begins with BOS unless the file says otherwise.
    pub(super) add_bos: bool,
    /// Text is brought into the composed form first.
    compose: bool,
}

impl Split {
    /// The split named by `tokenizer.ggml.pre`.
    pub(super) fn named(name: &str) -> Result<Self, TextError> {
        let Some(family) = FAMILIES.iter().find(|family| family.names.contains(&name)) else {
            let known: Vec<&str> = FAMILIES.iter().flat_map(|family| family.names).copied().collect();
            return Err(TextError::UnknownPre { found: name.to_owned(), known: known.join(", ") });
        };
        let compile = |pattern| SysRegex::new(pattern).map_err(|error| TextError::Build { problem: error.to_string() });
        let passes = family.passes.iter().map(|&cut| {
            Ok(match cut {
                Cut::Pattern(pattern, spaces) => Pass::Pattern { pattern: compile(pattern)?, spaces },
                Cut::Thousands { word } => Pass::Thousands { digits: compile(r"\d+")?, word },
            })
        });
        Ok(Self {
            passes: passes.collect::<Result<_, TextError>>()?,
            ignore_merges: family.ignore_merges,
            add_bos: family.add_bos,
            compose: family.compose,
        })
    }

    /// The text in the form that the family's models were trained on: NFC for some, as it stands for the others.
    pub(super) fn normal<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.compose && is_nfc_quick(text.chars()) != IsNormalized::Yes {
            return Cow::Owned(text.nfc().collect());
        }
        Cow::Borrowed(text)
    }

    /// Calls `word` with every word of `text`, in order; together they are `text`.
    pub(super) fn run(&self, text: &str, mut word: impl FnMut(&str)) {
        let mut pieces = vec![text];
        for pass in &self.passes {
            let mut cut = Vec::with_capacity(pieces.len());
            for piece in pieces {
                pass.cut(piece, &mut cut);
            }
            pieces = cut;
        }
        pieces.into_iter().for_each(&mut word);
    }
}

impl Pass {
    /// Appends the pieces of `text`: matches, and the gaps between them.
    fn cut<'t>(&self, text: &'t str, out: &mut Vec<&'t str>) {
        let mut push = |piece: Option<&'t str>| out.extend(piece.filter(|piece| !piece.is_empty()));
        let mut done = 0;
        match self {
            Self::Pattern { pattern, spaces } => {
                // The matches are looked for anew from where one has given its last character back.
                let mut search = Some(0);
                while let Some(from) = search.take() {
                    for (start, end) in pattern.find_iter(text.get(from..).unwrap_or_default()) {
                        let (start, mut end) = (from + start, from + end);
                        let given =
                            text.get(start..end).map_or(0, |found| given_back(*spaces, found, end == text.len()));
                        end -= given;
                        push(text.get(done..start));
                        push(text.get(start..end));
                        done = end;
                        if given > 0 {
                            search = Some(end);
                            break;
                        }
                    }
                }
            }
            Self::Thousands { digits, word } => {
                for (start, end) in digits.find_iter(text) {
                    let next = text.get(end..).and_then(|rest| rest.chars().next());
                    if *word && next.is_some_and(|next| next == '_' || next.is_alphanumeric()) {
                        continue;
                    }
                    push(text.get(done..start));
                    let run = text.get(start..end).unwrap_or_default();
                    let count = run.chars().count();
                    let mut group = start;
                    for (index, (at, _)) in run.char_indices().enumerate() {
                        if index > 0 && (count - index).is_multiple_of(3) {
                            push(text.get(group..start + at));
                            group = start + at;
                        }
                    }
                    push(text.get(group..end));
                    done = end;
                }
            }
        }
        push(text.get(done..));
    }
}

/// Bytes at the end of a match that belong to what follows: the last of several white-space characters before a word.
fn given_back(spaces: Spaces, found: &str, at_end: bool) -> usize {
    if spaces == Spaces::Absent || at_end {
        return 0;
    }
    let mut chars = found.chars();
    let Some(last) = chars.next_back().filter(|last| last.is_whitespace()) else { return 0 };
    let taken_as_line = spaces == Spaces::GiveAfterLines && matches!(last, '\r' | '\n');
    if taken_as_line || chars.as_str().is_empty() || !chars.all(char::is_whitespace) {
        return 0;
    }
    last.len_utf8()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(name: &str, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        Split::named(name).unwrap().run(text, |word| words.push(word.to_owned()));
        words
    }

    #[test]
    fn white_space_gives_its_last_character_to_the_word() {
        assert_eq!(words("qwen2", "a   b"), ["a", "  ", " b"]);
        assert_eq!(words("qwen2", "a \n\n  b  "), ["a", " \n\n", " ", " b", "  "]);
        assert_eq!(words("gpt-2", "a\n\nb"), ["a", "\n", "\n", "b"]);
        assert_eq!(words("gpt-2", "a \u{a0}b"), ["a", " ", "\u{a0}", "b"]);
        assert_eq!(words("gpt-2", "a\t\t 1"), ["a", "\t\t", " 1"]);
        assert_eq!(words("llama-bpe", "\tif\t\tx"), ["\tif", "\t", "\tx"]);
    }

    #[test]
    fn digits_and_case_are_cut_by_family() {
        assert_eq!(words("llama-bpe", "12345"), ["123", "45"]);
        assert_eq!(words("qwen2", "123"), ["1", "2", "3"]);
        assert_eq!(words("smollm", " 123"), [" ", "1", "2", "3"]);
        assert_eq!(words("gpt-2", " 12345"), [" 12345"]);
        assert_eq!(words("default", "x=12345"), ["x", "=", "123", "45"]);
        assert_eq!(words("gpt-4o", "CamelCase's ÄÖäÖ"), ["Camel", "Case's", " ÄÖä", "Ö"]);
        assert_eq!(words("gpt-2", "IT'S it's"), ["IT", "'", "S", " it", "'s"]);
        assert_eq!(words("qwen2", "IT'S it'ſ"), ["IT", "'S", " it", "'ſ"]);
    }

    #[test]
    fn families_of_several_passes_cut_as_their_models_do() {
        assert_eq!(
            words("tekken", "camelCase HTTPServer 123 it's"),
            ["camel", "Case", " HTTPServer", " ", "1", "2", "3", " it", "'s"]
        );
        assert_eq!(words("deepseek-coder", "x = 12;\n  y"), ["x", " = ", "1", "2", ";", "\n", " ", " y"]);
        assert_eq!(words("deepseek-v3", "12345 日本go->x"), ["123", "45", " ", "日本", "go", "->", "x"]);
        assert_eq!(words("superbpe", "a 1234567 b"), ["a ", "1", "234", "567", " b"]);
        assert_eq!(words("tiny_aya", "1234 1234a"), ["1", "234", " ", "123", "4", "a"]);
        assert_eq!(words("bloom", "one, two"), ["one", ",", " two"]);
        assert_eq!(words("kimi-k2", "ok日本Go"), ["ok", "日本", "Go"]);
    }

    #[test]
    fn composed_form_is_for_families_that_were_trained_so() {
        let normal = |name: &str, text: &str| Split::named(name).unwrap().normal(text).into_owned();
        for name in ["qwen2", "qwen35", "command-r", "olmo"] {
            assert_eq!(normal(name, "cafe\u{301} \u{1112}\u{1161}\u{11ab} \u{212b}"), "café 한 Å", "{name}");
        }
        for name in ["llama-bpe", "gpt-2", "smollm", "tekken", "deepseek-r1-qwen", "gpt-4o"] {
            assert_eq!(normal(name, "cafe\u{301}"), "cafe\u{301}", "{name}");
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_list() {
        let error = Split::named("qwen9").unwrap_err().to_string();
        assert!(error.contains("\"qwen9\"") && error.contains("llama-bpe") && error.contains("default"), "{error}");
    }

    #[test]
    fn every_family_keeps_every_byte() {
        let text = "  a\u{301}b\r\n\r\n \tÄ𝒳 12½ '' 's 世界\u{3000}\u{200b}\0\n ";
        for name in FAMILIES.iter().map(|family| family.names[0]) {
            assert_eq!(words(name, text).concat(), text, "{name}");
        }
    }

    #[test]
    fn a_long_run_of_spaces_is_cut_in_linear_time() {
        let text = format!("{}x", " ".repeat(1 << 20));
        for name in FAMILIES.iter().map(|family| family.names[0]) {
            assert_eq!(words(name, &text).concat().len(), text.len(), "{name}");
        }
    }
}
