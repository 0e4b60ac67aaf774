//! Writes a GGUF file as a stream: the header, then one tensor after the other.

use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use sha2::{Digest, Sha256};
use thiserror::Error;

use super::header::{Header, TensorHead, padded};
use crate::files::{Output, OutputError};
use crate::units::Bytes;

/// Bytes that pass between two questions whether to go on.
const CHUNK: usize = 4 << 20;
const BUFFER: usize = 1 << 20;

/// Is told the bytes written and wanted after every few MiB; `Break` ends the writing, and nothing is left of the file.
pub type Watch<'a> = &'a mut dyn FnMut(Bytes, Bytes) -> ControlFlow<()>;

/// Why a file was not written.
#[derive(Debug, Error)]
pub enum WriteError {
    /// There is no room, or the system refused.
    #[error(transparent)]
    Output(#[from] OutputError),
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
    out: BufWriter<Output>,
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
    /// Starts the file and writes its header. Needs room for the whole file. With `sha256` (64 lower-case digits) only
    /// the file that has it will be kept.
    ///
    /// # Errors
    /// [`WriteError::Output`], where there is no room before anything is written.
    pub fn create(out: Output, header: &Header, sha256: Option<&str>, watch: Watch<'w>) -> Result<Self, WriteError> {
        let wanted = header.file_bytes();
        out.reserve(wanted)?;
        let mut writer = Self {
            path: out.path().to_owned(),
            out: BufWriter::with_capacity(BUFFER, out),
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
    /// [`WriteError::Order`] when something is missing; [`WriteError::OtherFile`] when the hash is not the expected
    /// one; [`WriteError::Output`] when the last bytes or the name cannot be written.
    pub fn finish(mut self) -> Result<Written, WriteError> {
        self.end_tensor("the end of the file")?;
        if let Some(next) = self.tensors.next() {
            return Err(self.out_of_order(format!("tensor `{}`", next.name), "the end of the file".to_owned()));
        }
        let Self { path, mut out, written, expected, .. } = self;
        if let Some((expected, hash)) = expected {
            let found = hex(hash);
            if found != expected {
                return Err(WriteError::OtherFile { path, expected, found });
            }
        }
        out.flush().map_err(|error| out.get_ref().fault(error))?;
        let (out, _) = out.into_parts();
        out.keep()?;
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
            self.out.write_all(chunk).map_err(|error| self.out.get_ref().fault(error))?;
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

/// The digest as 64 lower-case digits.
pub(super) fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
