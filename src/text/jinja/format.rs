//! `'%s' % value`, `str.format`, and padding.

use super::args::Args;
use super::exec::Interpreter;
use super::text::{Builder, MOST_BYTES, Text};
use super::value::{Number, Value};
use super::{Fault, ops};

/// `text` in a field of `width` characters: `<` left, `>` right, `^` in the middle.
pub(super) fn pad(text: &Text, width: usize, side: char, fill: &str) -> Result<Text, Fault> {
    let missing = width.saturating_sub(text.as_str().chars().count());
    if missing.saturating_mul(fill.len().max(1)) > MOST_BYTES {
        return Err(Fault::failed(format!("a string is longer than {MOST_BYTES} bytes")));
    }
    if fill.chars().count() != 1 {
        return Err(Fault::failed("The fill character must be exactly one character long"));
    }
    let left = match side {
        '<' => 0,
        '>' => missing,
        // As Python's `center`: the odd one goes left where the width is odd.
        _ => missing / 2 + (missing & width & 1),
    };
    let mut out = Builder::default();
    out.push_own(&fill.repeat(left));
    out.push_text(text);
    out.push_own(&fill.repeat(missing - left));
    out.finish()
}

/// What stands behind a `%` or a `:`.
#[derive(Debug, Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    zero: bool,
    width: usize,
    comma: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

/// The number that `chars` begins with.
fn digits(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<usize> {
    let mut number = None;
    while let Some(digit) = chars.peek().and_then(|char| char.to_digit(10)) {
        number = Some(number.unwrap_or(0_usize).saturating_mul(10).saturating_add(digit as usize));
        chars.next();
    }
    number
}

/// Python's `format % values`.
pub(super) fn percent(format: &Text, values: &Value) -> Result<Text, Fault> {
    let (list, single) = match values {
        Value::Tuple(items) => (items.items.as_slice(), false),
        one => (std::slice::from_ref(one), true),
    };
    let mut next = list.iter();
    let mut named = false;
    let mut out = Builder::default();
    let plain = format.as_str();
    let mut at = 0;
    while let Some(found) = plain.get(at..).and_then(|rest| rest.find('%')) {
        out.push_slice(format, at..at + found);
        let body = plain.get(at + found + 1..).unwrap_or_default();
        let mut chars = body.chars().peekable();
        let mut given = None;
        if chars.next_if_eq(&'(').is_some() {
            let mut key = String::new();
            let mut open = 1;
            for char in chars.by_ref() {
                open += i32::from(char == '(') - i32::from(char == ')');
                if open == 0 {
                    break;
                }
                key.push(char);
            }
            named = true;
            let Value::Dict(dict) = values else { return Err(Fault::failed("format requires a mapping")) };
            given = Some(dict.get_str(&key).ok_or_else(|| Fault::failed(format!("key '{key}' is missing")))?);
        }
        let mut spec = Spec::default();
        while let Some(flag) = chars.next_if(|char| matches!(char, '-' | '+' | ' ' | '#' | '0')) {
            match flag {
                '-' => spec.align = Some('<'),
                '#' => spec.alternate = true,
                '0' => spec.zero = true,
                '+' => spec.sign = Some('+'),
                _ => spec.sign = spec.sign.or(Some(' ')),
            }
        }
        let missing = || Fault::failed("not enough arguments for format string");
        let mut star = |chars: &mut std::iter::Peekable<std::str::Chars<'_>>| -> Result<Option<usize>, Fault> {
            if chars.next_if_eq(&'*').is_none() {
                return Ok(digits(chars));
            }
            let width = next.next().ok_or_else(missing)?.int().ok_or_else(|| Fault::failed("* wants int"))?;
            Ok(Some(usize::try_from(width).unwrap_or(0)))
        };
        spec.width = star(&mut chars)?.unwrap_or(0);
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(star(&mut chars)?.unwrap_or(0));
        }
        chars.next_if(|char| matches!(char, 'l' | 'h' | 'L'));
        let kind = chars.next().ok_or_else(|| Fault::failed("incomplete format"))?;
        let rest: usize = chars.map(char::len_utf8).sum();
        at = plain.len() - rest;
        if kind == '%' {
            out.push_own("%");
            continue;
        }
        let value = match given {
            Some(value) => value,
            None => next.next().ok_or_else(missing)?,
        };
        spec.kind = Some(kind);
        let written = match kind {
            's' => value.text()?,
            'r' | 'a' => value.repr_text()?,
            'c' => match value {
                Value::Str(text) if text.as_str().chars().count() == 1 => text.clone(),
                other => {
                    let char = other.int().and_then(|code| char::from_u32(u32::try_from(code).ok()?));
                    let char = char.ok_or_else(|| Fault::failed("%c requires int or char"))?;
                    Text::own(char.encode_utf8(&mut [0; 4]))
                }
            },
            _ => {
                ops::undefined(value)?;
                let number = value.number().ok_or_else(|| {
                    Fault::failed(format!("%{kind} format: a real number is required, not {}", value.kind()))
                })?;
                let number = match (kind, number) {
                    ('d' | 'i' | 'u', Number::Float(number)) => Number::Int(number as i128),
                    ('x' | 'X' | 'o', Number::Float(_)) => {
                        return Err(Fault::failed(format!("%{kind} format: an integer is required, not float")));
                    }
                    (_, number) => number,
                };
                if matches!(kind, 'd' | 'i' | 'u') {
                    spec.kind = Some('d');
                    // The precision of a whole number is its least number of digits.
                    let least = spec.precision.take().unwrap_or(0).min(1000);
                    let Number::Int(number) = number else { return Err(missing()) };
                    let digits = format!("{:0>least$}", number.unsigned_abs());
                    let sign =
                        if number < 0 { "-".to_owned() } else { spec.sign.map(String::from).unwrap_or_default() };
                    field_number(&sign, &digits, &spec)?
                } else {
                    number_text(number, &spec)?
                }
            }
        };
        let written = match (kind, spec.precision) {
            ('s' | 'r' | 'a', Some(most)) => ops::text_slice(&written, None, Some(most as i128)),
            _ => written,
        };
        out.push_text(&pad(&written, spec.width, spec.align.unwrap_or('>'), " ")?);
    }
    out.push_slice(format, at..plain.len());
    let unused = next.next().is_some() && !named;
    if unused && !(single && matches!(values, Value::Dict(_) | Value::List(_))) {
        return Err(Fault::failed("not all arguments converted during string formatting"));
    }
    out.finish()
}

