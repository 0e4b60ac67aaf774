use super::TokenId;

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
