//! YAML text to a tree that keeps the place of every key and value, so that one pass over it can report every mistake.

use std::fmt;
use std::ops::Range;

use granit_parser::Event;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::NonFiniteFloatPolicy;
use serde_saphyr::{DuplicateKeyPolicy, Location, SnippetMode, Spanned, UserMessageFormatter};

use super::diagnose::{Code, Diagnostic};

/// A topology file is a page of text; what is larger than this is something else.
pub(super) const MAX_FILE_BYTES: usize = 1 << 20;
const MAX_DEPTH: usize = 16;
const MAX_NODES: usize = 20_000;

/// A value with its place in the file, as a range of bytes.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub value: T,
    pub at: Range<usize>,
}

/// One YAML value.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub shape: Shape,
    pub at: Range<usize>,
}

/// What a YAML value is. Scalars stay text: the schema, not YAML, decides what they mean.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    Empty,
    Text(String),
    List(Vec<Item>),
    Map(Vec<Entry>),
}

/// One `key: value` of a map; keys may repeat, the reader reports that.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub key: At<String>,
    pub value: Item,
}

impl Item {
    /// The value in words, for messages.
    pub fn describe(&self) -> String {
        match &self.shape {
            Shape::Empty => "nothing".to_owned(),
            Shape::Text(text) => format!("`{}`", clip(text)),
            Shape::List(_) => "a list".to_owned(),
            Shape::Map(_) => "a map of keys and values".to_owned(),
        }
    }
}

/// Shortens a text from the file to what a message can hold.
pub(super) fn clip(text: &str) -> String {
    const LONGEST: usize = 60;
    if text.chars().count() <= LONGEST {
        return text.escape_debug().to_string();
    }
    let start: String = text.chars().take(LONGEST).collect();
    format!("{}...", start.escape_debug())
}

/// Parses one YAML document. A text that is not YAML, or passes the limits on size, depth and aliases, is one
/// diagnostic.
pub(super) fn parse(text: &str) -> Result<Item, Box<Diagnostic>> {
    if text.len() > MAX_FILE_BYTES {
        return Err(Box::new(
            Diagnostic::new(Code::TooLarge, 0..0, format!("the file has {} bytes", text.len()))
                .allowed(format!("at most {MAX_FILE_BYTES} bytes"))
                .fix("check that this is the topology file"),
        ));
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_events: 4 * MAX_NODES,
            max_documents: 1,
            max_aliases: 64,
            max_anchors: 64,
            flow_nesting_limit: MAX_DEPTH,
            max_recorded_anchor_events: MAX_NODES,
            max_recorded_anchor_bytes: MAX_FILE_BYTES,
            max_total_scalar_bytes: MAX_FILE_BYTES,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_NODES, max_replay_stack_depth: MAX_DEPTH },
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        strict_booleans: true,
        null_as_string: true,
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        with_snippet: false,
    };
    match serde_saphyr::from_str_with_options::<Spanned<Node>>(text, options) {
        Ok(node) => match without_meaning(text) {
            Some(problem) => Err(Box::new(problem)),
            None => Ok(item(text, node)),
        },
        Err(error) => Err(Box::new(without_meaning(text).unwrap_or_else(|| not_yaml(text, &error)))),
    }
}

/// The first thing that is YAML and has no meaning here: a tag, which the deserialiser passes over, or a second
/// document, which it tells as one limit among others.
fn without_meaning(text: &str) -> Option<Diagnostic> {
    let mut documents = 0;
    for event in granit_parser::Parser::new_from_str(text) {
        let Ok((event, span)) = event else { break };
        let at = || {
            let range = span.byte_range().unwrap_or(0..0);
            text.floor_char_boundary(range.start)..text.floor_char_boundary(range.end)
        };
        match event {
            Event::DocumentStart(..) => {
                documents += 1;
                if documents > 1 {
                    return Some(
                        Diagnostic::new(Code::Syntax, at(), "a second YAML document begins here")
                            .allowed("one document")
                            .fix("keep one topology in the file, and remove the line `---` between the two"),
                    );
                }
            }
            Event::Scalar(_, _, _, Some(tag))
            | Event::SequenceStart(_, _, Some(tag))
            | Event::MappingStart(_, _, Some(tag)) => {
                return Some(
                    Diagnostic::new(
                        Code::Syntax,
                        at(),
                        format!("the YAML tag `{}` stands here", clip(&tag.to_string())),
                    )
                    .allowed("values without tags: the key decides what a value is")
                    .fix("remove the tag"),
                );
            }
            _ => {}
        }
    }
    None
}

