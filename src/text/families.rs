//! The families of word splits: which patterns each has, after the `tokenizer.json` of its models.
//!
//! The published patterns end in `\s+(?!\S)|\s+`; here they have plain `\s+`, see [`super::pre`].

/// English contractions in either case, ASCII only.
macro_rules! contractions {
    () => {
        "'(?:[sSmMdDtT]|[rR][eE]|[vV][eE]|[lL][lL])"
    };
}

/// Words by case: capitals then small letters, of any script, with combining marks.
macro_rules! cased {
    ($tail:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $tail,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $tail,
        )
    };
}

const LLAMA3: &str =
    concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+");
const QWEN2: &str =
    concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+");
const QWEN35: &str =
    concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+");
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
const GPT4O: &str =
    concat!(cased!(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"), r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+");
const TEKKEN: &str = concat!(cased!(""), r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+");
const YOUTU: &str =
    concat!(cased!(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"), r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+");
const KIMI: &str = concat!(
    r"\p{Han}+",
    r"|[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]*[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]+[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
);
const DEEPSEEK_V3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"
);
/// Letters with case of Latin, Greek, Cyrillic, Georgian and the like.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}",
    r"ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿ",
    r"ﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
);
const DEEPSEEK_HAN: &str = r"[一-龥ࠀ-一가-\x{D7FF}]+";
/// Han with both kinds of kana.
const CJK: &str = r"[一-龥\x{3040}-ゟ゠-ヿ]+";
/// What is no white space and none of the marks of sentences of several scripts.
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const AFMOE_CJK: &str = concat!(
    r"[一-\x{9FFF}㐀-䶿\x{F900}-\x{FAFF}\x{3040}-ゟ゠-ヿ･-ﾟ⼀-\x{2FDF}เ-\x{0E7F}\x{0E80}-\x{0EFF}ក-\x{17FF}က-႟ꩠ-ꩿꧠ-\x{A9FF}",
    r"가-\x{D7AF}ᄀ-ᇿ]+"
);

/// One family of models that cut words alike.
pub(super) struct Family {
    /// Values of `tokenizer.ggml.pre`, the usual one first.
    pub(super) names: &'static [&'static str],
    /// Cuts, applied one after the other, each to the pieces that the one before left.
    pub(super) passes: &'static [Cut],
    /// A word that is a token is that token, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// A sequence begins with BOS unless the file says otherwise.
    pub(super) add_bos: bool,
    /// Text is brought into Unicode's composed form (NFC) first.
    pub(super) compose: bool,
}

/// How one pass cuts.
#[derive(Clone, Copy)]
pub(super) enum Cut {
    /// At the matches of a pattern.
    Pattern(&'static str, Spaces),
    /// Runs of digits into groups of three, counted from their right end; with `word`, only runs that end a word.
    Thousands { word: bool },
}

/// What a pattern's `\s+` stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spaces {
    /// The pattern has none, or it stands for itself.
    Absent,
    /// `\s+(?!\S)|\s+`.
    Give,
    /// The same, but runs of white space up to a line end were taken by `\s*[\r\n]+` before.
    GiveAfterLines,
}

use Cut::{Pattern, Thousands};
use Spaces::{Absent, Give, GiveAfterLines};

const fn family(names: &'static [&'static str], passes: &'static [Cut]) -> Family {
    Family { names, passes, ignore_merges: false, add_bos: false, compose: false }
}