/// Sign and digits, with zeros between them up to the width where the spec wants that.
fn field_number(sign: &str, digits: &str, spec: &Spec) -> Result<Text, Fault> {
    let zeros = spec.zero && spec.align.is_none();
    let missing = if zeros { spec.width.saturating_sub(sign.len() + digits.len()) } else { 0 };
    if missing > MOST_BYTES {
        return Err(Fault::failed(format!("a string is longer than {MOST_BYTES} bytes")));
    }
    Ok(Text::own(&format!("{sign}{}{digits}", "0".repeat(missing))))
}

/// A number in the notation of `spec`, unpadded but for leading zeros.
fn number_text(number: Number, spec: &Spec) -> Result<Text, Fault> {
    let kind = spec.kind.unwrap_or(match number {
        Number::Int(_) => 'd',
        Number::Float(_) => 'r',
    });
    let negative = match number {
        Number::Int(number) => number < 0,
        Number::Float(number) => number.is_sign_negative() && !number.is_nan(),
    };
    let sign = if negative {
        "-".to_owned()
    } else {
        spec.sign.filter(|sign| *sign != '-').map(String::from).unwrap_or_default()
    };
    let precision = spec.precision.unwrap_or(6).min(400);
    let whole = match number {
        Number::Int(number) => number.unsigned_abs(),
        Number::Float(_) => 0,
    };
    let real = number.float().abs();
    let is_int = matches!(number, Number::Int(_));
    let mut text = match kind {
        'd' | 'n' if is_int => whole.to_string(),
        'b' if is_int => format!("{}{whole:b}", if spec.alternate { "0b" } else { "" }),
        'o' if is_int => format!("{}{whole:o}", if spec.alternate { "0o" } else { "" }),
        'x' if is_int => format!("{}{whole:x}", if spec.alternate { "0x" } else { "" }),
        'X' if is_int => format!("{}{whole:X}", if spec.alternate { "0X" } else { "" }),
        'f' | 'F' => not_finite(real).unwrap_or_else(|| format!("{real:.precision$}")),
        '%' => format!("{:.precision$}%", real * 100.0),
        'e' | 'E' => scientific(real, precision),
        'g' | 'G' | 'n' => general(real, precision, spec.alternate),
        'r' if spec.precision.is_none() => super::print::float(real),
        'r' => general(real, precision, false),
        _ => return Err(Fault::failed(format!("unsupported format character '{kind}'"))),
    };
    if matches!(kind, 'E' | 'G' | 'F') {
        text = text.to_uppercase();
    }
    if let Some(comma) = spec.comma {
        let point = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
        let (whole, rest) = text.split_at(point);
        let mut grouped = String::new();
        for (index, digit) in whole.chars().enumerate() {
            if index > 0 && (whole.len() - index) % 3 == 0 {
                grouped.push(comma);
            }
            grouped.push(digit);
        }
        text = grouped + rest;
    }
    field_number(&sign, &text, spec)
}

