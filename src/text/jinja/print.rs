//! How values print: Python's `str` and `repr`.

use super::Fault;
use super::text::{Builder, Text};
use super::value::{Value, View};

impl Value {
    /// Python's `str`.
    pub(super) fn text(&self) -> Result<Text, Fault> {
        match self {
            Self::Str(text) => Ok(text.clone()),
            _ => {
                let mut out = Builder::default();
                self.print(&mut out)?;
                out.finish()
            }
        }
    }

    /// Appends `str(self)`.
    pub(super) fn print(&self, out: &mut Builder) -> Result<(), Fault> {
        match self {
            Self::Str(text) => out.push_text(text),
            Self::Undefined(_) => {}
            _ => self.repr(out, 0)?,
        }
        Ok(())
    }

    /// Appends `repr(self)`.
    pub(super) fn repr(&self, out: &mut Builder, level: usize) -> Result<(), Fault> {
        // Namespaces may hold themselves.
        if level > 120 {
            return Err(Fault::failed("a value holds itself and cannot be printed"));
        }
        if out.is_full() {
            return Ok(());
        }
        let level = level + 1;
        match self {
            Self::Undefined(_) => out.push_own("Undefined"),
            Self::None => out.push_own("None"),
            Self::Bool(value) => out.push_own(if *value { "True" } else { "False" }),
            Self::Int(number) => out.push_own(&number.to_string()),
            Self::Float(number) => out.push_own(&float(*number)),
            Self::Str(text) => quote(text, out),
            Self::List(items) => sequence(&items.items, ("[", "]"), out, level)?,
            Self::Tuple(items) | Self::Group(items) if items.items.len() == 1 => {
                sequence(&items.items, ("(", ",)"), out, level)?;
            }
            Self::Tuple(items) | Self::Group(items) => sequence(&items.items, ("(", ")"), out, level)?,
            Self::Dict(dict) => pairs(dict.iter().map(|(key, value)| (key, value)), out, level)?,
            Self::Range(range) if range.step == 1 => out.push_own(&format!("range({}, {})", range.start, range.stop)),
            Self::Range(range) => out.push_own(&format!("range({}, {}, {})", range.start, range.stop, range.step)),
            Self::View(kind, items) => {
                out.push_own(match kind {
                    View::Keys => "dict_keys(",
                    View::Values => "dict_values(",
                    View::Items => "dict_items(",
                });
                sequence(&items.items, ("[", "]"), out, level)?;
                out.push_own(")");
            }
            Self::Namespace(namespace) => {
                out.push_own("<Namespace ");
                let fields: Vec<_> =
                    namespace.fields.borrow().iter().map(|(name, value)| (Self::own(name), value.clone())).collect();
                pairs(fields.iter().map(|(key, value)| (key, value)), out, level)?;
                out.push_own(">");
            }
            Self::Macro(closure) => out.push_own(&format!("<Macro '{}'>", closure.code.name)),
            Self::Loop(state) => {
                out.push_own(&format!("<LoopContext {}/{}>", state.index.get() + 1, state.items.items.len()));
            }
            Self::Iter(_) | Self::Function(_) | Self::Method(_) | Self::Cycler(_) | Self::Joiner(_) => {
                out.push_own(&format!("<{}>", self.kind()));
            }
        }
        Ok(())
    }

    /// What `repr` gives, as a string.
    pub(super) fn repr_text(&self) -> Result<Text, Fault> {
        let mut out = Builder::default();
        self.repr(&mut out, 0)?;
        out.finish()
    }
}

fn sequence(items: &[Value], marks: (&str, &str), out: &mut Builder, level: usize) -> Result<(), Fault> {
    out.push_own(marks.0);
    for (index, item) in items.iter().enumerate() {
        out.push_own(if index > 0 { ", " } else { "" });
        item.repr(out, level)?;
    }
    out.push_own(marks.1);
    Ok(())
}

fn pairs<'v>(
    items: impl Iterator<Item = (&'v Value, &'v Value)>,
    out: &mut Builder,
    level: usize,
) -> Result<(), Fault> {
    out.push_own("{");
    for (index, (key, value)) in items.enumerate() {
        out.push_own(if index > 0 { ", " } else { "" });
        key.repr(out, level)?;
        out.push_own(": ");
        value.repr(out, level)?;
    }
    out.push_own("}");
    Ok(())
}

fn quote(text: &Text, out: &mut Builder) {
    let plain = text.as_str();
    let mark = if plain.contains('\'') && !plain.contains('"') { '"' } else { '\'' };
    out.push_own(mark.encode_utf8(&mut [0; 4]));
    for (piece, content) in text.segments() {
        let mut quoted = String::with_capacity(piece.len());
        for char in piece.chars() {
            match char {
                '\\' => quoted.push_str("\\\\"),
                '\n' => quoted.push_str("\\n"),
                '\r' => quoted.push_str("\\r"),
                '\t' => quoted.push_str("\\t"),
                char if char == mark => quoted.extend(['\\', mark]),
                char if is_printable(char) => quoted.push(char),
                char => match u32::from(char) {
                    code @ ..=0xff => quoted.push_str(&format!("\\x{code:02x}")),
                    code @ ..=0xffff => quoted.push_str(&format!("\\u{code:04x}")),
                    code => quoted.push_str(&format!("\\U{code:08x}")),
                },
            }
        }
        out.push(&quoted, content);
    }
    out.push_own(mark.encode_utf8(&mut [0; 4]));
}

/// Python's `str.isprintable` for one character. Rust's `escape_debug` follows the same categories; a letter before the
/// character keeps it from escaping combining marks too.
pub(super) fn is_printable(char: char) -> bool {
    let pair: String = ['a', char].iter().collect();
    matches!(char, '\'' | '"' | '\\') || pair.escape_debug().count() == 2
}

/// A float as Python prints it: at least two digits in an exponent, with its sign.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let text = format!("{number:?}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let digits = digits.strip_suffix(".0").unwrap_or(digits);
    match exponent.strip_prefix('-') {
        Some(exponent) => format!("{digits}e-{exponent:0>2}"),
        None => format!("{digits}e+{exponent:0>2}"),
    }
}
