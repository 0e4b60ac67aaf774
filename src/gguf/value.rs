//! Metadata values of every type, arrays among them kept as the raw bytes they are in the file.

use std::fmt;

/// The types a metadata value can have, with their numbers in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type of this number.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(id as usize).copied()
    }

    /// The type's number in the file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// The type's name as messages show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Bytes of one value, or the fewest for a string (its length) and an array (its type and count).
    pub(super) fn least_bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::String | Self::U64 | Self::I64 | Self::F64 => 8,
            Self::Array => 12,
        }
    }
}

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// The value's type.
    pub fn kind(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The value as an integer, if it is one.
    pub fn integer(&self) -> Option<i128> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::I8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::U64(v) => Some(v.into()),
            Self::I64(v) => Some(v.into()),
            _ => None,
        }
    }

    /// The value as a floating-point number, if it is one.
    pub fn float(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            _ => None,
        }
    }

    /// A number, truth value or string from its bytes in a file; `None` for an array, and where the bytes are too few,
    /// not UTF-8, or no truth value.
    pub(super) fn decode(kind: ValueType, bytes: &[u8]) -> Option<Self> {
        let value = match kind {
            ValueType::U8 => Self::U8(*bytes.first()?),
            ValueType::I8 => Self::I8(i8::from_le_bytes(*bytes.first_chunk()?)),
            ValueType::U16 => Self::U16(u16::from_le_bytes(*bytes.first_chunk()?)),
            ValueType::I16 => Self::I16(i16::from_le_bytes(*bytes.first_chunk()?)),
            ValueType::U32 => Self::U32(u32::from_le_bytes(*bytes.first_chunk()?)),
            ValueType::I32 => Self::I32(i32::from_le_bytes(*bytes.first_chunk()?)),
            ValueType::F32 => Self::F32(f32::from_le_bytes(*bytes.first_chunk()?)),
            ValueType::U64 => Self::U64(u64::from_le_bytes(*bytes.first_chunk()?)),
            ValueType::I64 => Self::I64(i64::from_le_bytes(*bytes.first_chunk()?)),
            ValueType::F64 => Self::F64(f64::from_le_bytes(*bytes.first_chunk()?)),
            ValueType::Bool => match bytes.first()? {
                0 => Self::Bool(false),
                1 => Self::Bool(true),
                _ => return None,
            },
            ValueType::String => Self::String(next_string(bytes)?.0.to_owned()),
            ValueType::Array => return None,
        };
        Some(value)
    }
}

/// The text at the head of `bytes`, whose length stands before it, and what follows it.
fn next_string(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (text, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

/// An array of one type. The elements stay as they lie in the file (a vocabulary has hundreds of thousands) and are
/// decoded when they are walked; that they can be was checked when the file was read.
#[derive(Clone, PartialEq, Eq)]
pub struct Array {
    element: ValueType,
    count: usize,
    bytes: Box<[u8]>,
}

impl Array {
    /// An array over bytes that were checked to hold `count` elements.
    pub(super) fn checked(element: ValueType, count: usize, bytes: &[u8]) -> Self {
        Self { element, count, bytes: bytes.into() }
    }

    /// The elements' type.
    pub fn element(&self) -> ValueType {
        self.element
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The elements as they lie in the file.
    pub fn raw(&self) -> &[u8] {
        &self.bytes
    }

    /// The elements as strings, if they are strings.
    pub fn strings(&self) -> Option<Strings<'_>> {
        (self.element == ValueType::String).then_some(Strings { rest: &self.bytes, left: self.count })
    }

    /// The elements one by one, of any type.
    pub fn values(&self) -> impl Iterator<Item = Value> + '_ {
        let mut rest: &[u8] = &self.bytes;
        let (element, step) = (self.element, self.element.least_bytes());
        std::iter::from_fn(move || {
            if element == ValueType::String {
                let (text, after) = next_string(rest)?;
                rest = after;
                return Some(Value::String(text.to_owned()));
            }
            let (head, after) = rest.split_at_checked(step)?;
            rest = after;
            Value::decode(element, head)
        })
    }

    /// The elements as integers; `None` if they are not integers.
    pub fn integers(&self) -> Option<Vec<i128>> {
        self.values().map(|value| value.integer()).collect()
    }

    /// The elements as f32; `None` if they are not floating-point numbers.
    pub fn floats(&self) -> Option<Vec<f32>> {
        self.values().map(|value| value.float().map(|v| v as f32)).collect()
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}; {}]", self.element.name(), self.count)
    }
}

/// The strings of an array, in order, without a copy.
#[derive(Clone, Debug)]
pub struct Strings<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let (text, rest) = next_string(self.rest)?;
        self.rest = rest;
        self.left = self.left.saturating_sub(1);
        Some(text)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Strings<'_> {}

/// Most characters and elements of a value that messages and listings show.
const SHOWN_CHARS: usize = 60;
const SHOWN_ELEMENTS: usize = 4;

impl fmt::Display for Value {
    /// The value in short: long strings and arrays are cut, and the cut is told.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(v) => write!(f, "{v}"),
            Self::I8(v) => write!(f, "{v}"),
            Self::U16(v) => write!(f, "{v}"),
            Self::I16(v) => write!(f, "{v}"),
            Self::U32(v) => write!(f, "{v}"),
            Self::I32(v) => write!(f, "{v}"),
            Self::F32(v) => write!(f, "{v}"),
            Self::Bool(v) => write!(f, "{v}"),
            Self::U64(v) => write!(f, "{v}"),
            Self::I64(v) => write!(f, "{v}"),
            Self::F64(v) => write!(f, "{v}"),
            Self::String(text) => match text.char_indices().nth(SHOWN_CHARS) {
                None => write!(f, "{text:?}"),
                Some((cut, _)) => {
                    write!(f, "{:?}... ({} bytes)", text.get(..cut).unwrap_or_default(), text.len())
                }
            },
            Self::Array(array) => {
                f.write_str("[")?;
                for (at, value) in array.values().take(SHOWN_ELEMENTS).enumerate() {
                    write!(f, "{}{value}", if at == 0 { "" } else { ", " })?;
                }
                match array.len() {
                    n if n > SHOWN_ELEMENTS => write!(f, ", ...] ({n} x {})", array.element().name()),
                    _ => f.write_str("]"),
                }
            }
        }
    }
}
