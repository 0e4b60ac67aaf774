//! One open file: its path, its mapping, and positioned reads.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fs_err::File;

use super::error::GgufError;
use super::mapping::Mapping;
use crate::files::{InputError, open_regular};

/// One file of a model.
#[derive(Debug)]
pub struct Shard {
    path: PathBuf,
    contents: Contents,
}

#[derive(Debug)]
enum Contents {
    Mapped { file: File, state: State, map: Arc<Mapping> },
    Empty { file: File, state: State },
    Memory(Vec<u8>),
}

/// What changes when others write to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl State {
    fn of(about: &Metadata) -> Self {
        Self { bytes: about.len(), modified: (about.mtime(), about.mtime_nsec()) }
    }
}

impl Shard {
    /// Opens and maps a file.
    pub(super) fn map(path: PathBuf) -> Result<Self, GgufError> {
        let file = open_regular(&path, "the path of a .gguf file")?;
        let about = file.metadata().map_err(InputError::from)?;
        let state = State::of(&about);
        // The system refuses to map nothing.
        if about.len() == 0 {
            return Ok(Self { path, contents: Contents::Empty { file, state } });
        }
        let map = Mapping::new(&file).map_err(|error| {
            let text = format!("cannot map `{}` into memory: {error}", path.display());
            InputError::from(io::Error::new(error.kind(), text))
        })?;
        Ok(Self { path, contents: Contents::Mapped { file, state, map: Arc::new(map) } })
    }

    pub(super) fn in_memory(path: PathBuf, contents: Vec<u8>) -> Self {
        Self { path, contents: Contents::Memory(contents) }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file; none for a model that was read from memory.
    pub fn file(&self) -> Option<&File> {
        match &self.contents {
            Contents::Mapped { file, .. } | Contents::Empty { file, .. } => Some(file),
            Contents::Memory(_) => None,
        }
    }

    /// The mapping, for those who use weights in place; none for an empty file and for a model read from memory.
    pub fn mapping(&self) -> Option<&Arc<Mapping>> {
        match &self.contents {
            Contents::Mapped { map, .. } => Some(map),
            Contents::Empty { .. } | Contents::Memory(_) => None,
        }
    }

    /// The whole file, mapped.
    pub fn contents(&self) -> &[u8] {
        match &self.contents {
            Contents::Mapped { map, .. } => map,
            Contents::Empty { .. } => &[],
            Contents::Memory(bytes) => bytes,
        }
    }

    /// The file's length in bytes, when it was opened.
    pub fn len(&self) -> u64 {
        self.contents().len() as u64
    }

    /// Whether the file holds nothing.
    pub fn is_empty(&self) -> bool {
        self.contents().is_empty()
    }

    /// Asks the system to read bytes into its cache meanwhile; nothing happens where it cannot.
    pub fn read_ahead(&self, offset: u64, bytes: usize) {
        if let Contents::Mapped { file, .. } = &self.contents {
            let bytes = std::num::NonZeroU64::new(bytes as u64);
            // Only advice: what is not read ahead is read when it is wanted.
            let _ = rustix::fs::fadvise(file.file(), offset, bytes, rustix::fs::Advice::WillNeed);
        }
    }

    /// Whether the file is still the one that was opened: everything read from it until now is what it held then.
    ///
    /// # Errors
    /// [`GgufError::Changed`] when it was shortened or written to, or pages of it could not be read.
    pub fn check(&self) -> Result<(), GgufError> {
        let (Contents::Mapped { file, state, .. } | Contents::Empty { file, state }) = &self.contents else {
            return Ok(());
        };
        let changed = |how: String| Err(GgufError::Changed { file: self.path.clone(), how });
        let now = State::of(&file.metadata().map_err(InputError::from)?);
        let damaged = matches!(&self.contents, Contents::Mapped { map, .. } if map.is_damaged());
        match () {
            () if now.bytes != state.bytes => changed(format!("it had {} bytes and has {}", state.bytes, now.bytes)),
            () if now.modified != state.modified => changed("it was written to".to_owned()),
            () if damaged => {
                changed("a part of it could not be read; see the system's log for errors of the disk".into())
            }
            () => Ok(()),
        }
    }

    /// Fills `out` with the bytes from `offset` on by a positioned read, past the mapping.
    ///
    /// # Errors
    /// [`GgufError::Read`] when the file cannot be read or ends too early.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), GgufError> {
        let read = match self.file() {
            Some(file) => file.file().read_exact_at(out, offset),
            None => copy_from(self.contents(), offset, out),
        };
        read.map_err(|source| GgufError::Read { file: self.path.clone(), offset, wanted: out.len(), source })
    }
}

fn copy_from(contents: &[u8], offset: u64, out: &mut [u8]) -> io::Result<()> {
    let start = usize::try_from(offset).ok();
    let source = start.and_then(|start| contents.get(start..)?.get(..out.len()));
    out.copy_from_slice(source.ok_or(io::ErrorKind::UnexpectedEof)?);
    Ok(())
}
