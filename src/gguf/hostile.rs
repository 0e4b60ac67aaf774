//! Damage of every kind done to real and made files: the reader and the model must answer with an error or a model,
//! never with a panic and never with an allocation that the file's size does not pay for.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::build::{Draft, ORACLE, oracle, strings};
use super::{Entry, Gguf, GgufError, Value};
use crate::quant::QuantType;

/// One damage.
#[derive(Clone, Debug)]
enum Damage {
    /// Flips a bit of the header.
    Flip { at: f64, bit: u8 },
    /// Cuts the file off inside the header.
    CutHeader { at: f64 },
    /// Cuts the file off anywhere.
    Cut { at: f64 },
    /// Writes a number over eight bytes of the header.
    Number { at: f64, number: u64 },
    /// Writes a small number over four bytes that begin like a count, type or rank would.
    Small { at: f64, number: u32 },
    /// Copies a piece of the header elsewhere in the header.
    Splice { from: f64, to: f64, length: usize },
    /// Takes bytes out.
    Remove { at: f64, length: usize },
    /// Writes a number over a field of a tensor's line: rank, a dimension, type, offset.
    Table { tensor: f64, field: usize, number: u64 },
    /// Writes a number over the value of a key.
    Value { key: f64, number: u64 },
    /// Writes one key's or tensor's name over another of the same length.
    Twin { tensors: bool, name: f64 },
    /// Turns the version's bytes around.
    Swap,
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(u64::MAX),
        Just(1 << 63),
        Just(1 << 32),
        Just(1 << 16),
        Just(64),
        Just(32),
        (0_u32..64).prop_map(|shift| 1 << shift),
        any::<u64>(),
        0_u64..4096,
    ]
}

fn damage() -> impl Strategy<Value = Damage> {
    let place = || 0.0..1.0;
    prop_oneof![
        3 => (place(), 0..8_u8).prop_map(|(at, bit)| Damage::Flip { at, bit }),
        3 => place().prop_map(|at| Damage::CutHeader { at }),
        3 => place().prop_map(|at| Damage::Cut { at }),
        3 => (place(), number()).prop_map(|(at, number)| Damage::Number { at, number }),
        3 => (place(), 0..50_u32).prop_map(|(at, number)| Damage::Small { at, number }),
        3 => (place(), place(), 1..200_usize).prop_map(|(from, to, length)| Damage::Splice { from, to, length }),
        3 => (place(), 1..64_usize).prop_map(|(at, length)| Damage::Remove { at, length }),
        3 => (place(), 0..5_usize, number()).prop_map(|(tensor, field, number)| Damage::Table { tensor, field, number }),
        3 => (place(), number()).prop_map(|(key, number)| Damage::Value { key, number }),
        3 => (any::<bool>(), place()).prop_map(|(tensors, name)| Damage::Twin { tensors, name }),
        1 => Just(Damage::Swap),
        3 => (place(), Just(2_usize), 0..48_u64).prop_map(|(tensor, field, number)| Damage::Table { tensor, field, number }),
    ]
}

/// A file to damage: its bytes, the length of its header, where its tensors' lines are.
struct Victim {
    bytes: Vec<u8>,
    header: usize,
    /// For each tensor the offset after its name, and its rank.
    lines: Vec<(usize, usize)>,
    /// Where the names of keys and of tensors lie.
    keys: Vec<Range<usize>>,
    names: Vec<Range<usize>>,
}

impl Victim {
    fn new(bytes: Vec<u8>) -> Self {
        let model = Gguf::from_bytes("victim.gguf", bytes.clone()).unwrap();
        let header = model.tensors().iter().map(|tensor| tensor.offset as usize).min().unwrap_or(bytes.len());
        let head = &bytes[..header];
        let lines = model.tensors().iter().map(|tensor| {
            let line: Vec<u8> =
                (tensor.name.len() as u64).to_le_bytes().into_iter().chain(tensor.name.bytes()).collect();
            (head.windows(line.len()).position(|window| window == line).unwrap() + line.len(), tensor.dims.len())
        });
        let lines: Vec<_> = lines.collect();
        let key = |entry: &Entry| entry.offset as usize + 8..entry.offset as usize + 8 + entry.key.len();
        let keys = model.metadata().entries().iter().map(key).collect();
        let names = lines.iter().zip(model.tensors()).map(|(&(end, _), info)| end - info.name.len()..end).collect();
        Self { header, lines, keys, names, bytes }
    }

