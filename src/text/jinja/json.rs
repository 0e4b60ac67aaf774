//! JSON into values, and values into JSON as Python's `json.dumps` writes it.

use std::fmt::Write as _;
use std::rc::Rc;

use super::args::{Args, int_or};
use super::text::{Builder, Text};
use super::value::{Dict, Value};
use super::{Fault, ops, print};

/// Names of roles that templates write into their own marks (`<|` + role + `|>`): what a chat is made of, not content.
const ROLES: &[&str] = &[
    "system",
    "developer",
    "user",
    "assistant",
    "model",
    "tool",
    "tool_response",
    "function",
    "ipython",
    "environment",
    "observation",
    "context",
    "documents",
    "critic",
];

/// A value from outside: its strings are content.
pub(super) fn value(json: &serde_json::Value) -> Result<Value, Fault> {
    Ok(match json {
        serde_json::Value::Null => Value::None,
        serde_json::Value::Bool(value) => Value::Bool(*value),
        serde_json::Value::Number(number) => match (number.as_i128(), number.as_f64()) {
            (Some(number), _) => Value::Int(number),
            (None, Some(number)) => Value::Float(number),
            (None, None) => Value::None,
        },
        serde_json::Value::String(text) => Value::Str(Text::content(text)),
        serde_json::Value::Array(items) => Value::list(items.iter().map(value).collect::<Result<_, _>>()?)?,
        serde_json::Value::Object(map) => {
            let pairs: Result<Vec<_>, Fault> =
                map.iter().map(|(key, item)| Ok((Value::Str(Text::content(key)), value(item)?))).collect();
            Value::Dict(Rc::new(Dict::new(pairs?)?))
        }
    })
}

/// The messages of a chat.
pub(super) fn messages(messages: &[serde_json::Value]) -> Result<Value, Fault> {
    let message = |json: &serde_json::Value| {
        let serde_json::Value::Object(map) = json else { return value(json) };
        let pairs: Result<Vec<_>, Fault> = map
            .iter()
            .map(|(key, item)| {
                let role = item.as_str().filter(|role| key == "role" && ROLES.contains(role));
                let item = role.map_or_else(|| value(item), |role| Ok(Value::own(role)))?;
                Ok((Value::Str(Text::content(key)), item))
            })
            .collect();
        Ok(Value::Dict(Rc::new(Dict::new(pairs?)?)))
    };
    Value::list(messages.iter().map(message).collect::<Result<_, _>>()?)
}

/// How `json.dumps` writes.
struct Style {
    ascii: bool,
    sort: bool,
    indent: Option<String>,
    comma: String,
    colon: String,
}

/// The filter `tojson` of `transformers`.
pub(super) fn to_json(subject: &Value, args: Args) -> Result<Value, Fault> {
    let [ascii, indent, separators, sort] =
        args.bind("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Str(text)) => Some(text.as_str().to_owned()),
        // A few more than any template uses, and too few to fill the memory with.
        other => Some(" ".repeat(int_or(other, 0, "indent")?.clamp(0, 64) as usize)),
    };
    let (comma, colon) = match separators {
        None | Some(Value::None) => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some(pair) => match ops::iterate(&pair)?.as_slice() {
            [Value::Str(comma), Value::Str(colon)] => (comma.as_str().to_owned(), colon.as_str().to_owned()),
            _ => return Err(Fault::failed("separators are two strings")),
        },
    };
    let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let style = Style { ascii: is_true(ascii), sort: is_true(sort), indent, comma, colon };
    let mut out = Builder::default();
    style.write(subject, 0, &mut out)?;
    Ok(Value::Str(out.finish()?))
}

