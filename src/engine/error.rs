//! What can go wrong while running a model.

use thiserror::Error;

use crate::card::CardError;
use crate::cpu::TeamError;
use crate::gguf::GgufError;
use crate::ops::KvType;
use crate::units::CardId;

/// An error of the engine.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A card refused or failed; the request it belonged to has ended.
    #[error(transparent)]
    Card(#[from] CardError),
    /// The caller cancelled. Cells of waves that were complete stay usable.
    #[error("the request was cancelled")]
    Cancelled,
    /// The tokens do not fit the sequence's context.
    #[error(
        "{tokens} tokens do not fit: the sequence holds {held} of {context}; shorten the text or raise run.context"
    )]
    ContextFull {
        /// Tokens asked for.
        tokens: usize,
        /// Tokens the sequence holds already.
        held: usize,
        /// Its context.
        context: usize,
    },
    /// Every sequence of the plan is in use.
    #[error("all {sequences} sequences of the plan are in use; end one or raise run.sequences")]
    NoSequence {
        /// Sequences of the plan.
        sequences: usize,
    },
    /// A token id is outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The id.
        token: u32,
        /// Vocabulary size.
        vocab: usize,
    },
    /// No token was given.
    #[error("a prompt needs at least one token")]
    Empty,
    /// A sequence belongs to another engine.
    #[error("a sequence of another engine was given: sequences live in the engine that made them")]
    Foreign,
    /// A request runs on the sequence, or one request names it twice.
    #[error("a request runs on this sequence already: wait for its end or cancel it")]
    Busy,
    /// A step has more rows than the plan has room for.
    #[error("a step of {rows} rows is asked for, the plan has room for {most}; raise run.sequences")]
    StepRows {
        /// Rows asked for.
        rows: usize,
        /// Rows of the plan.
        most: usize,
    },
    /// A failure under another request ended this one.
    #[error("the request was ended by a failure under another one, it may be sent again: {cause}")]
    Interrupted {
        /// What failed.
        cause: String,
    },
    /// A logit is not a number: weights are broken, or values passed the range of the cache's type.
    #[error("logits of row {row} hold a value that is not a number: {}", not_a_number(*cells))]
    NotANumber {
        /// Row of the prompt.
        row: usize,
        /// How keys and values are kept.
        cells: KvType,
    },
    /// The plan, the rig and the model do not belong together.
    #[error("plan and rig differ: {0}")]
    Mismatch(String),
    /// A fault of the program itself: the plan gives memory that the engine does not find, or the engine's own order is
    /// broken.
    #[error(
        "a fault in aqueduct, not in your settings: {0}. Please report this line together with the command and what `aqueduct plan` prints for it"
    )]
    Internal(String),
    /// The GPUs that are declared or named are not the ones that are there.
    #[error("{0}")]
    Devices(String),
    /// A card of the topology cannot be opened.
    #[error("card {card}: {reason}")]
    NoCard {
        /// Its name in the topology.
        card: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The test of a hand-off got stuck.
    #[error(
        "hidden states did not get from {from} to {to} {way}: {reason}; the card did not come back, so nothing can run here: set \
         run.hand_off to host"
    )]
    HandOff {
        /// The card that sent.
        from: CardId,
        /// The card that should have received.
        to: CardId,
        /// How.
        way: &'static str,
        /// What was seen.
        reason: String,
    },
    /// Reading the model file failed.
    #[error(transparent)]
    Read(#[from] GgufError),
    /// CPU workers could not be started.
    #[error(transparent)]
    Team(#[from] TeamError),
    /// A thread could not be started, or ended unexpectedly.
    #[error("{0}")]
    Thread(String),
}

/// What may have made a logit no number, and the way out.
fn not_a_number(cells: KvType) -> &'static str {
    match cells {
        KvType::F16 => {
            "keys or values of this model may be larger than 65,504, the most that the cache holds in F16, so try run.kv.type: f32; \
             otherwise the model file or its weights are damaged"
        }
        KvType::F32 | KvType::Int8 => "the model file or its weights are damaged",
    }
}
