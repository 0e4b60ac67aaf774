//! The methods of Python's strings, lists and tuples.

use super::args::{Args, int_or, str_of};
use super::exec::Interpreter;
use super::format::{self, pad};
use super::lex::is_space;
use super::text::{Builder, MOST_BYTES, Text};
use super::value::Value;
use super::{Fault, ops};

/// `list.index`, `list.count`.
pub(super) fn sequence_method(items: &[Value], name: &str, args: Args) -> Result<Value, Fault> {
    let [wanted] = args.bind(name, ["value"])?;
    let wanted = wanted.ok_or_else(|| Fault::failed(format!("{name} wants a value")))?;
    let mut found = items.iter().enumerate().filter(|(_, item)| ops::equal(item, &wanted));
    if name == "count" {
        return Ok(Value::Int(found.count() as i128));
    }
    match found.next() {
        Some((index, _)) => Ok(Value::Int(index as i128)),
        None => Err(Fault::failed(format!("{} is not in list", wanted.repr_text()?.as_str()))),
    }
}

impl Interpreter {
    pub(super) fn string_method(&mut self, text: &Text, name: &str, args: Args) -> Result<Value, Fault> {
        let plain = text.as_str();
        let test = |args: Args, holds: bool| args.none(name).map(|()| Value::Bool(holds));
        let change = |args: Args, change: fn(&str) -> String| {
            args.none(name)?;
            Ok(Value::Str(text.map(change)?))
        };
        match name {
            "strip" | "lstrip" | "rstrip" => {
                let [chars] = args.bind(name, ["chars"])?;
                strip(text, chars.as_ref(), name != "rstrip", name != "lstrip").map(Value::Str)
            }
            "split" | "rsplit" => {
                let [separator, most] = args.bind(name, ["sep", "maxsplit"])?;
                split(text, separator.as_ref(), int_or(most, -1, name)?, name == "rsplit")
            }
            "splitlines" => {
                let [keep] = args.bind(name, ["keepends"])?;
                let lines = lines(plain, keep.is_some_and(|keep| keep.is_true()));
                Value::list(lines.into_iter().map(|range| Value::Str(text.slice(range))).collect())
            }
            "partition" | "rpartition" => partition(text, name, args),
            "startswith" | "endswith" => affix(text, name, args),
            "find" | "rfind" | "index" | "rindex" | "count" => search(text, name, args),
            "replace" => {
                let [old, new, count] = args.bind(name, ["old", "new", "count"])?;
                let (Some(old), Some(new)) = (old, new) else {
                    return Err(Fault::failed("replace wants the old and the new text"));
                };
                replace(text, &str_of(&old, name)?, &str_of(&new, name)?, int_or(count, -1, name)?).map(Value::Str)
            }
            "removeprefix" | "removesuffix" => {
                let [part] = args.bind(name, ["part"])?;
                let part = str_of(&part.unwrap_or(Value::None), name)?;
                let part = part.as_str();
                Ok(Value::Str(if name == "removeprefix" {
                    plain.strip_prefix(part).map_or(text.clone(), |_| text.slice(part.len()..plain.len()))
                } else {
                    plain.strip_suffix(part).map_or(text.clone(), |rest| text.slice(0..rest.len()))
                }))
            }
            "join" => {
                let [items] = args.bind(name, ["iterable"])?;
                let items = items.unwrap_or(Value::None);
                ops::undefined(&items)?;
                let items = ops::iterate(&items)?;
                self.spend(items.len())?;
                let mut out = Builder::default();
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push_text(text);
                    }
                    out.push_text(&str_of(item, "join")?);
                }
                out.finish().map(Value::Str)
            }
            "upper" => change(args, str::to_uppercase),
            "lower" => change(args, str::to_lowercase),
            "casefold" => change(args, |text| text.to_lowercase().replace('ß', "ss")),
            "swapcase" => change(args, |text| {
                let swap = |char: char| -> String {
                    if char.is_uppercase() { char.to_lowercase().collect() } else { char.to_uppercase().collect() }
                };
                text.chars().map(swap).collect()
            }),
            "capitalize" => args.none(name).and_then(|()| capitalize(text)).map(Value::Str),
            "title" => args.none(name).and_then(|()| title(text)).map(Value::Str),
            "center" | "ljust" | "rjust" | "zfill" => {
                let [width, fill] = args.bind(name, ["width", "fillchar"])?;
                let width = usize::try_from(int_or(width, 0, name)?.max(0)).unwrap_or(usize::MAX);
                if name == "zfill" {
                    let sign = plain.starts_with(['+', '-']).then(|| text.slice(0..1));
                    let digits = text.slice(sign.as_ref().map_or(0, |_| 1)..plain.len());
                    let width = width.saturating_sub(usize::from(sign.is_some()));
                    let padded = pad(&digits, width, '>', "0")?;
                    let mut out = Builder::default();
                    out.push_text(&sign.unwrap_or_default());
                    out.push_text(&padded);
                    return out.finish().map(Value::Str);
                }
                let fill = fill.map_or_else(|| Ok(Text::own(" ")), |fill| str_of(&fill, name))?;
                let side = match name {
                    "ljust" => '<',
                    "rjust" => '>',
                    _ => '^',
                };
                pad(text, width, side, fill.as_str()).map(Value::Str)
            }
            "expandtabs" => {
                let [size] = args.bind(name, ["tabsize"])?;
                expand_tabs(text, int_or(size, 8, name)?.clamp(0, 1024) as usize).map(Value::Str)
            }
            "format" => format::braces(self, text, &args).map(Value::Str),
            "format_map" => {
                let [map] = args.bind(name, ["mapping"])?;
                let Some(Value::Dict(map)) = map else { return Err(Fault::failed("format_map wants a dict")) };
                let named = map.iter().filter_map(|(key, value)| match key {
                    Value::Str(key) => Some((key.as_str().into(), value.clone())),
                    _ => None,
                });
                let args = Args { positional: Vec::new(), named: named.collect() };
                format::braces(self, text, &args).map(Value::Str)
            }
            "isalpha" => test(args, all(plain, char::is_alphabetic)),
            "isalnum" => test(args, all(plain, char::is_alphanumeric)),
            "isdigit" | "isdecimal" => test(args, all(plain, |char| char.is_numeric() && is_digit(char))),
            "isnumeric" => test(args, all(plain, char::is_numeric)),
            "isspace" => test(args, all(plain, is_space)),
            "isascii" => test(args, plain.is_ascii()),
            "isprintable" => test(args, plain.chars().all(super::print::is_printable)),
            "islower" => test(args, plain.chars().any(char::is_lowercase) && !plain.chars().any(char::is_uppercase)),
            "isupper" => test(args, plain.chars().any(char::is_uppercase) && !plain.chars().any(char::is_lowercase)),
            "istitle" => {
                let cased = plain.chars().any(|char| char.is_uppercase() || char.is_lowercase());
                test(args, cased && title(text)?.as_str() == plain)
            }
            "isidentifier" => {
                let begins = plain.starts_with(|char: char| char == '_' || char.is_alphabetic());
                test(args, begins && plain.chars().all(|char| char == '_' || char.is_alphanumeric()))
            }
            _ => Err(Fault::failed(format!("the method '{name}' of strings is not supported in chat templates"))),
        }
    }
}

