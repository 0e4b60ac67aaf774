//! Files that are read: what may be one, and how much of it is taken.

use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use fs_err::File;
use thiserror::Error;

use crate::units::Bytes;

/// Why a file was not read.
#[derive(Debug, Error)]
pub enum InputError {
    /// The system refused; its message names the path.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A folder, a device or a FIFO where a regular file is wanted. It was not opened.
    #[error("`{}` is {kind}; {wanted} is wanted", path.display())]
    Kind {
        /// What was named.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
        /// What it should be.
        wanted: &'static str,
    },
    /// There is more than may be read; at most one byte past the limit was.
    #[error("{name} has more than {most}; is this the right file?")]
    TooLarge {
        /// The file.
        name: String,
        /// The most that is read.
        most: Bytes,
    },
    /// The bytes are no text.
    #[error("{name} is not UTF-8: byte {valid} begins no character; convert it to UTF-8")]
    NotText {
        /// The file.
        name: String,
        /// Bytes that are text before the first that is not.
        valid: usize,
    },
}

/// Opens a file of which places or the whole are read: a model, a topology. `wanted` says what it should be, such as
/// `a .gguf file`.
///
/// # Errors
/// [`InputError::Kind`] for what is no regular file, before it is opened: to open a FIFO waits, and a device may act.
pub fn open_regular(path: &Path, wanted: &'static str) -> Result<File, InputError> {
    let check = |about: &std::fs::Metadata| match kind_of(about) {
        None => Ok(()),
        Some(kind) => Err(InputError::Kind { path: path.to_owned(), kind, wanted }),
    };
    check(&fs_err::metadata(path)?)?;
    // What stands there may have changed since; without the flag, a FIFO that came meanwhile would be waited for.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let options = fs_err::OpenOptions::from_options(std::fs::OpenOptions::new().read(true).custom_flags(flags).clone());
    let file = options.open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

/// Reads a regular file of at most `most` bytes as text.
///
/// # Errors
/// As [`open_regular`]; a file that is too large is not read.
pub fn read_regular_text(path: &Path, wanted: &'static str, most: Bytes) -> Result<String, InputError> {
    let file = open_regular(path, wanted)?;
    if file.metadata()?.len() > most.0 {
        return Err(InputError::TooLarge { name: path.display().to_string(), most });
    }
    text_of(file, &path.display().to_string(), most)
}

/// Reads text of at most `most` bytes from a file, a FIFO or a character device.
///
/// # Errors
/// [`InputError`]; a folder is refused before it is opened, and so is a regular file that is too large.
pub fn read_text(path: &Path, most: Bytes) -> Result<String, InputError> {
    let about = fs_err::metadata(path)?;
    if about.is_file() || about.is_dir() {
        return read_regular_text(path, "a text file", most);
    }
    text_of(File::open(path)?, &path.display().to_string(), most)
}

/// Reads at most `most` bytes of text from an open source, which `name` names in errors.
///
/// # Errors
/// [`InputError`].
pub fn text_of(source: impl Read, name: &str, most: Bytes) -> Result<String, InputError> {
    let mut bytes = Vec::new();
    source.take(most.0.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most.0 {
        return Err(InputError::TooLarge { name: name.to_owned(), most });
    }
    String::from_utf8(bytes)
        .map_err(|error| InputError::NotText { name: name.to_owned(), valid: error.utf8_error().valid_up_to() })
}

/// What a thing is that is no regular file.
fn kind_of(about: &std::fs::Metadata) -> Option<&'static str> {
    let kind = about.file_type();
    match () {
        () if kind.is_file() => None,
        () if kind.is_dir() => Some("a folder"),
        () if kind.is_fifo() => Some("a FIFO"),
        () if kind.is_socket() => Some("a socket"),
        () => Some("a device"),
    }
}
