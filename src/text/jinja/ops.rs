//! Operators: arithmetic, order, equality, membership, indexes.

use std::cmp::Ordering;
use std::rc::Rc;

use super::Fault;
use super::ast::Binary;
use super::format::percent;
use super::text::{Builder, MOST_BYTES, Text};
use super::value::{Number, Value};

/// Most entries that a list may get by multiplication.
const MOST_ENTRIES: usize = 1_000_000;

fn unsupported<T>(op: &str, left: &Value, right: &Value) -> Result<T, Fault> {
    undefined(left)?;
    undefined(right)?;
    Err(Fault::failed(format!("unsupported operand types for {op}: '{}' and '{}'", left.kind(), right.kind())))
}

/// An error if the value is undefined: most uses of one are.
pub(super) fn undefined(value: &Value) -> Result<(), Fault> {
    match value {
        Value::Undefined(what) => Err(Fault::failed(what.to_string())),
        _ => Ok(()),
    }
}

fn overflow() -> Fault {
    Fault::failed("a whole number is too large")
}

pub(super) fn binary(op: Binary, left: &Value, right: &Value) -> Result<Value, Fault> {
    match (op, left, right) {
        (Binary::Add, Value::Str(left), Value::Str(right)) => {
            let mut out = Builder::default();
            out.push_text(left);
            out.push_text(right);
            return Ok(Value::Str(out.finish()?));
        }
        (Binary::Add, Value::List(left), Value::List(right)) => {
            return Value::list(left.items.iter().chain(&right.items).cloned().collect());
        }
        (Binary::Add, Value::Tuple(left), Value::Tuple(right)) => {
            return Value::tuple(left.items.iter().chain(&right.items).cloned().collect());
        }
        (Binary::Multiply, times, many) | (Binary::Multiply, many, times)
            if times.int().is_some() && matches!(many, Value::Str(_) | Value::List(_) | Value::Tuple(_)) =>
        {
            return repeat(many, times.int().unwrap_or_default());
        }
        (Binary::Remainder, Value::Str(format), values) => return Ok(Value::Str(percent(format, values)?)),
        _ => {}
    }
    let name = match op {
        Binary::Add => "+",
        Binary::Subtract => "-",
        Binary::Multiply => "*",
        Binary::Divide => "/",
        Binary::FloorDivide => "//",
        Binary::Remainder => "%",
        Binary::Power => "**",
    };
    match (left.number(), right.number()) {
        (Some(Number::Int(left)), Some(Number::Int(right))) => whole(op, left, right),
        (Some(left), Some(right)) => real(op, left.float(), right.float()).map(Value::Float),
        _ => unsupported(name, left, right),
    }
}

fn repeat(many: &Value, times: i128) -> Result<Value, Fault> {
    let times = usize::try_from(times.max(0)).map_err(|_| overflow())?;
    match many {
        Value::Str(text) => {
            if text.as_str().len().saturating_mul(times) > MOST_BYTES {
                return Err(Fault::failed(format!("a string is longer than {MOST_BYTES} bytes")));
            }
            let mut out = Builder::default();
            let times = if text.is_empty() { 0 } else { times };
            (0..times).for_each(|_| out.push_text(text));
            Ok(Value::Str(out.finish()?))
        }
        Value::List(items) | Value::Tuple(items) => {
            let times = if items.items.is_empty() { 0 } else { times };
            if items.items.len().saturating_mul(times) > MOST_ENTRIES {
                return Err(Fault::failed(format!("a list has more than {MOST_ENTRIES} entries")));
            }
            let all = (0..times).flat_map(|_| items.items.iter().cloned()).collect();
            if matches!(many, Value::List(_)) { Value::list(all) } else { Value::tuple(all) }
        }
        _ => Ok(Value::None),
    }
}

fn whole(op: Binary, left: i128, right: i128) -> Result<Value, Fault> {
    let zero = || Fault::failed("division by zero");
    let result = match op {
        Binary::Add => left.checked_add(right),
        Binary::Subtract => left.checked_sub(right),
        Binary::Multiply => left.checked_mul(right),
        Binary::Divide if right == 0 => return Err(zero()),
        Binary::Divide => return Ok(Value::Float(left as f64 / right as f64)),
        Binary::FloorDivide | Binary::Remainder if right == 0 => return Err(zero()),
        Binary::FloorDivide => {
            let rest = left.checked_rem(right).ok_or_else(overflow)?;
            left.checked_div(right).map(|whole| whole - i128::from(rest != 0 && (rest < 0) != (right < 0)))
        }
        Binary::Remainder => {
            left.checked_rem(right).map(|rest| if rest != 0 && (rest < 0) != (right < 0) { rest + right } else { rest })
        }
        Binary::Power if right < 0 => return real(op, left as f64, right as f64).map(Value::Float),
        Binary::Power => u32::try_from(right).ok().and_then(|right| left.checked_pow(right)),
    };
    result.map(Value::Int).ok_or_else(overflow)
}