fn is_digit(char: char) -> bool {
    char.is_ascii_digit()
        || (!char.is_ascii() && !matches!(char, '½' | '¼' | '¾' | '\u{2150}'..='\u{218b}' | '一'..='鿿'))
}

fn all(text: &str, test: impl FnMut(char) -> bool) -> bool {
    !text.is_empty() && text.chars().all(test)
}

/// `str.strip` and its halves; without `chars`, white space goes.
pub(super) fn strip(text: &Text, chars: Option<&Value>, left: bool, right: bool) -> Result<Text, Fault> {
    let chars = match chars {
        None | Some(Value::None) => None,
        Some(value) => Some(str_of(value, "strip")?),
    };
    let goes = |char: char| chars.as_ref().map_or_else(|| is_space(char), |chars| chars.as_str().contains(char));
    let plain = text.as_str();
    let kept = if left { plain.trim_start_matches(goes) } else { plain };
    let start = plain.len() - kept.len();
    let kept = if right { kept.trim_end_matches(goes) } else { kept };
    Ok(text.slice(start..start + kept.len()))
}

fn split(text: &Text, separator: Option<&Value>, most: i128, from_right: bool) -> Result<Value, Fault> {
    let plain = text.as_str();
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let mut ranges = Vec::new();
    match separator {
        None | Some(Value::None) => {
            let (mut start, mut end) = (0, plain.len());
            loop {
                let rest = plain.get(start..end).unwrap_or_default();
                let rest = if from_right { rest.trim_end_matches(is_space) } else { rest.trim_start_matches(is_space) };
                if from_right {
                    end = start + rest.len();
                } else {
                    start = end - rest.len();
                }
                if rest.is_empty() {
                    break;
                }
                let space = if from_right {
                    rest.char_indices().rev().find(|&(_, char)| is_space(char)).map(|(at, char)| at + char.len_utf8())
                } else {
                    rest.find(is_space)
                };
                let Some(space) = space.filter(|_| ranges.len() < most) else {
                    ranges.push(start..end);
                    break;
                };
                if from_right {
                    ranges.push(start + space..end);
                    end = start + space;
                } else {
                    ranges.push(start..start + space);
                    start += space;
                }
            }
        }
        Some(separator) => {
            let separator = str_of(separator, "split")?;
            let separator = separator.as_str();
            if separator.is_empty() {
                return Err(Fault::failed("empty separator"));
            }
            if from_right {
                let mut end = plain.len();
                for (at, _) in plain.rmatch_indices(separator).take(most) {
                    ranges.push(at + separator.len()..end);
                    end = at;
                }
                ranges.push(0..end);
            } else {
                let mut start = 0;
                for (at, _) in plain.match_indices(separator).take(most) {
                    ranges.push(start..at);
                    start = at + separator.len();
                }
                ranges.push(start..plain.len());
            }
        }
    }
    if from_right {
        ranges.reverse();
    }
    Value::list(ranges.into_iter().map(|range| Value::Str(text.slice(range))).collect())
}

