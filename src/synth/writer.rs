//! Writes a GGUF file as a stream: the header, then one tensor after the other, under a temporary name until all is there.

use std::fs::Permissions;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;
use thiserror::Error;

use super::header::{Header, TensorHead, padded};
use crate::units::Bytes;

/// Bytes that pass between two questions whether to go on.
const CHUNK: usize = 4 << 20;
const BUFFER: usize = 1 << 20;

/// Is told the bytes written and wanted after every few MiB; `Break` ends the writing, and nothing is left of the file.
pub type Watch<'a> = &'a mut dyn FnMut(Bytes, Bytes) -> ControlFlow<()>;

/// Why a file was not written. In every case nothing is left of it, and an older file of its name still stands.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The disk is too small.
    #[error(
        "cannot write {}: it takes {wanted}, and {free} are free there. Make room or choose another folder",
        path.display()
    )]
    DiskFull {
        /// The file.
        path: PathBuf,
        /// Its whole size.
        wanted: Bytes,
        /// What its disk would take.
        free: Bytes,
    },
    /// The watch said to stop.
    #[error("stopped after {written} of {wanted}: nothing is left of {}", path.display())]
    Stopped {
        /// The file.
        path: PathBuf,
        /// Bytes written until then.
        written: Bytes,
        /// Its whole size.
        wanted: Bytes,
    },
    /// The system refused.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Tensors came in another order or size than the header says.
    #[error("while writing {}: expected {expected}, got {found}", path.display())]
    Order {
        /// The file.
        path: PathBuf,
        /// What the header says is next.
        expected: String,
        /// What came.
        found: String,
    },
    /// The file is not the one that was to be written.
    #[error("{} came out with SHA-256 {found}, expected {expected}: it was not kept", path.display())]
    OtherFile {
        /// The file.
        path: PathBuf,
        /// What it should have been.
        expected: String,
        /// What it would have been.
        found: String,
    },
}

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: Bytes,
}

/// A GGUF file on its way to the disk.
pub struct Writer<'w> {
    path: PathBuf,
    out: BufWriter<NamedTempFile>,
    tensors: std::vec::IntoIter<TensorHead>,
    /// Data bytes of the current tensor that are still to come, and its padding after them.
    left: u64,
    padding: u64,
    written: u64,
    wanted: u64,
    expected: Option<(String, Sha256)>,
    watch: Watch<'w>,
}

impl<'w> Writer<'w> {
    /// Starts the file at `path` and writes its header. Needs room for the whole file. With `sha256` (64 lower-case digits)
    /// only the file that has it will be kept.
    ///
    /// # Errors
    /// [`WriteError::DiskFull`] before anything is written; [`WriteError::Io`] where the folder cannot be written to.
    pub fn create(path: &Path, header: &Header, sha256: Option<&str>, watch: Watch<'w>) -> Result<Self, WriteError> {
        let wanted = header.file_bytes();
        let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let io = |source: io::Error| WriteError::Io { path: path.to_owned(), source };
        let Some(name) = path.file_name() else {
            return Err(io(io::Error::new(ErrorKind::IsADirectory, "this is no file name")));
        };
        if let Some(free) = free_bytes(folder)
            && free < wanted
        {
            return Err(WriteError::DiskFull { path: path.to_owned(), wanted, free });
        }
        let mut prefix = name.to_owned();
        prefix.push(".");
        let part = tempfile::Builder::new()
            .prefix(&prefix)
            .suffix(".part")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .map_err(io)?;
        let mut writer = Self {
            path: path.to_owned(),
            out: BufWriter::with_capacity(BUFFER, part),
            tensors: header.tensors().to_vec().into_iter(),
            left: 0,
            padding: 0,
            written: 0,
            wanted: wanted.0,
            expected: sha256.map(|expected| (expected.to_owned(), Sha256::new())),
            watch,
        };
        writer.put(&header.encode())?;
        Ok(writer)
    }

