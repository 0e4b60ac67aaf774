use std::collections::BTreeSet;

use super::bpe::Bpe;
use super::special::{Found, Part, SpecialTokens};
use super::spm::{self, Spm};
use super::{Rendered, TextError, TokenId, TokenType, Vocabulary};
use crate::gguf::Gguf;

/// Whether the texts of control tokens (`<|im_end|>`) in an input are these tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// They are tokens: for rendered chats and for prompts by the owner of the machine.
    Parsed,
    /// They are text like any other. User-defined tokens are tokens all the same.
    Plain,
}

/// Whether a sequence gets the begin and end tokens that its model asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// BOS and EOS, each if the model asks for it.
    Added,
    /// For a text that is to be continued: BOS if the model asks for it and the text does not begin with it; never EOS.
    Begun,
    /// Nothing is added.
    Bare,
}

/// Whether control tokens appear in decoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlTokens {
    /// Written as their texts.
    Shown,
    /// Left out.
    Hidden,
}

/// Turns text into tokens and back. Built once a model; shared by reference between threads.
#[derive(Debug)]
pub struct Tokenizer {
    kind: Kind,
    special: SpecialTokens,
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    pad: Option<TokenId>,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
    texts: Vec<String>,
    /// The bytes of every token, one after the other.
    bytes: Vec<u8>,
    /// Where each token's bytes end.
    bytes_end: Vec<usize>,
}

#[derive(Debug)]
enum Kind {
    Bpe(Box<Bpe>),
    Spm(Box<Spm>),
    None,
}

const BPE: &str = "gpt2";
const SPM: &str = "llama";
const NONE: &str = "none";

impl Tokenizer {
    /// Builds the tokenizer that a file describes.
    ///
    /// A file without one (`none`, or no name at all) gives a tokenizer that knows the end tokens and refuses text.
    ///
    /// # Errors
    /// Unknown kinds of tokenizer or word split, by name; missing or contradicting keys; ids outside of the vocabulary.
    pub fn new(vocabulary: &Vocabulary) -> Result<Self, TextError> {
        check_lengths(vocabulary)?;
        let is_spm = vocabulary.model == SPM;
        // Old files of this kind leave these out; their numbers were fixed.
        let or = |id: Option<TokenId>, usual: TokenId| {
            id.or_else(|| (is_spm && (usual as usize) < vocabulary.tokens.len()).then_some(usual))
        };
        let (bos, eos, unk) = (or(vocabulary.bos, 1), or(vocabulary.eos, 2), or(vocabulary.unk, 0));
        let kind = match vocabulary.model.as_str() {
            BPE => Kind::Bpe(Box::new(Bpe::new(vocabulary)?)),
            SPM => Kind::Spm(Box::new(Spm::new(vocabulary, unk)?)),
            NONE | "" => Kind::None,
            other => {
                let known = format!("{BPE} (BPE), {SPM} (SPM), {NONE}");
                return Err(TextError::UnknownModel { found: other.to_owned(), known });
            }
        };
        let add_bos = vocabulary.add_bos.unwrap_or_else(|| match &kind {
            Kind::Bpe(bpe) => bpe.add_bos(),
            Kind::Spm(_) => true,
            Kind::None => false,
        });
        let add_eos = vocabulary.add_eos.unwrap_or(false);
        if add_bos && bos.is_none() {
            return Err(TextError::MissingKey { key: "tokenizer.ggml.bos_token_id" });
        }
        if add_eos && eos.is_none() {
            return Err(TextError::MissingKey { key: "tokenizer.ggml.eos_token_id" });
        }
        let special = SpecialTokens::new(vocabulary, eos);
        let mut tokenizer = Self {
            kind,
            special,
            bos,
            eos,
            // Some converters write -1 for "no padding".
            pad: vocabulary.pad.filter(|&id| (id as usize) < vocabulary.tokens.len()),
            add_bos,
            add_eos,
            add_space_prefix: is_spm && vocabulary.add_space_prefix.unwrap_or(true),
            texts: vocabulary.tokens.clone(),
            bytes: Vec::new(),
            bytes_end: Vec::new(),
        };
        tokenizer.fill_bytes();
        Ok(tokenizer)
    }

