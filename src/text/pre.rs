//! How byte-level BPE cuts text into words before it merges.
//!
//! The published patterns end in `\s+(?!\S)|\s+`: white space gives its last character to the word that follows. A pattern
//! with a look-ahead needs a backtracking engine, whose time and stack a long run of spaces can exhaust. So the patterns
//! here have plain `\s+`, run in linear time, and [`Split::run`] gives the last character back.

use tokenizers::utils::SysRegex;

use super::TextError;

/// English contractions in either case, ASCII only.
macro_rules! contractions {
    () => {
        "'(?:[sSmMdDtT]|[rR][eE]|[vV][eE]|[lL][lL])"
    };
}

const LLAMA3: &str =
    concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+");
const QWEN2: &str =
    concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+");
const QWEN35: &str =
    concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+");
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
);

/// One family of models that cut words alike.
struct Family {
    /// Values of `tokenizer.ggml.pre`, the usual one first.
    names: &'static [&'static str],
    /// Patterns, applied one after the other, each to the pieces that the one before left.
    passes: &'static [(&'static str, Spaces)],
    /// A word that is a token is that token, whatever the merges say.
    ignore_merges: bool,
    /// A sequence begins with BOS unless the file says otherwise.
    add_bos: bool,
}

/// What a pattern's `\s+` stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spaces {
    /// The pattern has none.
    Absent,
    /// `\s+(?!\S)|\s+`.
    Give,
    /// The same, but runs of white space up to a line end were taken by `\s*[\r\n]+` before.
    GiveAfterLines,
}

const FAMILIES: &[Family] = &[
    Family {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        passes: &[(LLAMA3, Spaces::GiveAfterLines)],
        ignore_merges: true,
        add_bos: true,
    },
    Family {
        names: &["chatglm-bpe", "dbrx", "smaug-bpe"],
        passes: &[(LLAMA3, Spaces::GiveAfterLines)],
        ignore_merges: false,
        add_bos: false,
    },
    Family { names: &["glm4"], passes: &[(LLAMA3, Spaces::GiveAfterLines)], ignore_merges: true, add_bos: false },
    Family {
        names: &["qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open", "kormo"],
        passes: &[(QWEN2, Spaces::GiveAfterLines)],
        ignore_merges: false,
        add_bos: false,
    },
    Family { names: &["qwen35"], passes: &[(QWEN35, Spaces::GiveAfterLines)], ignore_merges: false, add_bos: false },
    Family {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        passes: &[(r"\p{N}", Spaces::Absent), (GPT2, Spaces::Give)],
        ignore_merges: false,
        add_bos: false,
    },
    Family {
        names: &["gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4", "gigachat", "a.x-4.0", "mellum"],
        passes: &[(GPT2, Spaces::Give)],
        ignore_merges: false,
        add_bos: false,
    },
    Family {
        names: &["gpt-4o", "llama4", "kanana2", "minimax-m2"],
        passes: &[(GPT4O, Spaces::GiveAfterLines)],
        ignore_merges: false,
        add_bos: false,
    },
    Family {
        names: &["default"],
        passes: &[
            (r"[\p{P}\$\+<=>\^~\|]+", Spaces::Absent),
            (GPT2, Spaces::Give),
            (r"\p{N}+", Spaces::Absent),
            (r"[0-9][0-9][0-9]", Spaces::Absent),
        ],
        ignore_merges: false,
        add_bos: false,
    },
];

/// One compiled pattern.
#[derive(Debug)]
struct Pass {
    pattern: SysRegex,
    spaces: Spaces,
}

/// Cuts text into words.
#[derive(Debug)]
pub(super) struct Split {
    passes: Vec<Pass>,
    /// A word that is a token is that token, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// A sequence begins with BOS unless the file says otherwise.
    pub(super) add_bos: bool,
}

impl Split {
    /// The split named by `tokenizer.ggml.pre`.
    pub(super) fn named(name: &str) -> Result<Self, TextError> {
        let Some(family) = FAMILIES.iter().find(|family| family.names.contains(&name)) else {
            let known: Vec<&str> = FAMILIES.iter().flat_map(|family| family.names).copied().collect();
            return Err(TextError::UnknownPre { found: name.to_owned(), known: known.join(", ") });
        };
        let passes = family.passes.iter().map(|&(pattern, spaces)| {
            let pattern = SysRegex::new(pattern).map_err(|error| TextError::Build { problem: error.to_string() })?;
            Ok(Pass { pattern, spaces })
        });
        Ok(Self {
            passes: passes.collect::<Result<_, TextError>>()?,
            ignore_merges: family.ignore_merges,
            add_bos: family.add_bos,
        })
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
    /// Appends the matches in `text` and the gaps between them.
    fn cut<'t>(&self, text: &'t str, out: &mut Vec<&'t str>) {
        let mut push = |piece: Option<&'t str>| out.extend(piece.filter(|piece| !piece.is_empty()));
        let mut done = 0;
        // The matches are looked for anew from where one has given its last character back.
        let mut search = Some(0);
        while let Some(from) = search.take() {
            for (start, end) in self.pattern.find_iter(text.get(from..).unwrap_or_default()) {
                let (start, mut end) = (from + start, from + end);
                let given = text.get(start..end).map_or(0, |found| self.given_back(found, end == text.len()));
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
        push(text.get(done..));
    }

    /// Bytes at the end of a match that belong to what follows: the last of several white-space characters before a word.
    fn given_back(&self, found: &str, at_end: bool) -> usize {
        if self.spaces == Spaces::Absent || at_end {
            return 0;
        }
        let mut chars = found.chars();
        let Some(last) = chars.next_back().filter(|last| last.is_whitespace()) else { return 0 };
        let taken_as_line = self.spaces == Spaces::GiveAfterLines && matches!(last, '\r' | '\n');
        if taken_as_line || chars.as_str().is_empty() || !chars.all(char::is_whitespace) {
            return 0;
        }
        last.len_utf8()
    }
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