    fn damaged(&self, damages: &[Damage]) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for damage in damages {
            let length = bytes.len();
            let header = self.header.min(length);
            let place = |at: f64, within: usize| (at * within as f64) as usize;
            let mut write = |at: usize, new: &[u8]| {
                if let Some(field) = bytes.get_mut(at..at + new.len()) {
                    field.copy_from_slice(new);
                }
            };
            match *damage {
                Damage::Flip { at, bit } if header > 0 => bytes[place(at, header)] ^= 1 << bit,
                Damage::Flip { .. } => {}
                Damage::CutHeader { at } => bytes.truncate(place(at, header)),
                Damage::Cut { at } => bytes.truncate(place(at, length)),
                Damage::Number { at, number } => write(place(at, header), &number.to_le_bytes()),
                Damage::Small { at, number } => write(place(at, header), &number.to_le_bytes()),
                Damage::Splice { from, to, length } => {
                    let piece: Vec<u8> = bytes.iter().skip(place(from, header)).take(length).copied().collect();
                    write_over(&mut bytes, place(to, header), &piece);
                }
                Damage::Remove { at, length } => {
                    let from = place(at, header);
                    let to = (from + length).min(bytes.len());
                    bytes.drain(from..to);
                }
                Damage::Table { tensor, field, number } if !self.lines.is_empty() => {
                    let (line, rank) = self.lines[place(tensor, self.lines.len())];
                    match field {
                        0 => write(line, &(number as u32).to_le_bytes()),
                        1 => write(line + 4, &number.to_le_bytes()),
                        2 => write(line + 4 + rank * 8, &(number as u32).to_le_bytes()),
                        3 => write(line + 4 + rank * 8 + 4, &number.to_le_bytes()),
                        _ => write(line + 4 + (rank - 1) * 8, &number.to_le_bytes()),
                    }
                }
                Damage::Table { .. } => {}
                Damage::Value { key, number } => {
                    write(self.keys[place(key, self.keys.len())].end + 4, &number.to_le_bytes());
                }
                Damage::Twin { tensors, name } => {
                    let names = if tensors { &self.names } else { &self.keys };
                    let first = place(name, names.len());
                    let twin = names[first + 1..].iter().find(|twin| twin.len() == names[first].len());
                    if let Some(twin) = twin {
                        write(twin.start, &self.bytes[names[first].clone()]);
                    }
                }
                Damage::Swap if length >= 8 => bytes[4..8].reverse(),
                Damage::Swap => {}
            }
        }
        bytes
    }
}

fn write_over(bytes: &mut [u8], at: usize, piece: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(piece) {
        *to = *from;
    }
}

/// Every oracle model as one file, and files with nearly nothing in them.
fn victims() -> Vec<Victim> {
    let mut victims: Vec<Victim> = ORACLE.iter().map(|name| Victim::new(Draft::of(&oracle(name)).bytes())).collect();
    // The less there is in a file, the more often the damage hits what matters.
    for align in [8, 16, 64] {
        let draft = Draft::empty()
            .set("general.alignment", Value::U32(align))
            .set("general.architecture", Value::String("llama".to_owned()))
            .set("flag", Value::Bool(true))
            .set("tokenizer.ggml.tokens", strings(&["a", "b"]))
            .tensor("a", QuantType::F32, &[2])
            .tensor("b", QuantType::Q8_0, &[32, 2])
            .tensor("c", QuantType::F32, &[2, 2, 2]);
        victims.extend(std::iter::repeat_with(|| Victim::new(draft.bytes())).take(4));
    }
    victims
}

fn kind(error: &GgufError) -> String {
    let text = match error {
        GgufError::Malformed { fault, .. } => format!("{fault:?}"),
        other => format!("{other:?}"),
    };
    text.split([' ', '(']).next().unwrap_or_default().to_owned()
}

#[test]
fn damage_is_answered_with_an_error() {
    let victims = victims();
    let counts: Mutex<BTreeMap<String, usize>> = Mutex::default();
    let mut runner = TestRunner::new(Config { cases: 12_000, failure_persistence: None, ..Config::default() });
    let cases = (0..victims.len(), proptest::collection::vec(damage(), 1..4));
    let outcome = runner.run(&cases, |(victim, damages)| {
        let bytes = victims[victim].damaged(&damages);
        let length = bytes.len() as u64;
        let answer = match Gguf::from_bytes("damaged.gguf", bytes) {
            Err(error) => {
                if let GgufError::Malformed { offset, .. } = &error {
                    prop_assert!(*offset <= length);
                }
                prop_assert!(error.to_string().contains("damaged.gguf"));
                kind(&error)
            }
            Ok(model) => {
                for tensor in model.tensors() {
                    prop_assert_eq!(model.data(tensor).len(), tensor.bytes);
                    prop_assert!(tensor.offset + tensor.bytes as u64 <= length);
                }
                for entry in model.metadata().entries() {
                    let _ = entry.value.to_string();
                }
                "accepted".to_owned()
            }
        };
        *counts.lock().unwrap().entry(answer).or_default() += 1;
        Ok(())
    });
    let counts = counts.into_inner().unwrap();
    println!("{counts:#?}");
    outcome.unwrap();
    for kind in [
        "accepted",
        "Truncated",
        "Magic",
        "Version",
        "BigEndian",
        "Count",
        "NotUtf8",
        "DuplicateKey",
        "DuplicateTensor",
        "ValueType",
        "Bool",
        "Alignment",
        "Dimensions",
        "ZeroDimension",
        "SizeOverflow",
        "RowNotBlocks",
        "UnsupportedType",
        "Unaligned",
        "OutsideFile",
        "Overlap",
    ] {
        assert!(counts.contains_key(kind), "no damaged file was answered with {kind}");
    }
}
