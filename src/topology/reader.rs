//! Reads the tree against the table of keys. A mistake is noted and reading goes on: the caller gets `None` for that
//! value.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};

use super::amounts::Amount;
use super::diagnose::{Code, Diagnostic, nearest};
use super::keys::{SECTIONS, Section};
use super::tree::{At, Entry, Item, Shape, clip};

/// Collects the mistakes of a file while its values are read.
#[derive(Default)]
pub(super) struct Reader {
    pub problems: Vec<Diagnostic>,
}

/// The known keys of one map.
pub(super) struct Fields<'t> {
    /// What the map is, for messages: `card gpu0`.
    pub what: String,
    /// Where it is: its own key, or its first key.
    pub at: Range<usize>,
    /// Whether it is a map at all; where not, that is the mistake and no key is missed.
    is_map: bool,
    section: &'static Section,
    found: BTreeMap<&'static str, &'t Entry>,
}

impl<'t> Fields<'t> {
    /// The value of a key, if the file has it.
    pub fn get(&self, key: &'static str) -> Option<&'t Entry> {
        self.found.get(key).copied()
    }

    /// What the table of keys allows for a key.
    fn allowed(&self, key: &str) -> &'static str {
        self.section.keys.iter().find(|known| known.name == key).map_or("", |known| known.allowed)
    }
}

impl Reader {
    pub fn note(&mut self, problem: Diagnostic) {
        self.problems.push(problem);
    }

