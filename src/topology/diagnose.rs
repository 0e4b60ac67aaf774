//! What is wrong in a topology file: found, allowed and fix for each mistake, drawn over the lines it is about.

use std::fmt;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use serde::Serialize;

/// More mistakes than this are counted, not drawn.
const MOST_DRAWN: usize = 50;

/// The kind of a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// The text is not YAML, or passes the limits on depth, values or aliases.
    Syntax,
    /// The file is larger than a topology can be.
    TooLarge,
    /// A key that the schema does not know.
    UnknownKey,
    /// A key that was given before.
    DuplicateKey,
    /// A key that must be there.
    MissingKey,
    /// A list where a value belongs, and the like.
    WrongType,
    /// A value that is none of those allowed.
    WrongValue,
    /// An amount without a unit, or with one that does not fit.
    WrongUnit,
    /// A number outside its range.
    OutOfRange,
    /// A name that is not declared.
    UnknownName,
    /// A name that cannot be used, or is used twice.
    BadName,
    /// Two links between the same two ends, or two ways up from one end.
    DoubleLink,
    /// A card that nothing connects with the host.
    NoPath,
    /// Pins that claim the same layer twice.
    Overlap,
    /// Two statements that cannot both hold.
    Contradiction,
}

impl Code {
    /// The code as it is written in messages, such as `unknown-key`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Syntax => "syntax",
            Self::TooLarge => "too-large",
            Self::UnknownKey => "unknown-key",
            Self::DuplicateKey => "duplicate-key",
            Self::MissingKey => "missing-key",
            Self::WrongType => "wrong-type",
            Self::WrongValue => "wrong-value",
            Self::WrongUnit => "wrong-unit",
            Self::OutOfRange => "out-of-range",
            Self::UnknownName => "unknown-name",
            Self::BadName => "bad-name",
            Self::DoubleLink => "double-link",
            Self::NoPath => "no-path",
            Self::Overlap => "overlap",
            Self::Contradiction => "contradiction",
        }
    }
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// The kind of mistake.
    pub code: Code,
    /// Line of the place, from 1.
    pub line: usize,
    /// Column of the place in characters, from 1.
    pub column: usize,
    /// What was found.
    pub found: String,
    /// What is allowed there.
    pub allowed: String,
    /// What to change.
    pub fix: String,
    #[serde(skip)]
    at: Range<usize>,
    #[serde(skip)]
    also: Option<(Range<usize>, &'static str)>,
}

impl Diagnostic {
    /// A mistake at a range of bytes. Line and column are known once it is part of a [`Problems`].
    pub(super) fn new(code: Code, at: Range<usize>, found: impl Into<String>) -> Self {
        Self {
            code,
            line: 0,
            column: 0,
            found: found.into(),
            allowed: String::new(),
            fix: String::new(),
            at,
            also: None,
        }
    }

    pub(super) fn allowed(mut self, allowed: impl Into<String>) -> Self {
        self.allowed = allowed.into();
        self
    }

    pub(super) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = fix.into();
        self
    }

    /// Its bytes in the file.
    #[cfg(test)]
    pub(super) fn at(&self) -> Range<usize> {
        self.at.clone()
    }

    /// Draws a second place, such as the first of two duplicates.
    pub(super) fn also(mut self, at: Range<usize>, label: &'static str) -> Self {
        self.also = Some((at, label));
        self
    }
}

/// Every mistake of one file, in the order of their places. Prints as annotated source text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problems {
    file: String,
    list: Vec<Diagnostic>,
    #[serde(skip)]
    source: String,
}

impl Problems {
    pub(super) fn new(file: &str, source: &str, mut list: Vec<Diagnostic>) -> Self {
        list.sort_by_key(|problem| problem.at.start);
        for problem in &mut list {
            let before = source.get(..problem.at.start).unwrap_or(source);
            let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
            problem.line = before.matches('\n').count() + 1;
            problem.column = before.get(line_start..).unwrap_or("").chars().count() + 1;
        }
        Self { file: file.to_owned(), list, source: source.to_owned() }
    }

