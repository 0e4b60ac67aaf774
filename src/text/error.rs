use super::TokenId;
use crate::gguf::MetadataError;

/// What can go wrong between text and tokens.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The file names a kind of tokenizer that this program does not have.
    #[error("tokenizer.ggml.model is {found:?}, which is not supported; supported: {known}")]
    UnknownModel {
        /// What the file says.
        found: String,
        /// What this program knows.
        known: String,
    },
    /// The file names a way of splitting words that this program does not have. Guessing would give wrong tokens.
    #[error("tokenizer.ggml.pre is {found:?}, which is not supported; supported: {known}")]
    UnknownPre {
        /// What the file says.
        found: String,
        /// What this program knows.
        known: String,
    },
    /// The file has no tokenizer, and text was asked for.
    #[error("this model has no tokenizer (tokenizer.ggml.model is \"none\" or absent): give token ids instead of text")]
    NoTokenizer,
    /// A metadata key has another type than it must have.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A key that the tokenizer cannot do without.
    #[error("{key} is missing: the model file was written without it; convert the model again or use another file")]
    MissingKey {
        /// The metadata key.
        key: &'static str,
    },
    /// A key has a value of another type or size than it must have.
    #[error("{key}: {problem}")]
    BadKey {
        /// The metadata key.
        key: &'static str,
        /// What was found and what is wanted.
        problem: String,
    },
    /// A special token's id is outside of the vocabulary.
    #[error("{key} is {id}, but the vocabulary has {tokens} tokens")]
    IdOutOfRange {
        /// The metadata key.
        key: &'static str,
        /// What the file says.
        id: TokenId,
        /// Size of the vocabulary.
        tokens: usize,
    },
    /// A merge rule that cannot be applied.
    #[error("tokenizer.ggml.merges[{index}] is {merge:?}: {problem}")]
    BadMerge {
        /// Which merge.
        index: usize,
        /// Its text.
        merge: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The tokenizer's library refused the vocabulary.
    #[error("the tokenizer could not be built: {problem}")]
    Build {
        /// What the library says.
        problem: String,
    },
    /// A token id outside of the vocabulary.
    #[error("token {id} does not exist: the vocabulary has {tokens} tokens")]
    UnknownToken {
        /// The id.
        id: TokenId,
        /// Size of the vocabulary.
        tokens: usize,
    },
    /// An empty stop string would stop everything.
    #[error("stop[{index}] is empty: leave it out")]
    EmptyStop {
        /// Which stop string.
        index: usize,
    },
    /// The template cannot be read.
    #[error("the chat template is not valid (line {line}): {problem}")]
    TemplateSyntax {
        /// Line in the template, from 1; 0 if unknown.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// The template itself refused the messages.
    #[error("the chat template refuses these messages: {message}")]
    TemplateRaised {
        /// The template's own words.
        message: String,
    },
    /// The template failed while it ran.
    #[error("the chat template failed (line {line}): {problem}")]
    TemplateFailed {
        /// Line in the template, from 1; 0 if unknown.
        line: usize,
        /// What went wrong.
        problem: String,
    },
    /// The template ran for too long.
    #[error("the chat template did not end within {steps} steps: it may loop without end")]
    TemplateEndless {
        /// Steps it was given.
        steps: u64,
    },
    /// The file has no chat template, and a chat was asked for.
    #[error(
        "this model has no chat template (tokenizer.chat_template is absent): use a plain prompt, or give one with --template"
    )]
    NoTemplate,
}
