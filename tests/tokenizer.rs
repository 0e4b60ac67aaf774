//! Token ids, text and end tokens against llama.cpp's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aqueduct::gguf::Gguf;
use aqueduct::text::{
    ControlTokens, Detokenizer, Ends, Rendered, Specials, StopStrings, TextError, TokenId, TokenType, Tokenizer,
    Vocabulary,
};
use proptest::prelude::*;
use serde::Deserialize;
use unicode_normalization::UnicodeNormalization as _;

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

fn vocabulary(path: impl AsRef<Path>) -> Vocabulary {
    Vocabulary::from_gguf(&Gguf::open(path).unwrap()).unwrap()
}

fn json<T: serde::de::DeserializeOwned>(path: impl AsRef<Path>) -> T {
    serde_json::from_str(&fs_err::read_to_string(path.as_ref()).unwrap()).unwrap()
}

/// One of the oracle's files: strings with ids, chats with texts and ids.
#[derive(Deserialize)]
struct Oracle {
    pre: String,
    special_tokens: Vec<String>,
    cases: Vec<Case>,
    chats: Vec<Chat>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<TokenId>,
    ids_add_special: Vec<TokenId>,
    ids_no_parse_special: Vec<TokenId>,
    detokenized: String,
}

#[derive(Deserialize)]
struct Chat {
    text: String,
    ids: Vec<TokenId>,
}

fn check_oracle(vocabulary: &Vocabulary, oracle: &Oracle) {
    assert_eq!(vocabulary.pre.as_deref(), Some(oracle.pre.as_str()));
    let tokenizer = Arc::new(Tokenizer::new(vocabulary).unwrap());
    for Case { text, ids, ids_add_special, ids_no_parse_special, detokenized } in &oracle.cases {
        // llama.cpp does not compose text; `families.json` has what the family's own pipeline makes of it.
        if oracle.pre.starts_with("qwen") && !text.nfc().eq(text.chars()) {
            continue;
        }
        assert_eq!(&tokenizer.encode(text, Specials::Parsed, Ends::Bare).unwrap(), ids, "{text:?}");
        assert_eq!(&tokenizer.encode(text, Specials::Parsed, Ends::Added).unwrap(), ids_add_special, "{text:?}");
        assert_eq!(&tokenizer.encode(text, Specials::Plain, Ends::Bare).unwrap(), ids_no_parse_special, "{text:?}");
        assert_eq!(&tokenizer.decode(ids, ControlTokens::Shown).unwrap(), detokenized);
        assert_eq!(&streamed(&tokenizer, ids), detokenized);
    }
    for Chat { text, ids } in &oracle.chats {
        assert_eq!(&tokenizer.encode(text, Specials::Parsed, Ends::Bare).unwrap(), ids, "{text:?}");
        // The template has written BOS where the model wants one: it is not there twice.
        assert_eq!(&tokenizer.encode_chat(&Rendered::own(text.as_str())).unwrap(), ids, "{text:?}");
    }
    for token in &oracle.special_tokens {
        let ids = tokenizer.encode(token, Specials::Parsed, Ends::Bare).unwrap();
        assert_eq!(ids.len(), 1, "{token}");
        assert_eq!(tokenizer.token_text(ids[0]), Some(token.as_str()));
    }
    println!("{}: {} strings, {} chats", oracle.pre, oracle.cases.len(), oracle.chats.len());
    assert!(oracle.cases.len() >= 21 && oracle.chats.len() >= 6);
}

fn streamed(tokenizer: &Arc<Tokenizer>, ids: &[TokenId]) -> String {
    let stops = StopStrings::new(Vec::new()).unwrap();
    let mut stream = Detokenizer::new(tokenizer.clone(), ControlTokens::Shown, stops);
    let mut text: String = ids.iter().map(|&id| stream.push(id).unwrap().text).collect();
    text.push_str(&stream.finish().text);
    text
}

#[test]
fn oracle_ids_are_equal() {
    let pairs = [
        ("oracle/models/qwen3moe-f32.gguf", "oracle/tokenizers/qwen2.json"),
        ("oracle/models/llama-q8_0-linear2.gguf", "oracle/tokenizers/llama-bpe.json"),
        ("tokenizers/qwen35.gguf", "tokenizers/qwen35.json"),
        ("tokenizers/gpt-4o.gguf", "tokenizers/gpt-4o.json"),
    ];
    for (model, oracle) in pairs {
        check_oracle(&vocabulary(data(model)), &json(data(oracle)));
    }
}