fn not_yaml(text: &str, error: &serde_saphyr::Error) -> Diagnostic {
    let at = error.location().map_or(0..0, |location| range(text, &location));
    let message = error.without_snippet().render_with_options(serde_saphyr::render_options! {
        formatter: &UserMessageFormatter,
        snippets: SnippetMode::Off,
    });
    // The place is drawn below the message already, and the limits are named there, too.
    let message = [" at line ", ": limits breached"]
        .iter()
        .fold(message.as_str(), |text, tail| text.split(tail).next().unwrap_or(text));
    Diagnostic::new(Code::Syntax, at, message)
        .allowed(format!(
            "one YAML document of `key: value` lines, at most {MAX_DEPTH} levels deep and {MAX_NODES} values long"
        ))
        .fix("check indentation (spaces, no tabs), colons, quotes and brackets around this place")
}

/// The bytes that a location covers, always inside the text and on character boundaries.
fn range(text: &str, location: &Location) -> Range<usize> {
    let span = location.span();
    let (start, len) = match (span.byte_offset(), span.byte_len()) {
        (Some(start), Some(len)) => (start, len),
        _ => (offset(text, location), 0),
    };
    let inside = |byte: u64| text.floor_char_boundary(usize::try_from(byte).unwrap_or(usize::MAX).min(text.len()));
    inside(start)..inside(start.saturating_add(len))
}

/// The byte at a line and column: some errors have no other place.
fn offset(text: &str, location: &Location) -> u64 {
    let line = usize::try_from(location.line()).unwrap_or(0).saturating_sub(1);
    let column = usize::try_from(location.column()).unwrap_or(0).saturating_sub(1);
    let start: usize = text.split_inclusive('\n').take(line).map(str::len).sum();
    let within = text.get(start..).unwrap_or("").chars().take(column).map(char::len_utf8).sum::<usize>();
    (start + within) as u64
}