    /// The mistakes, in the order of the file.
    pub fn list(&self) -> &[Diagnostic] {
        &self.list
    }

    /// Draws every mistake over its source line; `colour` adds terminal colours.
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let mut text = String::new();
        for problem in self.list.iter().take(MOST_DRAWN) {
            let mut snippet = Snippet::source(self.source.as_str())
                .path(self.file.as_str())
                .annotation(AnnotationKind::Primary.span(problem.at.clone()));
            if let Some((at, label)) = &problem.also {
                snippet = snippet.annotation(AnnotationKind::Context.span(at.clone()).label(*label));
            }
            let mut group = Level::ERROR.primary_title(problem.found.as_str()).id(problem.code.name()).element(snippet);
            if !problem.allowed.is_empty() {
                group = group.element(Level::NOTE.message(format!("allowed: {}", problem.allowed)));
            }
            if !problem.fix.is_empty() {
                group = group.element(Level::HELP.message(problem.fix.as_str()));
            }
            text += &renderer.render(&[group]);
            text += "\n\n";
        }
        if let Some(more) = self.list.len().checked_sub(MOST_DRAWN).filter(|more| *more > 0) {
            text += &format!("and {more} more\n\n");
        }
        let plural = if self.list.len() == 1 { "mistake" } else { "mistakes" };
        text += &format!("{}: {} {plural}", self.file, self.list.len());
        text
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

/// The known word that is nearest to `found`, if it is near enough to be meant and no other is as near.
pub(super) fn nearest<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const LONGEST: usize = 40;
    let found: Vec<char> = found.chars().take(LONGEST).flat_map(char::to_lowercase).collect();
    let most = (found.len() / 3).max(1);
    let letters = |word: &str| word.chars().flat_map(char::to_lowercase).collect::<Vec<_>>();
    let mut near: Vec<(usize, &str)> = known
        .into_iter()
        .map(|word| (distance(&found, &letters(word)), word))
        .filter(|(distance, _)| *distance <= most)
        .collect();
    near.sort();
    match near.as_slice() {
        [(first, _), (second, _), ..] if first == second => None,
        [(_, word), ..] => Some(word),
        [] => None,
    }
}

/// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    let mut previous_a = None;
    for (i, &x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        let mut previous_b = None;
        for (j, &y) in b.iter().enumerate() {
            let at = |row: &[usize], column: usize| row.get(column).copied().unwrap_or(usize::MAX - 1);
            let mut best = (at(&above, j) + usize::from(x != y)).min(at(&above, j + 1) + 1).min(at(&row, j) + 1);
            if previous_a == Some(y) && previous_b == Some(x) {
                best = best.min(at(&before, j.wrapping_sub(1)) + 1);
            }
            row.push(best);
            previous_b = Some(y);
        }
        before = std::mem::replace(&mut above, row);
        previous_a = Some(x);
    }
    above.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_key_is_found_and_a_far_one_is_not() {
        let known = ["memory", "reserve", "rate", "uuid", "h2d", "d2h"];
        for (found, wanted) in [
            ("memroy", Some("memory")),
            ("Memory", Some("memory")),
            ("reserved", Some("reserve")),
            ("rat", Some("rate")),
            ("h2dd", Some("h2d")),
            ("d2d", None),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(found, known), wanted, "{found}");
        }
    }

    #[test]
    fn distance_counts_edits() {
        let count = |a: &str, b: &str| distance(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>());
        assert_eq!(count("", ""), 0);
        assert_eq!(count("abc", ""), 3);
        assert_eq!(count("", "abc"), 3);
        assert_eq!(count("ab", "ba"), 1);
        assert_eq!(count("kitten", "sitting"), 3);
    }
}
