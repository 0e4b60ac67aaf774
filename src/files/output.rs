//! Files that are written: whole under their name, or not there.

use std::ffi::OsString;
use std::fs::{Metadata, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use tempfile::NamedTempFile;
use thiserror::Error;

use crate::units::Bytes;

/// How long a FIFO may be without a reader: whoever starts both at once need not mind which comes first.
const READER_COMES: Duration = Duration::from_secs(2);

/// Links that are followed from one name.
const MOST_LINKS: usize = 40;

/// Why an output was not written. Nothing is left of it, and an older file of its name still stands.
#[derive(Debug, Error)]
pub enum OutputError {
    /// The name is that of a folder.
    #[error("cannot write {}: it is a folder; give the name of a file", path.display())]
    Folder {
        /// The name.
        path: PathBuf,
    },
    /// The name leads to a file that the same command reads.
    #[error("cannot write {}: it is the file {}, which is read; give the output another name", path.display(), input.display())]
    Input {
        /// The output.
        path: PathBuf,
        /// The input that it is.
        input: PathBuf,
    },
    /// Nothing can be created there.
    #[error("cannot write {}: {source}; choose a folder that is there and may be written", path.display())]
    Create {
        /// The output.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A FIFO that nobody reads.
    #[error("cannot write {}: it is a FIFO and nobody reads it; start its reader first", path.display())]
    NoReader {
        /// The output.
        path: PathBuf,
    },
    /// A device or FIFO cannot be opened, or what stands there takes no data (a socket).
    #[error("cannot write {}: {source}", path.display())]
    Open {
        /// The output.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The disk is too small.
    #[error("cannot write {}: it takes {wanted}, and {free} are free there. Make room or choose another folder", path.display())]
    NoRoom {
        /// The output.
        path: PathBuf,
        /// Its size.
        wanted: Bytes,
        /// What its disk would take.
        free: Bytes,
    },
    /// Writing failed on the way.
    #[error("cannot write {}: {}", path.display(), told(source))]
    Write {
        /// The output.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

fn told(source: &io::Error) -> String {
    match source.kind() {
        ErrorKind::StorageFull => "the disk is full. Make room or choose another folder".to_owned(),
        ErrorKind::QuotaExceeded => "the disk quota is used up. Make room or choose another folder".to_owned(),
        ErrorKind::FileTooLarge => {
            "a file there cannot be so large. Raise the limit (ulimit -f), or choose another disk".to_owned()
        }
        _ => source.to_string(),
    }
}

/// A file on its way. A regular file has no name until [`Output::keep`] gives it its own, so whatever ends the program
/// before leaves nothing behind and an older file as it was. Where the file system knows no nameless files, a temporary
/// name stands for it in the same folder, unique to this process, and goes with the `Output`. Writes are not buffered.
#[derive(Debug)]
pub struct Output {
    /// As the user wrote it.
    path: PathBuf,
    way: Way,
}

#[derive(Debug)]
enum Way {
    /// A file without a name; `target` is where its name will be, all links followed.
    Nameless { file: std::fs::File, target: PathBuf },
    /// The same under a temporary name, made at the first write.
    Named { part: Option<NamedTempFile>, target: PathBuf, permissions: Permissions },
    /// A device or a FIFO, written in place.
    Special(std::fs::File),
}

impl Output {
    /// Prepares the output `path` of a command that reads `inputs` (those of them that exist). Leaves nothing where it
    /// is dropped.
    ///
    /// # Errors
    /// [`OutputError`]: a folder, an input, a place that cannot be written to.
    pub fn create(path: &Path, inputs: &[&Path]) -> Result<Self, OutputError> {
        Self::with_mode(path, inputs, 0o666)
    }

    /// As [`Output::create`], for what others should not read: a new file is its owner's only.
    ///
    /// # Errors
    /// As [`Output::create`].
    pub fn private(path: &Path, inputs: &[&Path]) -> Result<Self, OutputError> {
        Self::with_mode(path, inputs, 0o600)
    }

    fn with_mode(path: &Path, inputs: &[&Path], mode: u32) -> Result<Self, OutputError> {
        let create = |source| OutputError::Create { path: path.to_owned(), source };
        // Messages name the path themselves, so the system's bare errors are wanted here.
        let about = match path.metadata() {
            Ok(about) => Some(about),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(create(error)),
        };
        let named_folder = path.as_os_str().as_bytes().last().is_none_or(|last| *last == b'/');
        if about.as_ref().is_some_and(Metadata::is_dir) || (about.is_none() && named_folder) {
            return Err(OutputError::Folder { path: path.to_owned() });
        }
        if let Some(about) = &about {
            refuse_inputs(path, about, inputs)?;
        }
        let way = match &about {
            Some(about) if !about.is_file() => Way::Special(open_special(path, about)?),
            _ => regular(path, about.as_ref(), mode).map_err(create)?,
        };
        Ok(Self { path: path.to_owned(), way })
    }

    /// The name as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether `wanted` bytes have room. A file system that does not say has.
    ///
    /// # Errors
    /// [`OutputError::NoRoom`].
    pub fn reserve(&self, wanted: Bytes) -> Result<(), OutputError> {
        let (Way::Nameless { target, .. } | Way::Named { target, .. }) = &self.way else { return Ok(()) };
        match free_bytes(folder_of(target)) {
            Some(free) if free < wanted => Err(OutputError::NoRoom { path: self.path.clone(), wanted, free }),
            _ => Ok(()),
        }
    }

    /// A failed write, with the output's name and what can be done.
    pub fn fault(&self, source: io::Error) -> OutputError {
        OutputError::Write { path: self.path.clone(), source }
    }

    /// Gives the complete file its name, in place of an older one. Of two programs that write one name, the last has
    /// it.
    ///
    /// # Errors
    /// [`OutputError::Write`].
    pub fn keep(self) -> Result<(), OutputError> {
        let Self { path, way } = self;
        let kept = match way {
            Way::Special(_) => Ok(()),
            Way::Nameless { file, target } => name(&file, &target),
            // Nothing was written: an empty file is.
            Way::Named { part: None, target, permissions } => {
                begin(&target, &permissions).and_then(|part| persist(part, &target))
            }
            Way::Named { part: Some(part), target, .. } => persist(part, &target),
        };
        kept.map_err(|source| OutputError::Write { path, source })
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.way {
            Way::Nameless { file, .. } | Way::Special(file) => file.write(bytes),
            Way::Named { part: Some(part), .. } => part.write(bytes),
            Way::Named { part: part @ None, target, permissions } => {
                part.insert(begin(target, permissions)?).write(bytes)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn refuse_inputs(path: &Path, about: &Metadata, inputs: &[&Path]) -> Result<(), OutputError> {
    // A terminal may well be both.
    if about.file_type().is_char_device() {
        return Ok(());
    }
    let same =
        |input: &&&Path| input.metadata().is_ok_and(|other| (other.dev(), other.ino()) == (about.dev(), about.ino()));
    match inputs.iter().find(same) {
        Some(input) => Err(OutputError::Input { path: path.to_owned(), input: (*input).to_owned() }),
        None => Ok(()),
    }
}

/// Opens what is no regular file, and waits for the reader of a FIFO only a little.
fn open_special(path: &Path, about: &Metadata) -> Result<std::fs::File, OutputError> {
    let fifo = about.file_type().is_fifo();
    let begin = Instant::now();
    loop {
        match rustix::fs::open(
            path,
            OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY,
            Mode::empty(),
        ) {
            Ok(file) => {
                let blocking = rustix::fs::fcntl_getfl(&file)
                    .and_then(|flags| rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK));
                let open = |source: Errno| OutputError::Open { path: path.to_owned(), source: source.into() };
                return blocking.map(|()| file.into()).map_err(open);
            }
            Err(Errno::NXIO) if fifo && begin.elapsed() < READER_COMES => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(Errno::NXIO) if fifo => return Err(OutputError::NoReader { path: path.to_owned() }),
            Err(source) => return Err(OutputError::Open { path: path.to_owned(), source: source.into() }),
        }
    }
}

/// A regular file, new or in place of an older one, whose permissions it takes over.
fn regular(path: &Path, older: Option<&Metadata>, mode: u32) -> io::Result<Way> {
    let target = follow(path)?;
    let mode = older.map_or(mode, |older| older.permissions().mode() & 0o777);
    let permissions = Permissions::from_mode(mode);
    match nameless(folder_of(&target), mode) {
        Ok(file) => {
            if older.is_some() {
                file.set_permissions(permissions)?;
            }
            Ok(Way::Nameless { file, target })
        }
        // One is made only to see whether it can be: the work before the first write may end in any way.
        Err(error) => match begin(&target, &permissions) {
            Ok(_) => Ok(Way::Named { part: None, target, permissions }),
            Err(_) if error != NO_NAMELESS => Err(error.into()),
            Err(second) => Err(second.kind().into()),
        },
    }
}

/// What a file system says that knows no nameless files.
const NO_NAMELESS: Errno = Errno::OPNOTSUPP;

/// A file without a name in a folder. It gets one through `/proc`, so that must be there.
fn nameless(folder: &Path, mode: u32) -> Result<std::fs::File, Errno> {
    let file = rustix::fs::open(folder, OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::from_raw_mode(mode))?;
    rustix::fs::stat(proc_name(&file)).map_err(|_| NO_NAMELESS)?;
    Ok(OwnedFd::into(file))
}

fn proc_name(file: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// A file under a temporary name beside its target.
fn begin(target: &Path, permissions: &Permissions) -> io::Result<NamedTempFile> {
    let prefix = part_prefix();
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(".part").permissions(permissions.clone());
    builder.tempfile_in(folder_of(target))
}

fn part_prefix() -> OsString {
    format!(".aqueduct-{}-", std::process::id()).into()
}

fn persist(part: NamedTempFile, target: &Path) -> io::Result<()> {
    part.persist(target).map(drop).map_err(|error| error.error)
}

/// Gives a nameless file its name. A file cannot be linked over another one, so where there is one, a temporary name is
/// renamed over it.
fn name(file: &std::fs::File, target: &Path) -> io::Result<()> {
    let link = |to: &Path| rustix::fs::linkat(CWD, proc_name(file), CWD, to, AtFlags::SYMLINK_FOLLOW);
    match link(target) {
        Err(Errno::EXIST) => {}
        done => return Ok(done?),
    }
    let part = tempfile::Builder::new()
        .prefix(&part_prefix())
        .suffix(".part")
        .make_in(folder_of(target), |path| Ok(link(path)?))?;
    part.into_temp_path().persist(target).map_err(|error| error.error)
}

/// Where a name leads, over links that may lead to nothing yet.
fn follow(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        match path.symlink_metadata() {
            Ok(about) if about.is_symlink() => path = folder_of(&path).join(path.read_link()?),
            Ok(_) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(path),
            Err(error) => return Err(error),
        }
    }
    Err(Errno::LOOP.into())
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// What the disk of a folder has for this user; `None` where the file system does not say.
fn free_bytes(folder: &Path) -> Option<Bytes> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    (disk.f_blocks > 0).then(|| Bytes(disk.f_bavail.saturating_mul(disk.f_frsize)))
}

#[cfg(test)]
mod tests;