enum Node {
    Empty,
    Text(String),
    /// A number or a truth value: the source has its spelling.
    Typed(String),
    List(Vec<Spanned<Node>>),
    Map(Vec<(Spanned<String>, Spanned<Node>)>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NodeVisitor;

        impl<'de> Visitor<'de> for NodeVisitor {
            type Value = Node;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a YAML value")
            }

            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Empty)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
                Ok(Node::Typed(value.to_string()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
                Ok(Node::Typed(value.to_string()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
                Ok(Node::Typed(value.to_string()))
            }

            fn visit_u128<E>(self, value: u128) -> Result<Node, E> {
                Ok(Node::Typed(value.to_string()))
            }

            fn visit_i128<E>(self, value: i128) -> Result<Node, E> {
                Ok(Node::Typed(value.to_string()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
                Ok(Node::Typed(value.to_string()))
            }

            fn visit_str<E>(self, value: &str) -> Result<Node, E> {
                Ok(Node::Text(value.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    items.push(item);
                }
                Ok(Node::List(items))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Node::Map(entries))
            }

            fn visit_enum<A>(self, _: A) -> Result<Node, A::Error>
            where
                A: serde::de::EnumAccess<'de>,
            {
                Err(A::Error::custom("YAML tags have no meaning in a topology"))
            }
        }

        deserializer.deserialize_any(NodeVisitor)
    }
}

fn item(text: &str, node: Spanned<Node>) -> Item {
    let at = range(text, &node.defined);
    match node.value {
        Node::Empty => Item { shape: Shape::Empty, at },
        Node::Text(value) => Item { shape: Shape::Text(value), at },
        Node::Typed(value) => {
            let written = text.get(at.clone()).map(str::trim).filter(|written| !written.is_empty());
            Item { shape: Shape::Text(written.map_or(value, str::to_owned)), at }
        }
        Node::List(items) => {
            let items: Vec<Item> = items.into_iter().map(|node| item(text, node)).collect();
            let at = items.first().map_or(at, |first| first.at.clone());
            Item { shape: Shape::List(items), at }
        }
        Node::Map(entries) => {
            let entries: Vec<Entry> = entries
                .into_iter()
                .map(|(key, value)| Entry {
                    key: At { at: range(text, &key.defined), value: key.value },
                    value: item(text, value),
                })
                .collect();
            let at = entries.first().map_or(at, |first| first.key.at.clone());
            Item { shape: Shape::Map(entries), at }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_and_value_keeps_its_place_and_its_spelling() {
        let text = "a: 0x10\nb: [1.50, off, 'no', ~]\n# ü\nc: {d: 0000:01:00.0}\na: yes\n";
        let Shape::Map(entries) = parse(text).unwrap().shape else { panic!("not a map") };
        let spelt = |item: &Item| match &item.shape {
            Shape::Text(value) => value.clone(),
            _ => item.describe(),
        };
        assert_eq!(entries.iter().map(|e| e.key.value.as_str()).collect::<Vec<_>>(), ["a", "b", "c", "a"]);
        for entry in &entries {
            assert_eq!(&text[entry.key.at.clone()], entry.key.value);
        }
        assert_eq!(spelt(&entries[0].value), "0x10");
        let Shape::List(items) = &entries[1].value.shape else { panic!("not a list") };
        assert_eq!(items.iter().map(spelt).collect::<Vec<_>>(), ["1.50", "off", "no", "nothing"]);
        assert_eq!(&text[items[2].at.clone()], "'no'");
        let Shape::Map(inner) = &entries[2].value.shape else { panic!("not a map") };
        assert_eq!(spelt(&inner[0].value), "0000:01:00.0");
        assert_eq!(&text[inner[0].value.at.clone()], "0000:01:00.0");
        assert_eq!(spelt(&entries[3].value), "yes");
    }

    #[test]
    fn hostile_yaml_is_refused_in_bounded_time() {
        let deep = "[".repeat(100_000);
        let deep_block: String = (0..200).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb += &format!("a{level}: &a{level} [{aliases}]\n");
        }
        let wide = "- x\n".repeat(200_000);
        let huge = "#".repeat(MAX_FILE_BYTES + 1);
        let many = "--- a\n".repeat(1_000);
        for (name, text) in
            [("deep", deep), ("block", deep_block), ("bomb", bomb), ("wide", wide), ("huge", huge), ("many", many)]
        {
            let start = std::time::Instant::now();
            let refused = parse(&text).expect_err(name);
            assert!(start.elapsed().as_secs() < 5, "{name} took {:?}", start.elapsed());
            println!("{name}: {}", refused.found);
        }
    }

    #[test]
    fn tags_and_second_documents_are_told_as_such() {
        let told = |text: &str| {
            let problem = parse(text).unwrap_err();
            let line = text[..problem.at().start].matches('\n').count() + 1;
            (line, problem.found)
        };
        assert_eq!(told("a: 1\n---\nb: 2\n"), (2, "a second YAML document begins here".to_owned()));
        assert_eq!(told("a: 1\n...\n---\nb: 2\n").1, "a second YAML document begins here");
        for (text, line, tag) in [
            ("a: !foo 1\n", 1, "!foo"),
            ("a:\n  b: !!str 1\n", 2, "str"),
            ("a: 1\nb: !x\n  c: 1\n", 3, "!x"),
            ("a: !list [1]\n", 1, "!list"),
        ] {
            let (at, found) = told(text);
            assert!(at.abs_diff(line) <= 1 && found.contains(tag), "{text}: line {at}: {found}");
        }
        for text in ["---\na: 1\n", "a: 1\n...\n", "%YAML 1.2\n---\na: '!no'\n", "a: &x 1\nb: *x\n"] {
            assert!(parse(text).is_ok(), "{text}");
        }
    }
}
