use super::{TextError, TokenId};
use crate::gguf::{FromValue, Gguf, Metadata, MetadataError, Strings};

/// What a token is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TokenType {
    /// Ordinary text.
    #[default]
    Normal,
    /// Stands for what no other token can say.
    Unknown,
    /// Steers the model (begin, end, roles); never shown as text.
    Control,
    /// Text that is always one token, shown as it is.
    UserDefined,
    /// Kept free.
    Unused,
    /// One raw byte, written `<0xXX>`.
    Byte,
    /// A number that the format does not name.
    Undefined,
}

impl TokenType {
    /// The type of a number in `tokenizer.ggml.token_type`.
    pub fn from_number(number: i64) -> Self {
        match number {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Undefined,
        }
    }
}

/// What a model file says about its tokens, unchecked. [`super::Tokenizer::new`] checks it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vocabulary {
    /// `tokenizer.ggml.model`: `gpt2` (BPE), `llama` (SPM), or `none`.
    pub model: String,
    /// `tokenizer.ggml.pre`: how BPE splits text into words.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`, by id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.scores`, by id; empty if absent. SPM only.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`, by id; empty if absent: all normal.
    pub token_types: Vec<TokenType>,
    /// `tokenizer.ggml.merges`, best first, each `left right`. BPE only.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`: begins a sequence.
    pub bos: Option<TokenId>,
    /// `tokenizer.ggml.eos_token_id`: ends a sequence.
    pub eos: Option<TokenId>,
    /// `tokenizer.ggml.eot_token_id`: ends a turn.
    pub eot: Option<TokenId>,
    /// `tokenizer.ggml.eom_token_id`: ends a message.
    pub eom: Option<TokenId>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk: Option<TokenId>,
    /// `tokenizer.ggml.padding_token_id`.
    pub pad: Option<TokenId>,
    /// `tokenizer.ggml.add_bos_token`; without it the kind of tokenizer decides.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`; without it none is added.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`; without it SPM adds one and BPE does not.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

impl Vocabulary {
    /// Reads the vocabulary of a model file. A file without one gives an empty vocabulary.
    ///
    /// # Errors
    /// A key of another type than it must have, by name and place.
    pub fn from_gguf(file: &Gguf) -> Result<Self, TextError> {
        Ok(Self::from_metadata(file.metadata())?)
    }

    fn from_metadata(metadata: &Metadata) -> Result<Self, MetadataError> {
        let strings = |key: &str| -> Result<Vec<String>, MetadataError> {
            let strings = metadata.find::<Strings<'_>>(key)?;
            Ok(strings.map(|strings| strings.map(str::to_owned).collect()).unwrap_or_default())
        };
        let text = |key: &str| Ok(metadata.find::<&str>(key)?.map(str::to_owned));
        // Converters write -1 for a token that the model does not have.
        let id = |key: &str| match metadata.find::<i64>(key) {
            Ok(Some(-1)) => Ok(None),
            _ => metadata.find::<TokenId>(key),
        };
        let flag = |key: &str| metadata.find::<bool>(key);
        let types: Vec<i64> = list(metadata, "tokenizer.ggml.token_type")?;
        Ok(Self {
            model: text("tokenizer.ggml.model")?.unwrap_or_default(),
            pre: text("tokenizer.ggml.pre")?,
            tokens: strings("tokenizer.ggml.tokens")?,
            scores: list(metadata, "tokenizer.ggml.scores")?,
            token_types: types.into_iter().map(TokenType::from_number).collect(),
            merges: strings("tokenizer.ggml.merges")?,
            bos: id("tokenizer.ggml.bos_token_id")?,
            eos: id("tokenizer.ggml.eos_token_id")?,
            eot: id("tokenizer.ggml.eot_token_id")?,
            eom: id("tokenizer.ggml.eom_token_id")?,
            unk: id("tokenizer.ggml.unknown_token_id")?,
            pad: id("tokenizer.ggml.padding_token_id")?,
            add_bos: flag("tokenizer.ggml.add_bos_token")?,
            add_eos: flag("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: flag("tokenizer.ggml.add_space_prefix")?,
            chat_template: text("tokenizer.chat_template")?,
        })
    }
}

/// A list that may be missing.
fn list<'a, T>(metadata: &'a Metadata, key: &str) -> Result<Vec<T>, MetadataError>
where
    Vec<T>: FromValue<'a>,
{
    Ok(metadata.find::<Vec<T>>(key)?.unwrap_or_default())
}
