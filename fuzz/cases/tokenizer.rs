//! Any vocabulary and any text: ids are of the vocabulary, text comes back, and pieces of text are the whole text.
//!
//! The first byte picks one of the small vocabularies of `tests/data` or, with [`OWN`], one that the bytes describe:
//! the model, the pre type (both may be empty) and flags (bits of one byte), a line each; a zero byte; tokens, a line
//! each, with a digit for the type first; a zero byte; merges, a line each; a zero byte. Then comes the text.

use std::sync::{Arc, OnceLock};

use aqueduct::gguf::Gguf;
use aqueduct::text::{
    ControlTokens, Detokenizer, Ends, Rendered, Specials, StopStrings, TokenId, TokenType, Tokenizer, Vocabulary,
};

/// The first byte before a vocabulary of the input's own.
pub const OWN: u8 = b'o';

const KNOWN: [&[u8]; 4] = [
    include_bytes!("../../tests/data/tokenizers/bpe.gguf"),
    include_bytes!("../../tests/data/tokenizers/spm.gguf"),
    include_bytes!("../../tests/data/tokenizers/qwen35.gguf"),
    include_bytes!("../../tests/data/tokenizers/gpt-4o.gguf"),
];

/// Encodes and decodes the bytes; whether there were ids.
pub fn check(bytes: &[u8]) -> bool {
    let Some((kind, rest)) = bytes.split_first() else { return false };
    if *kind == OWN {
        let mut parts = rest.splitn(4, |byte| *byte == 0);
        let mut part = || String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        let [head, tokens, merges, text] = [part(), part(), part(), part()];
        let tokenizer = Tokenizer::new(&vocabulary(&head, &tokens, &merges));
        let refused = tokenizer.as_ref().err().map(ToString::to_string);
        assert_ne!(refused.as_deref(), Some(""), "refused without a reason");
        return tokenizer.is_ok_and(|tokenizer| check_text(&Arc::new(tokenizer), &text).is_some());
    }
    let known = known();
    let tokenizer = &known[usize::from(*kind) % known.len()];
    let text = String::from_utf8_lossy(rest);
    let decoded = check_text(tokenizer, &text).unwrap();
    // What came back may be normalised; normalised text stays as it is.
    let again = tokenizer.encode(&decoded, Specials::Plain, Ends::Bare).unwrap();
    assert_eq!(tokenizer.decode(&again, ControlTokens::Shown).unwrap(), decoded);
    true
}

fn known() -> &'static [Arc<Tokenizer>] {
    static TOKENIZERS: OnceLock<Vec<Arc<Tokenizer>>> = OnceLock::new();
    TOKENIZERS.get_or_init(|| {
        let open = |bytes: &&[u8]| {
            let file = Gguf::from_bytes("known.gguf", bytes.to_vec()).unwrap();
            Arc::new(Tokenizer::new(&Vocabulary::from_gguf(&file).unwrap()).unwrap())
        };
        KNOWN.iter().map(open).collect()
    })
}

fn vocabulary(head: &str, tokens: &str, merges: &str) -> Vocabulary {
    let mut lines = head.lines();
    let model = lines.next().unwrap_or_default().to_owned();
    let pre = lines.next().filter(|pre| !pre.is_empty()).map(str::to_owned);
    let flags = lines.next().and_then(|flags| flags.bytes().next()).unwrap_or_default();
    let flag = |bit: u8| (flags >> bit & 1 == 1).then_some(flags >> (bit + 1) & 1 == 1);
    let typed = |line: &str| match line.chars().next().and_then(|digit| digit.to_digit(10)) {
        Some(digit) => (line[1..].to_owned(), TokenType::from_number(digit.into())),
        None => (line.to_owned(), TokenType::Normal),
    };
    let (tokens, token_types): (Vec<String>, Vec<TokenType>) = tokens.lines().map(typed).unzip();
    let scores = (0..tokens.len()).map(|i| -((i * 7 % 13) as f32)).collect();
    let id = |bit: u8| (flags >> bit & 1 == 1).then_some(TokenId::from(flags >> 4));
    Vocabulary {
        model,
        pre,
        scores,
        token_types,
        merges: merges.lines().map(str::to_owned).collect(),
        bos: id(6),
        eos: id(7),
        add_bos: flag(0),
        add_eos: flag(2),
        add_space_prefix: flag(4),
        tokens,
        ..Vocabulary::default()
    }
}

/// The text of its ids without special tokens.
fn check_text(tokenizer: &Arc<Tokenizer>, text: &str) -> Option<String> {
    let mut plain = None;
    for specials in [Specials::Parsed, Specials::Plain] {
        for ends in [Ends::Added, Ends::Begun, Ends::Bare] {
            let ids = match tokenizer.encode(text, specials, ends) {
                Ok(ids) => ids,
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    return None;
                }
            };
            for control in [ControlTokens::Shown, ControlTokens::Hidden] {
                check_pieces(tokenizer, &ids, control);
            }
            plain = Some(tokenizer.decode(&ids, ControlTokens::Shown).unwrap());
        }
    }
    tokenizer.encode_chat(&Rendered::own(text)).unwrap();
    plain
}

/// The chunks of a stream are the bytes of its tokens, read as UTF-8.
fn check_pieces(tokenizer: &Arc<Tokenizer>, ids: &[TokenId], control: ControlTokens) {
    let none = StopStrings::new(Vec::new()).unwrap();
    let mut stream = Detokenizer::new(Arc::clone(tokenizer), control, none);
    let mut streamed: String = ids.iter().map(|id| stream.push(*id).unwrap().text).collect();
    streamed.push_str(&stream.finish().text);
    if control == ControlTokens::Shown {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| tokenizer.token_bytes(*id).unwrap()).copied().collect();
        assert_eq!(streamed, String::from_utf8_lossy(&bytes));
    }
}