    /// Whether the tokenizer of a model file is one that this program can build; for those who must know before
    /// anything is loaded. It is built and dropped, so the answer cannot differ from that of [`Self::new`].
    ///
    /// # Errors
    /// Those of [`Vocabulary::from_gguf`] and [`Self::new`].
    pub fn check(file: &Gguf) -> Result<(), TextError> {
        Self::new(&Vocabulary::from_gguf(file)?).map(drop)
    }

    /// The tokens of `text`.
    ///
    /// # Errors
    /// [`TextError::NoTokenizer`] if the model has none.
    pub fn encode(&self, text: &str, specials: Specials, ends: Ends) -> Result<Vec<TokenId>, TextError> {
        let found = if specials == Specials::Parsed { Found::All } else { Found::UserDefined };
        let mut ids = self.encode_parts(&self.special.parts(text, found))?;
        match ends {
            Ends::Bare => {}
            Ends::Begun => self.begin(&mut ids),
            Ends::Added => {
                if let Some(bos) = self.bos.filter(|_| self.add_bos) {
                    ids.insert(0, bos);
                }
                ids.extend(self.eos.filter(|_| self.add_eos));
            }
        }
        Ok(ids)
    }

    fn encode_parts(&self, parts: &[Part<'_>]) -> Result<Vec<TokenId>, TextError> {
        if matches!(self.kind, Kind::None) {
            return Err(TextError::NoTokenizer);
        }
        let mut out = Vec::new();
        let mut after_token = true;
        for &part in parts {
            match (part, &self.kind) {
                (Part::Token(id), _) => out.push(id),
                (Part::Text(_), Kind::None) => {}
                (Part::Text(text), Kind::Bpe(bpe)) => bpe.encode(text, &mut out)?,
                (Part::Text(text), Kind::Spm(spm)) => {
                    let mut spaced = String::with_capacity(text.len() + 8);
                    if self.add_space_prefix && after_token {
                        spaced.push(spm::SPACE);
                    }
                    spaced.extend(text.chars().map(|char| if char == ' ' { spm::SPACE } else { char }));
                    spm.encode(&spaced, &mut out);
                }
            }
            after_token = matches!(part, Part::Token(_));
        }
        Ok(out)
    }

    /// BOS where the model asks for it, unless it is there.
    fn begin(&self, ids: &mut Vec<TokenId>) {
        if let Some(bos) = self.bos.filter(|bos| self.add_bos && ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
    }

    /// The tokens of a prompt that a chat template has written. Control tokens are parsed in the template's own text
    /// only: a text that holds even one byte of content is none. BOS is added where the model asks for it and the
    /// template has not written it. No EOS: the answer is still to come.
    ///
    /// # Errors
    /// [`TextError::NoTokenizer`] if the model has none.
    pub fn encode_chat(&self, prompt: &Rendered) -> Result<Vec<TokenId>, TextError> {
        let mut ids = self.encode_parts(&self.special.parts(prompt.text(), Found::Outside(prompt.content())))?;
        self.begin(&mut ids);
        Ok(ids)
    }

    /// The text of a whole sequence. Bytes that are no UTF-8 become U+FFFD; the space that encoding put before a text
    /// is taken away again. For text that arrives token by token use [`super::Detokenizer`].
    ///
    /// # Errors
    /// An id outside of the vocabulary, or a model without a tokenizer.
    pub fn decode(&self, ids: &[TokenId], control: ControlTokens) -> Result<String, TextError> {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        let mut after_token = true;
        for &id in ids {
            let piece = self.shown_bytes(id, control)?;
            let prefix = self.add_space_prefix && after_token && !self.is_whole(id);
            bytes.extend_from_slice(piece.strip_prefix(b" ").filter(|_| prefix).unwrap_or(piece));
            after_token = self.is_whole(id);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The bytes of a token, control tokens included; they need not be whole characters.
    ///
    /// # Errors
    /// An id outside of the vocabulary, or a model without a tokenizer.
    pub fn token_bytes(&self, id: TokenId) -> Result<&[u8], TextError> {
        if matches!(self.kind, Kind::None) {
            return Err(TextError::NoTokenizer);
        }
        let at = id as usize;
        let start = if at == 0 { Some(0) } else { self.bytes_end.get(at - 1).copied() };
        let bytes = start.zip(self.bytes_end.get(at)).and_then(|(start, &end)| self.bytes.get(start..end));
        bytes.ok_or(TextError::UnknownToken { id, tokens: self.len() })
    }

    /// The token as the vocabulary writes it.
    pub fn token_text(&self, id: TokenId) -> Option<&str> {
        self.texts.get(id as usize).map(String::as_str)
    }

    /// Tokens in the vocabulary; the model's output may have more rows.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether the vocabulary has no tokens at all.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Whether generation stops when the model gives this token.
    pub fn is_end(&self, id: TokenId) -> bool {
        self.special.ends.contains(&id)
    }

    /// All tokens that end an answer.
    pub fn ends(&self) -> &BTreeSet<TokenId> {
        &self.special.ends
    }

    /// What a token is for.
    pub fn token_type(&self, id: TokenId) -> Option<TokenType> {
        self.special.kinds.get(id as usize).copied()
    }

    /// The token that begins a sequence.
    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    /// The token that ends a sequence.
    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    /// The token that fills up batches.
    pub fn pad(&self) -> Option<TokenId> {
        self.pad
    }

    /// Whether [`Ends::Added`] begins a sequence with BOS.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    pub(super) fn shown_bytes(&self, id: TokenId, control: ControlTokens) -> Result<&[u8], TextError> {
        let bytes = self.token_bytes(id)?;
        let hidden = control == ControlTokens::Hidden
            && matches!(self.token_type(id), Some(TokenType::Control | TokenType::Unknown));
        Ok(if hidden { &[] } else { bytes })
    }

    /// Whether encoding finds this token as a whole, so that the text after it gets a space prefix of its own.
    fn is_whole(&self, id: TokenId) -> bool {
        matches!(self.token_type(id), Some(TokenType::Control | TokenType::UserDefined | TokenType::Unknown))
    }

    fn fill_bytes(&mut self) {
        for (text, &kind) in self.texts.iter().zip(&self.special.kinds) {
            match (kind, &self.kind) {
                (TokenType::Unused | TokenType::Undefined, _) | (_, Kind::None) => {}
                (TokenType::Control | TokenType::UserDefined | TokenType::Unknown, _) => {
                    self.bytes.extend_from_slice(text.as_bytes());
                }
                (_, Kind::Spm(_)) => spm::bytes(text, kind, &mut self.bytes),
                (_, Kind::Bpe(bpe)) => match spm::byte_of(text).filter(|_| kind == TokenType::Byte) {
                    Some(byte) => self.bytes.push(byte),
                    None => bpe.bytes(text, &mut self.bytes),
                },
            }
            self.bytes_end.push(self.bytes.len());
        }
    }
}

/// Every list has one entry a token or none, and every named id exists.
fn check_lengths(vocabulary: &Vocabulary) -> Result<(), TextError> {
    let tokens = vocabulary.tokens.len();
    if tokens == 0 && !matches!(vocabulary.model.as_str(), NONE | "") {
        return Err(TextError::MissingKey { key: "tokenizer.ggml.tokens" });
    }
    let lists = [
        ("tokenizer.ggml.scores", vocabulary.scores.len()),
        ("tokenizer.ggml.token_type", vocabulary.token_types.len()),
    ];
    for (key, entries) in lists {
        if entries != 0 && entries != tokens {
            return Err(TextError::BadKey { key, problem: format!("{entries} entries for {tokens} tokens") });
        }
    }
    let ids = [
        ("tokenizer.ggml.bos_token_id", vocabulary.bos),
        ("tokenizer.ggml.eos_token_id", vocabulary.eos),
        ("tokenizer.ggml.eot_token_id", vocabulary.eot),
        ("tokenizer.ggml.eom_token_id", vocabulary.eom),
        ("tokenizer.ggml.unknown_token_id", vocabulary.unk),
    ];
    for (key, id) in ids {
        // A file without a tokenizer may still name its end token.
        if let Some(id) = id.filter(|&id| tokens > 0 && id as usize >= tokens) {
            return Err(TextError::IdOutOfRange { key, id, tokens });
        }
    }
    Ok(())
}
