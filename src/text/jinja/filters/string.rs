//! Filters that give text.

use super::super::args::{Args, int_or, str_of};
use super::super::exec::Interpreter;
use super::super::methods::{capitalize, lines, replace, strip};
use super::super::text::{Builder, Text};
use super::super::value::Value;
use super::super::{Fault, format, ops};

impl Interpreter {
    pub(super) fn string_filter(&mut self, name: &str, value: &Value, args: Args) -> Result<Value, Fault> {
        let map = |args: Args, change: fn(&str) -> String| {
            args.none(name)?;
            value.text()?.map(change)
        };
        let text = match name {
            "upper" => map(args, str::to_uppercase),
            "lower" => map(args, str::to_lowercase),
            "escape" | "e" | "forceescape" => map(args, escape),
            "capitalize" => args.none(name).and_then(|()| capitalize(&value.text()?)),
            "title" => args.none(name).and_then(|()| title(&value.text()?)),
            "trim" => {
                let [chars] = args.bind(name, ["chars"])?;
                strip(&value.text()?, chars.as_ref(), true, true)
            }
            "replace" => {
                let [old, new, count] = args.bind(name, ["old", "new", "count"])?;
                let (Some(old), Some(new)) = (old, new) else {
                    return Err(Fault::failed("replace wants the old and the new text"));
                };
                let count = count.filter(|count| !matches!(count, Value::None));
                replace(&value.text()?, &old.text()?, &new.text()?, int_or(count, -1, name)?)
            }
            "indent" => indent(value, args),
            "center" => {
                let [width] = args.bind(name, ["width"])?;
                let width = usize::try_from(int_or(width, 80, name)?.max(0)).unwrap_or(0);
                format::pad(&value.text()?, width, '^', " ")
            }
            "truncate" => truncate(&value.text()?, args),
            "wordcount" => {
                args.none(name)?;
                let text = value.text()?;
                let words = text.as_str().split(|char: char| char != '_' && !char.is_alphanumeric());
                return Ok(Value::Int(words.filter(|word| !word.is_empty()).count() as i128));
            }
            "wordwrap" => wrap(&value.text()?, args),
            "striptags" => args.none(name).and_then(|()| strip_tags(&value.text()?)),
            "urlencode" => args.none(name).and_then(|()| url_encode(value)),
            "filesizeformat" => file_size(value, args),
            "xmlattr" => xml_attributes(value, args),
            _ => return Err(Fault::failed(format!("there is no filter {name:?}"))),
        };
        text.map(Value::Str)
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;").replace('\'', "&#39;")
}

fn title(text: &Text) -> Result<Text, Fault> {
    let mut starts = true;
    text.map(|piece| {
        let mut out = String::with_capacity(piece.len());
        for char in piece.chars() {
            let separates = char.is_whitespace() || matches!(char, '-' | '(' | '{' | '[' | '<');
            if starts && !separates {
                out.extend(char.to_uppercase());
            } else {
                out.extend(char.to_lowercase());
            }
            starts = separates;
        }
        out
    })
}

fn indent(value: &Value, args: Args) -> Result<Text, Fault> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"])?;
    let by = match width {
        Some(Value::Str(text)) => text,
        width => Text::own(&" ".repeat(int_or(width, 4, "indent")?.clamp(0, 4096) as usize)),
    };
    let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let (first, blank) = (is_true(first), is_true(blank));
    let text = value.text()?;
    // Jinja2 adds a line end before it splits: an end of the last line stays as an empty line.
    let mut all = Builder::default();
    all.push_text(&text);
    all.push_own("\n");
    let all = all.finish()?;
    let mut out = Builder::default();
    for (index, range) in lines(all.as_str(), false).into_iter().enumerate() {
        if index > 0 {
            out.push_own("\n");
        }
        if if index == 0 { first } else { blank || !range.is_empty() } {
            out.push_text(&by);
        }
        out.push_slice(&all, range);
    }
    out.finish()
}

fn truncate(text: &Text, args: Args) -> Result<Text, Fault> {
    let [length, kill, end, leeway] = args.bind("truncate", ["length", "killwords", "end", "leeway"])?;
    let length = int_or(length, 255, "truncate")?;
    let leeway = int_or(leeway.filter(|leeway| !matches!(leeway, Value::None)), 5, "leeway")?;
    let end = end.map_or_else(|| Ok(Text::own("...")), |end| end.text())?;
    let mark = end.as_str().chars().count() as i128;
    if length < mark || leeway < 0 {
        return Err(Fault::failed(format!("expected length >= {mark} and leeway >= 0")));
    }
    if text.as_str().chars().count() as i128 <= length + leeway {
        return Ok(text.clone());
    }
    let mut kept = ops::text_slice(text, None, Some(length - mark));
    if !kill.is_some_and(|kill| kill.is_true()) {
        let space = kept.as_str().rfind(' ');
        kept = space.map_or(kept.clone(), |at| kept.slice(0..at));
    }
    let mut out = Builder::default();
    out.push_text(&kept);
    out.push_text(&end);
    out.finish()
}

