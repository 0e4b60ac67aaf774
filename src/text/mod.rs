//! Words: tokens from text and text from tokens, chat templates, and the text side of streaming.
//!
//! [`Vocabulary`] is what a model file says; [`Tokenizer`] is built from it and never changes. [`Detokenizer`] is one
//! answer's stream of text. [`ChatTemplate`] turns messages into the prompt that a model was trained on.

mod alphabet;
mod bpe;
mod detokenizer;
mod error;
mod families;
mod jinja;
mod pre;
mod special;
mod spm;
mod stop;
mod template;
mod tokenizer;
mod vocabulary;

pub use detokenizer::{Chunk, Detokenizer};
pub use error::TextError;
pub use stop::StopStrings;
pub use template::{ChatMessage, ChatRequest, ChatTemplate, Moment, Rendered};
pub use tokenizer::{ControlTokens, Ends, Specials, Tokenizer};
pub use vocabulary::{TokenType, Vocabulary};

pub use crate::units::TokenId;
