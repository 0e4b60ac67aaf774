//! Writes small model files for the tests, right or wrong at will.

use super::value::{Array, Value, ValueType};
use super::{Gguf, Header};
use crate::quant::QuantType;

/// A file to be: what is put in is written as it is, right or wrong.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) version: u32,
    pub(crate) entries: Vec<(String, Value)>,
    pub(crate) tensors: Vec<DraftTensor>,
}

/// A tensor to be. Its offset follows from the lengths of those before it.
#[derive(Clone, Debug)]
pub(crate) struct DraftTensor {
    pub(crate) name: String,
    pub(crate) ty: u32,
    pub(crate) dims: Vec<u64>,
    pub(crate) data: Vec<u8>,
}

impl Draft {
    pub(crate) fn empty() -> Self {
        Self { version: 3, entries: Vec::new(), tensors: Vec::new() }
    }

    /// The contents of a model that exists, ready to be altered; without the keys of a split set.
    pub(crate) fn of(gguf: &Gguf) -> Self {
        let kept = gguf.metadata().entries().iter().filter(|entry| !entry.key.starts_with("split."));
        Self {
            version: 3,
            entries: kept.map(|entry| (entry.key.clone(), entry.value.clone())).collect(),
            tensors: gguf
                .tensors()
                .iter()
                .map(|tensor| DraftTensor {
                    name: tensor.name.clone(),
                    ty: tensor.ty.id(),
                    dims: tensor.dims.clone(),
                    data: gguf.data(tensor).to_vec(),
                })
                .collect(),
        }
    }

    pub(crate) fn set(mut self, key: &str, value: Value) -> Self {
        match self.entries.iter_mut().find(|entry| entry.0 == key) {
            Some(entry) => entry.1 = value,
            None => self.entries.push((key.to_owned(), value)),
        }
        self
    }

    pub(crate) fn without(mut self, key: &str) -> Self {
        let before = self.entries.len() + self.tensors.len();
        self.entries.retain(|entry| entry.0 != key);
        self.tensors.retain(|tensor| tensor.name != key);
        assert_eq!(self.entries.len() + self.tensors.len() + 1, before, "{key}");
        self
    }

    /// Adds a tensor of zeros.
    pub(crate) fn tensor(mut self, name: &str, ty: QuantType, dims: &[u64]) -> Self {
        let row = ty.row_bytes(dims[0] as usize).unwrap();
        let data = vec![0; row * dims[1..].iter().product::<u64>() as usize];
        self.tensors.push(DraftTensor { name: name.to_owned(), ty: ty.id(), dims: dims.to_vec(), data });
        self
    }

    pub(crate) fn edit(mut self, name: &str, change: impl FnOnce(&mut DraftTensor)) -> Self {
        change(self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap());
        self
    }

    /// Replaces a tensor by zeros of another shape.
    pub(crate) fn reshape(self, name: &str, ty: QuantType, dims: &[u64]) -> Self {
        self.without(name).tensor(name, ty, dims)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let align = match self.entries.iter().find(|entry| entry.0 == "general.alignment") {
            Some((_, Value::U32(align))) if *align > 0 => *align as usize,
            _ => 32,
        };
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            put_text(&mut out, key);
            out.extend(value.kind().id().to_le_bytes());
            put_value(&mut out, value);
        }
        let mut offset = 0_usize;
        for tensor in &self.tensors {
            put_text(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.ty.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += tensor.data.len().next_multiple_of(align);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(align), 0);
            out.extend(&tensor.data);
        }
        out
    }

    /// The file, read back.
    pub(crate) fn open(&self) -> Gguf {
        Gguf::from_bytes("draft.gguf", self.bytes()).unwrap()
    }

    pub(crate) fn header(&self) -> Header {
        Header::parse("draft.gguf".as_ref(), &self.bytes()).unwrap()
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.push(*v),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::String(v) => put_text(out, v),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
        Value::Array(v) => {
            out.extend(v.element().id().to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            out.extend(v.raw());
        }
    }
}

/// An array of values of one type.
pub(crate) fn array(kind: ValueType, values: &[Value]) -> Value {
    let mut raw = Vec::new();
    values.iter().for_each(|value| put_value(&mut raw, value));
    Value::Array(Array::checked(kind, values.len(), &raw))
}

/// An array of strings.
pub(crate) fn strings(texts: &[&str]) -> Value {
    array(ValueType::String, &texts.iter().map(|text| Value::String((*text).to_owned())).collect::<Vec<_>>())
}

/// An oracle model of `tests/data`.
pub(crate) fn oracle(name: &str) -> Gguf {
    Gguf::open(oracle_path(name)).unwrap()
}

pub(crate) fn oracle_path(name: &str) -> std::path::PathBuf {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle/models");
    match folder.join(format!("{name}.gguf")) {
        path if path.is_file() => path,
        _ => folder.join(format!("{name}-00001-of-00003.gguf")),
    }
}

/// Names of all oracle models.
pub(crate) const ORACLE: [&str; 10] = [
    "llama-f16-tied-ropefreqs",
    "llama-q8_0-linear2",
    "mixtral-q4_0",
    "qwen3-hd128-q4_k_m",
    "qwen3moe-f32",
    "qwen3moe-hd128-ud",
    "qwen3moe-iq2",
    "qwen3moe-iq3",
    "qwen3moe-mxfp4",
    "qwen3moe-q4_k_m-split",
];
