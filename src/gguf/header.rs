//! Everything before the data section of one file, parsed and checked against the file's length.

use std::collections::HashSet;
use std::path::Path;

use super::cursor::Cursor;
use super::error::{Fault, GgufError};
use super::metadata::{Entry, Metadata};
use super::tensor::TensorInfo;
use super::value::{Array, Value, ValueType};
use crate::quant::{QuantType, type_name};

const DEFAULT_ALIGNMENT: u64 = 32;
/// The fewest bytes of a key (length, type, a value of one byte) and of a tensor (length, rank, a dimension, type,
/// offset).
const LEAST_ENTRY: usize = 8 + 4 + 1;
const LEAST_TENSOR: usize = 8 + 4 + 8 + 4 + 8;
const MAX_DIMENSIONS: u32 = 4;

/// What one file says about itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// The format's version, 2 or 3.
    pub version: u32,
    /// The key-value part.
    pub metadata: Metadata,
    /// The tensor table; every `shard` is 0.
    pub tensors: Vec<TensorInfo>,
    /// Tensor data begins at multiples of this, in bytes.
    pub alignment: u64,
    /// Where the data section begins, in bytes from the start of the file.
    pub data_start: u64,
}

/// A tensor as the table has it, before the data section's place is known.
struct RawTensor {
    at: u64,
    info: TensorInfo,
}

impl Header {
    /// Parses the header of a file whose whole contents are `contents`, and checks that every tensor lies in it. `file`
    /// is for the errors.
    ///
    /// # Errors
    /// [`GgufError::Malformed`] with the byte and the fault.
    pub fn parse(file: &Path, contents: &[u8]) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(file, contents);
        let version = parse_version(&mut cursor)?;
        let tensor_count = cursor.count("the number of tensors", LEAST_TENSOR)?;
        let entry_count = cursor.count("the number of keys", LEAST_ENTRY)?;

        let mut metadata = Metadata::new(file.to_owned());
        for _ in 0..entry_count {
            let entry = parse_entry(&mut cursor)?;
            let at = entry.offset;
            metadata.push(entry).map_err(|entry| cursor.fault(at, Fault::DuplicateKey { key: entry.key }))?;
        }
        let alignment = parse_alignment(&cursor, &metadata)?;

        let mut raw = Vec::new();
        let mut names = HashSet::new();
        for _ in 0..tensor_count {
            let tensor = parse_tensor(&mut cursor, alignment)?;
            if !names.insert(tensor.info.name.clone()) {
                let tensor_name = tensor.info.name;
                return Err(cursor.fault(tensor.at, Fault::DuplicateTensor { tensor: tensor_name }));
            }
            raw.push(tensor);
        }

        let data_start = cursor.offset().next_multiple_of(alignment);
        place_tensors(&cursor, &mut raw, data_start, contents.len() as u64)?;
        let tensors = raw.into_iter().map(|tensor| tensor.info).collect();
        Ok(Self { version, metadata, tensors, alignment, data_start })
    }
}

fn parse_version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let magic = cursor.magic()?;
    let hint = match &magic {
        b"GGUF" => None,
        b"FUGG" => Some("; its bytes are reversed: convert the model to little-endian"),
        b"ggml" | b"lmgg" | b"tjgg" | b"ggjt" | b"fmgg" | b"ggmf" | b"algg" | b"ggla" => {
            Some("; it is in a format older than GGUF: convert the model again")
        }
        b"PK\x03\x04" => Some("; it is a zip archive"),
        b"vers" => Some("; it is a pointer of Git LFS: fetch the file itself"),
        b"<!DO" | b"<htm" => Some("; it is a web page"),
        _ => Some(""),
    };
    if let Some(hint) = hint {
        return Err(cursor.fault(0, Fault::Magic { found: magic, hint }));
    }
    let at = cursor.offset();
    let version = cursor.u32("the version")?;
    match version {
        2 | 3 => Ok(version),
        0 => Err(cursor.fault(at, Fault::Version { found: 0 })),
        // A small version read in the wrong byte order has its lower half empty.
        _ if version.trailing_zeros() >= 16 => Err(cursor.fault(at, Fault::BigEndian { version })),
        _ => Err(cursor.fault(at, Fault::Version { found: version })),
    }
}

fn parse_entry(cursor: &mut Cursor<'_>) -> Result<Entry, GgufError> {
    let at = cursor.offset();
    let key = cursor.text("the length of a key", "a key")?;
    if key.is_empty() {
        return Err(cursor.fault(at, Fault::EmptyName { what: "a key" }));
    }
    let kind = parse_value_type(cursor, key)?;
    let value = match kind {
        ValueType::Array => Value::Array(parse_array(cursor, key)?),
        ValueType::String => Value::String(cursor.text("the length of a string value", "a string value")?.to_owned()),
        _ => {
            let at = cursor.offset();
            let bytes = cursor.take(kind.least_bytes(), "a value")?;
            Value::decode(kind, bytes).ok_or_else(|| cursor.fault(at, bad_bool(key, bytes)))?
        }
    };
    Ok(Entry { key: key.to_owned(), value, offset: at })
}

/// Every bit pattern is a number, so only a truth value can fail to decode.
fn bad_bool(key: &str, bytes: &[u8]) -> Fault {
    Fault::Bool { key: key.to_owned(), found: bytes.first().copied().unwrap_or_default() }
}

fn parse_value_type(cursor: &mut Cursor<'_>, key: &str) -> Result<ValueType, GgufError> {
    let at = cursor.offset();
    let id = cursor.u32("a value's type")?;
    ValueType::from_id(id).ok_or_else(|| cursor.fault(at, Fault::ValueType { key: key.to_owned(), found: id }))
}