/// Lines of at most `width` characters, cut at spaces; longer words are cut too.
fn wrap(text: &Text, args: Args) -> Result<Text, Fault> {
    let [width, long, separator, _hyphens] =
        args.bind("wordwrap", ["width", "break_long_words", "wrapstring", "break_on_hyphens"])?;
    let width = int_or(width, 79, "wordwrap")?.clamp(1, 100_000) as usize;
    let long = long.is_none_or(|long| long.is_true());
    let separator = match separator {
        None | Some(Value::None) => Text::own("\n"),
        Some(separator) => str_of(&separator, "wordwrap")?,
    };
    let mut out = Builder::default();
    for (index, line) in lines(text.as_str(), false).into_iter().enumerate() {
        if index > 0 {
            out.push_text(&separator);
        }
        let plain = text.as_str().get(line.clone()).unwrap_or_default();
        let mut used = 0;
        let mut gap = String::new();
        for word in plain.split_inclusive(' ') {
            let bare = word.trim_end_matches(' ');
            let mut rest = bare;
            let content = text.has_content();
            if !rest.is_empty() {
                let length = rest.chars().count();
                if used > 0 && used + gap.len() + length > width {
                    out.push_text(&separator);
                    used = 0;
                } else {
                    out.push(&gap, content);
                    used += gap.len();
                }
                gap.clear();
                while long && rest.chars().count() > width {
                    let (head, tail) = rest.split_at(ops::byte_at(rest, width));
                    out.push(head, content);
                    out.push_text(&separator);
                    rest = tail;
                    used = 0;
                }
                out.push(rest, content);
                used += rest.chars().count();
            }
            gap.push_str(word.get(bare.len()..).unwrap_or_default());
        }
    }
    out.finish()
}

fn strip_tags(text: &Text) -> Result<Text, Fault> {
    let mut rest = text.as_str();
    let mut out = String::new();
    while let Some((before, tail)) = rest.split_once('<') {
        out.push_str(before);
        let close = if tail.starts_with("!--") { "-->" } else { ">" };
        let Some((_, after)) = tail.split_once(close) else {
            out.push('<');
            rest = tail;
            break;
        };
        rest = after;
    }
    out.push_str(rest);
    let words: Vec<&str> = out.split_whitespace().collect();
    let text_out = words.join(" ").replace("&lt;", "<").replace("&gt;", ">").replace("&#34;", "\"");
    let text_out = text_out.replace("&quot;", "\"").replace("&#39;", "'").replace("&amp;", "&");
    Ok(Text::with(&text_out, text.has_content()))
}

fn quote(text: &str, keep: &str, out: &mut String) {
    for byte in text.bytes() {
        let char = char::from(byte);
        if byte.is_ascii_alphanumeric() || "_.-~".contains(char) || keep.contains(char) {
            out.push(char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
}

fn url_encode(value: &Value) -> Result<Text, Fault> {
    let mut out = String::new();
    let mut content = false;
    match value {
        Value::Str(_) | Value::Int(_) | Value::Float(_) | Value::Bool(_) | Value::None | Value::Undefined(_) => {
            let text = value.text()?;
            content |= text.has_content();
            quote(text.as_str(), "/", &mut out);
        }
        _ => {
            let pairs = match value {
                Value::Dict(dict) => dict.iter().map(|(key, value)| vec![key.clone(), value.clone()]).collect(),
                _ => ops::iterate(value)?.iter().map(ops::iterate).collect::<Result<Vec<_>, _>>()?,
            };
            for (index, pair) in pairs.iter().enumerate() {
                out.push_str(if index > 0 { "&" } else { "" });
                for (part, item) in pair.iter().take(2).enumerate() {
                    out.push_str(if part > 0 { "=" } else { "" });
                    let text = item.text()?;
                    content |= text.has_content();
                    quote(text.as_str(), " ", &mut out);
                }
            }
            out = out.replace(' ', "+");
        }
    }
    Ok(Text::with(&out, content))
}

fn file_size(value: &Value, args: Args) -> Result<Text, Fault> {
    let [binary] = args.bind("filesizeformat", ["binary"])?;
    let binary = binary.is_some_and(|binary| binary.is_true());
    let bytes = match value {
        Value::Str(text) => text.as_str().trim().parse().ok(),
        _ => value.number().map(|number| number.float()),
    };
    let bytes: f64 = bytes.ok_or_else(|| Fault::failed("filesizeformat wants a number"))?;
    let base = if binary { 1024.0 } else { 1000.0 };
    let names = if binary {
        ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"]
    } else {
        ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"]
    };
    if bytes == 1.0 {
        return Ok(Text::own("1 Byte"));
    }
    if bytes < base {
        return Ok(Text::own(&format!("{} Bytes", bytes as i128)));
    }
    let mut unit = base;
    let mut text = String::new();
    for name in names {
        text = format!("{:.1} {name}", bytes / unit);
        unit *= base;
        if bytes < unit {
            break;
        }
    }
    Ok(Text::own(&text))
}

fn xml_attributes(value: &Value, args: Args) -> Result<Text, Fault> {
    let [space] = args.bind("xmlattr", ["autospace"])?;
    let Value::Dict(dict) = value else { return Err(Fault::failed("xmlattr wants a dict")) };
    let mut out = Builder::default();
    let space = space.is_none_or(|space| space.is_true());
    for (key, value) in dict.iter().filter(|(_, value)| !matches!(value, Value::None | Value::Undefined(_))) {
        if out.len() > 0 || space {
            out.push_own(" ");
        }
        out.push_text(&key.text()?.map(escape)?);
        out.push_own("=\"");
        out.push_text(&value.text()?.map(escape)?);
        out.push_own("\"");
    }
    out.finish()
}
