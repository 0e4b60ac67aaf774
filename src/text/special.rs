//! Tokens that are found in text as a whole, and those that end an answer.

use std::collections::BTreeSet;
use std::ops::Range;

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
    whole: Vec<Whole>,
}

#[derive(Debug)]
struct Whole {
    id: TokenId,
    text: String,
    /// What it is shown as.
    kind: TokenType,
    /// Whether it steers the model, by what the file says or by what is shown: such a token is never made of content.
    steers: bool,
}

/// Where the texts of control tokens are these tokens.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found<'r> {
    /// Everywhere.
    All,
    /// Nowhere; only user-defined tokens are found.
    UserDefined,
    /// Where no byte of theirs lies in one of these ascending ranges.
    Outside(&'r [Range<usize>]),
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
        let steers = |kind| matches!(kind, TokenType::Control | TokenType::Unknown);
        let told = |id: TokenId| vocabulary.token_types.get(id as usize).copied().unwrap_or_default();
        let mut whole: Vec<Whole> = (0..)
            .zip(vocabulary.tokens.iter().zip(&kinds))
            .filter(|(_, (token, kind))| !token.is_empty() && is_whole(**kind))
            .map(|(id, (token, &kind))| Whole {
                id,
                text: token.clone(),
                kind,
                steers: steers(kind) || steers(told(id)),
            })
            .collect();
        whole.sort_by_key(|whole| (std::cmp::Reverse(whole.text.len()), whole.id));
        Self { kinds, ends, whole }
    }

    /// Cuts `text` at its whole tokens. The longest token is looked for first, in the whole text.
    pub(super) fn parts<'t>(&self, text: &'t str, found: Found<'_>) -> Vec<Part<'t>> {
        let mut pieces = vec![(0..text.len(), None)];
        for whole in &self.whole {
            let stays_text = matches!(found, Found::UserDefined) && whole.kind != TokenType::UserDefined;
            if stays_text || !text.contains(whole.text.as_str()) {
                continue;
            }
            let mut cut = Vec::with_capacity(pieces.len() + 2);
            for (range, token) in pieces {
                if token.is_some() {
                    cut.push((range, token));
                    continue;
                }
                let mut done = range.start;
                let mut from = range.start;
                while let Some(at) = text.get(from..range.end).and_then(|rest| rest.find(whole.text.as_str())) {
                    let (start, end) = (from + at, from + at + whole.text.len());
                    if whole.steers && found.is_content(start..end) {
                        // Another one may begin within this one.
                        from = start + text.get(start..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8);
                        continue;
                    }
                    cut.push((done..start, None));
                    cut.push((start..end, Some(whole.id)));
                    (done, from) = (end, end);
                }
                cut.push((done..range.end, None));
            }
            pieces = cut;
        }
        let part = |(range, token): (Range<usize>, Option<TokenId>)| match token {
            Some(id) => Some(Part::Token(id)),
            None => text.get(range).filter(|text| !text.is_empty()).map(Part::Text),
        };
        pieces.into_iter().filter_map(part).collect()
    }
}

impl Found<'_> {
    /// Whether any byte of `range` is content.
    fn is_content(self, range: Range<usize>) -> bool {
        let Self::Outside(content) = self else { return false };
        let next = content.partition_point(|content| content.end <= range.start);
        content.get(next).is_some_and(|content| content.start < range.end)
    }
}
