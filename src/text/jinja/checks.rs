//! Jinja2's tests: `value is name(args)`.

use super::args::Args;
use super::exec::Interpreter;
use super::value::Value;
use super::{Fault, ops};

impl Interpreter {
    pub(super) fn check(&mut self, name: &str, value: &Value, args: Args) -> Result<bool, Fault> {
        self.spend(1)?;
        let sign = match name {
            "eq" | "equalto" | "==" => "==",
            "ne" | "!=" => "!=",
            "lt" | "lessthan" | "<" => "<",
            "le" | "<=" => "<=",
            "gt" | "greaterthan" | ">" => ">",
            "ge" | ">=" => ">=",
            "in" | "sameas" | "divisibleby" => name,
            _ => return state(name, value, args),
        };
        let [other] = args.bind(name, ["other"])?;
        let other = other.ok_or_else(|| Fault::failed(format!("the test {name:?} wants a value to compare with")))?;
        self.spend_size(value)?;
        let order = || ops::order(value, &other, sign);
        Ok(match sign {
            "==" => ops::equal(value, &other),
            "!=" => !ops::equal(value, &other),
            "<" => order()?.is_some_and(std::cmp::Ordering::is_lt),
            "<=" => order()?.is_some_and(std::cmp::Ordering::is_le),
            ">" => order()?.is_some_and(std::cmp::Ordering::is_gt),
            ">=" => order()?.is_some_and(std::cmp::Ordering::is_ge),
            "in" => ops::contains(&other, value)?,
            "sameas" => same(value, &other),
            _ => !ops::binary(super::ast::Binary::Remainder, value, &other)?.is_true(),
        })
    }
}

/// Python's `is`, where it can be told.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Float(_) | Value::Int(_) | Value::Bool(_) | Value::None | Value::Str(_) | Value::Undefined(_), _) => {
            left.kind() == right.kind() && ops::equal(left, right)
        }
        (Value::List(left), Value::List(right)) => std::rc::Rc::ptr_eq(left, right),
        (Value::Dict(left), Value::Dict(right)) => std::rc::Rc::ptr_eq(left, right),
        (Value::Tuple(left), Value::Tuple(right)) => std::rc::Rc::ptr_eq(left, right),
        (Value::Namespace(left), Value::Namespace(right)) => std::rc::Rc::ptr_eq(left, right),
        (Value::Macro(left), Value::Macro(right)) => std::rc::Rc::ptr_eq(left, right),
        (Value::Function(left), Value::Function(right)) => left == right,
        _ => false,
    }
}

/// Tests that look at one value only.
fn state(name: &str, value: &Value, args: Args) -> Result<bool, Fault> {
    if !KNOWN.contains(&name) {
        return Err(Fault::failed(format!("there is no test {name:?}")));
    }
    args.none(name)?;
    let remainder = |by: i128| -> Result<Option<i128>, Fault> {
        Ok(ops::binary(super::ast::Binary::Remainder, value, &Value::Int(by))?
            .number()
            .map(|rest| rest.float() as i128))
    };
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined(_)),
        "undefined" => matches!(value, Value::Undefined(_)),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Int(_) | Value::Float(_) | Value::Bool(_)),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        // What has a length and items: Python's check is just that.
        "sequence" => has_items(value),
        "iterable" => has_items(value) || matches!(value, Value::View(..) | Value::Iter(_) | Value::Loop(_)),
        "callable" => matches!(
            value,
            Value::Function(_)
                | Value::Macro(_)
                | Value::Method(_)
                | Value::Joiner(_)
                | Value::Loop(_)
                | Value::Undefined(_)
        ),
        "lower" => cased(value, char::is_lowercase, char::is_uppercase)?,
        "upper" => cased(value, char::is_uppercase, char::is_lowercase)?,
        "odd" => remainder(2)? == Some(1),
        "even" => remainder(2)? == Some(0),
        // "escaped": there is no marked-up text here.
        _ => false,
    })
}

const KNOWN: &[&str] = &[
    "defined",
    "undefined",
    "none",
    "boolean",
    "true",
    "false",
    "integer",
    "float",
    "number",
    "string",
    "mapping",
    "sequence",
    "iterable",
    "callable",
    "lower",
    "upper",
    "odd",
    "even",
    "escaped",
];

fn cased(value: &Value, wanted: fn(char) -> bool, refused: fn(char) -> bool) -> Result<bool, Fault> {
    let text = value.text()?;
    Ok(text.as_str().chars().any(wanted) && !text.as_str().chars().any(refused))
}

/// Whether a value has a length and items that are found by number or key.
fn has_items(value: &Value) -> bool {
    matches!(
        value,
        Value::Undefined(_)
            | Value::Str(_)
            | Value::List(_)
            | Value::Tuple(_)
            | Value::Group(_)
            | Value::Dict(_)
            | Value::Range(_)
    )
}
