//! Keeps the floors of the source tree: which module may use which, where `unsafe` may stand, and how long a file may
//! be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

#[path = "floors/source.rs"]
mod source;

use source::{blank_comments_and_strings, inline_modules, paths, words};

/// A module of the crate, its floor, and what it stands on. Test code may use any lower floor.
struct Floor {
    module: String,
    floor: u8,
    uses: Vec<String>,
}

/// The table of docs/architecture.md, section "Floors": the one place where floors are written down.
static FLOORS: LazyLock<Vec<Floor>> = LazyLock::new(|| {
    let page = fs_err::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/architecture.md")).unwrap();
    let section = page.split("## Floors").nth(1).unwrap().split("\n## ").next().unwrap();
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let mut all: Vec<Floor> = Vec::new();
    let mut below = Vec::new();
    for line in section.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let Ok(floor) = cells[1].parse() else { continue };
        for module in names(cells[2]) {
            let uses = if cells[3] == "all below" { below.clone() } else { names(cells[3]) };
            all.push(Floor { module, floor, uses });
        }
        // The table goes from the ground up.
        below.extend(names(cells[2]));
    }
    all
});

/// Files and folders under `src/` that may hold `unsafe`: the numeric modules, the cards, and the file mapping.
const UNSAFE_IN: &[&str] = &["card/", "cpu/", "quant/", "gguf/mapping.rs"];

const MOST_LINES: usize = 600;

/// Files that are tables, which may be longer.
const TABLES: &[&str] = &["src/quant/grids.rs"];

#[test]
fn modules_use_only_what_stands_below() {
    let mut found = Found::default();
    for (path, text) in sources("src") {
        check(&path, &text, &mut found);
    }
    println!("{} paths to other modules checked, {} of them in test code", found.paths, found.in_tests);
    assert!(found.paths > 0, "the check found no path between modules: it no longer reads the sources");
    assert!(found.faults.is_empty(), "\n{}", found.faults.join("\n"));
}

#[test]
fn no_file_is_too_long() {
    let mut faults = String::new();
    for (path, text) in ["src", "tests", "benches"].into_iter().flat_map(sources) {
        let lines = text.lines().count();
        if lines > MOST_LINES && !TABLES.iter().any(|t| path == Path::new(t)) {
            writeln!(faults, "{}: {lines} lines, at most {MOST_LINES}: split it by concept", path.display()).unwrap();
        }
    }
    assert!(faults.is_empty(), "\n{faults}");
}

#[test]
fn the_table_is_in_order() {
    assert!(FLOORS.len() > 15, "{} floors: the table is no longer read", FLOORS.len());
    for Floor { module: name, floor, uses } in FLOORS.iter() {
        for used in uses {
            let below = floor_of(used).unwrap_or_else(|| panic!("{name} uses {used}, which has no floor"));
            assert!(below < *floor || (*floor, below) == (1, 1), "{name} ({floor}) must not use {used} ({below})");
        }
    }
}