fn real(op: Binary, left: f64, right: f64) -> Result<f64, Fault> {
    if right == 0.0 && matches!(op, Binary::Divide | Binary::FloorDivide | Binary::Remainder)
        || left == 0.0 && right < 0.0 && op == Binary::Power
    {
        return Err(Fault::failed("division by zero"));
    }
    let remainder = || {
        let rest = left % right;
        if rest != 0.0 && (rest < 0.0) != (right < 0.0) { rest + right } else { rest }
    };
    Ok(match op {
        Binary::Add => left + right,
        Binary::Subtract => left - right,
        Binary::Multiply => left * right,
        Binary::Divide => left / right,
        Binary::FloorDivide => ((left - remainder()) / right).round(),
        Binary::Remainder => remainder(),
        Binary::Power => left.powf(right),
    })
}

/// Python's `==`.
pub(super) fn equal(left: &Value, right: &Value) -> bool {
    let all = |left: &[Value], right: &[Value]| {
        left.len() == right.len() && left.iter().zip(right).all(|(left, right)| equal(left, right))
    };
    match (left, right) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Str(left), Value::Str(right)) => left == right,
        (Value::List(left), Value::List(right)) => all(&left.items, &right.items),
        (Value::Tuple(left) | Value::Group(left), Value::Tuple(right) | Value::Group(right)) => {
            all(&left.items, &right.items)
        }
        (Value::Dict(left), Value::Dict(right)) => {
            left.len() == right.len()
                && left.iter().all(|(key, value)| {
                    key.key().is_ok_and(|key| right.get(&key).is_some_and(|other| equal(value, other)))
                })
        }
        (Value::Range(left), Value::Range(right)) => {
            left.len() == right.len() && (0..left.len().min(2)).all(|at| same_int(left.get(at), right.get(at)))
        }
        (Value::Namespace(left), Value::Namespace(right)) => Rc::ptr_eq(left, right),
        (Value::Macro(left), Value::Macro(right)) => Rc::ptr_eq(left, right),
        (Value::Function(left), Value::Function(right)) => left == right,
        (Value::Iter(left), Value::Iter(right)) => Rc::ptr_eq(left, right),
        (Value::View(kind, left), Value::View(other, right)) => kind == other && all(&left.items, &right.items),
        _ => match (left.number(), right.number()) {
            (Some(Number::Int(left)), Some(Number::Int(right))) => left == right,
            (Some(left), Some(right)) => left.float() == right.float(),
            _ => false,
        },
    }
}

fn same_int(left: Option<Value>, right: Option<Value>) -> bool {
    left.and_then(|value| value.int()) == right.and_then(|value| value.int())
}

/// Python's order; `None` where one side is not a number.
pub(super) fn order(left: &Value, right: &Value, op: &str) -> Result<Option<Ordering>, Fault> {
    match (left, right) {
        (Value::Str(left), Value::Str(right)) => Ok(Some(left.as_str().cmp(right.as_str()))),
        (Value::List(left), Value::List(right)) | (Value::Tuple(left), Value::Tuple(right)) => {
            for (left, right) in left.items.iter().zip(&right.items) {
                if !equal(left, right) {
                    return order(left, right, op);
                }
            }
            Ok(Some(left.items.len().cmp(&right.items.len())))
        }
        _ => match (left.number(), right.number()) {
            (Some(Number::Int(left)), Some(Number::Int(right))) => Ok(Some(left.cmp(&right))),
            (Some(left), Some(right)) => Ok(left.float().partial_cmp(&right.float())),
            _ => {
                undefined(left)?;
                undefined(right)?;
                let (left, right) = (left.kind(), right.kind());
                Err(Fault::failed(format!("'{op}' not supported between instances of '{left}' and '{right}'")))
            }
        },
    }
}

/// Python's `needle in hay`.
pub(super) fn contains(hay: &Value, needle: &Value) -> Result<bool, Fault> {
    match hay {
        Value::Str(text) => match needle {
            Value::Str(needle) => Ok(text.as_str().contains(needle.as_str())),
            other => {
                undefined(other)?;
                Err(Fault::failed(format!("'in <string>' requires string as left operand, not {}", other.kind())))
            }
        },
        Value::Dict(dict) => Ok(dict.get(&needle.key()?).is_some()),
        _ => Ok(iterate(hay)?.iter().any(|item| equal(item, needle))),
    }
}

/// What a loop over the value gets. A generator is empty afterwards.
pub(super) fn iterate(value: &Value) -> Result<Vec<Value>, Fault> {
    Ok(match value {
        Value::Undefined(_) => Vec::new(),
        Value::Str(text) => {
            let mut items = Vec::with_capacity(text.as_str().len());
            for (piece, content) in text.segments() {
                let mut bytes = [0; 4];
                items.extend(piece.chars().map(|char| Value::Str(Text::with(char.encode_utf8(&mut bytes), content))));
            }
            items
        }
        Value::List(items) | Value::Tuple(items) | Value::Group(items) | Value::View(_, items) => items.items.clone(),
        Value::Dict(dict) => dict.iter().map(|(key, _)| key.clone()).collect(),
        Value::Range(range) => (0..range.len()).filter_map(|index| range.get(index)).collect(),
        Value::Iter(iter) => std::mem::take(&mut *iter.items.borrow_mut()).into(),
        other => return Err(Fault::failed(format!("'{}' object is not iterable", other.kind()))),
    })
}

