//! What can be wrong with a model file, and where.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::files::InputError;

/// A model file that cannot be used: which, where and why.
#[derive(Debug, Error)]
pub enum GgufError {
    /// The file cannot be opened, measured or mapped; the inner error names the path.
    #[error("cannot open the model: {0}")]
    Open(#[from] InputError),
    /// A positioned read failed.
    #[error("{}: cannot read {wanted} bytes at byte {offset}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Where the read began.
        offset: u64,
        /// Bytes asked for.
        wanted: usize,
        /// What the system said.
        source: io::Error,
    },
    /// The file is no longer the one that was opened.
    #[error("{} changed while it was in use: {how}. Start again with a file that nothing writes to", file.display())]
    Changed {
        /// The file.
        file: PathBuf,
        /// What was seen.
        how: String,
    },
    /// The contents are not what the format says.
    #[error("{}: at byte {offset}: {fault}", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// The byte where the faulty item begins.
        offset: u64,
        /// What is wrong with it.
        fault: Fault,
    },
    /// Files of a split set do not exist.
    #[error(
        "{}: this set has {count} files, and {} of them {} missing: {}{}; put all of them in one folder",
        folder.display(),
        missing.len() + more,
        if missing.len() + more == 1 { "is" } else { "are" },
        missing.join(", "),
        if *more > 0 { format!(" and {more} more") } else { String::new() }
    )]
    ShardMissing {
        /// The folder searched.
        folder: PathBuf,
        /// Files of the set, by the name that was given.
        count: usize,
        /// The missing names (the first of them, if there are many).
        missing: Vec<String>,
        /// Missing names that are not listed.
        more: usize,
    },
    /// A file's name says another place in the set than its contents.
    #[error(
        "{}: by its name this is file {} of {}, but its keys say {key} = {found} where {wanted} is wanted; was it renamed?",
        file.display(), number + 1, count
    )]
    ShardMismatch {
        /// The file.
        file: PathBuf,
        /// Its place in the set by its name, from 0.
        number: usize,
        /// Files of the set by its name.
        count: usize,
        /// The key that disagrees.
        key: &'static str,
        /// What the file says.
        found: String,
        /// What its name says.
        wanted: u64,
    },
    /// A file says it is part of a set, but its name does not tell the others' names.
    #[error(
        "{}: its keys say it is file {} of {count}, but its name does not end in `-{:05}-of-{count:05}.gguf`, \
         so the others cannot be found; give it its old name back",
        file.display(), number + 1, number + 1
    )]
    ShardRenamed {
        /// The file.
        file: PathBuf,
        /// Its place in the set by its keys, from 0.
        number: u64,
        /// Files of the set by its keys.
        count: u64,
    },
    /// The shards hold another number of tensors than the set should.
    #[error(
        "{}: `split.tensors.count` says that the set has {wanted} tensors, but its {shards} files hold {found}; \
         are all of them from the same download?",
        file.display()
    )]
    ShardTensorCount {
        /// The shard that says so.
        file: PathBuf,
        /// Tensors it says there are.
        wanted: u64,
        /// Tensors found.
        found: usize,
        /// Files in the set.
        shards: usize,
    },
    /// A shard is of another model than the first.
    #[error(
        "{}: `{key}` is {found}, but {wanted} in {}: the two are of different models; put the files of one download together",
        file.display(), first.display()
    )]
    ShardOfAnother {
        /// The file.
        file: PathBuf,
        /// The set's first file.
        first: PathBuf,
        /// The key that differs.
        key: &'static str,
        /// Its value in the file.
        found: String,
        /// Its value in the first.
        wanted: String,
    },
    /// Two shards hold a tensor of the same name.
    #[error("tensor `{tensor}` is in both {} and {}", first.display(), second.display())]
    TensorInTwoShards {
        /// The tensor.
        tensor: String,
        /// The file that has it first.
        first: PathBuf,
        /// The file that has it again.
        second: PathBuf,
    },
    /// A shard number that this model does not have.
    #[error("{}: the model has {shards} files, there is no file number {shard}", file.display())]
    NoSuchShard {
        /// The model's first file.
        file: PathBuf,
        /// The number asked for, from 0.
        shard: usize,
        /// Files in the set.
        shards: usize,
    },
    /// A key that every split file must have is missing or of another type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