/// The check itself, on snippets that break each rule once, and on their lawful twins.
#[test]
fn the_check_finds_what_is_wrong() {
    let strings = r###"// use crate::engine::Rig; unsafe
/* crate::cli /* */ unsafe */ const A: &str = "crate::cli::\" unsafe"; const B: &str = r#""crate::cli"#;
fn f<'a>(c: &'a u8) -> char { '"' } use crate::cli::Y; fn g() -> (char, char) { ('\'', '\u{22}') }"###;
    let cases: &[(&str, &str, &[&str])] = &[
        ("plan/search.rs", "use crate::engine::Rig;", &["1: plan (floor 5) uses engine (floor 6)"]),
        (
            "gguf/mod.rs",
            "\nuse crate::{\n  units::{Bytes, Rate},\n  topology::{Rig, Link},\n};",
            &["4: gguf (floor 2) uses topology (floor 2)"],
        ),
        ("engine/a.rs", "fn f() { crate::text::encode(1); }", &["1: engine (floor 6) uses text (floor 4)"]),
        ("card/virt/mod.rs", "use super::super::model::Spec;", &["1: card (floor 4) uses model (floor 4)"]),
        ("cpu/mod.rs", "use super::card::Card;", &["1: cpu (floor 3) uses card (floor 4)"]),
        (
            "cpu/mod.rs",
            "#[cfg(test)]\nmod tests {\n use super::card::C; use crate::quant::Q; use super::super::engine::X;\n}",
            &["3: cpu (floor 3) uses engine (floor 6)"],
        ),
        ("engine/tests.rs", "use crate::synth::shape;", &[]),
        ("engine/mod.rs", "#[cfg(test)]\nmod tests { use crate::synth::shape; }", &[]),
        (
            "engine/mod.rs",
            "#[cfg(test)]\nmod tests;\nuse crate::synth::shape;",
            &["3: engine (floor 6) uses synth (floor 4)"],
        ),
        ("model/mod.rs", "use crate::novel::Thing;", &["1: novel has no floor"]),
        ("model/mod.rs", "fn f() { unsafe { g() } }", &["1: `unsafe` outside"]),
        ("cpu/dot.rs", "fn f() { unsafe { g() } }", &[]),
        ("model/mod.rs", strings, &["3: model (floor 4) uses cli (floor 9)"]),
        ("model/mod.rs", "use crate::model::Spec; use super::model::Spec; pub(in crate::model) fn f() {}", &[]),
        ("new/mod.rs", "fn f() {}", &["1: new has no floor"]),
    ];
    for (path, text, wanted) in cases {
        let path = Path::new("src").join(path);
        let mut found = Found::default();
        check(&path, text, &mut found);
        assert_eq!(found.faults.len(), wanted.len(), "{}: {text}\n{:?}", path.display(), found.faults);
        for (fault, end) in found.faults.iter().zip(*wanted) {
            let start = format!("{}:{end}", path.display());
            assert!(fault.starts_with(&start), "{fault}\nshould start with\n{start}");
        }
    }
}

#[derive(Default)]
struct Found {
    paths: usize,
    in_tests: usize,
    faults: Vec<String>,
}

fn floor_of(module: &str) -> Option<u8> {
    FLOORS.iter().find(|floor| floor.module == module).map(|floor| floor.floor)
}

fn check(path: &Path, text: &str, found: &mut Found) {
    let inside = path.strip_prefix("src").unwrap();
    let parts: Vec<&str> = inside.iter().map(|p| p.to_str().unwrap()).collect();
    let user = parts[0].trim_end_matches(".rs");
    if ["lib", "main"].contains(&user) {
        return;
    }
    let at = |offset: usize| format!("{}:{}", path.display(), 1 + text[..offset].matches('\n').count());
    let Some(Floor { floor, uses, .. }) = FLOORS.iter().find(|floor| floor.module == user) else {
        found.faults.push(format!("{}: {user} has no floor: give it one in docs/architecture.md", at(0)));
        return;
    };
    let code = blank_comments_and_strings(text);
    let inline = inline_modules(&code);
    let test_file = parts.iter().any(|p| ["tests", "tests.rs"].contains(p));
    for (offset, used) in paths(&code, module_depth(&parts), &inline) {
        if used == user {
            continue;
        }
        let test = test_file || inline.iter().any(|m| m.test && m.body.contains(&offset));
        found.paths += 1;
        found.in_tests += usize::from(test);
        let fault = match floor_of(&used) {
            None => format!("{used} has no floor: give it one in docs/architecture.md"),
            Some(below) if uses.contains(&used) || (test && below < *floor) => continue,
            Some(below) => {
                let ground = if uses.is_empty() { "nothing".to_owned() } else { uses.join(", ") };
                format!("{user} (floor {floor}) uses {used} (floor {below}); {user} stands on {ground}")
            }
        };
        found.faults.push(format!("{}: {fault}", at(offset)));
    }
    if !UNSAFE_IN.iter().any(|allowed| inside.to_str().unwrap().starts_with(allowed)) {
        for (offset, _) in words(&code).filter(|(_, word)| ["unsafe", "unsafe_code"].contains(word)) {
            found.faults.push(format!("{}: `unsafe` outside {}", at(offset), UNSAFE_IN.join(", ")));
        }
    }
}

/// How many `super`s lead from a file's module to the crate root.
fn module_depth(parts: &[&str]) -> usize {
    if parts.last() == Some(&"mod.rs") { parts.len() - 1 } else { parts.len() }
}

/// The Rust files under a folder of the repository, by their path from its root, in order.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join(folder)];
    let mut all = Vec::new();
    while let Some(next) = folders.pop() {
        let Ok(entries) = fs_err::read_dir(&next) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                all.push((path.strip_prefix(root).unwrap().to_owned(), fs_err::read_to_string(&path).unwrap()));
            }
        }
    }
    all.sort();
    all
}
