//! A template's source as tokens, with Jinja2's rules for white space: `trim_blocks` and `lstrip_blocks` are on.

use std::sync::Arc;

/// What stands in a template.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// Text outside of tags.
    Data(String),
    /// `{{`
    PrintBegin,
    /// `}}`
    PrintEnd,
    /// `{%`
    BlockBegin,
    /// `%}`
    BlockEnd,
    Name(Arc<str>),
    Str(String),
    Int(i128),
    Float(f64),
    Op(&'static str),
    End,
}

/// A mistake in the source.
#[derive(Debug)]
pub(super) struct SyntaxError {
    /// From 1.
    pub(super) line: usize,
    pub(super) problem: String,
}

/// Operators, the longer of two with one begin first.
const OPS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".",
    ":", "|", ",", ";",
];

#[derive(Clone, Copy, PartialEq)]
enum Tag {
    Print,
    Block,
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    /// Whether what stands before `at` ends a line, or is nothing.
    line_starts: bool,
    out: Vec<(Token, usize)>,
    counted: usize,
    line: usize,
}

/// Python's idea of white space.
pub(super) fn is_space(char: char) -> bool {
    char.is_whitespace() || ('\x1c'..='\x1f').contains(&char)
}

/// Line ends as `\n`, and the last one gone, as Jinja2 does with every source.
pub(super) fn normalise(source: &str) -> String {
    let mut text = source.replace("\r\n", "\n").replace('\r', "\n");
    if text.ends_with('\n') {
        text.pop();
    }
    text
}