/// Python's `len`.
pub(super) fn length(value: &Value) -> Result<usize, Fault> {
    Ok(match value {
        Value::Undefined(_) => 0,
        Value::Str(text) => text.as_str().chars().count(),
        Value::List(items) | Value::Tuple(items) | Value::Group(items) | Value::View(_, items) => items.items.len(),
        Value::Dict(dict) => dict.len(),
        Value::Range(range) => range.len(),
        Value::Loop(state) => state.items.items.len(),
        other => return Err(Fault::failed(format!("object of type '{}' has no len()", other.kind()))),
    })
}

/// Where an index that may count from the end points.
fn place(index: i128, length: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add(length as i128)? } else { index };
    usize::try_from(index).ok().filter(|&index| index < length)
}

/// Python's `value[index]`; nothing where it would raise.
pub(super) fn item(value: &Value, index: &Value) -> Option<Value> {
    if let Value::Dict(dict) = value {
        return dict.get(&index.key().ok()?).cloned();
    }
    let index = index.int()?;
    match value {
        Value::Str(text) => {
            let plain = text.as_str();
            if plain.is_ascii() {
                let at = place(index, plain.len())?;
                return Some(Value::Str(text.slice(at..at + 1)));
            }
            let at = place(index, plain.chars().count())?;
            let (at, char) = plain.char_indices().nth(at)?;
            Some(Value::Str(text.slice(at..at + char.len_utf8())))
        }
        Value::List(items) | Value::Tuple(items) | Value::Group(items) => {
            items.items.get(place(index, items.items.len())?).cloned()
        }
        Value::Range(range) => range.get(place(index, range.len())?),
        _ => None,
    }
}

/// Python's `value[start:stop:step]`.
pub(super) fn slice(value: &Value, bounds: [Option<Value>; 3]) -> Result<Value, Fault> {
    undefined(value)?;
    let number = |bound: Option<Value>| match bound {
        None | Some(Value::None) => Ok(None),
        Some(bound) => bound.int().map(Some).ok_or_else(|| Fault::failed("slice indices must be integers or None")),
    };
    let [start, stop, step] = bounds;
    let (start, stop, step) = (number(start)?, number(stop)?, number(step)?.unwrap_or(1));
    if step == 0 {
        return Err(Fault::failed("slice step cannot be zero"));
    }
    if let (Value::Str(text), 1) = (value, step) {
        return Ok(Value::Str(text_slice(text, start, stop)));
    }
    let all = match value {
        Value::Str(_) | Value::List(_) | Value::Tuple(_) | Value::Group(_) | Value::Range(_) => iterate(value)?,
        other => return Err(Fault::failed(format!("'{}' object cannot be sliced", other.kind()))),
    };
    let length = all.len() as i128;
    let bound = |bound: Option<i128>, otherwise: i128| match bound {
        None => otherwise,
        Some(bound) => {
            let bound = if bound < 0 { bound.saturating_add(length) } else { bound };
            if step > 0 { bound.clamp(0, length) } else { bound.clamp(-1, length - 1) }
        }
    };
    let (mut at, end) =
        if step > 0 { (bound(start, 0), bound(stop, length)) } else { (bound(start, length - 1), bound(stop, -1)) };
    let mut items = Vec::new();
    while if step > 0 { at < end } else { at > end } {
        items.extend(usize::try_from(at).ok().and_then(|at| all.get(at)).cloned());
        at = at.saturating_add(step);
    }
    match value {
        Value::Str(_) => {
            let mut out = Builder::default();
            for item in &items {
                item.print(&mut out)?;
            }
            Ok(Value::Str(out.finish()?))
        }
        Value::Tuple(_) | Value::Group(_) => Value::tuple(items),
        _ => Value::list(items),
    }
}

/// Characters from `start` to `stop`, which may count from the end.
pub(super) fn text_slice(text: &Text, start: Option<i128>, stop: Option<i128>) -> Text {
    let plain = text.as_str();
    let length = if plain.is_ascii() { plain.len() } else { plain.chars().count() } as i128;
    let bound = |bound: i128| if bound < 0 { (bound.saturating_add(length)).max(0) } else { bound.min(length) };
    let (start, stop) = (bound(start.unwrap_or(0)), bound(stop.unwrap_or(length)));
    if start >= stop {
        return Text::default();
    }
    let byte = |at: i128| byte_at(plain, at as usize);
    text.slice(byte(start)..byte(stop))
}

/// The byte where a character begins, or the end.
pub(super) fn byte_at(text: &str, char: usize) -> usize {
    if text.is_ascii() {
        return char.min(text.len());
    }
    text.char_indices().nth(char).map_or(text.len(), |(at, _)| at)
}