pub(super) const FAMILIES: &[Family] = &[
    Family {
        ignore_merges: true,
        add_bos: true,
        ..family(
            &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
            &[Pattern(LLAMA3, GiveAfterLines)],
        )
    },
    family(&["chatglm-bpe", "dbrx", "smaug-bpe"], &[Pattern(LLAMA3, GiveAfterLines)]),
    Family { ignore_merges: true, ..family(&["glm4"], &[Pattern(LLAMA3, GiveAfterLines)]) },
    Family {
        compose: true,
        ..family(&["qwen2", "f2llmv2", "megrez", "stablelm2", "hunyuan"], &[Pattern(QWEN2, GiveAfterLines)])
    },
    family(&["deepseek-r1-qwen", "solar-open", "kormo", "grok-2"], &[Pattern(QWEN2, GiveAfterLines)]),
    Family { compose: true, ..family(&["qwen35"], &[Pattern(QWEN35, GiveAfterLines)]) },
    family(
        &["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[Pattern(r"\p{N}", Absent), Pattern(GPT2, Give)],
    ),
    Family { compose: true, ..family(&["command-r"], &[Pattern(r"\p{N}", Absent), Pattern(GPT2, Give)]) },
    family(
        &["gpt-2", "phi-2", "jais", "trillion", "exaone4", "gigachat", "a.x-4.0", "mellum", "granite-docling"],
        &[Pattern(GPT2, Give)],
    ),
    Family { compose: true, ..family(&["olmo", "mpt"], &[Pattern(GPT2, Give)]) },
    family(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[Pattern(GPT4O, GiveAfterLines)]),
    Family { ignore_merges: true, add_bos: true, ..family(&["tekken"], &[Pattern(TEKKEN, GiveAfterLines)]) },
    family(
        &["deepseek-llm"],
        &[
            Pattern(r"[\r\n]", Absent),
            Pattern(DEEPSEEK_LETTERS, Absent),
            Pattern(r"\s?[!-/:-~！-／：-～‘-‟\x{3000}-。]+", Absent),
            Pattern(r"\s+$", Absent),
            Pattern(DEEPSEEK_HAN, Absent),
            Pattern(r"\p{N}", Absent),
        ],
    ),
    family(
        &["deepseek-coder"],
        &[
            Pattern(r"[\r\n]", Absent),
            Pattern(r"\s?\p{L}+", Absent),
            Pattern(r"\s?\p{P}+", Absent),
            Pattern(DEEPSEEK_HAN, Absent),
            Pattern(r"\p{N}", Absent),
        ],
    ),
    family(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[Pattern(r"\p{N}{1,3}", Absent), Pattern(CJK, Absent), Pattern(DEEPSEEK_V3, GiveAfterLines)],
    ),
    Family {
        ignore_merges: true,
        ..family(
            &["youtu"],
            &[
                Pattern(r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\x{3040}-ゟ゠-ヿ]+", Absent),
                Pattern(YOUTU, GiveAfterLines),
            ],
        )
    },
    family(
        &["falcon"],
        &[Pattern(r"[\p{P}\$\+<=>\^~\|`]+", Absent), Pattern(GPT2, Give), Pattern(r"[0-9][0-9][0-9]", Absent)],
    ),
    family(
        &["seed-coder"],
        &[Pattern(
            concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+"),
            GiveAfterLines,
        )],
    ),
    family(&["poro-chat", "bloom", "gpt3-finnish"], &[Pattern(BLOOM, Absent)]),
    family(&["viking"], &[Pattern(BLOOM, Absent), Pattern(r"\p{N}", Absent)]),
    Family {
        add_bos: true,
        ..family(
            &["chameleon"],
            &[
                Pattern(r"<sentinel:[0-9]+>", Absent),
                Pattern(r"IMGIMG[A-I]{1,4}Z", Absent),
                Pattern(r"[\t\n]|    |  ", Absent),
                Pattern(r"\p{N}", Absent),
                Pattern(r"[\p{P}!-/:-@\[-`{-~]", Absent),
                Pattern(GPT2, Give),
            ],
        )
    },
    family(&["superbpe"], &[Pattern(r"\p{N}+", Absent), Thousands { word: false }]),
    family(&["tiny_aya", "cohere2moe"], &[Thousands { word: true }, Pattern(GPT4O, GiveAfterLines)]),
    family(
        &["bailingmoe", "bailingmoe2", "llada-moe"],
        &[Pattern(
            concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+"),
            GiveAfterLines,
        )],
    ),
    family(&["kimi-k2"], &[Pattern(KIMI, GiveAfterLines)]),
    family(&["afmoe"], &[Thousands { word: false }, Pattern(AFMOE_CJK, Absent), Pattern(DEEPSEEK_V3, GiveAfterLines)]),
    family(&["laguna"], &[Pattern(r"[^\n]+|\n+", Absent), Pattern(QWEN2, GiveAfterLines)]),
    family(
        &["exaone-moe"],
        &[Pattern(
            concat!(
                contractions!(),
                r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+"
            ),
            GiveAfterLines,
        )],
    ),
    Family {
        ignore_merges: true,
        ..family(
            &["minicpm5"],
            &[
                Pattern(r"\p{N}{1,3}", Absent),
                Pattern(
                    concat!(
                        contractions!(),
                        r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
                    ),
                    GiveAfterLines,
                ),
            ],
        )
    },
    family(
        &["ufakzeka"],
        &[Pattern(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+", GiveAfterLines)],
    ),
    family(
        &["default"],
        &[
            Pattern(r"[\p{P}\$\+<=>\^~\|]+", Absent),
            Pattern(GPT2, Give),
            Pattern(r"\p{N}+", Absent),
            Pattern(r"[0-9][0-9][0-9]", Absent),
        ],
    ),
];