#[test]
fn a_file_is_checked_before_anything_is_loaded() {
    for good in ["oracle/models/qwen3moe-f32.gguf", "tokenizers/spm.gguf", "tokenizers/gpt-4o.gguf"] {
        Tokenizer::check(&Gguf::open(data(good)).unwrap()).unwrap();
    }
    // The same file with another word in place of its `pre`, of the same length.
    let mut bytes = fs_err::read(data("tokenizers/bpe.gguf")).unwrap();
    let key = b"tokenizer.ggml.pre";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len() + 12;
    bytes[at..at + 5].copy_from_slice(b"qwen9");
    let file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    fs_err::write(file.path(), bytes).unwrap();
    let refused = Tokenizer::check(&Gguf::open(file.path()).unwrap()).unwrap_err();
    assert!(matches!(refused, TextError::UnknownPre { .. }), "{refused}");
}

/// The real model is not in the repository: the demo fetches it, and so does the CI before this test.
#[test]
fn smollm2_ids_are_equal() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    if !path.exists() {
        assert!(std::env::var_os("AQUEDUCT_NO_SKIP").is_none(), "{} is missing", path.display());
        println!("SKIPPED: {} is not there; get it with `deploy/fetch-sample.sh`", path.display());
        return;
    }
    let vocabulary = vocabulary(path);
    check_oracle(&vocabulary, &json(data("oracle/smollm2/tokenizer.json")));
    let tokenizer = Tokenizer::new(&vocabulary).unwrap();
    assert_eq!(tokenizer.len(), 49_152);
    assert!(tokenizer.is_end(tokenizer.eos().unwrap()));
}

/// `tests/data/tokenizers/reference.json`: one list of texts, the ids of each by kind of tokenizer.
#[derive(Deserialize)]
struct Reference {
    texts: Vec<String>,
    /// By `tokenizer.ggml.pre`, with the tokens and merges of `bpe.gguf`.
    bpe: BTreeMap<String, Ids>,
    /// By variant of `spm.gguf`.
    spm: BTreeMap<String, Ids>,
}

#[derive(Deserialize)]
struct Ids {
    parsed: Vec<Vec<TokenId>>,
    plain: Vec<Vec<TokenId>>,
    ends: Vec<Vec<TokenId>>,
    eog: Vec<TokenId>,
    #[serde(default)]
    detokenized: Vec<String>,
}

impl Ids {
    fn check(&self, name: &str, tokenizer: &Tokenizer, texts: &[String]) {
        let encode = |text: &str, specials, ends| tokenizer.encode(text, specials, ends).unwrap();
        let mut wrong = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            let found = (
                encode(text, Specials::Parsed, Ends::Bare) == self.parsed[index],
                encode(text, Specials::Plain, Ends::Bare) == self.plain[index],
                self.ends.get(index).is_none_or(|ids| &encode(text, Specials::Parsed, Ends::Added) == ids),
            );
            if found != (true, true, true) {
                wrong.push((text, found));
            }
        }
        println!("{name}: {} of {} texts differ", wrong.len(), texts.len());
        assert!(wrong.is_empty(), "{name}: {wrong:?}");
        assert_eq!(tokenizer.ends().iter().copied().collect::<Vec<_>>(), self.eog, "{name}");
    }
}

#[test]
fn every_word_split_gives_the_reference_ids() {
    let reference: Reference = json(data("tokenizers/reference.json"));
    let mut vocabulary = vocabulary(data("tokenizers/bpe.gguf"));
    vocabulary.add_bos = None;
    assert!(reference.bpe.len() >= 7);
    for (pre, ids) in &reference.bpe {
        vocabulary.pre = Some(pre.clone());
        ids.check(pre, &Tokenizer::new(&vocabulary).unwrap(), &reference.texts);
    }
}

/// `tests/data/tokenizers/families.json`: ids by Hugging Face's library with the families' own pipelines.
#[derive(Deserialize)]
struct Families {
    texts: Vec<String>,
    families: BTreeMap<String, FamilyIds>,
}

#[derive(Deserialize)]
struct FamilyIds {
    parsed: Vec<Vec<TokenId>>,
    plain: Vec<Vec<TokenId>>,
}

