//! Tokens that are found in text as a whole, and those that end an answer.

use std::collections::BTreeSet;

use super::{TokenId, TokenType, Vocabulary};

/// Texts whose tokens end an answer, in whatever model they occur. Files often name only one of the tokens that their
/// model ends with.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    // Completion inside a file: padding and the begin of another file end the insertion.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<reponame>",
    "<|file_sep|>",
];

/// Texts whose tokens mark the channels of an answer: they must reach the reader.
const CHANNELS: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// The tokens with a meaning of their own.
#[derive(Debug)]
pub(super) struct SpecialTokens {
    /// Types by id, with what the texts above say put right.
    pub(super) kinds: Vec<TokenType>,
    /// Tokens that end an answer.
    pub(super) ends: BTreeSet<TokenId>,
    /// Tokens found as a whole, longest text first, then the lower id.
    whole: Vec<(TokenId, String, TokenType)>,
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'t> {
    Text(&'t str),
    Token(TokenId),
}

impl SpecialTokens {
    pub(super) fn new(vocabulary: &Vocabulary, eos: Option<TokenId>) -> Self {
        let mut kinds: Vec<TokenType> = (0..vocabulary.tokens.len())
            .map(|id| vocabulary.token_types.get(id).copied().unwrap_or_default())
            .collect();
        let named = [eos, vocabulary.eot, vocabulary.eom];
        let mut ends: BTreeSet<TokenId> = named.into_iter().flatten().collect();
        let has = |text: &str| vocabulary.tokens.iter().any(|token| token == text);
        // There `<|end|>` ends a message, and the answer goes on in another channel.
        let end_goes_on = (has("<|call|>") || has("<|calls|>")) && (has("<|return|>") || has("<|flush|>"));
        // There `</s>` is a piece of HTML.
        let s_is_text = has("<|tool_response>");
        for ((id, token), kind) in (0..).zip(&vocabulary.tokens).zip(&mut kinds) {
            match token.as_str() {
                "<|end|>" if end_goes_on => {
                    ends.remove(&id);
                    *kind = TokenType::UserDefined;
                }
                "</s>" if s_is_text => {
                    ends.remove(&id);
                    *kind = TokenType::Normal;
                }
                text if ENDS.contains(&text) => {
                    ends.insert(id);
                    *kind = TokenType::Control;
                }
                text if CHANNELS.contains(&text) => *kind = TokenType::UserDefined,
                _ => {}
            }
        }
        let is_whole = |kind| matches!(kind, TokenType::Control | TokenType::UserDefined | TokenType::Unknown);
        let mut whole: Vec<_> = (0..)
            .zip(vocabulary.tokens.iter().zip(&kinds))
            .filter(|(_, (token, kind))| !token.is_empty() && is_whole(**kind))
            .map(|(id, (token, kind))| (id, token.clone(), *kind))
            .collect();
        whole.sort_by_key(|(id, token, _)| (std::cmp::Reverse(token.len()), *id));
        Self { kinds, ends, whole }
    }

    /// Cuts `text` at its whole tokens. The longest token is looked for first, in the whole text. Without `control`, control
    /// tokens are text like any other.
    pub(super) fn parts<'t>(&self, text: &'t str, control: bool) -> Vec<Part<'t>> {
        let mut parts = vec![Part::Text(text)];
        for (id, token, kind) in &self.whole {
            if !control && *kind != TokenType::UserDefined || !text.contains(token.as_str()) {
                continue;
            }
            let mut cut = Vec::with_capacity(parts.len() + 2);
            for part in parts {
                let Part::Text(text) = part else {
                    cut.push(part);
                    continue;
                };
                for (index, piece) in text.split(token.as_str()).enumerate() {
                    if index > 0 {
                        cut.push(Part::Token(*id));
                    }
                    if !piece.is_empty() {
                        cut.push(Part::Text(piece));
                    }
                }
            }
            parts = cut;
        }
        parts.retain(|part| *part != Part::Text(""));
        parts
    }
}
