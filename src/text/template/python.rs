//! Where Jinja2 shows that it is Python: how values print, and `json.dumps`.

use std::fmt::Write as _;
use std::io;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State};
use minijinja_contrib::pycompat;
use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, PrettyFormatter, Serializer};

/// Prints `{{ value }}` as Python's `str` would.
pub(super) fn write_value(out: &mut Output<'_>, _state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let written = match value.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::String => out.write_str(value.as_str().unwrap_or_default()),
        _ => {
            let mut text = String::new();
            repr(value, &mut text)?;
            out.write_str(&text)
        }
    };
    written.map_err(|error| Error::new(ErrorKind::WriteFailure, "the prompt could not be written").with_source(error))
}

/// The methods of Python's types that the template engine does not have itself.
pub(super) fn call_method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let strip: for<'t> fn(&'t str, &str) -> Option<&'t str> = match name {
        "removeprefix" => |text, part| text.strip_prefix(part),
        "removesuffix" => |text, part| text.strip_suffix(part),
        _ => return pycompat::unknown_method_callback(state, value, name, args),
    };
    let (Some(text), [part]) = (value.as_str(), args) else {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("{name} is for strings and takes one")));
    };
    Ok(Value::from(strip(text, part.as_str().unwrap_or_default()).unwrap_or(text)))
}

/// Python's `repr`.
fn repr(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
        ValueKind::Number => out.push_str(&float(f64::try_from(value.clone())?)),
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = match (value.is_tuple(), value.len()) {
                (true, Some(1)) => ("(", ",)"),
                (true, _) => ("(", ")"),
                (false, _) => ("[", "]"),
            };
            out.push_str(open);
            for (index, item) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(&item, out)?;
            }
            out.push_str(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(&key, out)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

fn quote(text: &str, out: &mut String) {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(mark);
    for char in text.chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            char if char == mark => out.extend(['\\', mark]),
            char if char.is_ascii_control() => out.push_str(&format!("\\x{:02x}", u32::from(char))),
            char => out.push(char),
        }
    }
    out.push(mark);
}

/// A float as Python prints it: at least two digits in an exponent, with its sign.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let text = format!("{number:?}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    match exponent.strip_prefix('-') {
        Some(exponent) => format!("{digits}e-{exponent:0>2}"),
        None => format!("{digits}e+{exponent:0>2}"),
    }
}

/// `json.dumps(value, ensure_ascii=False)`: a space after commas and colons, nothing escaped for HTML.
pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    // A few more than any template uses, and too few to fill the memory with.
    let indent = indent.map(|width| " ".repeat(width.min(16)));
    let mut out = Vec::new();
    let pretty = indent.as_ref().map(|indent| PrettyFormatter::with_indent(indent.as_bytes()));
    let format = PythonJson { pretty, ascii: ascii.unwrap_or(false) };
    value
        .serialize(&mut Serializer::with_formatter(&mut out, format))
        .map_err(|error| Error::new(ErrorKind::BadSerialization, "tojson: not a JSON value").with_source(error))?;
    Ok(Value::from(String::from_utf8_lossy(&out).into_owned()))
}

/// Python's spacing and floats.
struct PythonJson<'i> {
    pretty: Option<PrettyFormatter<'i>>,
    ascii: bool,
}

/// Hands a call on to the indenting formatter, or writes the given text.
macro_rules! pretty_or {
    ($self:ident, $out:ident, $call:ident($($argument:expr),*), $text:expr) => {
        match &mut $self.pretty {
            Some(pretty) => pretty.$call($out $(, $argument)*),
            None => $out.write_all($text),
        }
    };
}

impl Formatter for PythonJson<'_> {
    fn write_f64<W: ?Sized + io::Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(float(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        if !self.ascii || fragment.is_ascii() {
            return out.write_all(fragment.as_bytes());
        }
        let mut text = String::new();
        for char in fragment.chars() {
            if char.is_ascii() {
                text.push(char);
            } else {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    write!(text, "\\u{unit:04x}").map_err(io::Error::other)?;
                }
            }
        }
        out.write_all(text.as_bytes())
    }

    fn write_char_escape<W: ?Sized + io::Write>(&mut self, out: &mut W, escape: CharEscape) -> io::Result<()> {
        match escape {
            CharEscape::AsciiControl(byte) => write!(out, "\\u{byte:04x}"),
            CharEscape::Quote => out.write_all(b"\\\""),
            CharEscape::ReverseSolidus => out.write_all(b"\\\\"),
            CharEscape::Solidus => out.write_all(b"/"),
            CharEscape::Backspace => out.write_all(b"\\b"),
            CharEscape::FormFeed => out.write_all(b"\\f"),
            CharEscape::LineFeed => out.write_all(b"\\n"),
            CharEscape::CarriageReturn => out.write_all(b"\\r"),
            CharEscape::Tab => out.write_all(b"\\t"),
        }
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        pretty_or!(self, out, begin_array(), b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        pretty_or!(self, out, end_array(), b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        pretty_or!(self, out, begin_array_value(first), if first { b"" } else { b", " })
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        pretty_or!(self, out, end_array_value(), b"")
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        pretty_or!(self, out, begin_object(), b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        pretty_or!(self, out, end_object(), b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        pretty_or!(self, out, begin_object_key(first), if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        pretty_or!(self, out, begin_object_value(), b": ")
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        pretty_or!(self, out, end_object_value(), b"")
    }
}

/// Takes the meaning from `{% generation %}` and `{% endgeneration %}`, marks for training that change no text.
pub(super) fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tail)) = rest.split_once("{%") {
        out.push_str(before);
        out.push_str("{%");
        let Some((tag, after)) = tail.split_once("%}") else {
            rest = tail;
            break;
        };
        match tag.trim_matches(|char: char| char.is_whitespace() || matches!(char, '-' | '+')) {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => {
                // The tag may hold `%}` inside of a string: go on right behind its begin.
                rest = tail;
                continue;
            }
        }
        out.push_str("%}");
        rest = after;
    }
    out.push_str(rest);
    out
}