/// The tokens of a normalised source, each with its line.
pub(super) fn tokens(source: &str) -> Result<Vec<(Token, usize)>, SyntaxError> {
    let mut lexer = Lexer { source, at: 0, line_starts: true, out: Vec::new(), counted: 0, line: 1 };
    while lexer.at < source.len() {
        lexer.data()?;
    }
    lexer.push(Token::End);
    Ok(lexer.out)
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        self.source.get(self.at..).unwrap_or_default()
    }

    fn push(&mut self, token: Token) {
        let line = self.line_here();
        self.out.push((token, line));
    }

    fn line_here(&mut self) -> usize {
        let new = self.source.as_bytes().get(self.counted..self.at).unwrap_or_default();
        self.line += new.iter().filter(|&&byte| byte == b'\n').count();
        self.counted = self.counted.max(self.at);
        self.line
    }

    fn fail<T>(&mut self, problem: impl Into<String>) -> Result<T, SyntaxError> {
        Err(SyntaxError { line: self.line_here(), problem: problem.into() })
    }

    /// Text up to the next tag, and the tag.
    fn data(&mut self) -> Result<(), SyntaxError> {
        let rest = self.rest();
        let open =
            rest.match_indices('{').find(|(at, _)| matches!(rest.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#')));
        let Some((open, _)) = open else {
            self.text(rest);
            self.at = self.source.len();
            return Ok(());
        };
        let kind = rest.as_bytes().get(open + 1).copied().unwrap_or_default();
        let after = rest.get(open + 2..).unwrap_or_default();
        let sign = after.chars().next().filter(|char| matches!(char, '-' | '+'));
        let before = rest.get(..open).unwrap_or_default();
        self.text(match sign {
            Some('-') => before.trim_end_matches(is_space),
            None if kind != b'{' => self.without_indent(before),
            _ => before,
        });
        self.at += open + 2 + usize::from(sign.is_some());
        match kind {
            b'#' => self.comment(),
            b'%' if self.raw_begin() => self.raw(),
            b'%' => {
                self.push(Token::BlockBegin);
                self.tag(Tag::Block)
            }
            _ => {
                self.push(Token::PrintBegin);
                self.tag(Tag::Print)
            }
        }
    }

    fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(Token::Data(text.to_owned()));
        }
    }

    /// Without the white space that stands alone between the begin of the line and a tag.
    fn without_indent<'t>(&self, text: &'t str) -> &'t str {
        let line = text.rfind('\n').map_or(0, |at| at + 1);
        let alone = text.get(line..).unwrap_or_default().chars().all(is_space);
        let kept = if alone && (line > 0 || self.line_starts) { line } else { text.len() };
        text.get(..kept).unwrap_or_default()
    }

    /// Goes behind a tag's end of `width` bytes at `at`; `-` takes all white space with it, a block one line end.
    fn close(&mut self, sign: Option<char>, width: usize, trim: bool) {
        self.at += width;
        match sign {
            Some('-') => self.at += self.rest().len() - self.rest().trim_start_matches(is_space).len(),
            None if trim && self.rest().starts_with('\n') => self.at += 1,
            _ => {}
        }
        self.line_starts = self.source.as_bytes().get(..self.at).is_some_and(|text| text.ends_with(b"\n"));
    }

    fn comment(&mut self) -> Result<(), SyntaxError> {
        let rest = self.rest();
        let Some(end) = rest.find("#}") else { return self.fail("a comment has no end: #} is missing") };
        let sign = rest.get(..end).and_then(|text| text.chars().next_back()).filter(|char| matches!(char, '-' | '+'));
        self.at += end;
        self.close(sign, 2, true);
        Ok(())
    }

    /// Whether a `raw` tag begins here; if so, goes behind it.
    fn raw_begin(&mut self) -> bool {
        let Some((sign, after)) = raw_tag(self.rest(), "raw") else { return false };
        self.at = self.source.len() - after.len();
        self.close(sign, 0, false);
        true
    }

    fn raw(&mut self) -> Result<(), SyntaxError> {
        let rest = self.rest();
        for (open, _) in rest.match_indices("{%") {
            let inside = rest.get(open + 2..).unwrap_or_default();
            let sign = inside.chars().next().filter(|char| matches!(char, '-' | '+'));
            let inside = inside.get(usize::from(sign.is_some())..).unwrap_or_default();
            let Some((close, after)) = raw_tag(inside, "endraw") else { continue };
            let text = rest.get(..open).unwrap_or_default();
            self.text(match sign {
                Some('-') => text.trim_end_matches(is_space),
                None => self.without_indent(text),
                _ => text,
            });
            self.at = self.source.len() - after.len();
            self.close(close, 0, true);
            return Ok(());
        }
        self.fail("raw has no end: {% endraw %} is missing")
    }

    /// The tokens of a tag, with its end.
    fn tag(&mut self, tag: Tag) -> Result<(), SyntaxError> {
        let mut open: Vec<&'static str> = Vec::new();
        let (end, close) = if tag == Tag::Block { ("%}", Token::BlockEnd) } else { ("}}", Token::PrintEnd) };
        loop {
            let rest = self.rest();
            if open.is_empty() {
                let sign = rest.chars().next().filter(|char| *char == '-' || (*char == '+' && tag == Tag::Block));
                let sign = sign.filter(|_| rest.get(1..).is_some_and(|rest| rest.starts_with(end)));
                if sign.is_some() || rest.starts_with(end) {
                    self.push(close);
                    self.close(sign, end.len() + usize::from(sign.is_some()), tag == Tag::Block);
                    return Ok(());
                }
            }
            let Some(first) = rest.chars().next() else {
                return self.fail(format!("the template ends inside of a tag: {end} is missing"));
            };
            if is_space(first) {
                self.at += first.len_utf8();
            } else if first.is_ascii_digit() {
                self.number()?;
            } else if first == '"' || first == '\'' {
                self.string(first)?;
            } else if first == '_' || first.is_alphanumeric() {
                let end = rest.find(|char: char| char != '_' && !char.is_alphanumeric()).unwrap_or(rest.len());
                self.push(Token::Name(rest.get(..end).unwrap_or_default().into()));
                self.at += end;
            } else {
                self.operator(&mut open)?;
            }
        }
    }

    fn operator(&mut self, open: &mut Vec<&'static str>) -> Result<(), SyntaxError> {
        let rest = self.rest();
        let Some(op) = OPS.into_iter().find(|op| rest.starts_with(op)) else {
            let found = rest.chars().next().unwrap_or_default();
            return self.fail(format!("unexpected character {found:?}"));
        };
        match op {
            "(" => open.push(")"),
            "[" => open.push("]"),
            "{" => open.push("}"),
            ")" | "]" | "}" => match open.pop() {
                Some(wanted) if wanted == op => {}
                Some(wanted) => return self.fail(format!("unexpected {op:?}, {wanted:?} is wanted")),
                None => return self.fail(format!("unexpected {op:?}")),
            },
            _ => {}
        }
        self.push(Token::Op(op));
        self.at += op.len();
        Ok(())
    }

    fn number(&mut self) -> Result<(), SyntaxError> {
        let rest = self.rest();
        let digits = |text: &str| text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'_').count();
        let bytes = rest.as_bytes();
        let radix = match (bytes.first(), bytes.get(1)) {
            (Some(b'0'), Some(b'x' | b'X')) => 16,
            (Some(b'0'), Some(b'o' | b'O')) => 8,
            (Some(b'0'), Some(b'b' | b'B')) => 2,
            _ => 10,
        };
        let mut end = if radix == 10 {
            digits(rest)
        } else {
            2 + bytes.iter().skip(2).take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count()
        };
        let mut float = false;
        // After a point, `x.0.1` are two numbers of an attribute.
        let after_point = self.at.checked_sub(1).and_then(|at| self.source.as_bytes().get(at)) == Some(&b'.');
        if radix == 10 && !after_point {
            let tail = rest.get(end..).unwrap_or_default();
            if tail.strip_prefix('.').is_some_and(|tail| tail.starts_with(|char: char| char.is_ascii_digit())) {
                float = true;
                end += 1 + digits(rest.get(end + 1..).unwrap_or_default());
            }
            let tail = rest.get(end..).unwrap_or_default();
            let power = tail.strip_prefix(['e', 'E']).unwrap_or_default();
            let unsigned = power.strip_prefix(['+', '-']).unwrap_or(power);
            if unsigned.starts_with(|char: char| char.is_ascii_digit()) {
                float = true;
                end += tail.len() - unsigned.len() + digits(unsigned);
            }
        }
        let text = rest.get(..end).unwrap_or_default().replace('_', "");
        let token = if float {
            text.parse().ok().map(Token::Float)
        } else {
            let digits = if radix == 10 { text.as_str() } else { text.get(2..).unwrap_or_default() };
            i128::from_str_radix(digits, radix).ok().map(Token::Int)
        };
        let Some(token) = token else { return self.fail(format!("{text} is not a number that fits")) };
        self.push(token);
        self.at += end;
        Ok(())
    }

    fn string(&mut self, mark: char) -> Result<(), SyntaxError> {
        let body = self.rest().get(1..).unwrap_or_default();
        let mut escaped = false;
        let end = body.char_indices().find(|&(_, char)| {
            let ends = char == mark && !escaped;
            escaped = char == '\\' && !escaped;
            ends
        });
        let Some((end, _)) = end else { return self.fail(format!("a string has no end: {mark} is missing")) };
        match unescape(body.get(..end).unwrap_or_default()) {
            Ok(text) => self.push(Token::Str(text)),
            Err(problem) => return self.fail(problem),
        }
        self.at += end + 2;
        Ok(())
    }
}

