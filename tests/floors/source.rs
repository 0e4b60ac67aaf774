//! Reading Rust sources just closely enough to find the paths that lead through the crate root.

use std::ops::Range;

/// The body of a `mod name { .. }`.
pub struct Inline {
    /// From its opening brace to its closing one.
    pub body: Range<usize>,
    /// Whether `#[cfg(test)]` stands before it.
    pub test: bool,
}

/// All inline modules of blanked code.
pub fn inline_modules(code: &str) -> Vec<Inline> {
    let mut all = Vec::new();
    for (offset, _) in words(code).filter(|(_, word)| *word == "mod") {
        let rest = code[offset + 3..].trim_start();
        let name = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        if !rest[name..].trim_start().starts_with('{') {
            continue;
        }
        let open = offset + code[offset..].find('{').unwrap();
        let mut depth = 0;
        let length = code[open..].find(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0
        });
        let before = code[..offset].trim_end().trim_end_matches("pub").trim_end();
        let body = open..open + length.unwrap_or(code.len() - open);
        all.push(Inline { body, test: before.ends_with("#[cfg(test)]") });
    }
    all
}

/// Every path of blanked code that leads through the crate root: where it stands, and the module it enters first.
/// `depth` is how many `super`s lead from the file's module to the root.
pub fn paths(code: &str, depth: usize, inline: &[Inline]) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    for (offset, word) in words(code) {
        let mut rest = &code[offset + word.len()..];
        match word {
            "crate" | "aqueduct" => {}
            "super" if !code[..offset].trim_end().ends_with("::") => {
                let mut supers = 1;
                while let Some(next) = step_over("::", rest).and_then(|r| step_over("super", r)) {
                    supers += 1;
                    rest = next;
                }
                if supers != depth + inline.iter().filter(|m| m.body.contains(&offset)).count() {
                    continue;
                }
            }
            _ => continue,
        }
        let Some(rest) = step_over("::", rest) else { continue };
        match step_over("{", rest) {
            Some(group) => entries(group, code.len() - group.len(), &mut all),
            None => all.extend(first_word(rest).map(|w| (code.len() - rest.trim_start().len(), w))),
        }
    }
    all
}

/// The first word of each entry of a `{a, b::{c, d}}` group, whose text begins after its brace.
fn entries(group: &str, start: usize, all: &mut Vec<(usize, String)>) {
    let (mut depth, mut begin) = (0, 0);
    for (i, c) in group.char_indices() {
        let ends = depth == 0 && (c == ',' || c == '}');
        if ends {
            let entry = &group[begin..i];
            let space = entry.len() - entry.trim_start().len();
            all.extend(first_word(entry).map(|w| (start + begin + space, w)));
            begin = i + 1;
        }
        if ends && c == '}' {
            return;
        }
        depth += i32::from(c == '{') - i32::from(c == '}');
    }
}

fn step_over<'a>(what: &str, text: &'a str) -> Option<&'a str> {
    text.trim_start().strip_prefix(what)
}

/// The word a path begins with; a path to an item of the crate root itself, such as a type or `self`, enters no module.
fn first_word(text: &str) -> Option<String> {
    let text = text.trim_start();
    let word = &text[..text.find(|c| !is_word(c)).unwrap_or(text.len())];
    (word != "self" && word.starts_with(char::is_lowercase)).then(|| word.to_owned())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The words of a text with their offsets.
pub fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.split(|c| !is_word(c)).filter(|w| !w.is_empty()).map(|w| (w.as_ptr() as usize - code.as_ptr() as usize, w))
}

/// The same text, as long and with the same lines, with comments, strings and characters turned into spaces.
pub fn blank_comments_and_strings(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut i = 0;
    while i < bytes.len() {
        let rest = &text[i..];
        let in_word = i > 0 && is_word(char::from(bytes[i - 1])) && bytes[i - 1] != b'b';
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if rest.starts_with('"') {
            string(rest)
        } else if let Some(raw) = raw_string(rest).filter(|_| !in_word) {
            raw
        } else if let Some(character) = character(rest) {
            character
        } else {
            i += rest.chars().next().map_or(1, char::len_utf8);
            continue;
        };
        for byte in code[i..i + length].iter_mut().filter(|b| **b != b'\n') {
            *byte = b' ';
        }
        i += length;
    }
    String::from_utf8(code).expect("only whole characters were replaced")
}

fn block_comment(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let (mut depth, mut i) = (0, 0);
    while i + 1 < bytes.len() {
        match &bytes[i..i + 2] {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                i += 1;
                continue;
            }
        }
        i += 2;
        if depth == 0 {
            return i;
        }
    }
    rest.len()
}

fn string(rest: &str) -> usize {
    let mut escaped = false;
    for (i, c) in rest.char_indices().skip(1) {
        if c == '"' && !escaped {
            return i + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    rest.len()
}

fn raw_string(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix('r')?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(body.find(&end).map_or(rest.len(), |at| 1 + hashes + 1 + at + end.len()))
}

/// The length of a character literal; a lifetime is none.
fn character(rest: &str) -> Option<usize> {
    let inner = rest.strip_prefix('\'')?;
    if inner.starts_with('\\') {
        return Some(2 + 1 + inner[2..].find('\'')? + 1);
    }
    let c = inner.chars().next()?;
    inner[c.len_utf8()..].starts_with('\'').then(|| 2 + c.len_utf8())
}