/// What is wrong at one place of a file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// The file ends inside an item.
    #[error("the file ends inside {what}: {wanted} bytes wanted, {left} left")]
    Truncated {
        /// The item.
        what: &'static str,
        /// Bytes it takes.
        wanted: u64,
        /// Bytes there are.
        left: u64,
    },
    /// Not a GGUF file.
    #[error("this is not a GGUF file: it begins with `{}`, `GGUF` wanted{hint}", found.escape_ascii())]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
        /// What the file probably is, as a clause of its own.
        hint: &'static str,
    },
    /// A file for machines of the other byte order.
    #[error("this file is big-endian (its version reads {version:#010x}); convert it to little-endian")]
    BigEndian {
        /// The version as it reads here.
        version: u32,
    },
    /// A version this reader does not know.
    #[error("GGUF version {found}, 2 or 3 wanted{}", if *found == 1 { "; version 1 is obsolete: convert the model again" } else { "" })]
    Version {
        /// The version.
        found: u32,
    },
    /// A count or length that cannot be right, given how many bytes are left.
    #[error("{what} is {count}, which takes at least {wanted} bytes, but only {left} are left in the file")]
    Count {
        /// What is counted.
        what: &'static str,
        /// The number in the file.
        count: u64,
        /// The fewest bytes that so many take.
        wanted: u128,
        /// Bytes there are.
        left: u64,
    },
    /// A text that is not UTF-8.
    #[error("{what} is not valid UTF-8")]
    NotUtf8 {
        /// The text's role.
        what: &'static str,
    },
    /// A key or a tensor without a name.
    #[error("{what} is empty")]
    EmptyName {
        /// A key's name or a tensor's name.
        what: &'static str,
    },
    /// The same key twice.
    #[error("the key `{key}` occurs twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A value type that does not exist.
    #[error("the key `{key}` has value type {found}, 0 to 12 wanted")]
    ValueType {
        /// The key.
        key: String,
        /// The number in the file.
        found: u32,
    },
    /// An array of arrays.
    #[error("the key `{key}` is an array of arrays, which is not supported")]
    NestedArray {
        /// The key.
        key: String,
    },
    /// A truth value that is neither 0 nor 1.
    #[error("the key `{key}` has a truth value of {found}, 0 or 1 wanted")]
    Bool {
        /// The key.
        key: String,
        /// The byte in the file.
        found: u8,
    },
    /// `general.alignment` cannot be used.
    #[error("`general.alignment` is {found}, a power of two of at least 8 as u32 wanted")]
    Alignment {
        /// The value.
        found: String,
    },
    /// The same tensor twice in one file.
    #[error("the tensor `{tensor}` occurs twice")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// Too many dimensions, or none.
    #[error("tensor `{tensor}` has {found} dimensions, 1 to 4 wanted")]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// The number in the file.
        found: u32,
    },
    /// A dimension of zero.
    #[error("tensor `{tensor}` has shape {dims:?}: no dimension may be 0")]
    ZeroDimension {
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        dims: Vec<u64>,
    },
    /// Dimensions whose product no file can hold.
    #[error("tensor `{tensor}` has shape {dims:?}: its size overflows 64 bits")]
    SizeOverflow {
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        dims: Vec<u64>,
    },
    /// Rows that are not whole blocks of the tensor's type.
    #[error("tensor `{tensor}` has rows of {row} values, a multiple of {block} wanted for {ty}")]
    RowNotBlocks {
        /// The tensor.
        tensor: String,
        /// Its type.
        ty: &'static str,
        /// Values of a row.
        row: u64,
        /// Values of a block.
        block: usize,
    },
    /// A tensor type this program cannot read.
    #[error("tensor `{tensor}` has type {} (number {id}), which is not supported", name.unwrap_or("unknown"))]
    UnsupportedType {
        /// The tensor.
        tensor: String,
        /// The number in the file.
        id: u32,
        /// Its name, if the number is a known one.
        name: Option<&'static str>,
    },
    /// A tensor whose data does not begin at a multiple of the alignment.
    #[error("tensor `{tensor}` begins at {found} of the data section, a multiple of {alignment} wanted")]
    Unaligned {
        /// The tensor.
        tensor: String,
        /// Its offset in the data section.
        found: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor that ends after the file.
    #[error(
        "tensor `{tensor}` takes {bytes} bytes from byte {start}, but the file has {length}{}",
        if start.saturating_add(*bytes) > *length { format!(": {} are missing; was the download complete?", start.saturating_add(*bytes) - length) } else { String::new() }
    )]
    OutsideFile {
        /// The tensor.
        tensor: String,
        /// Where its data begins, in the file.
        start: u64,
        /// Bytes of its data.
        bytes: u64,
        /// Bytes of the file.
        length: u64,
    },
    /// Two tensors on the same bytes.
    #[error("tensor `{tensor}` begins at byte {start} of the file, inside tensor `{other}`, which ends at {end}")]
    Overlap {
        /// The tensor.
        tensor: String,
        /// Where it begins.
        start: u64,
        /// The tensor before it.
        other: String,
        /// Where that one ends.
        end: u64,
    },
}

/// A metadata key that is missing or holds something else.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MetadataError {
    /// The key is not there.
    #[error("{}: the key `{key}` is missing; {wanted} wanted", file.display())]
    Missing {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
        /// What it should hold.
        wanted: &'static str,
    },
    /// The key holds another type, or a number out of range.
    #[error("{}: at byte {offset}: the key `{key}` is {found}, {wanted} wanted", file.display())]
    Unexpected {
        /// The file.
        file: PathBuf,
        /// Where the key's entry begins.
        offset: u64,
        /// The key.
        key: String,
        /// Type and value that it holds.
        found: String,
        /// What it should hold.
        wanted: &'static str,
    },
}