#[test]
fn every_family_gives_the_ids_of_its_own_pipeline() {
    let reference: Families = json(data("tokenizers/families.json"));
    let mut vocabulary = vocabulary(data("tokenizers/bpe.gguf"));
    vocabulary.add_bos = Some(false);
    let mut wrong = Vec::new();
    for (pre, wanted) in &reference.families {
        vocabulary.pre = Some(pre.clone());
        let tokenizer = Tokenizer::new(&vocabulary).unwrap();
        for (specials, wanted) in [(Specials::Parsed, &wanted.parsed), (Specials::Plain, &wanted.plain)] {
            for (text, wanted) in reference.texts.iter().zip(wanted) {
                let found = tokenizer.encode(text, specials, Ends::Bare).unwrap();
                if &found != wanted {
                    wrong.push(format!("{pre} {specials:?} {text:?}"));
                }
            }
        }
    }
    println!("{} families, {} texts, {} differ", reference.families.len(), reference.texts.len(), wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(reference.families.len() >= 27 && reference.texts.len() >= 120);
    let composed = reference.texts.iter().filter(|text| text.contains('\u{301}')).count();
    assert!(composed >= 2, "texts that need composing: {composed}");
}

#[test]
fn a_prompt_to_be_continued_has_one_bos_and_no_eos() {
    let mut vocabulary = vocabulary(data("tokenizers/bpe.gguf"));
    (vocabulary.add_bos, vocabulary.add_eos) = (Some(true), Some(true));
    let (bos, eos) = (vocabulary.bos.unwrap(), vocabulary.eos.unwrap());
    let bos_text = vocabulary.tokens[bos as usize].clone();
    let tokenizer = Tokenizer::new(&vocabulary).unwrap();
    let begun = |text: &str| tokenizer.encode(text, Specials::Parsed, Ends::Begun).unwrap();
    let plain = begun("The River");
    assert_eq!((plain[0], plain.contains(&eos)), (bos, false));
    assert_eq!(begun(&format!("{bos_text}The River")), plain, "typed BOS");
    assert_eq!(begun(""), [bos]);
    let ends = tokenizer.encode("The River", Specials::Parsed, Ends::Added).unwrap();
    assert_eq!((ends[0], *ends.last().unwrap()), (bos, eos));
    // A rendered chat that begins with BOS, and one that does not.
    for text in [format!("{bos_text}Hi"), "Hi".to_owned()] {
        let ids = tokenizer.encode_chat(&Rendered::own(text)).unwrap();
        assert_eq!(ids.iter().filter(|&&id| id == bos).count(), 1);
        assert!(ids[0] == bos && !ids.contains(&eos));
    }
}

fn spm(variant: &str) -> Vocabulary {
    let mut vocabulary = vocabulary(data("tokenizers/spm.gguf"));
    match variant {
        "usual" => {}
        "no-prefix" => {
            vocabulary.add_space_prefix = Some(false);
            vocabulary.add_bos = Some(false);
            vocabulary.add_eos = Some(true);
        }
        other => panic!("unknown variant {other}"),
    }
    vocabulary
}

#[test]
fn spm_gives_the_reference_ids_and_text() {
    let reference: Reference = json(data("tokenizers/reference.json"));
    for (variant, ids) in &reference.spm {
        let tokenizer = Tokenizer::new(&spm(variant)).unwrap();
        ids.check(variant, &tokenizer, &reference.texts);
        for (text, (ids, detokenized)) in reference.texts.iter().zip(ids.parsed.iter().zip(&ids.detokenized)) {
            let decoded = tokenizer.decode(ids, ControlTokens::Shown).unwrap();
            // There the mark for a space is a space.
            assert_eq!(decoded, text.replace('▁', " "));
            // The reference keeps the space that it put behind a special token.
            if ids.iter().all(|&id| matches!(tokenizer.token_type(id), Some(TokenType::Normal | TokenType::Byte))) {
                assert_eq!(&decoded, detokenized);
            }
        }
    }
}

/// The textbook's way: look at all neighbours, join the best pair, the leftmost of equals, and begin again.
fn join_by_hand(vocabulary: &Vocabulary, text: &str) -> Vec<TokenId> {
    let id = |text: &str| vocabulary.tokens.iter().position(|token| token == text);
    let mut pieces: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let mut best: Option<(f32, usize)> = None;
        for at in 0..pieces.len().saturating_sub(1) {
            let Some(joined) = id(&format!("{}{}", pieces[at], pieces[at + 1])) else { continue };
            let score = vocabulary.scores[joined];
            if best.is_none_or(|(highest, _)| score > highest) {
                best = Some((score, at));
            }
        }
        let Some((_, at)) = best else { break };
        let right = pieces.remove(at + 1);
        pieces[at].push_str(&right);
    }
    let ids = pieces.iter().flat_map(|piece| match id(piece) {
        Some(id) => vec![id],
        None => piece.bytes().map(|byte| id(&format!("<0x{byte:02X}>")).unwrap()).collect(),
    });
    ids.map(|id| id as TokenId).collect()
}

