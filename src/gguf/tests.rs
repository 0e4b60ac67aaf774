//! The reader against right files, one wrong file for each fault, and split sets.

use std::path::Path;

use super::build::{Draft, ORACLE, array, oracle, oracle_path, strings};
use super::{Fault, Gguf, GgufError, Header, Value, ValueType};
use crate::quant::QuantType;

fn every_type() -> Draft {
    Draft::empty()
        .set("u8", Value::U8(250))
        .set("i8", Value::I8(-7))
        .set("u16", Value::U16(65_000))
        .set("i16", Value::I16(-30_000))
        .set("u32", Value::U32(4_000_000_000))
        .set("i32", Value::I32(-2_000_000_000))
        .set("f32", Value::F32(0.15625))
        .set("bool", Value::Bool(true))
        .set("string", Value::String("gr\u{fc}\u{df}e".to_owned()))
        .set("u64", Value::U64(u64::MAX))
        .set("i64", Value::I64(i64::MIN))
        .set("f64", Value::F64(-1e300))
        .set("strings", strings(&["a", "", "\u{6f22}"]))
        .set("floats", array(ValueType::F32, &[Value::F32(1.5), Value::F32(-2.0)]))
        .set("ids", array(ValueType::I32, &[Value::I32(3), Value::I32(1)]))
        .set("flags", array(ValueType::Bool, &[Value::Bool(false), Value::Bool(true)]))
        .set("nothing", array(ValueType::U16, &[]))
        .tensor("a", QuantType::F32, &[3])
        .tensor("b", QuantType::Q8_0, &[64, 2, 3])
        .tensor("c", QuantType::F16, &[1, 1, 1, 5])
}

/// The fault of these bytes and the byte it is at.
fn fault(bytes: &[u8]) -> (u64, Fault) {
    match Header::parse(Path::new("m.gguf"), bytes) {
        Err(GgufError::Malformed { offset, fault, file }) => {
            assert_eq!(file, Path::new("m.gguf"));
            (offset, fault)
        }
        other => panic!("{other:?}"),
    }
}

/// Where `text` lies in the bytes, after it.
fn after(bytes: &[u8], text: &str) -> usize {
    bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap() + text.len()
}

fn patch(mut bytes: Vec<u8>, at: usize, new: &[u8]) -> Vec<u8> {
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes
}

#[test]
fn every_value_type_is_read_back() {
    for version in [2, 3] {
        let draft = Draft { version, ..every_type() };
        let header = draft.header();
        assert_eq!(header.version, version);
        let read: Vec<_> =
            header.metadata.entries().iter().map(|entry| (entry.key.clone(), entry.value.clone())).collect();
        assert_eq!(read, draft.entries);
    }
}