/// The end of a `raw` or `endraw` tag behind its `{%` and sign: the closing sign, and what follows.
fn raw_tag<'t>(text: &'t str, name: &str) -> Option<(Option<char>, &'t str)> {
    let text = text.trim_start_matches(is_space).strip_prefix(name)?.trim_start_matches(is_space);
    if let Some(rest) = text.strip_prefix("%}") {
        return Some((None, rest));
    }
    let sign = text.chars().next().filter(|char| *char == '-' || (*char == '+' && name == "endraw"))?;
    Some((Some(sign), text.get(1..)?.strip_prefix("%}")?))
}

/// Python's escapes in a string. An unknown one stays as it is.
fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let Some(letter) = after.chars().next() else { return Err("a string ends in \\".to_owned()) };
        let mut taken = letter.len_utf8();
        match letter {
            '\n' => {}
            'n' => out.push('\n'),
            't' => out.push('\t'),
            'r' => out.push('\r'),
            'a' => out.push('\x07'),
            'b' => out.push('\x08'),
            'f' => out.push('\x0c'),
            'v' => out.push('\x0b'),
            '\\' | '\'' | '"' => out.push(letter),
            '0'..='7' => {
                taken = after.bytes().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
                let digits = after.get(..taken).unwrap_or_default();
                out.extend(u32::from_str_radix(digits, 8).ok().and_then(char::from_u32));
            }
            'x' | 'u' | 'U' => {
                let digits = match letter {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let code = |at: usize| u32::from_str_radix(hex(after, at, digits)?, 16).ok();
                let Some(first) = code(1) else {
                    return Err(format!("\\{letter} wants {digits} hexadecimal digits"));
                };
                taken += digits;
                // Python keeps halves of a pair apart and cannot print them; here they are the character that they
                // spell.
                let low = (letter == 'u' && after.get(taken..).is_some_and(|tail| tail.starts_with("\\u")))
                    .then(|| code(taken + 2))
                    .flatten();
                let pair = low.and_then(|low| char::decode_utf16([first as u16, low as u16]).next()?.ok());
                match char::from_u32(first) {
                    Some(char) => out.push(char),
                    None => {
                        let Some(char) = pair.filter(|_| first < 0x1_0000) else {
                            return Err(format!("\\{letter} {first:x} is not a character"));
                        };
                        out.push(char);
                        taken += 2 + digits;
                    }
                }
            }
            'N' => return Err("\\N{...} in a string is not supported; write \\u or the character".to_owned()),
            other => out.extend(['\\', other]),
        }
        rest = after.get(taken..).unwrap_or_default();
    }
    out.push_str(rest);
    Ok(out)
}

fn hex(text: &str, at: usize, digits: usize) -> Option<&str> {
    text.get(at..at + digits).filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