fn parse_array(cursor: &mut Cursor<'_>, key: &str) -> Result<Array, GgufError> {
    let at = cursor.offset();
    let element = parse_value_type(cursor, key)?;
    if element == ValueType::Array {
        return Err(cursor.fault(at, Fault::NestedArray { key: key.to_owned() }));
    }
    let count = cursor.count("the length of an array", element.least_bytes())?;
    let start = cursor.offset();
    match element {
        ValueType::String => {
            for _ in 0..count {
                cursor.text("the length of a string in an array", "a string in an array")?;
            }
        }
        // The count was checked against the bytes that are left, so this cannot overflow.
        _ => {
            let bytes = cursor.take(count.saturating_mul(element.least_bytes()), "an array")?;
            if let (ValueType::Bool, Some(bad)) = (element, bytes.iter().position(|&byte| byte > 1)) {
                return Err(cursor.fault(start + bad as u64, bad_bool(key, bytes.get(bad..).unwrap_or_default())));
            }
        }
    }
    Ok(Array::checked(element, count, cursor.between(start, cursor.offset())))
}

fn parse_alignment(cursor: &Cursor<'_>, metadata: &Metadata) -> Result<u64, GgufError> {
    match metadata.entry("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Entry { value: Value::U32(alignment), .. }) if alignment.is_power_of_two() && *alignment >= 8 => {
            Ok(u64::from(*alignment))
        }
        Some(entry) => Err(cursor.fault(entry.offset, Fault::Alignment { found: entry.value.to_string() })),
    }
}

fn parse_tensor(cursor: &mut Cursor<'_>, alignment: u64) -> Result<RawTensor, GgufError> {
    let at = cursor.offset();
    let name = cursor.text("the length of a tensor's name", "a tensor's name")?;
    if name.is_empty() {
        return Err(cursor.fault(at, Fault::EmptyName { what: "a tensor's name" }));
    }
    let tensor = || name.to_owned();
    let rank_at = cursor.offset();
    let rank = cursor.u32("a tensor's number of dimensions")?;
    if rank == 0 || rank > MAX_DIMENSIONS {
        return Err(cursor.fault(rank_at, Fault::Dimensions { tensor: tensor(), found: rank }));
    }
    let dims_at = cursor.offset();
    let mut dims = Vec::with_capacity(MAX_DIMENSIONS as usize);
    for _ in 0..rank {
        dims.push(cursor.u64("a tensor's dimensions")?);
    }
    if dims.contains(&0) {
        return Err(cursor.fault(dims_at, Fault::ZeroDimension { tensor: tensor(), dims }));
    }
    let type_at = cursor.offset();
    let id = cursor.u32("a tensor's type")?;
    let ty = QuantType::from_id(id)
        .ok_or_else(|| cursor.fault(type_at, Fault::UnsupportedType { tensor: tensor(), id, name: type_name(id) }))?;
    let offset_at = cursor.offset();
    let offset = cursor.u64("a tensor's offset")?;
    if !offset.is_multiple_of(alignment) {
        return Err(cursor.fault(offset_at, Fault::Unaligned { tensor: tensor(), found: offset, alignment }));
    }
    let bytes = tensor_bytes(name, ty, &dims).map_err(|fault| cursor.fault(dims_at, fault))?;
    Ok(RawTensor { at, info: TensorInfo { name: tensor(), ty, dims, shard: 0, offset, bytes } })
}

/// Bytes of a tensor's data.
fn tensor_bytes(name: &str, ty: QuantType, dims: &[u64]) -> Result<usize, Fault> {
    let overflow = || Fault::SizeOverflow { tensor: name.to_owned(), dims: dims.to_vec() };
    let row = dims.first().copied().unwrap_or_default();
    // The number of values must fit too, since others multiply the dimensions again.
    dims.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim)).ok_or_else(overflow)?;
    let values = usize::try_from(row).map_err(|_| overflow())?;
    if !values.is_multiple_of(ty.block_len()) {
        return Err(Fault::RowNotBlocks { tensor: name.to_owned(), ty: ty.name(), row, block: ty.block_len() });
    }
    let row_bytes = ty.row_bytes(values).ok_or_else(overflow)?;
    let rows = dims.iter().skip(1).try_fold(1_usize, |product, &dim| product.checked_mul(usize::try_from(dim).ok()?));
    rows.and_then(|rows| rows.checked_mul(row_bytes)).ok_or_else(overflow)
}

/// Turns offsets in the data section into offsets in the file, and checks that every tensor is inside the file and
/// outside every other.
fn place_tensors(
    cursor: &Cursor<'_>,
    tensors: &mut [RawTensor],
    data_start: u64,
    length: u64,
) -> Result<(), GgufError> {
    for RawTensor { at, info } in tensors.iter_mut() {
        let bytes = info.bytes as u64;
        let start = info.offset.saturating_add(data_start);
        if start.checked_add(bytes).is_none_or(|end| end > length) {
            let fault = Fault::OutsideFile { tensor: info.name.clone(), start, bytes, length };
            return Err(cursor.fault(*at, fault));
        }
        info.offset = start;
    }
    let mut by_place: Vec<&RawTensor> = tensors.iter().collect();
    by_place.sort_by_key(|tensor| tensor.info.offset);
    for pair in by_place.windows(2) {
        let [first, second] = pair else { continue };
        let end = first.info.offset + first.info.bytes as u64;
        if second.info.offset < end {
            let fault = Fault::Overlap {
                tensor: second.info.name.clone(),
                start: second.info.offset,
                other: first.info.name.clone(),
                end,
            };
            return Err(cursor.fault(second.at, fault));
        }
    }
    Ok(())
}