#[test]
fn spm_joins_as_the_textbook_does() {
    // Few letters, many tokens, few scores: joins compete and tie.
    let vocabulary = prop::collection::vec(("[abé▁]{2,4}", -3_i8..0), 1..40).prop_map(|joined| {
        let bytes = (0..=255_u8).map(|byte| format!("<0x{byte:02X}>"));
        let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].into_iter().map(str::to_owned).chain(bytes).collect();
        let mut scores = vec![0.0; tokens.len()];
        let single = ["a", "b", "▁"].map(|letter| (letter.to_owned(), -9));
        for (token, score) in single.into_iter().chain(joined) {
            if !tokens.contains(&token) {
                tokens.push(token);
                scores.push(f32::from(score));
            }
        }
        let mut token_types = vec![TokenType::Byte; 259];
        token_types[0] = TokenType::Unknown;
        token_types[1..3].fill(TokenType::Control);
        token_types.resize(tokens.len(), TokenType::Normal);
        Vocabulary { model: "llama".to_owned(), tokens, scores, token_types, ..Vocabulary::default() }
    });
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let (joined, bytes, ties) = (std::cell::Cell::new(0), std::cell::Cell::new(0), std::cell::Cell::new(0));
    let count = |counter: &std::cell::Cell<u32>, happened: bool| counter.set(counter.get() + u32::from(happened));
    let run = runner.run(&(vocabulary, "[abéx ]{0,24}"), |(vocabulary, text)| {
        let tokenizer = Tokenizer::new(&vocabulary).unwrap();
        let ids = tokenizer.encode(&text, Specials::Plain, Ends::Bare).unwrap();
        let spaced = if text.is_empty() { String::new() } else { format!("▁{}", text.replace(' ', "▁")) };
        prop_assert_eq!(&ids, &join_by_hand(&vocabulary, &spaced));
        prop_assert_eq!(&tokenizer.decode(&ids, ControlTokens::Hidden).unwrap(), &text);
        count(&joined, ids.iter().any(|&id| id > 261));
        count(&bytes, ids.iter().any(|&id| (3..259).contains(&id)));
        let mut scores: Vec<f32> =
            ids.iter().filter(|&&id| id > 261).map(|&id| vocabulary.scores[id as usize]).collect();
        scores.dedup();
        count(&ties, scores.len() < ids.iter().filter(|&&id| id > 261).count());
        Ok(())
    });
    run.unwrap();
    println!("joined {}, byte tokens {}, equal scores {}", joined.get(), bytes.get(), ties.get());
    assert!(joined.get() > 0 && bytes.get() > 0 && ties.get() > 0);
}

proptest! {
    /// Whatever the text, its tokens say it again: whole, streamed, and with control tokens read as text.
    #[test]
    fn round_trips_lose_nothing(text in "(\\PC|[ \t\n\r'a-zA-Z0-9]|<s>|<\\|im_end\\|>|<think>|é|🙂|▁x){0,30}") {
        for vocabulary in [vocabulary(data("oracle/models/qwen3moe-f32.gguf")), spm("usual")] {
            let is_spm = vocabulary.model == "llama";
            // There the mark for a space is a space; the other kind is of a family that composes.
            let wanted = if is_spm { text.replace('▁', " ") } else { text.nfc().collect() };
            let tokenizer = Arc::new(Tokenizer::new(&vocabulary).unwrap());
            for specials in [Specials::Parsed, Specials::Plain] {
                let ids = tokenizer.encode(&text, specials, Ends::Bare).unwrap();
                let decoded = tokenizer.decode(&ids, ControlTokens::Shown).unwrap();
                prop_assert_eq!(&decoded, &wanted);
                if !is_spm {
                    prop_assert_eq!(&streamed(&tokenizer, &ids), &wanted);
                }
            }
        }
    }
}