/// The byte ranges of lines, with their ends where `keep` says so.
pub(super) fn lines(text: &str, keep: bool) -> Vec<std::ops::Range<usize>> {
    let mut ranges = Vec::new();
    let mut start = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, char)) = chars.next() {
        let ends = matches!(
            char,
            '\n' | '\r' | '\x0b' | '\x0c' | '\x1c' | '\x1d' | '\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
        );
        if !ends {
            continue;
        }
        let mut after = at + char.len_utf8();
        if char == '\r' && chars.next_if(|&(_, next)| next == '\n').is_some() {
            after += 1;
        }
        ranges.push(start..if keep { after } else { at });
        start = after;
    }
    if start < text.len() {
        ranges.push(start..text.len());
    }
    ranges
}

fn partition(text: &Text, name: &str, args: Args) -> Result<Value, Fault> {
    let [separator] = args.bind(name, ["sep"])?;
    let separator = str_of(&separator.unwrap_or(Value::None), name)?;
    let plain = text.as_str();
    if separator.is_empty() {
        return Err(Fault::failed("empty separator"));
    }
    let last = name == "rpartition";
    let found = if last { plain.rfind(separator.as_str()) } else { plain.find(separator.as_str()) };
    let empty = || Value::own("");
    let parts = match found {
        Some(at) => {
            let after = at + separator.as_str().len();
            vec![
                Value::Str(text.slice(0..at)),
                Value::Str(text.slice(at..after)),
                Value::Str(text.slice(after..plain.len())),
            ]
        }
        None if last => vec![empty(), empty(), Value::Str(text.clone())],
        None => vec![Value::Str(text.clone()), empty(), empty()],
    };
    Value::tuple(parts)
}

/// The part that the arguments `start` and `end` leave.
fn part(text: &Text, start: Option<Value>, end: Option<Value>) -> Result<(Text, usize), Fault> {
    let bound = |bound: Option<Value>| match bound {
        None | Some(Value::None) => Ok(None),
        Some(value) => int_or(Some(value), 0, "an index").map(Some),
    };
    let (start, end) = (bound(start)?, bound(end)?);
    let length = text.as_str().chars().count() as i128;
    let from = start.map_or(0, |start| if start < 0 { (start + length).max(0) } else { start });
    Ok((ops::text_slice(text, start, end), usize::try_from(from).unwrap_or(0)))
}

