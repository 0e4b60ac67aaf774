//! Strings that know which of their bytes are content.
//!
//! A prompt is made of two kinds of text: what the template says, and what it was given (messages, tools, variables).
//! Only the first may become control tokens. Every string of a template carries the byte ranges that are content;
//! cutting and joining keep them, so a template may test, split, strip and put together content as it likes.

use std::ops::Range;
use std::rc::Rc;

use super::Fault;

/// Most bytes of one string: more than any prompt, and too few to fill a machine's memory with.
pub(super) const MOST_BYTES: usize = 64 << 20;

/// A string, and which of its bytes are content.
#[derive(Clone, Debug, Default)]
pub(super) struct Text {
    text: Rc<str>,
    /// Ascending ranges of bytes that do not touch.
    content: Option<Rc<[Range<usize>]>>,
}

impl Text {
    /// Text of the template itself.
    pub(super) fn own(text: &str) -> Self {
        Self { text: text.into(), content: None }
    }

    /// Text that was given to the template.
    pub(super) fn content(text: &str) -> Self {
        Self::with(text, true)
    }

    pub(super) fn with(text: &str, content: bool) -> Self {
        let whole = 0..text.len();
        Self { text: text.into(), content: (content && !text.is_empty()).then(|| [whole].into()) }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn shared(&self) -> Rc<str> {
        Rc::clone(&self.text)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Whether any of it is content.
    pub(super) fn has_content(&self) -> bool {
        self.content.is_some()
    }

    pub(super) fn ranges(&self) -> &[Range<usize>] {
        self.content.as_deref().unwrap_or_default()
    }

    /// The bytes of `range`, which must lie between characters.
    pub(super) fn slice(&self, range: Range<usize>) -> Self {
        let text = self.text.get(range.clone()).unwrap_or_default();
        let mut builder = Builder::default();
        builder.push_slice(self, range);
        let Builder { content, .. } = builder;
        Self { text: text.into(), content: (!content.is_empty()).then(|| content.into()) }
    }

    /// Consecutive pieces, each with whether it is content.
    pub(super) fn segments(&self) -> impl Iterator<Item = (&str, bool)> {
        self.segments_of(0..self.text.len())
    }

    fn segments_of(&self, range: Range<usize>) -> impl Iterator<Item = (&str, bool)> {
        let ranges = self.ranges();
        let mut next = ranges.partition_point(|found| found.end <= range.start);
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let (end, content) = match ranges.get(next) {
                Some(found) if found.start <= at => (found.end, true),
                Some(found) => (found.start, false),
                None => (range.end, false),
            };
            next += usize::from(content);
            let piece = self.text.get(at..end.min(range.end)).unwrap_or_default();
            at = end;
            Some((piece, content))
        })
    }

    /// Every piece through `change`; content stays content.
    pub(super) fn map(&self, mut change: impl FnMut(&str) -> String) -> Result<Self, Fault> {
        let mut out = Builder::default();
        for (piece, content) in self.segments() {
            out.push(&change(piece), content);
        }
        out.finish()
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

/// Puts a [`Text`] together.
#[derive(Debug, Default)]
pub(super) struct Builder {
    text: String,
    content: Vec<Range<usize>>,
    /// It would have passed [`MOST_BYTES`]; nothing more is taken.
    full: bool,
}

impl Builder {
    pub(super) fn push(&mut self, piece: &str, content: bool) {
        if self.full || self.text.len() + piece.len() > MOST_BYTES {
            self.full = true;
            return;
        }
        let start = self.text.len();
        self.text.push_str(piece);
        if !content || piece.is_empty() {
            return;
        }
        match self.content.last_mut() {
            Some(last) if last.end == start => last.end = self.text.len(),
            _ => self.content.push(start..self.text.len()),
        }
    }

    pub(super) fn push_own(&mut self, piece: &str) {
        self.push(piece, false);
    }

    pub(super) fn push_text(&mut self, text: &Text) {
        self.push_slice(text, 0..text.text.len());
    }

    pub(super) fn push_slice(&mut self, text: &Text, range: Range<usize>) {
        for (piece, content) in text.segments_of(range) {
            self.push(piece, content);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    pub(super) fn finish(self) -> Result<Text, Fault> {
        if self.full {
            return Err(Fault::failed(format!("a string is longer than {MOST_BYTES} bytes")));
        }
        let Self { text, content, .. } = self;
        Ok(Text { text: text.into(), content: (!content.is_empty()).then(|| content.into()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cutting_and_joining_keep_what_is_content() {
        let mut out = Builder::default();
        out.push("ab", false);
        out.push("cd", true);
        out.push("ef", true);
        out.push("gh", false);
        out.push("ij", true);
        let text = out.finish().unwrap();
        assert_eq!(text.ranges(), [2..6, 8..10]);
        assert_eq!(text.slice(3..9).ranges(), [0..3, 5..6]);
        assert!(text.slice(0..2).ranges().is_empty());
        assert_eq!(text.slice(2..6).segments().collect::<Vec<_>>(), [("cdef", true)]);
        assert_eq!(text.slice(5..5).as_str(), "");
        let segments: Vec<_> = text.segments().collect();
        assert_eq!(segments, [("ab", false), ("cdef", true), ("gh", false), ("ij", true)]);
        assert_eq!(text.map(str::to_uppercase).unwrap().ranges(), text.ranges());
    }

    #[test]
    fn what_is_too_long_is_refused() {
        let mut out = Builder::default();
        let piece = "x".repeat(1 << 20);
        for _ in 0..100 {
            out.push_own(&piece);
        }
        assert!(out.is_full() && out.finish().is_err());
    }
}
