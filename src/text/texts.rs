//! The texts of a vocabulary, close together: hundreds of thousands of them, each a few bytes.

use super::TokenId;

/// Every token's text, by id and by text.
#[derive(Debug)]
pub(super) struct Texts {
    /// All texts, one after the other.
    all: String,
    /// Where each text ends.
    ends: Vec<usize>,
    /// Ids in the order of their texts, of equal texts the lowest id first.
    sorted: Vec<TokenId>,
}

impl Texts {
    pub(super) fn new(tokens: &[String]) -> Self {
        let mut all = String::with_capacity(tokens.iter().map(String::len).sum());
        let mut ends = Vec::with_capacity(tokens.len());
        for token in tokens {
            all.push_str(token);
            ends.push(all.len());
        }
        let mut sorted: Vec<TokenId> = (0..).take(tokens.len()).collect();
        sorted.sort_unstable_by_key(|id| (tokens.get(*id as usize), *id));
        Self { all, ends, sorted }
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The text of an id.
    pub(super) fn get(&self, id: TokenId) -> Option<&str> {
        let at = id as usize;
        let start = if at == 0 { 0 } else { *self.ends.get(at - 1)? };
        self.all.get(start..*self.ends.get(at)?)
    }

    /// The id of a text; a text that stands twice belongs to the lower id.
    pub(super) fn find(&self, text: &str) -> Option<TokenId> {
        let at = self.sorted.partition_point(|id| self.get(*id) < Some(text));
        self.sorted.get(at).copied().filter(|id| self.get(*id) == Some(text))
    }

    /// All texts, by id.
    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        (0..).map_while(|id| self.get(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_by_id_and_by_text() {
        let tokens = ["b", "", "ab", "é", "b", "a"].map(str::to_owned);
        let texts = Texts::new(&tokens);
        assert_eq!(texts.iter().collect::<Vec<_>>(), tokens);
        assert_eq!((texts.len(), texts.get(6)), (6, None));
        let found = ["b", "", "ab", "é", "a", "c", "abc"].map(|text| texts.find(text));
        assert_eq!(found, [Some(0), Some(1), Some(2), Some(3), Some(5), None, None]);
        assert_eq!(Texts::new(&[]).find(""), None);
    }
}
