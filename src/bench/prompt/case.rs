//! What is measured: prompts of so many tokens, and follow-ups to so many cached ones.

use std::str::FromStr;

use serde::Serialize;
use thiserror::Error;

/// Most tokens of a prompt.
const MOST: f64 = 1e9;

/// A text that is not a number of tokens or a follow-up.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CaseError {
    /// No number.
    #[error("`{0}` is no number of tokens, such as 512 or 8K")]
    Number(String),
    /// A number that no prompt has.
    #[error("`{0}` is out of range; a prompt has 1 to 1000000000 tokens")]
    Range(String),
    /// No `@`.
    #[error("`{0}` is no follow-up; write NEW@CACHED, such as 2K@32K")]
    FollowUp(String),
}

/// A number of tokens: `1790`, `8K` (8,192) or `18.8K` (19,251).
///
/// # Errors
/// [`CaseError`] with the text.
pub fn tokens(text: &str) -> Result<usize, CaseError> {
    let (number, factor) = match text.strip_suffix(['k', 'K']) {
        Some(number) => (number, 1024.0),
        None => (text, 1.0),
    };
    let amount: f64 = number.parse().map_err(|_| CaseError::Number(text.to_owned()))?;
    let amount = (amount * factor).round();
    if (1.0..=MOST).contains(&amount) { Ok(amount as usize) } else { Err(CaseError::Range(text.to_owned())) }
}

/// New tokens behind cached ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Case {
    /// As it was written.
    pub name: String,
    /// Tokens that the sequence holds already; none for a prompt.
    pub cached: usize,
    /// Tokens that are timed.
    pub new: usize,
}

impl Case {
    /// A prompt for an empty sequence.
    ///
    /// # Errors
    /// [`CaseError`] with the text.
    pub fn prompt(text: &str) -> Result<Self, CaseError> {
        Ok(Self { name: text.to_owned(), cached: 0, new: tokens(text)? })
    }

    /// Cached and new tokens together.
    pub fn total(&self) -> usize {
        self.cached + self.new
    }
}

/// A follow-up, `NEW@CACHED`.
impl FromStr for Case {
    type Err = CaseError;

    fn from_str(text: &str) -> Result<Self, CaseError> {
        let (new, cached) = text.split_once('@').ok_or_else(|| CaseError::FollowUp(text.to_owned()))?;
        Ok(Self { name: text.to_owned(), cached: tokens(cached)?, new: tokens(new)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_k_is_1024_and_parts_of_it_are_rounded() {
        assert_eq!(tokens("1K"), Ok(1024));
        assert_eq!(tokens("120k"), Ok(122_880));
        assert_eq!(tokens("18.8K"), Ok(19_251));
        assert_eq!(tokens("1790"), Ok(1790));
        for text in ["0", "-1", "0.2", "inf", "NaN", "1e10", "9999999K"] {
            assert_eq!(tokens(text), Err(CaseError::Range(text.to_owned())), "{text}");
        }
        for text in ["", "K", "1M", "eight"] {
            assert_eq!(tokens(text), Err(CaseError::Number(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn a_follow_up_has_new_and_cached_tokens() {
        let case: Case = "1790@18.8K".parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((case.new, case.cached, case.total()), (1790, 19_251, 21_041));
        assert_eq!("2K".parse::<Case>(), Err(CaseError::FollowUp("2K".to_owned())));
        assert_eq!("2K@".parse::<Case>(), Err(CaseError::Number(String::new())));
        assert_eq!("2K@0".parse::<Case>(), Err(CaseError::Range("0".to_owned())));
    }
}
