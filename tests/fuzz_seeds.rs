//! What the fuzz targets check, over their seeds and small changes of them: a smaller search on stable Rust, and where
//! the seeds come from.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::disallowed_methods)]

#[path = "../fuzz/cases/gguf.rs"]
mod gguf;
mod support;
#[path = "../fuzz/cases/template.rs"]
mod template;
#[path = "../fuzz/cases/tokenizer.rs"]
mod tokenizer;
#[path = "../fuzz/cases/topology.rs"]
mod topology;

use std::ops::ControlFlow;
use std::path::Path;

use aqueduct::synth::{Overrides, Shape, write_model};
use serde_json::Value;
use support::data;
use support::stories::Dice;

/// A fuzz target: its name, seeds, what it does with bytes, and words that damage puts in.
struct Target {
    name: &'static str,
    seeds: Vec<Vec<u8>>,
    check: fn(&[u8]) -> bool,
    words: &'static [&'static [u8]],
}

fn targets() -> [Target; 4] {
    [
        Target {
            name: "gguf",
            seeds: gguf_seeds(),
            check: gguf::check,
            words: &[b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x01"],
        },
        Target {
            name: "topology",
            seeds: topology_seeds(),
            check: topology::check,
            words: &[b"-1", b"0 B", b"auto", b": ", b"\n  - ", b"{", b"[", b"\xc3\xa9", b"99999999999 GiB", b"host"],
        },
        Target {
            name: "template",
            seeds: template_seeds(),
            check: template::check,
            words: &[b"{{ ", b"}}", b"{% ", b"%}", b"loop", b"[::-1]", b"|tojson", b"-", b"{% endfor %}", b"''"],
        },
        Target {
            name: "tokenizer",
            seeds: tokenizer_seeds(),
            check: tokenizer::check,
            words: &[
                b" ",
                b"\n",
                b"<|im_end|>",
                b"\xe2\x96\x81",
                b"e\xcc\x81",
                b"\xf0\x9f\x99\x82",
                b"\xff",
                b"0",
                b"\0",
            ],
        },
    ]
}

fn texts(folder: &Path, end: &str) -> Vec<Vec<u8>> {
    let mut paths: Vec<_> = fs_err::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|found| found == end));
    paths.sort();
    paths.iter().map(|path| fs_err::read(path).unwrap()).collect()
}

fn json(path: &str) -> Value {
    serde_json::from_slice(&fs_err::read(data(path)).unwrap()).unwrap()
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().unwrap().iter()
}

/// Tiny models of each architecture, vocabularies without tensors, and a split set.
fn gguf_seeds() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let mut seeds = texts(&data("tokenizers"), "gguf");
    for name in ["tiny-qwen3moe", "tiny-llama-moe", "tiny-llama", "tiny-qwen3"] {
        let small = Overrides { layers: Some(1), width: Some(32), vocabulary: Some(300), ..Overrides::default() };
        let shape = Shape::named(name).unwrap().with(&small).unwrap();
        let path = folder.path().join(name);
        write_model(&shape, &path, &mut |_, _| ControlFlow::Continue(())).unwrap();
        seeds.push(fs_err::read(&path).unwrap());
    }
    seeds.push(gguf::set_of(&[shard(0), shard(1), shard(2)]));
    seeds
}

/// File `number` of a split set of three, with one tensor: small, so that the fuzzer changes what matters.
fn shard(number: u64) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let key = |key: &str, value: u64| [text(key), 10_u32.to_le_bytes().to_vec(), value.to_le_bytes().to_vec()].concat();
    let keys = [key("split.no", number), key("split.count", 3), key("split.tensors.count", 3)].concat();
    let tensor =
        [text(&format!("t{number}")), 1_u32.to_le_bytes().to_vec(), 8_u64.to_le_bytes().to_vec(), [0; 12].to_vec()];
    let counts = [3_u32.to_le_bytes().to_vec(), 1_u64.to_le_bytes().to_vec(), 3_u64.to_le_bytes().to_vec()].concat();
    let mut file = [b"GGUF".to_vec(), counts, keys, tensor.concat()].concat();
    file.resize(file.len().next_multiple_of(32) + 32, 0);
    file
}

fn topology_seeds() -> Vec<Vec<u8>> {
    let ready = Path::new(env!("CARGO_MANIFEST_DIR")).join("topology");
    let mut seeds = [texts(&ready, "yaml"), texts(&data("topology"), "yaml")].concat();
    let every_key = "
rig:
  cards:
    a: {kind: virtual, memory: 3 MiB}
    b: {kind: virtual, memory: 2 MiB}
run:
  context: 64
  kv: {type: int8, resident_cells: 32, staging: 64, prefetch: on, host_share: 40%}
  prompt: {wave: 24, floor: 9, ring: 2, routed_stream: on, host_pool: on}
  pins: {experts: {a: 3}, layers: {b: 1}}
";
    seeds.push(every_key.as_bytes().to_vec());
    seeds
}

