//! The key-value part of a file, with typed access whose errors name the key.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::error::MetadataError;
use super::value::{Array, Strings, Value};

/// One key with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Value,
    /// The byte of the file where the entry begins.
    pub offset: u64,
}

/// The metadata of one file, in file order.
#[derive(Clone, Debug, PartialEq)]
pub struct Metadata {
    file: PathBuf,
    entries: Vec<Entry>,
    by_key: HashMap<String, usize>,
}

/// A Rust type that a metadata value can be asked for as.
pub trait FromValue<'a>: Sized {
    /// What messages say is wanted.
    const WANTED: &'static str;
    /// The value as this type; `None` if it is of another type or out of range.
    fn from_value(value: &'a Value) -> Option<Self>;
}

macro_rules! from_integer {
    ($($ty:ty: $wanted:literal),*) => {$(
        impl FromValue<'_> for $ty {
            const WANTED: &'static str = $wanted;
            fn from_value(value: &Value) -> Option<Self> {
                value.integer().and_then(|v| v.try_into().ok())
            }
        }
    )*};
}

from_integer!(
    u32: "an integer from 0 to 4294967295",
    u64: "an integer of 0 or more",
    usize: "an integer of 0 or more",
    i64: "an integer"
);

impl FromValue<'_> for f32 {
    const WANTED: &'static str = "a floating-point number";
    fn from_value(value: &Value) -> Option<Self> {
        value.float().map(|v| v as f32)
    }
}

impl FromValue<'_> for bool {
    const WANTED: &'static str = "true or false";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(v) => Some(*v),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const WANTED: &'static str = "a string";
    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::String(v) => Some(v),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a Array {
    const WANTED: &'static str = "an array";
    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::Array(v) => Some(v),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for Strings<'a> {
    const WANTED: &'static str = "an array of strings";
    fn from_value(value: &'a Value) -> Option<Self> {
        <&Array>::from_value(value)?.strings()
    }
}

impl FromValue<'_> for Vec<f32> {
    const WANTED: &'static str = "an array of floating-point numbers";
    fn from_value(value: &Value) -> Option<Self> {
        <&Array>::from_value(value)?.floats()
    }
}

impl FromValue<'_> for Vec<u32> {
    const WANTED: &'static str = "an array of integers from 0 to 4294967295";
    fn from_value(value: &Value) -> Option<Self> {
        <&Array>::from_value(value)?.values().map(|v| u32::from_value(&v)).collect()
    }
}

impl FromValue<'_> for Vec<usize> {
    const WANTED: &'static str = "an array of integers of 0 or more";
    fn from_value(value: &Value) -> Option<Self> {
        <&Array>::from_value(value)?.values().map(|v| usize::from_value(&v)).collect()
    }
}

impl FromValue<'_> for Vec<i64> {
    const WANTED: &'static str = "an array of integers";
    fn from_value(value: &Value) -> Option<Self> {
        <&Array>::from_value(value)?.values().map(|v| i64::from_value(&v)).collect()
    }
}

impl Metadata {
    pub(super) fn new(file: PathBuf) -> Self {
        Self { file, entries: Vec::new(), by_key: HashMap::new() }
    }

    /// Adds an entry; gives it back if its key is there already.
    pub(super) fn push(&mut self, entry: Entry) -> Result<(), Entry> {
        if self.by_key.contains_key(&entry.key) {
            return Err(entry);
        }
        self.by_key.insert(entry.key.clone(), self.entries.len());
        self.entries.push(entry);
        Ok(())
    }

    /// The file the metadata is from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Every entry, in file order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The entry of this key.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.by_key.get(key).and_then(|&at| self.entries.get(at))
    }

    /// The value of this key, of whatever type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// The value of a key that may be missing.
    ///
    /// # Errors
    /// [`MetadataError::Unexpected`] when the key is there with another type or out of range.
    pub fn find<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, MetadataError> {
        match self.entry(key) {
            None => Ok(None),
            Some(entry) => T::from_value(&entry.value).map(Some).ok_or_else(|| self.unexpected(entry, T::WANTED)),
        }
    }

    /// The value of a key that must be there.
    ///
    /// # Errors
    /// [`MetadataError`] when the key is missing, of another type or out of range.
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, MetadataError> {
        self.find(key)?.ok_or_else(|| MetadataError::Missing {
            file: self.file.clone(),
            key: key.to_owned(),
            wanted: T::WANTED,
        })
    }

    /// The error for an entry that is not what is wanted.
    pub(crate) fn unexpected(&self, entry: &Entry, wanted: &'static str) -> MetadataError {
        let found = match &entry.value {
            Value::Array(array) => format!("an array of {} {}", array.len(), array.element().name()),
            value => format!("{value} ({})", value.kind().name()),
        };
        MetadataError::Unexpected {
            file: self.file.clone(),
            offset: entry.offset,
            key: entry.key.clone(),
            found,
            wanted,
        }
    }
}
