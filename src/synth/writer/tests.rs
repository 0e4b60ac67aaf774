//! Files come back as they were written, and nothing is left of one that was not finished.

use std::path::Path;

use super::*;
use crate::gguf::Gguf;
use crate::gguf::Value;
use crate::quant::QuantType;

fn header() -> Header {
    let mut header = Header::new();
    header.set_text("general.architecture", "llama").unwrap();
    header.set("a.number", &Value::U32(7)).unwrap();
    header.set("a.ratio", &Value::F64(0.5)).unwrap();
    header.set_texts("a.list", &["one", "", "drei ß"]).unwrap();
    header.set_integers("a.types", &[1, -3]).unwrap();
    header.add_tensor("first", QuantType::F32, &[3]).unwrap();
    header.add_tensor("second", QuantType::Q8_0, &[64, 2, 2]).unwrap();
    header
}

fn go_on(_: Bytes, _: Bytes) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn write(path: &Path, sha256: Option<&str>, watch: Watch<'_>) -> Result<Written, WriteError> {
    let mut writer = Writer::create(Output::create(path, &[])?, &header(), sha256, watch)?;
    writer.begin("first")?;
    writer.write(&[1; 12])?;
    writer.begin("second")?;
    writer.write(&[2; 100])?;
    writer.write(&[3; 172])?;
    writer.finish()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs_err::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_comes_back_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let written = write(&path, None, &mut go_on).unwrap();
    assert_eq!(names(folder.path()), ["model.gguf"]);
    assert_eq!(fs_err::metadata(&path).unwrap().len(), written.bytes.0);
    assert_eq!(header().file_bytes(), written.bytes);

    let file = Gguf::open(&path).unwrap();
    let keys: Vec<&str> = file.metadata().entries().iter().map(|e| e.key.as_str()).collect();
    assert_eq!(keys, ["general.architecture", "a.number", "a.ratio", "a.list", "a.types"]);
    assert_eq!(file.metadata().get("a.ratio"), Some(&Value::F64(0.5)));
    let Some(Value::Array(list)) = file.metadata().get("a.list") else { panic!("no array") };
    assert_eq!(list.strings().unwrap().collect::<Vec<_>>(), ["one", "", "drei ß"]);
    let [first, second] = file.tensors() else { panic!("two tensors") };
    assert_eq!(file.data(first), [1; 12]);
    assert_eq!((&second.dims[..], second.ty, second.offset % 32), (&[64, 2, 2][..], QuantType::Q8_0, 0));
    assert_eq!(file.data(second), [[2; 100].as_slice(), &[3; 172]].concat());
}

#[test]
fn an_array_of_another_file_is_copied() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write(&path, None, &mut go_on).unwrap();
    let file = Gguf::open(&path).unwrap();
    let mut copy = Header::new();
    for entry in file.metadata().entries() {
        copy.set(&entry.key, &entry.value).unwrap();
    }
    copy.add_tensor("first", QuantType::F32, &[3]).unwrap();
    copy.add_tensor("second", QuantType::Q8_0, &[64, 2, 2]).unwrap();
    assert_eq!(copy.encode(), header().encode());
}

#[test]
fn what_is_not_finished_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs_err::write(&path, "older").unwrap();

    let error = write(&path, None, &mut |_, _| ControlFlow::Break(())).unwrap_err();
    assert!(matches!(error, WriteError::Stopped { .. }), "{error}");
    let error = write(&path, Some("0000"), &mut go_on).unwrap_err();
    assert!(matches!(error, WriteError::OtherFile { .. }), "{error}");
    {
        let mut watch = go_on;
        let mut writer = Writer::create(Output::create(&path, &[]).unwrap(), &header(), None, &mut watch).unwrap();
        writer.begin("first").unwrap();
        assert_eq!(fs_err::read_to_string(&path).unwrap(), "older", "the older file stands until the new one is whole");
        let error = writer.begin("second").unwrap_err();
        assert!(error.to_string().contains("12 more bytes"), "{error}");
        let error = writer.write(&[0; 13]).unwrap_err();
        assert!(error.to_string().contains("at most 12"), "{error}");
    }
    {
        let mut watch = go_on;
        let mut writer = Writer::create(Output::create(&path, &[]).unwrap(), &header(), None, &mut watch).unwrap();
        assert!(matches!(writer.begin("second").unwrap_err(), WriteError::Order { .. }));
    }
    {
        let mut watch = go_on;
        let mut writer = Writer::create(Output::create(&path, &[]).unwrap(), &header(), None, &mut watch).unwrap();
        writer.begin("first").unwrap();
        writer.write(&[0; 12]).unwrap();
        let error = writer.finish().unwrap_err();
        assert!(error.to_string().contains("expected tensor `second`, got the end"), "{error}");
    }
    assert_eq!(names(folder.path()), ["model.gguf"]);
    assert_eq!(fs_err::read_to_string(&path).unwrap(), "older");
}

#[test]
fn a_disk_that_is_too_small_is_told_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut large = header();
    large.add_tensor("third", QuantType::F32, &[1 << 50]).unwrap();
    let mut watch = go_on;
    let error = Writer::create(Output::create(&path, &[]).unwrap(), &large, None, &mut watch).err().unwrap();
    let WriteError::Output(OutputError::NoRoom { wanted, free, .. }) = &error else { panic!("{error}") };
    assert!(wanted > free);
    assert!(error.to_string().contains("model.gguf: it takes 4194304.00 GiB, and "), "{error}");
    assert!(names(folder.path()).is_empty());
}

#[test]
fn names_stand_once_and_rows_are_whole() {
    let mut header = header();
    assert!(header.set_text("a.number", "x").is_err());
    assert!(header.add_tensor("first", QuantType::F32, &[1]).is_err());
    let error = header.add_tensor("third", QuantType::Q4_K, &[128, 2]).unwrap_err();
    assert!(error.to_string().contains("multiples of 256"), "{error}");
    assert!(header.add_tensor("third", QuantType::F32, &[1 << 40, 1 << 40]).is_err());
}