fn not_finite(number: f64) -> Option<String> {
    (!number.is_finite()).then(|| super::print::float(number))
}

fn scientific(number: f64, precision: usize) -> String {
    if let Some(text) = not_finite(number) {
        return text;
    }
    let text = format!("{number:.precision$e}");
    match text.split_once('e') {
        Some((digits, exponent)) => match exponent.strip_prefix('-') {
            Some(exponent) => format!("{digits}e-{exponent:0>2}"),
            None => format!("{digits}e+{exponent:0>2}"),
        },
        None => text,
    }
}

fn general(number: f64, precision: usize, keep_zeros: bool) -> String {
    if let Some(text) = not_finite(number) {
        return text;
    }
    let precision = precision.max(1);
    let rounded = format!("{number:.*e}", precision - 1);
    let exponent: i64 = rounded.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    let trim = |text: String| {
        if keep_zeros || !text.contains('.') {
            text
        } else {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    };
    if exponent < -4 || exponent >= precision as i64 {
        let text = scientific(number, precision - 1);
        match text.split_once('e') {
            Some((digits, exponent)) => format!("{}e{exponent}", trim(digits.to_owned())),
            None => text,
        }
    } else {
        let after = usize::try_from(precision as i64 - 1 - exponent).unwrap_or(0);
        trim(format!("{number:.after$}"))
    }
}

/// Python's `text.format(...)`.
pub(super) fn braces(interpreter: &mut Interpreter, text: &Text, args: &Args) -> Result<Text, Fault> {
    let mut automatic = 0;
    fields(interpreter, text, args, &mut automatic, 2)
}

fn fields(
    interpreter: &mut Interpreter,
    text: &Text,
    args: &Args,
    automatic: &mut usize,
    levels: usize,
) -> Result<Text, Fault> {
    let plain = text.as_str();
    let mut out = Builder::default();
    let mut at = 0;
    while let Some(found) = plain.get(at..).and_then(|rest| rest.find(['{', '}'])) {
        let mark = at + found;
        out.push_slice(text, at..mark);
        let rest = plain.get(mark..).unwrap_or_default();
        if rest.starts_with("{{") || rest.starts_with("}}") {
            out.push_slice(text, mark..mark + 1);
            at = mark + 2;
            continue;
        }
        if rest.starts_with('}') {
            return Err(Fault::failed("Single '}' encountered in format string"));
        }
        let mut open = 0;
        let end = rest.char_indices().find(|&(_, char)| {
            open += i32::from(char == '{') - i32::from(char == '}');
            open == 0
        });
        let Some((end, _)) = end else { return Err(Fault::failed("Single '{' encountered in format string")) };
        let field = rest.get(1..end).unwrap_or_default();
        at = mark + end + 1;
        let (name, spec) = field.split_once(':').unwrap_or((field, ""));
        let (name, conversion) = name.split_once('!').unwrap_or((name, ""));
        let mut value = lookup(interpreter, name, args, automatic)?;
        match conversion {
            "" => {}
            "s" => value = Value::Str(value.text()?),
            "r" | "a" => value = Value::Str(value.repr_text()?),
            _ => return Err(Fault::failed(format!("Unknown conversion specifier {conversion}"))),
        }
        let spec = if spec.contains('{') && levels > 0 {
            fields(interpreter, &Text::own(spec), args, automatic, levels - 1)?.as_str().to_owned()
        } else {
            spec.to_owned()
        };
        out.push_text(&formatted(&value, &spec)?);
    }
    out.push_slice(text, at..plain.len());
    out.finish()
}

/// The value of `name.attribute[item]`.
fn lookup(interpreter: &mut Interpreter, name: &str, args: &Args, automatic: &mut usize) -> Result<Value, Fault> {
    let end = name.find(['.', '[']).unwrap_or(name.len());
    let (first, mut path) = name.split_at(end);
    let missing = || Fault::failed(format!("Replacement '{first}' is missing in the arguments of format"));
    let mut value = if first.is_empty() {
        *automatic += 1;
        args.positional.get(*automatic - 1).cloned()
    } else if let Ok(index) = first.parse::<usize>() {
        args.positional.get(index).cloned()
    } else {
        args.named.iter().find(|(found, _)| &**found == first).map(|(_, value)| value.clone())
    }
    .ok_or_else(missing)?;
    while !path.is_empty() {
        if let Some(rest) = path.strip_prefix('.') {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            let (attribute, rest) = rest.split_at(end);
            value = interpreter.attribute(&value, &attribute.into())?;
            path = rest;
        } else {
            let Some((index, rest)) = path.get(1..).unwrap_or_default().split_once(']') else {
                return Err(Fault::failed("Missing ']' in format string"));
            };
            let index = index.parse().map_or_else(|_| Value::own(index), Value::Int);
            value = interpreter.item(&value, &index)?;
            path = rest;
        }
    }
    Ok(value)
}

fn formatted(value: &Value, spec: &str) -> Result<Text, Fault> {
    if spec.is_empty() {
        return value.text();
    }
    let mut parsed = Spec::default();
    let mut chars = spec.chars().peekable();
    let is_align = |char: &char| matches!(char, '<' | '>' | '^' | '=');
    let mut ahead = spec.chars();
    if let (Some(fill), Some(align)) = (ahead.next(), ahead.next())
        && is_align(&align)
    {
        (parsed.fill, parsed.align) = (Some(fill), Some(align));
        chars.next();
        chars.next();
    }
    if parsed.align.is_none() {
        parsed.align = chars.next_if(is_align);
    }
    parsed.sign = chars.next_if(|char| matches!(char, '+' | '-' | ' '));
    parsed.alternate = chars.next_if_eq(&'#').is_some();
    parsed.zero = chars.next_if_eq(&'0').is_some();
    parsed.width = digits(&mut chars).unwrap_or(0);
    parsed.comma = chars.next_if(|char| matches!(char, ',' | '_'));
    if chars.next_if_eq(&'.').is_some() {
        parsed.precision = digits(&mut chars);
    }
    parsed.kind = chars.next();
    if chars.next().is_some() {
        return Err(Fault::failed(format!("Invalid format specifier '{spec}'")));
    }
    let fill = parsed.fill.unwrap_or(if parsed.zero { '0' } else { ' ' });
    let fill = fill.encode_utf8(&mut [0; 4]).to_owned();
    if parsed.align == Some('=') {
        (parsed.align, parsed.zero) = (None, true);
    }
    let (written, side) = match value {
        Value::Str(text) if matches!(parsed.kind, None | Some('s')) => {
            let most = parsed.precision.map(|most| most as i128);
            (ops::text_slice(text, None, most), parsed.align.unwrap_or('<'))
        }
        _ => match value.number() {
            Some(number) => (number_text(number, &parsed)?, parsed.align.unwrap_or('>')),
            None => return Err(Fault::failed(format!("unsupported format string '{spec}' for {}", value.kind()))),
        },
    };
    let missing = parsed.width.saturating_sub(written.as_str().chars().count());
    // `format` puts the odd one right, unlike `center`.
    if side == '^' && missing <= MOST_BYTES {
        let mut out = Builder::default();
        out.push_own(&fill.repeat(missing / 2));
        out.push_text(&written);
        out.push_own(&fill.repeat(missing - missing / 2));
        return out.finish();
    }
    pad(&written, parsed.width, side, &fill)
}