    /// Begins the next tensor of the header.
    ///
    /// # Errors
    /// [`WriteError::Order`] when it is another one, or the one before is not complete.
    pub fn begin(&mut self, name: &str) -> Result<(), WriteError> {
        self.end_tensor(name)?;
        match self.tensors.next() {
            Some(tensor) if tensor.name == name => {
                self.left = tensor.bytes;
                self.padding = padded(tensor.bytes) - tensor.bytes;
                Ok(())
            }
            next => {
                let expected =
                    next.map_or_else(|| "the end of the file".to_owned(), |t| format!("tensor `{}`", t.name));
                Err(self.out_of_order(expected, format!("tensor `{name}`")))
            }
        }
    }

    /// Writes the next bytes of the current tensor.
    ///
    /// # Errors
    /// [`WriteError`]; the writer is of no use afterwards.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let Some(left) = self.left.checked_sub(bytes.len() as u64) else {
            let expected = format!("at most {} more bytes of a tensor", self.left);
            return Err(self.out_of_order(expected, format!("{} bytes", bytes.len())));
        };
        self.put(bytes)?;
        self.left = left;
        Ok(())
    }

    /// Ends the file and gives it its name.
    ///
    /// # Errors
    /// [`WriteError::Order`] when something is missing; [`WriteError::OtherFile`] when the hash is not the expected one;
    /// [`WriteError::Io`] when the file cannot be renamed.
    pub fn finish(mut self) -> Result<Written, WriteError> {
        self.end_tensor("the end of the file")?;
        if let Some(next) = self.tensors.next() {
            return Err(self.out_of_order(format!("tensor `{}`", next.name), "the end of the file".to_owned()));
        }
        let Self { path, out, written, wanted, expected, .. } = self;
        if let Some((expected, hash)) = expected {
            let found = hex(hash);
            if found != expected {
                return Err(WriteError::OtherFile { path, expected, found });
            }
        }
        let part = out.into_inner().map_err(|e| fault(&path, written, wanted, e.into_error()))?;
        part.persist(&path).map_err(|e| fault(&path, written, wanted, e.error))?;
        Ok(Written { path, bytes: Bytes(written) })
    }

    fn end_tensor(&mut self, next: &str) -> Result<(), WriteError> {
        if self.left > 0 {
            return Err(self.out_of_order(format!("{} more bytes of a tensor", self.left), next.to_owned()));
        }
        const ZEROS: [u8; 32] = [0; 32];
        let padding = std::mem::take(&mut self.padding) as usize;
        self.put(ZEROS.get(..padding).unwrap_or(&ZEROS))
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        for chunk in bytes.chunks(CHUNK) {
            self.out.write_all(chunk).map_err(|e| fault(&self.path, self.written, self.wanted, e))?;
            if let Some((_, hash)) = &mut self.expected {
                hash.update(chunk);
            }
            let before = self.written / CHUNK as u64;
            self.written += chunk.len() as u64;
            let (written, wanted) = (Bytes(self.written), Bytes(self.wanted));
            let due = before != self.written / CHUNK as u64 || written == wanted;
            if due && (self.watch)(written, wanted).is_break() {
                return Err(WriteError::Stopped { path: self.path.clone(), written, wanted });
            }
        }
        Ok(())
    }

    fn out_of_order(&self, expected: String, found: String) -> WriteError {
        WriteError::Order { path: self.path.clone(), expected, found }
    }
}

fn fault(path: &Path, written: u64, wanted: u64, source: io::Error) -> WriteError {
    match source.kind() {
        // What was written is what the disk had, whatever it promised.
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            WriteError::DiskFull { path: path.to_owned(), wanted: Bytes(wanted), free: Bytes(written) }
        }
        _ => WriteError::Io { path: path.to_owned(), source },
    }
}

/// What the disk of a folder has for this user; `None` where the file system does not say.
fn free_bytes(folder: &Path) -> Option<Bytes> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    (disk.f_blocks > 0).then(|| Bytes(disk.f_bavail.saturating_mul(disk.f_frsize)))
}

/// The digest as 64 lower-case digits.
pub(super) fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