#[test]
fn a_character_in_pieces_arrives_whole() {
    let tokenizer = Arc::new(Tokenizer::new(&vocabulary(data("oracle/models/qwen3moe-f32.gguf"))).unwrap());
    let ids = tokenizer.encode("né🦀!", Specials::Plain, Ends::Bare).unwrap();
    let mut stream = Detokenizer::new(tokenizer.clone(), ControlTokens::Hidden, StopStrings::new(Vec::new()).unwrap());
    let chunks: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap().text).collect();
    assert_eq!(chunks, ["n", "", "é", "", "", "🦀", "!"]);
    // An answer that ends within a character says so, once.
    assert_eq!(stream.push(ids[1]).unwrap().text, "");
    assert_eq!(stream.finish().text, "\u{fffd}");
    assert_eq!(stream.finish().text, "");
}

#[test]
fn control_tokens_are_hidden_and_stop_strings_end_the_stream() {
    let tokenizer = Arc::new(Tokenizer::new(&vocabulary(data("oracle/models/qwen3moe-f32.gguf"))).unwrap());
    let ids = tokenizer.encode("Hi<|im_end|> END. more", Specials::Parsed, Ends::Bare).unwrap();
    assert_eq!(tokenizer.decode(&ids, ControlTokens::Hidden).unwrap(), "Hi END. more");
    let stops = StopStrings::new(vec!["END.".to_owned()]).unwrap();
    let mut stream = Detokenizer::new(tokenizer.clone(), ControlTokens::Hidden, stops);
    let mut text = String::new();
    let mut stopped_at = None;
    for (at, &id) in ids.iter().enumerate() {
        let chunk = stream.push(id).unwrap();
        text.push_str(&chunk.text);
        stopped_at = stopped_at.or(chunk.stopped.map(|stop| (stop, at)));
    }
    text.push_str(&stream.finish().text);
    assert_eq!(text, "Hi ");
    let (stop, at) = stopped_at.unwrap();
    assert!(stop == 0 && at < ids.len() - 1);
    assert!(matches!(stream.push(100_000), Err(TextError::UnknownToken { id: 100_000, .. })));
}

#[test]
fn a_file_without_a_tokenizer_refuses_only_text() {
    let vocabulary = Vocabulary { model: "none".to_owned(), eos: Some(7), ..Vocabulary::default() };
    let tokenizer = Tokenizer::new(&vocabulary).unwrap();
    assert!(tokenizer.is_end(7));
    assert_eq!(tokenizer.encode("a", Specials::Plain, Ends::Added), Err(TextError::NoTokenizer));
    assert_eq!(tokenizer.encode("", Specials::Plain, Ends::Added), Err(TextError::NoTokenizer));
    assert_eq!(tokenizer.decode(&[7], ControlTokens::Shown), Err(TextError::NoTokenizer));
}

#[test]
fn what_cannot_be_right_is_refused_by_name() {
    let good = vocabulary(data("oracle/models/qwen3moe-f32.gguf"));
    type Change = fn(&mut Vocabulary);
    let cases: [(Change, &str); 11] = [
        (|v| v.model = "bert".to_owned(), "\"bert\""),
        (|v| v.pre = Some("qwen99".to_owned()), "\"qwen99\""),
        (|v| v.pre = None, "tokenizer.ggml.pre"),
        (|v| v.tokens.clear(), "tokenizer.ggml.tokens"),
        (|v| v.merges.clear(), "tokenizer.ggml.merges"),
        (|v| v.merges[3] = "ab".to_owned(), "merges[3]"),
        (|v| v.merges[4] = "no such".to_owned(), "merges[4]"),
        (|v| v.token_types.truncate(5), "tokenizer.ggml.token_type"),
        (|v| v.eos = Some(512), "tokenizer.ggml.eos_token_id is 512"),
        (|v| (v.bos, v.add_bos) = (None, Some(true)), "tokenizer.ggml.bos_token_id"),
        (|v| (v.eos, v.add_eos) = (None, Some(true)), "tokenizer.ggml.eos_token_id"),
    ];
    for (change, wanted) in cases {
        let mut vocabulary = good.clone();
        change(&mut vocabulary);
        let error = Tokenizer::new(&vocabulary).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error:?} does not name {wanted:?}");
    }
    let mut no_scores = spm("usual");
    no_scores.scores.clear();
    assert!(Tokenizer::new(&no_scores).unwrap_err().to_string().contains("tokenizer.ggml.scores"));
    let mut nan = spm("usual");
    nan.scores[300] = f32::NAN;
    assert!(Tokenizer::new(&nan).unwrap_err().to_string().contains("entry 300"));
}