#[test]
fn typed_access_converts_and_names_the_key() {
    let header = every_type().header();
    let data = &header.metadata;
    assert_eq!(data.require::<u32>("u8").unwrap(), 250);
    assert_eq!(data.require::<usize>("u32").unwrap(), 4_000_000_000);
    assert_eq!(data.require::<i64>("i64").unwrap(), i64::MIN);
    assert_eq!(data.require::<f32>("f32").unwrap(), 0.15625);
    assert_eq!(data.require::<&str>("string").unwrap(), "gr\u{fc}\u{df}e");
    assert_eq!(data.find::<bool>("bool").unwrap(), Some(true));
    assert_eq!(data.find::<bool>("absent").unwrap(), None);
    assert_eq!(data.require::<Vec<f32>>("floats").unwrap(), [1.5, -2.0]);
    assert_eq!(data.require::<Vec<u32>>("ids").unwrap(), [3, 1]);
    assert_eq!(data.require::<Vec<u32>>("nothing").unwrap(), [0_u32; 0]);
    let texts = data.require::<super::Strings<'_>>("strings").unwrap();
    assert_eq!(texts.len(), 3);
    assert_eq!(texts.collect::<Vec<_>>(), ["a", "", "\u{6f22}"]);

    let message = |error: super::MetadataError| error.to_string();
    assert_eq!(
        message(data.require::<u32>("absent").unwrap_err()),
        "draft.gguf: the key `absent` is missing; an integer from 0 to 4294967295 wanted"
    );
    let at = data.entry("i32").unwrap().offset;
    assert_eq!(
        message(data.require::<u32>("i32").unwrap_err()),
        format!("draft.gguf: at byte {at}: the key `i32` is -2000000000 (i32), an integer from 0 to 4294967295 wanted")
    );
    assert!(
        message(data.find::<&str>("floats").unwrap_err()).ends_with("`floats` is an array of 2 f32, a string wanted")
    );
    assert!(message(data.require::<f32>("string").unwrap_err()).contains("(string), a floating-point number wanted"));
    assert!(data.require::<Vec<f32>>("strings").is_err());
    assert!(data.require::<super::Strings<'_>>("floats").is_err());
}

#[test]
fn values_are_shown_in_short() {
    let header = every_type().set("long", Value::String("x".repeat(500))).header();
    let shown = |key| header.metadata.get(key).unwrap().to_string();
    assert_eq!(shown("floats"), "[1.5, -2]");
    assert_eq!(shown("strings"), "[\"a\", \"\", \"\u{6f22}\"]");
    assert_eq!(shown("nothing"), "[]");
    assert_eq!(shown("long"), format!("\"{}\"... (500 bytes)", "x".repeat(60)));
    let model = oracle("qwen3moe-f32");
    let tokens = model.metadata().get("tokenizer.ggml.tokens").unwrap().to_string();
    assert_eq!(tokens, "[\"!\", \"\\\"\", \"#\", \"$\", ...] (512 x string)");
}

#[test]
fn tensors_are_where_the_table_says() {
    for align in [8, 32, 256] {
        let mut draft = every_type().set("general.alignment", Value::U32(align));
        for (at, tensor) in draft.tensors.iter_mut().enumerate() {
            tensor.data.fill(at as u8 + 1);
        }
        let model = draft.open();
        assert_eq!(model.tensors().len(), 3);
        for (at, tensor) in model.tensors().iter().enumerate() {
            assert!(tensor.offset.is_multiple_of(u64::from(align)));
            assert_eq!(model.data(tensor), draft.tensors[at].data);
            assert_eq!(tensor.dims, draft.tensors[at].dims);
            let mut copy = vec![0; tensor.bytes];
            model.read_at(tensor.shard, tensor.offset, &mut copy).unwrap();
            assert_eq!(copy, draft.tensors[at].data);
        }
        assert_eq!(model.tensor("b").unwrap().bytes, 34 * 2 * 6);
        assert_eq!(model.tensor("b").unwrap().elements(), 64 * 6);
        assert_eq!(model.tensor("d"), None);
    }
}

#[test]
fn every_prefix_of_a_file_is_refused_where_it_ends() {
    let bytes = every_type().bytes();
    let mut kinds = std::collections::BTreeMap::new();
    for length in 0..bytes.len() {
        let (offset, fault) = fault(&bytes[..length]);
        assert!(offset <= length as u64, "{offset} {length}");
        *kinds.entry(format!("{fault:?}").split(' ').next().unwrap().to_owned()).or_insert(0) += 1;
    }
    println!("{kinds:?}");
    for kind in ["Truncated", "Count", "OutsideFile"] {
        assert!(kinds.contains_key(kind), "{kind}: {kinds:?}");
    }
}

#[test]
fn other_files_are_told_apart() {
    let bytes = every_type().bytes();
    let text = |bytes: &[u8]| Header::parse(Path::new("m.gguf"), bytes).unwrap_err().to_string();
    assert_eq!(text(b""), "m.gguf: at byte 0: the file ends inside the header: 4 bytes wanted, 0 left");
    assert_eq!(
        text(b"PK\x03\x04aaaaaaaa"),
        "m.gguf: at byte 0: this is not a GGUF file: it begins with `PK\\x03\\x04`, `GGUF` wanted; it is a zip archive"
    );
    assert!(text(b"tjgg\x03\0\0\0").ends_with("it is in a format older than GGUF: convert the model again"));
    assert!(text(b"FUGG\0\0\0\x03").contains("reversed"));
    assert!(text(b"abcd1234").ends_with("`abcd`, `GGUF` wanted"));
    let version = |v: u32| text(&patch(bytes.clone(), 4, &v.to_le_bytes()));
    assert!(version(1).ends_with("GGUF version 1, 2 or 3 wanted; version 1 is obsolete: convert the model again"));
    assert!(version(4).ends_with("at byte 4: GGUF version 4, 2 or 3 wanted"));
    assert!(version(0).ends_with("GGUF version 0, 2 or 3 wanted"));
    assert!(version(3_u32.swap_bytes()).contains("big-endian (its version reads 0x03000000)"));
}

#[test]
fn counts_are_held_against_the_bytes_left() {
    let bytes = every_type().bytes();
    for huge in [u64::MAX, 1 << 62, 1 << 40, bytes.len() as u64] {
        for (at, what) in [
            (8, "the number of tensors"),
            (16, "the number of keys"),
            (24, "the length of a key"),
            (after(&bytes, "string") + 4, "the length of a string value"),
            (after(&bytes, "strings") + 8, "the length of an array"),
            (after(&bytes, "strings") + 16, "the length of a string in an array"),
            (after(&bytes, "floats") + 8, "the length of an array"),
        ] {
            let (offset, fault) = fault(&patch(bytes.clone(), at, &huge.to_le_bytes()));
            assert_eq!(offset, at as u64, "{what}");
            match fault {
                Fault::Count { what: found, count, .. } => assert_eq!((found, count), (what, huge)),
                other => panic!("{what}: {other:?}"),
            }
        }
    }
}

#[test]
fn faulty_metadata_is_refused() {
    let bytes = every_type().bytes();
    let bool_at = after(&bytes, "bool") + 4;
    assert_eq!(
        fault(&patch(bytes.clone(), bool_at, &[2])),
        (bool_at as u64, Fault::Bool { key: "bool".to_owned(), found: 2 })
    );
    let flags_at = after(&bytes, "flags") + 16 + 1;
    assert_eq!(
        fault(&patch(bytes.clone(), flags_at, &[9])),
        (flags_at as u64, Fault::Bool { key: "flags".to_owned(), found: 9 })
    );
    let type_at = after(&bytes, "u16");
    assert_eq!(
        fault(&patch(bytes.clone(), type_at, &[13])),
        (type_at as u64, Fault::ValueType { key: "u16".to_owned(), found: 13 })
    );
    let element_at = after(&bytes, "ids") + 4;
    assert_eq!(
        fault(&patch(bytes.clone(), element_at, &[9])),
        (element_at as u64, Fault::NestedArray { key: "ids".to_owned() })
    );
    assert!(matches!(fault(&patch(bytes.clone(), element_at, &[77])).1, Fault::ValueType { found: 77, .. }));
    let text_at = after(&bytes, "string") + 4 + 8;
    assert!(matches!(fault(&patch(bytes.clone(), text_at, &[0xff])).1, Fault::NotUtf8 { what: "a string value" }));
    assert!(matches!(
        fault(&patch(bytes.clone(), after(&bytes, "strings") + 24, &[0xff])).1,
        Fault::NotUtf8 { what: "a string in an array" }
    ));
    assert!(matches!(fault(&patch(bytes.clone(), 32, &[0xff])).1, Fault::NotUtf8 { what: "a key" }));

    let mut twice = every_type();
    twice.entries.push(("u8".to_owned(), Value::U8(1)));
    assert_eq!(fault(&twice.bytes()).1, Fault::DuplicateKey { key: "u8".to_owned() });
    assert_eq!(fault(&every_type().set("", Value::U8(1)).bytes()).1, Fault::EmptyName { what: "a key" });
    for bad in [Value::U32(0), Value::U32(4), Value::U32(48), Value::U64(32), Value::String("32".to_owned())] {
        let found = bad.to_string();
        assert_eq!(fault(&every_type().set("general.alignment", bad).bytes()).1, Fault::Alignment { found });
    }
}

#[test]
fn faulty_tensors_are_refused() {
    let name = || "b".to_owned();
    let edited = |change: &dyn Fn(&mut super::build::DraftTensor)| fault(&every_type().edit("b", change).bytes()).1;
    assert_eq!(edited(&|t| t.dims.clear()), Fault::Dimensions { tensor: name(), found: 0 });
    assert_eq!(edited(&|t| t.dims = vec![32; 5]), Fault::Dimensions { tensor: name(), found: 5 });
    assert_eq!(edited(&|t| t.dims[1] = 0), Fault::ZeroDimension { tensor: name(), dims: vec![64, 0, 3] });
    assert_eq!(edited(&|t| t.dims[0] = 0), Fault::ZeroDimension { tensor: name(), dims: vec![0, 2, 3] });
    assert_eq!(edited(&|t| t.dims[0] = 65), Fault::RowNotBlocks { tensor: name(), ty: "Q8_0", row: 65, block: 32 });
    for dims in [vec![1 << 32, 1 << 32, 2], vec![64, u64::MAX, 3], vec![1 << 63, 2], vec![u64::MAX - 31, 1]] {
        assert_eq!(edited(&|t| t.dims.clone_from(&dims)), Fault::SizeOverflow { tensor: name(), dims: dims.clone() });
    }
    assert_eq!(edited(&|t| t.ty = 40), Fault::UnsupportedType { tensor: name(), id: 40, name: Some("NVFP4") });
    assert_eq!(edited(&|t| t.ty = 26), Fault::UnsupportedType { tensor: name(), id: 26, name: Some("I32") });
    assert_eq!(edited(&|t| t.ty = 4711), Fault::UnsupportedType { tensor: name(), id: 4711, name: None });
    assert_eq!(edited(&|t| t.name.clear()), Fault::EmptyName { what: "a tensor's name" });
    assert_eq!(edited(&|t| t.name = "a".to_owned()), Fault::DuplicateTensor { tensor: "a".to_owned() });
    assert!(matches!(edited(&|t| t.dims[2] = 1 << 40), Fault::OutsideFile { .. }));
    let longer = fault(&every_type().edit("a", |t| t.dims[0] = 9).bytes()).1;
    assert!(matches!(longer, Fault::Overlap { tensor, other, .. } if tensor == "b" && other == "a"));
}

#[test]
fn faulty_offsets_are_refused() {
    let bytes = every_type().bytes();
    let table = after(&bytes, "nothing") + 16;
    let offset_of = |name: &str, rank: usize| table + after(&bytes[table..], name) + 4 + rank * 8 + 4;
    let b = offset_of("b", 3);
    assert_eq!(bytes[b], 32, "the offset of b");
    let moved = |to: u64| fault(&patch(bytes.clone(), b, &to.to_le_bytes()));
    assert_eq!(moved(33), (b as u64, Fault::Unaligned { tensor: "b".to_owned(), found: 33, alignment: 32 }));
    for far in [1 << 20, 1 << 62, u64::MAX - 31] {
        assert!(matches!(moved(far).1, Fault::OutsideFile { .. }), "{far}");
    }
    match moved(0).1 {
        Fault::Overlap { tensor, other, .. } => assert_eq!((tensor.as_str(), other.as_str()), ("b", "a")),
        other => panic!("{other:?}"),
    }
    let text = Header::parse(Path::new("m.gguf"), &bytes[..bytes.len() - 4]).unwrap_err().to_string();
    assert!(text.contains("tensor `c` takes 10 bytes from byte"), "{text}");
    assert!(text.ends_with(": 4 are missing; was the download complete?"), "{text}");
}

#[test]
fn oracle_models_open() {
    for name in ORACLE {
        let model = oracle(name);
        assert_eq!(model.shards().len(), if name.ends_with("split") { 3 } else { 1 });
        assert_eq!(model.metadata().require::<&str>("general.name").unwrap(), name);
        assert_eq!(model.metadata().require::<super::Strings<'_>>("tokenizer.ggml.tokens").unwrap().count(), 512);
        for tensor in model.tensors() {
            assert_eq!(model.data(tensor).len(), tensor.bytes);
            let mut read = vec![0; tensor.bytes.min(64)];
            model.read_at(tensor.shard, tensor.offset, &mut read).unwrap();
            assert_eq!(read, model.data(tensor)[..read.len()]);
        }
    }
}

/// A copy of the split oracle model, in a folder of its own.
fn split_copy() -> (tempfile::TempDir, Vec<std::path::PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let first = oracle_path("qwen3moe-q4_k_m-split");
    let paths = (1..=3)
        .map(|number| {
            let name = format!("qwen3moe-q4_k_m-split-{number:05}-of-00003.gguf");
            let to = folder.path().join(&name);
            fs_err::copy(first.with_file_name(&name), &to).unwrap();
            to
        })
        .collect();
    (folder, paths)
}

#[test]
fn any_file_of_a_set_opens_the_set() {
    let (_folder, paths) = split_copy();
    let whole = oracle("qwen3moe-q4_k_m-split");
    assert_eq!(whole.tensors().len(), 39);
    for path in &paths {
        let model = Gguf::open(path).unwrap();
        assert_eq!(model.tensors(), whole.tensors());
        assert_eq!(model.path(), paths[0]);
        assert_eq!(model.file_bytes(), whole.file_bytes());
    }
    let straddles: Vec<_> =
        ["blk.0.ffn_up_exps.weight", "blk.0.ffn_down_exps.weight"].map(|name| whole.tensor(name).unwrap().shard).into();
    assert_eq!(straddles, [0, 1]);
}

#[test]
fn missing_shards_are_named_before_any_is_read() {
    let (_folder, paths) = split_copy();
    // Damage in the first file must not hide that others are missing.
    fs_err::write(&paths[0], b"GGUF").unwrap();
    fs_err::remove_file(&paths[1]).unwrap();
    let text = Gguf::open(&paths[0]).unwrap_err().to_string();
    assert!(
        text.ends_with(
            "this set has 3 files, and 1 of them is missing: qwen3moe-q4_k_m-split-00002-of-00003.gguf; put all of them in one folder"
        ),
        "{text}"
    );
    fs_err::remove_file(&paths[2]).unwrap();
    assert!(Gguf::open(&paths[0]).unwrap_err().to_string().contains("2 of them are missing"));
    let text = Gguf::open(paths[0].with_file_name("none-00002-of-99999.gguf")).unwrap_err().to_string();
    assert!(text.contains("none-00008-of-99999.gguf and 99991 more"), "{text}");
}

#[test]
fn damaged_and_renamed_shards_are_refused() {
    let (folder, paths) = split_copy();
    let third = fs_err::read(&paths[2]).unwrap();
    fs_err::write(&paths[2], &third[..third.len() / 2]).unwrap();
    let text = Gguf::open(&paths[0]).unwrap_err().to_string();
    assert!(text.contains("00003-of-00003.gguf: at byte") && text.contains("are missing"), "{text}");

    fs_err::copy(&paths[1], &paths[2]).unwrap();
    let text = Gguf::open(&paths[1]).unwrap_err().to_string();
    assert!(
        text.ends_with(
            "by its name this is file 3 of 3, but its keys say split.no = 1 where 2 is wanted; was it renamed?"
        ),
        "{text}"
    );

    let alone = folder.path().join("alone.gguf");
    fs_err::copy(&paths[1], &alone).unwrap();
    let text = Gguf::open(&alone).unwrap_err().to_string();
    assert!(text.contains("file 2 of 3") && text.contains("does not end in `-00002-of-00003.gguf`"), "{text}");
}

#[test]
fn sets_whose_tensors_do_not_add_up_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let write = |number: u16, tensors: i32, names: &[&str]| {
        let draft = Draft::empty()
            .set("split.no", Value::U16(number))
            .set("split.count", Value::U16(2))
            .set("split.tensors.count", Value::I32(tensors));
        let draft = names.iter().fold(draft, |draft, name| draft.tensor(name, QuantType::F32, &[4]));
        let path = folder.path().join(format!("m-{:05}-of-00002.gguf", number + 1));
        fs_err::write(&path, draft.bytes()).unwrap();
        path
    };
    write(0, 2, &[]);
    let path = write(1, 2, &["x", "y"]);
    assert_eq!(Gguf::open(&path).unwrap().tensors().len(), 2);
    write(1, 2, &["x"]);
    let text = Gguf::open(&path).unwrap_err().to_string();
    assert!(text.contains("says that the set has 2 tensors, but its 2 files hold 1"), "{text}");
    write(0, 2, &["x"]);
    let text = Gguf::open(&path).unwrap_err().to_string();
    assert!(text.starts_with("tensor `x` is in both ") && text.ends_with("m-00002-of-00002.gguf"), "{text}");
}

#[test]
fn what_cannot_be_opened_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let text = Gguf::open(folder.path()).unwrap_err().to_string();
    assert!(text.contains("is a folder; the path of a .gguf file is wanted"), "{text}");
    let text = Gguf::open(folder.path().join("none.gguf")).unwrap_err().to_string();
    assert!(text.contains("none.gguf"), "{text}");
    let empty = folder.path().join("empty.gguf");
    fs_err::write(&empty, b"").unwrap();
    let text = Gguf::open(&empty).unwrap_err().to_string();
    assert!(text.ends_with("empty.gguf: at byte 0: the file ends inside the header: 4 bytes wanted, 0 left"), "{text}");
}

#[test]
fn a_file_that_shrinks_is_an_error_of_the_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    fs_err::write(&path, every_type().bytes()).unwrap();
    let model = Gguf::open(&path).unwrap();
    let tensor = model.tensor("c").unwrap();
    fs_err::OpenOptions::new().write(true).open(&path).unwrap().set_len(16).unwrap();
    let error = model.read_at(tensor.shard, tensor.offset, &mut [0; 10]).unwrap_err();
    assert!(matches!(&error, GgufError::Read { offset, wanted: 10, .. } if *offset == tensor.offset), "{error}");
    assert!(error.to_string().contains("m.gguf: cannot read 10 bytes at byte"), "{error}");
    assert!(matches!(model.read_at(1, 0, &mut []), Err(GgufError::NoSuchShard { shard: 1, shards: 1, .. })));
}