    /// Sorts a map into the keys of its section. Anything else than a map is a mistake; nothing at all is an empty map.
    pub fn fields<'t>(
        &mut self,
        section: &'static Section,
        what: impl Into<String>,
        at: Range<usize>,
        item: &'t Item,
    ) -> Fields<'t> {
        let mut fields = Fields { what: what.into(), at, is_map: true, section, found: BTreeMap::new() };
        let entries = match &item.shape {
            Shape::Map(entries) => entries.as_slice(),
            Shape::Empty => &[],
            Shape::Text(_) | Shape::List(_) => {
                fields.is_map = false;
                self.note(
                    Diagnostic::new(
                        Code::WrongType,
                        item.at.clone(),
                        format!("{} is {}", fields.what, item.describe()),
                    )
                    .allowed(format!("a map with the keys {}", key_names(section)))
                    .fix(format!("write its keys on lines of their own, such as `{}: ...`", first_key(section))),
                );
                &[]
            }
        };
        for entry in entries {
            match section.keys.iter().find(|key| key.name == entry.key.value) {
                None => self.unknown_key(section, &fields.what, &entry.key),
                Some(key) => {
                    if let Some(first) = fields.found.get(key.name) {
                        self.duplicate(&first.key, &entry.key, &fields.what);
                    } else {
                        fields.found.insert(key.name, entry);
                    }
                }
            }
        }
        fields
    }

    /// The named children of a map whose keys are free names, such as cards.
    pub fn named<'t>(&mut self, what: &str, example: &str, item: &'t Item) -> Vec<&'t Entry> {
        let Shape::Map(entries) = &item.shape else {
            let found = format!("{what} is {}", item.describe());
            self.note(
                Diagnostic::new(Code::WrongType, item.at.clone(), found)
                    .allowed(format!("a map of names, such as `{example}`"))
                    .fix(format!("write `{example}`")),
            );
            return Vec::new();
        };
        let mut found: Vec<&Entry> = Vec::new();
        for entry in entries {
            if let Some(first) = found.iter().find(|first| first.key.value == entry.key.value) {
                self.duplicate(&first.key, &entry.key, what);
            } else {
                found.push(entry);
            }
        }
        found
    }

    /// The members of a list; nothing at all is an empty list.
    pub fn list<'t>(&mut self, what: &str, example: &str, item: &'t Item) -> &'t [Item] {
        match &item.shape {
            Shape::List(items) => items,
            Shape::Empty => &[],
            Shape::Text(_) | Shape::Map(_) => {
                self.note(
                    Diagnostic::new(Code::WrongType, item.at.clone(), format!("{what} is {}", item.describe()))
                        .allowed(format!("a list, such as `{example}`"))
                        .fix(format!("write `{example}`")),
                );
                &[]
            }
        }
    }

    /// The text of a single value.
    pub fn text(&mut self, fields: &Fields<'_>, key: &'static str) -> Option<At<String>> {
        let entry = fields.get(key)?;
        let allowed = fields.allowed(key);
        self.item_text(&format!("`{key}` of {}", fields.what), allowed, &entry.key.at, &entry.value)
    }

    /// The text of a value that need not have a key of its own.
    pub fn item_text(&mut self, what: &str, allowed: &str, key_at: &Range<usize>, item: &Item) -> Option<At<String>> {
        if let Shape::Text(value) = &item.shape {
            return Some(At { value: value.trim().to_owned(), at: item.at.clone() });
        }
        let (code, at, fix) = match item.shape {
            Shape::Empty => (Code::MissingKey, key_at.clone(), "write a value after the colon, or remove the key"),
            _ => (Code::WrongType, item.at.clone(), "write a single value"),
        };
        self.note(Diagnostic::new(code, at, format!("{what} is {}", item.describe())).allowed(allowed).fix(fix));
        None
    }

    /// An amount with its unit.
    pub fn amount<A: Amount>(&mut self, fields: &Fields<'_>, key: &'static str) -> Option<At<A>> {
        let text = self.text(fields, key)?;
        match text.value.parse::<A>() {
            Ok(value) => {
                let (least, most, words) = A::RANGE;
                if value.size() < least || value.size() > most {
                    let found = format!("`{key}` of {} is `{}`", fields.what, clip(&text.value));
                    self.note(
                        Diagnostic::new(Code::OutOfRange, text.at, found)
                            .allowed(words)
                            .fix("check the number and its unit"),
                    );
                    return None;
                }
                Some(At { value, at: text.at })
            }
            Err(error) => {
                let found = format!("`{key}` of {} is `{}`", fields.what, clip(&text.value));
                self.note(
                    Diagnostic::new(Code::WrongUnit, text.at, found).allowed(error.wanted).fix(A::fix(&text.value)),
                );
                None
            }
        }
    }

    /// A whole number in a range.
    pub fn number(&mut self, fields: &Fields<'_>, key: &'static str, range: RangeInclusive<u32>) -> Option<At<u32>> {
        let text = self.text(fields, key)?;
        self.parse_number(&format!("`{key}` of {}", fields.what), &text, range)
    }

    /// A whole number in a range, from a text that was already taken.
    pub fn parse_number(&mut self, what: &str, text: &At<String>, range: RangeInclusive<u32>) -> Option<At<u32>> {
        let (least, most) = (*range.start(), *range.end());
        let digits = text.value.replace('_', "");
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let value = digits.parse::<u32>().ok().filter(|value| is_number && range.contains(value));
        if value.is_none() {
            let found = format!("{what} is `{}`", clip(&text.value));
            let (code, fix) = if is_number {
                let too_small = digits.parse::<u32>().is_ok_and(|value| value < least);
                (
                    Code::OutOfRange,
                    format!(
                        "write {} or {}",
                        if too_small { least } else { most },
                        if too_small { "more" } else { "less" }
                    ),
                )
            } else {
                (Code::WrongType, "write the number in digits, without a unit".to_owned())
            };
            self.note(
                Diagnostic::new(code, text.at.clone(), found)
                    .allowed(format!("a whole number from {least} to {most}"))
                    .fix(fix),
            );
        }
        value.map(|value| At { value, at: text.at.clone() })
    }

    /// One of several words.
    pub fn choice<T: Copy>(&mut self, fields: &Fields<'_>, key: &'static str, words: &[(&str, T)]) -> Option<At<T>> {
        let text = self.text(fields, key)?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text.value) {
            return Some(At { value: *value, at: text.at });
        }
        self.wrong_word(&format!("`{key}` of {}", fields.what), &text, words.iter().map(|(word, _)| *word));
        None
    }

    /// Notes a value that is none of the words allowed.
    pub fn wrong_word<'w>(&mut self, what: &str, text: &At<String>, words: impl Iterator<Item = &'w str> + Clone) {
        let has = |word: &str| words.clone().any(|known| known == word);
        let fix = match text.value.to_ascii_lowercase().as_str() {
            "true" | "yes" | "1" if has("on") => "write `on`".to_owned(),
            "false" | "no" | "0" if has("off") => "write `off`".to_owned(),
            _ => match nearest(&text.value, words.clone()) {
                Some(near) => format!("write `{near}`, if that is meant"),
                None => "write one of these".to_owned(),
            },
        };
        let all: Vec<String> = words.map(|word| format!("`{word}`")).collect();
        self.note(
            Diagnostic::new(Code::WrongValue, text.at.clone(), format!("{what} is `{}`", clip(&text.value)))
                .allowed(all.join(", "))
                .fix(fix),
        );
    }

    /// Notes a key that must be there and is not.
    pub fn missing(&mut self, fields: &Fields<'_>, key: &'static str) {
        if !fields.is_map {
            return;
        }
        self.note(
            Diagnostic::new(Code::MissingKey, fields.at.clone(), format!("{} has no `{key}`", fields.what))
                .allowed(fields.allowed(key))
                .fix(format!("add `{key}: ...`")),
        );
    }

    fn duplicate(&mut self, first: &At<String>, second: &At<String>, what: &str) {
        let found = format!("`{}` stands twice in {what}", clip(&second.value));
        self.note(
            Diagnostic::new(Code::DuplicateKey, second.at.clone(), found)
                .allowed("each key once")
                .fix("remove one of the two")
                .also(first.at.clone(), "first here"),
        );
    }

    fn unknown_key(&mut self, section: &'static Section, what: &str, key: &At<String>) {
        let here = nearest(&key.value, section.keys.iter().map(|key| key.name));
        let elsewhere = || SECTIONS.iter().find(|other| other.keys.iter().any(|known| known.name == key.value));
        let fix = match (here, elsewhere()) {
            (Some(near), _) => format!("write `{near}`, if that is meant"),
            (None, Some(other)) => format!("move it to `{}`, where this key is known", other.path),
            (None, None) => "remove it".to_owned(),
        };
        self.note(
            Diagnostic::new(Code::UnknownKey, key.at.clone(), format!("unknown key `{}` in {what}", clip(&key.value)))
                .allowed(key_names(section))
                .fix(fix),
        );
    }
}

fn key_names(section: &Section) -> String {
    section.keys.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")
}

fn first_key(section: &Section) -> &'static str {
    section.keys.first().map_or("key", |key| key.name)
}
