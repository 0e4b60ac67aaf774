//! `value.name` and `value[index]`, as Jinja2's sandbox finds them.

use std::rc::Rc;
use std::sync::Arc;

use super::exec::Interpreter;
use super::ops;
use super::value::Value;

const STRING: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
const LIST: &[&str] = &["copy", "count", "index"];
const TUPLE: &[&str] = &["count", "index"];
const DICT: &[&str] = &["copy", "fromkeys", "get", "items", "keys", "values"];
/// What the sandbox keeps from being called: they would change the messages.
const CHANGES_LIST: &[&str] = &["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"];
const CHANGES_DICT: &[&str] = &["clear", "pop", "popitem", "setdefault", "update"];

/// What an attribute's name means to a value.
enum Found {
    Value(Value),
    /// The sandbox keeps it back.
    Unsafe,
    Nothing,
}

impl Interpreter {
    /// `value.name`: an attribute, else an item.
    pub(super) fn attribute(&mut self, value: &Value, name: &Arc<str>) -> Result<Value, super::Fault> {
        ops::undefined(value)?;
        Ok(match self.find_attribute(value, name)? {
            Found::Value(found) => found,
            Found::Unsafe => unsafe_access(value, name),
            Found::Nothing => match ops::item(value, &Value::own(name)) {
                Some(found) => found,
                None => missing(value, name),
            },
        })
    }

    /// `value[index]`: an item, else an attribute.
    pub(super) fn item(&mut self, value: &Value, index: &Value) -> Result<Value, super::Fault> {
        ops::undefined(value)?;
        if let Some(found) = ops::item(value, index) {
            return Ok(found);
        }
        let Value::Str(name) = index else {
            return Ok(missing(value, &index.repr_text()?.shared()));
        };
        Ok(match self.find_attribute(value, &name.as_str().into())? {
            Found::Value(found) => found,
            Found::Unsafe => unsafe_access(value, name.as_str()),
            Found::Nothing => missing(value, name.as_str()),
        })
    }

    fn find_attribute(&mut self, value: &Value, name: &Arc<str>) -> Result<Found, super::Fault> {
        let method = |known: &[&str], kept: &[&str]| {
            if kept.contains(&&**name) {
                Found::Unsafe
            } else if known.contains(&&**name) {
                Found::Value(Value::Method(Rc::new((value.clone(), Arc::clone(name)))))
            } else {
                Found::Nothing
            }
        };
        let text = |text: &str| Found::Value(Value::own(text));
        Ok(match value {
            Value::Str(_) => method(STRING, &[]),
            Value::List(_) => method(LIST, CHANGES_LIST),
            Value::Group(items) => match &**name {
                "grouper" => items.items.first().cloned().map_or(Found::Nothing, Found::Value),
                "list" => items.items.get(1).cloned().map_or(Found::Nothing, Found::Value),
                _ => method(TUPLE, &[]),
            },
            Value::Tuple(_) | Value::Range(_) => method(TUPLE, &[]),
            Value::Dict(_) => method(DICT, CHANGES_DICT),
            Value::Float(_) => method(&["is_integer"], &[]),
            Value::Int(_) | Value::Bool(_) => method(&["bit_length"], &[]),
            Value::Namespace(namespace) => {
                namespace.fields.borrow().get(&**name).cloned().map_or(Found::Nothing, Found::Value)
            }
            Value::Macro(closure) => match &**name {
                "name" => text(&closure.code.name),
                "arguments" => {
                    let names = closure.code.parameters.iter().map(|(name, _)| Value::own(name)).collect();
                    Found::Value(Value::tuple(names)?)
                }
                "caller" => Found::Value(Value::Bool(closure.code.takes_caller)),
                "catch_kwargs" => Found::Value(Value::Bool(closure.code.takes_kwargs)),
                "catch_varargs" => Found::Value(Value::Bool(closure.code.takes_varargs)),
                _ => Found::Nothing,
            },
            Value::Cycler(cycler) => match &**name {
                "current" => cycler.items.items.get(cycler.at.get()).cloned().map_or(Found::Nothing, Found::Value),
                _ => method(&["next", "reset"], &[]),
            },
            Value::Loop(state) => {
                let (at, length) = (state.index.get(), state.items.items.len());
                let number = |number: usize| Found::Value(Value::Int(number as i128));
                let near = |at: Option<usize>, what: &str| {
                    let item = at.and_then(|at| state.items.items.get(at)).cloned();
                    Found::Value(item.unwrap_or_else(|| Value::undefined(format!("there is no {what} item"))))
                };
                match &**name {
                    "index" => number(at + 1),
                    "index0" => number(at),
                    "revindex" => number(length - at.min(length)),
                    "revindex0" => number((length - at.min(length)).saturating_sub(1)),
                    "first" => Found::Value(Value::Bool(at == 0)),
                    "last" => Found::Value(Value::Bool(at + 1 == length)),
                    "length" => number(length),
                    "depth" => number(state.depth + 1),
                    "depth0" => number(state.depth),
                    "previtem" => near(at.checked_sub(1), "previous"),
                    "nextitem" => near(Some(at + 1), "next"),
                    _ => method(&["cycle", "changed"], &[]),
                }
            }
            _ => Found::Nothing,
        })
    }
}

fn missing(value: &Value, name: &str) -> Value {
    Value::undefined(format!("'{} object' has no attribute '{name}'", value.kind()))
}

fn unsafe_access(value: &Value, name: &str) -> Value {
    Value::undefined(format!("access to attribute '{name}' of '{}' object is unsafe", value.kind()))
}