fn affix(text: &Text, name: &str, args: Args) -> Result<Value, Fault> {
    let [wanted, start, end] = args.bind(name, ["prefix", "start", "end"])?;
    let (text, _) = part(text, start, end)?;
    let fits = |wanted: &Value| -> Result<bool, Fault> {
        let wanted = str_of(wanted, name)?;
        let (text, wanted) = (text.as_str(), wanted.as_str());
        Ok(if name == "startswith" { text.starts_with(wanted) } else { text.ends_with(wanted) })
    };
    match wanted {
        Some(Value::Tuple(many)) => {
            for wanted in &many.items {
                if fits(wanted)? {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        wanted => Ok(Value::Bool(fits(&wanted.unwrap_or(Value::None))?)),
    }
}

fn search(text: &Text, name: &str, args: Args) -> Result<Value, Fault> {
    let [wanted, start, end] = args.bind(name, ["sub", "start", "end"])?;
    let wanted = str_of(&wanted.unwrap_or(Value::None), name)?;
    let (inner, from) = part(text, start, end)?;
    let (plain, wanted) = (inner.as_str(), wanted.as_str());
    if name == "count" {
        let count = if wanted.is_empty() { plain.chars().count() + 1 } else { plain.matches(wanted).count() };
        return Ok(Value::Int(count as i128));
    }
    let found = if name.starts_with('r') { plain.rfind(wanted) } else { plain.find(wanted) };
    match found {
        Some(at) => {
            let chars = plain.get(..at).unwrap_or_default().chars().count();
            Ok(Value::Int((from + chars) as i128))
        }
        None if name.ends_with("index") => Err(Fault::failed("substring not found")),
        None => Ok(Value::Int(-1)),
    }
}

/// `str.replace`; a negative count means all.
pub(super) fn replace(text: &Text, old: &Text, new: &Text, count: i128) -> Result<Text, Fault> {
    let plain = text.as_str();
    let most = usize::try_from(count).unwrap_or(usize::MAX);
    let found = plain.matches(old.as_str()).take(most).count();
    if found.saturating_mul(new.as_str().len()) > MOST_BYTES {
        return Err(Fault::failed(format!("a string is longer than {MOST_BYTES} bytes")));
    }
    let mut out = Builder::default();
    let mut done = 0;
    for (at, matched) in plain.match_indices(old.as_str()).take(most) {
        out.push_slice(text, done..at);
        out.push_text(new);
        done = at + matched.len();
    }
    out.push_slice(text, done..plain.len());
    out.finish()
}

/// `str.capitalize`
pub(super) fn capitalize(text: &Text) -> Result<Text, Fault> {
    let mut first = true;
    text.map(|piece| {
        let mut out = String::with_capacity(piece.len());
        for char in piece.chars() {
            if std::mem::take(&mut first) { out.extend(char.to_uppercase()) } else { out.extend(char.to_lowercase()) }
        }
        out
    })
}

/// `str.title`
fn title(text: &Text) -> Result<Text, Fault> {
    let mut inside = false;
    text.map(|piece| {
        let mut out = String::with_capacity(piece.len());
        for char in piece.chars() {
            if inside {
                out.extend(char.to_lowercase())
            } else {
                out.extend(char.to_uppercase())
            }
            inside = char.is_uppercase() || char.is_lowercase();
        }
        out
    })
}

fn expand_tabs(text: &Text, size: usize) -> Result<Text, Fault> {
    let mut column = 0;
    let mut length = 0;
    text.map(|piece| {
        let mut out = String::new();
        for char in piece.chars() {
            match char {
                '\t' => {
                    let width = if size == 0 { 0 } else { size - column % size };
                    length += width;
                    if length < MOST_BYTES {
                        out.extend(std::iter::repeat_n(' ', width));
                    }
                    column += width;
                }
                '\n' | '\r' => {
                    column = 0;
                    out.push(char);
                }
                _ => {
                    column += 1;
                    out.push(char);
                }
            }
        }
        out
    })
}
