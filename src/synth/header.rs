//! What stands before the data of a GGUF file: metadata and the tensor table.

use thiserror::Error;

use crate::gguf::{Array, Value, ValueType};
use crate::quant::QuantType;
use crate::units::Bytes;

/// Bytes that every tensor's data is aligned to, the format's default.
const ALIGNMENT: u64 = 32;
const VERSION: u32 = 3;

/// Why something cannot stand in a header.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// A row is no whole number of blocks, or the size overflows.
    #[error("tensor `{tensor}`: {dims:?} values cannot be stored as {ty}, whose rows are multiples of {block}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its dimensions, the contiguous one first.
        dims: Vec<u64>,
        /// The type asked for.
        ty: QuantType,
        /// Elements of a block.
        block: usize,
    },
    /// A key or a tensor stands there already.
    #[error("`{name}` would stand in the file twice")]
    Twice {
        /// The key or the tensor's name.
        name: String,
    },
}

/// One tensor of a file that is being written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorHead {
    /// The tensor's name.
    pub name: String,
    /// How its values are stored.
    pub ty: QuantType,
    /// Its dimensions, the contiguous one first.
    pub dims: Vec<u64>,
    /// Bytes of its data, without padding.
    pub bytes: u64,
}

/// Metadata and tensor table of a file to be written, in the order in which they were added.
#[derive(Clone, Debug, Default)]
pub struct Header {
    keys: Vec<String>,
    metadata: Vec<u8>,
    tensors: Vec<TensorHead>,
}

impl Header {
    /// An empty header.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a number, a truth value, a text, or an array read from another file.
    ///
    /// # Errors
    /// [`HeaderError::Twice`] when the key is there already.
    pub fn set(&mut self, key: &str, value: &Value) -> Result<(), HeaderError> {
        self.begin(key, value.kind())?;
        let out = &mut self.metadata;
        match value {
            Value::U8(v) => out.push(*v),
            Value::I8(v) => out.extend(v.to_le_bytes()),
            Value::U16(v) => out.extend(v.to_le_bytes()),
            Value::I16(v) => out.extend(v.to_le_bytes()),
            Value::U32(v) => out.extend(v.to_le_bytes()),
            Value::I32(v) => out.extend(v.to_le_bytes()),
            Value::F32(v) => out.extend(v.to_le_bytes()),
            Value::Bool(v) => out.push(u8::from(*v)),
            Value::String(v) => put_string(out, v),
            Value::Array(v) => put_array(out, v),
            Value::U64(v) => out.extend(v.to_le_bytes()),
            Value::I64(v) => out.extend(v.to_le_bytes()),
            Value::F64(v) => out.extend(v.to_le_bytes()),
        }
        Ok(())
    }

    /// Adds a text.
    ///
    /// # Errors
    /// As [`Header::set`].
    pub fn set_text(&mut self, key: &str, text: &str) -> Result<(), HeaderError> {
        self.set(key, &Value::String(text.to_owned()))
    }

    /// Adds an array of texts.
    ///
    /// # Errors
    /// As [`Header::set`].
    pub fn set_texts<T: AsRef<str>>(&mut self, key: &str, texts: &[T]) -> Result<(), HeaderError> {
        self.begin(key, ValueType::Array)?;
        self.metadata.extend(ValueType::String.id().to_le_bytes());
        self.metadata.extend((texts.len() as u64).to_le_bytes());
        for text in texts {
            put_string(&mut self.metadata, text.as_ref());
        }
        Ok(())
    }

    /// Adds an array of signed 32-bit integers.
    ///
    /// # Errors
    /// As [`Header::set`].
    pub fn set_integers(&mut self, key: &str, integers: &[i32]) -> Result<(), HeaderError> {
        self.begin(key, ValueType::Array)?;
        self.metadata.extend(ValueType::I32.id().to_le_bytes());
        self.metadata.extend((integers.len() as u64).to_le_bytes());
        self.metadata.extend(integers.iter().flat_map(|v| v.to_le_bytes()));
        Ok(())
    }

    fn begin(&mut self, key: &str, kind: ValueType) -> Result<(), HeaderError> {
        if self.keys.iter().any(|k| k == key) {
            return Err(HeaderError::Twice { name: key.to_owned() });
        }
        self.keys.push(key.to_owned());
        put_string(&mut self.metadata, key);
        self.metadata.extend(kind.id().to_le_bytes());
        Ok(())
    }

    /// Adds a tensor; `dims` has the contiguous dimension first.
    ///
    /// # Errors
    /// [`HeaderError`] when the rows are no whole number of blocks or the name is there already.
    pub fn add_tensor(&mut self, name: &str, ty: QuantType, dims: &[u64]) -> Result<(), HeaderError> {
        if self.tensors.iter().any(|t| t.name == name) {
            return Err(HeaderError::Twice { name: name.to_owned() });
        }
        let bytes = || {
            let (row, rows) = dims.split_first()?;
            let row = ty.row_bytes(usize::try_from(*row).ok()?)?;
            rows.iter().try_fold(row as u64, |product, dim| product.checked_mul(*dim))
        };
        let bytes = bytes().ok_or_else(|| HeaderError::Shape {
            tensor: name.to_owned(),
            dims: dims.to_vec(),
            ty,
            block: ty.block_len(),
        })?;
        self.tensors.push(TensorHead { name: name.to_owned(), ty, dims: dims.to_vec(), bytes });
        Ok(())
    }

    /// The tensors, in the order in which their data must follow.
    pub fn tensors(&self) -> &[TensorHead] {
        &self.tensors
    }

    /// Size of the whole file.
    pub fn file_bytes(&self) -> Bytes {
        Bytes(self.encode().len() as u64 + self.tensors.iter().map(|t| padded(t.bytes)).sum::<u64>())
    }

    /// The bytes before the first tensor's data, padded.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.metadata.len() + 64 * self.tensors.len() + 64);
        out.extend(b"GGUF");
        out.extend(VERSION.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        out.extend(&self.metadata);
        let mut offset = 0u64;
        for tensor in &self.tensors {
            put_string(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            out.extend(tensor.dims.iter().flat_map(|d| d.to_le_bytes()));
            out.extend(tensor.ty.id().to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += padded(tensor.bytes);
        }
        out.resize(padded(out.len() as u64) as usize, 0);
        out
    }
}

pub(super) fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT)
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    out.extend(array.element().id().to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    out.extend(array.raw());
}