/// The templates of models with their chats, and snippets of what templates do.
fn template_seeds() -> Vec<Vec<u8>> {
    let with = |template: &Value, variables: Value| {
        [template.as_str().unwrap().as_bytes(), b"\0", variables.to_string().as_bytes()].concat()
    };
    let mut seeds = Vec::new();
    for file in ["oracle/tokenizers/qwen2", "oracle/tokenizers/llama-bpe", "tokenizers/qwen35", "tokenizers/gpt-4o"] {
        let oracle = json(&format!("{file}.json"));
        let chat = |chat: &Value| with(&oracle["chat_template"], serde_json::json!({ "messages": chat["messages"] }));
        seeds.extend(list(&oracle, "chats").map(chat));
    }
    let snippets = json("templates/jinja2.json");
    let variables = || {
        let mut variables = snippets["variables"].clone();
        variables["messages"] = snippets["messages"].clone();
        variables["tools"] = snippets["tools"].clone();
        variables
    };
    let taken = list(&snippets, "constructs").filter(|case| case["text"].is_string());
    seeds.extend(taken.map(|case| with(&case["template"], variables())));
    for shape in list(&snippets, "shapes") {
        let chats = list(shape, "chats").filter(|chat| chat["text"].is_string());
        seeds.extend(chats.map(|chat| with(&shape["template"], chat.clone())));
    }
    seeds
}

/// Texts for each known vocabulary, and small vocabularies of both kinds.
fn tokenizer_seeds() -> Vec<Vec<u8>> {
    let reference = json("tokenizers/reference.json");
    let texts: Vec<&str> = list(&reference, "texts").map(|text| text.as_str().unwrap()).collect();
    let known = texts.iter().enumerate().map(|(i, text)| [&[i as u8 % 4], text.as_bytes()].concat());
    let own = [
        "gpt2\nllama-bpe\n\0a\nb\nab\n\u{120}\n3<s>\n4<u>\0a b\0a b ab<s><u>",
        "gpt2\n\n\u{3}\0a\nb\nc\nab\nabc\0a b\nab c\0abcabc",
        "llama\n\n\u{f}\x002<unk>\n3<s>\n3</s>\n6<0x41>\n\u{2581}\na\n\u{2581}a\nb\0\0a b A\u{e9}",
        "none\n\n\0\0\0text",
    ];
    known.chain(own.iter().map(|own| [&[tokenizer::OWN], own.as_bytes()].concat())).collect()
}

/// A seed with one to three changes; most of them near its beginning, where headers are.
fn changed(target: &Target, dice: &mut Dice) -> Vec<u8> {
    let mut bytes = target.seeds[dice.below(target.seeds.len())].clone();
    for _ in 0..1 + dice.below(3) {
        let near = if dice.below(4) == 0 { bytes.len() } else { bytes.len().min(600) };
        let at = dice.below(near + 1);
        match dice.below(5) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..(at + 1 + dice.below(20)).min(bytes.len()))),
            2 => bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= 1 << dice.below(8)),
            3 => {
                let from = dice.below(bytes.len() + 1);
                let piece = bytes[from..(from + 1 + dice.below(30)).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => {
                let word = target.words[dice.below(target.words.len())];
                let end = (at + [0, word.len()][dice.below(2)]).min(bytes.len());
                bytes.splice(at..end, word.iter().copied());
            }
        }
    }
    bytes
}

#[test]
fn changed_seeds_are_answered() {
    let mut dice = Dice(11);
    for target in targets() {
        let taken = target.seeds.iter().filter(|seed| (target.check)(seed)).count();
        assert!(
            taken * 5 >= target.seeds.len() * 4,
            "{}: {taken} of {} seeds are valid",
            target.name,
            target.seeds.len()
        );
        let (mut accepted, mut refused) = (0, 0);
        for _ in 0..1000 {
            let bytes = changed(&target, &mut dice);
            *if (target.check)(&bytes) { &mut accepted } else { &mut refused } += 1;
        }
        println!("{}: {} seeds; changed ones: {accepted} accepted, {refused} refused", target.name, target.seeds.len());
        assert!(accepted > 50, "{}: {accepted} accepted", target.name);
        assert!(refused > 50 || target.name == "tokenizer" && refused > 0, "{}: {refused} refused", target.name);
    }
}

/// Writes the seeds to `fuzz/corpus`, for `.ci/fuzz`.
#[test]
#[ignore = "writes files; .ci/fuzz runs it"]
fn write_corpus() {
    for target in targets() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target.name);
        fs_err::create_dir_all(&folder).unwrap();
        for (i, seed) in target.seeds.iter().enumerate() {
            fs_err::write(folder.join(format!("seed-{i:03}")), seed).unwrap();
        }
    }
}