impl Style {
    fn write(&self, value: &Value, level: usize, out: &mut Builder) -> Result<(), Fault> {
        if out.is_full() {
            return Ok(());
        }
        match value {
            Value::None => out.push_own("null"),
            Value::Bool(value) => out.push_own(if *value { "true" } else { "false" }),
            Value::Int(number) => out.push_own(&number.to_string()),
            Value::Float(number) => out.push_own(&float(*number)),
            Value::Str(text) => self.string(text, out),
            Value::List(items) | Value::Tuple(items) | Value::Group(items) => {
                self.container(('[', ']'), &items.items, level, out, |style, item, out| {
                    style.write(item, level + 1, out)
                })?;
            }
            Value::Dict(dict) => {
                let mut pairs: Vec<(Value, &Value)> = Vec::with_capacity(dict.len());
                for (key, value) in dict.iter() {
                    pairs.push((key.clone(), value));
                }
                if self.sort {
                    let mut problem = None;
                    pairs.sort_by(|(left, _), (right, _)| match ops::order(left, right, "<") {
                        Ok(order) => order.unwrap_or(std::cmp::Ordering::Equal),
                        Err(fault) => {
                            problem.get_or_insert(fault);
                            std::cmp::Ordering::Equal
                        }
                    });
                    if let Some(fault) = problem {
                        return Err(fault);
                    }
                }
                self.container(('{', '}'), &pairs, level, out, |style, (key, value), out| {
                    style.key(key, out)?;
                    out.push_own(&style.colon);
                    style.write(value, level + 1, out)
                })?;
            }
            other => return Err(Fault::failed(format!("Object of type {} is not JSON serializable", other.kind()))),
        }
        Ok(())
    }

    fn container<T>(
        &self,
        marks: (char, char),
        items: &[T],
        level: usize,
        out: &mut Builder,
        mut write: impl FnMut(&Self, &T, &mut Builder) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut bytes = [0; 4];
        out.push_own(marks.0.encode_utf8(&mut bytes));
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_own(&self.comma);
            }
            self.line(level + 1, out);
            write(self, item, out)?;
        }
        if !items.is_empty() {
            self.line(level, out);
        }
        out.push_own(marks.1.encode_utf8(&mut bytes));
        Ok(())
    }

    fn line(&self, level: usize, out: &mut Builder) {
        if let Some(indent) = &self.indent {
            out.push_own("\n");
            (0..level).for_each(|_| out.push_own(indent));
        }
    }

    fn key(&self, key: &Value, out: &mut Builder) -> Result<(), Fault> {
        let text = match key {
            Value::Str(text) => text.clone(),
            Value::None => Text::own("null"),
            Value::Bool(value) => Text::own(if *value { "true" } else { "false" }),
            Value::Int(number) => Text::own(&number.to_string()),
            Value::Float(number) => Text::own(&float(*number)),
            other => {
                let kind = other.kind();
                return Err(Fault::failed(format!("keys must be str, int, float, bool or None, not {kind}")));
            }
        };
        self.string(&text, out);
        Ok(())
    }

    fn string(&self, text: &Text, out: &mut Builder) {
        out.push_own("\"");
        for (piece, content) in text.segments() {
            let mut escaped = String::with_capacity(piece.len());
            for char in piece.chars() {
                match char {
                    '"' => escaped.push_str("\\\""),
                    '\\' => escaped.push_str("\\\\"),
                    '\n' => escaped.push_str("\\n"),
                    '\r' => escaped.push_str("\\r"),
                    '\t' => escaped.push_str("\\t"),
                    '\x08' => escaped.push_str("\\b"),
                    '\x0c' => escaped.push_str("\\f"),
                    char if char < ' ' || self.ascii && !(' '..='~').contains(&char) => {
                        for unit in char.encode_utf16(&mut [0; 2]) {
                            // Writing into a string cannot fail.
                            let _ = write!(escaped, "\\u{unit:04x}");
                        }
                    }
                    char => escaped.push(char),
                }
            }
            out.push(&escaped, content);
        }
        out.push_own("\"");
    }
}

fn float(number: f64) -> String {
    if number.is_nan() {
        "NaN".to_owned()
    } else if number.is_infinite() {
        if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
    } else {
        print::float(number)
    }
}
