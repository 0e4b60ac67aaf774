//! A reader over the bytes of a file that checks every step and knows where it is.

use std::path::Path;

use super::error::{Fault, GgufError};

/// A place in a file's bytes.
pub(super) struct Cursor<'a> {
    file: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a Path, bytes: &'a [u8]) -> Self {
        Self { file, bytes, at: 0 }
    }

    /// The byte that is read next.
    pub(super) fn offset(&self) -> u64 {
        self.at as u64
    }

    /// Bytes from here to the end of the file.
    pub(super) fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The error of this fault in an item that begins at `offset`.
    pub(super) fn fault(&self, offset: u64, fault: Fault) -> GgufError {
        GgufError::Malformed { file: self.file.to_owned(), offset, fault }
    }

    /// The next `count` bytes.
    pub(super) fn take(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], GgufError> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        match end.and_then(|end| self.bytes.get(self.at..end).map(|taken| (taken, end))) {
            Some((taken, end)) => {
                self.at = end;
                Ok(taken)
            }
            None => Err(self.fault(self.offset(), Fault::Truncated { what, wanted: count as u64, left: self.left() })),
        }
    }

    fn word<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let mut word = [0; N];
        word.copy_from_slice(self.take(N, what)?);
        Ok(word)
    }

    /// The next four bytes as they are.
    pub(super) fn magic(&mut self) -> Result<[u8; 4], GgufError> {
        self.word("the header")
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        self.word(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        self.word(what).map(u64::from_le_bytes)
    }

    /// A number of items that take at least `least` bytes each, refused when the rest of the file cannot hold them.
    pub(super) fn count(&mut self, what: &'static str, least: usize) -> Result<usize, GgufError> {
        let at = self.offset();
        let count = self.u64(what)?;
        let wanted = u128::from(count) * least as u128;
        match usize::try_from(count) {
            Ok(fits) if wanted <= u128::from(self.left()) => Ok(fits),
            _ => Err(self.fault(at, Fault::Count { what, count, wanted, left: self.left() })),
        }
    }

    /// A text with its length before it.
    pub(super) fn text(&mut self, length: &'static str, what: &'static str) -> Result<&'a str, GgufError> {
        let at = self.offset();
        let bytes = self.count(length, 1)?;
        std::str::from_utf8(self.take(bytes, what)?).map_err(|_| self.fault(at, Fault::NotUtf8 { what }))
    }

    /// The bytes between two places that were read already.
    pub(super) fn between(&self, start: u64, end: u64) -> &'a [u8] {
        self.bytes.get(start as usize..end as usize).unwrap_or_default()
    }
}
