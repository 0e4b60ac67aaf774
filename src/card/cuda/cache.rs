//! Compiled kernels on disk: a folder of entries, each with a checksum.
//!
//! A folder is a convenience: what cannot be read is compiled again, and what cannot be written costs the time to
//! compile. Entries are written beside and renamed, so that another process never reads half of one; several processes
//! may fill a folder at once.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};

/// Begins an entry; the checksum of what follows comes after it.
const MAGIC: &[u8] = b"aqueduct kernel 1\n";
const CHECKSUM: usize = 32;

/// Names of files that are being written.
const PARTIAL: &str = ".writing-";

/// A file that was being written so long ago is of a process that was killed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A compiler's version.
pub(super) type Version = (u32, u32);

/// A folder of entries named `STEM-nvrtcMAJOR.MINOR.EXTENSION`.
#[derive(Clone, Debug)]
pub(super) struct Folder(pub(super) PathBuf);

/// What a folder has of an entry.
pub(super) enum Found {
    /// The code.
    Whole(Vec<u8>),
    /// Bytes that are not what was written.
    Damaged(PathBuf),
    Nothing,
}

impl Folder {
    /// The file of an entry.
    pub(super) fn file(&self, stem: &str, (major, minor): Version, extension: &str) -> PathBuf {
        self.0.join(format!("{stem}-nvrtc{major}.{minor}.{extension}"))
    }

    /// Reads the entry of the newest compiler that is `usable`; one that is damaged only where none is whole.
    pub(super) fn newest(&self, stem: &str, extension: &str, usable: impl Fn(Version) -> bool) -> Found {
        let version = |path: &Path| -> Option<Version> {
            let name = path.file_name()?.to_str()?.strip_prefix(stem)?.strip_prefix("-nvrtc")?;
            let (major, minor) = name.strip_suffix(extension)?.strip_suffix('.')?.split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        };
        let Ok(entries) = fs_err::read_dir(&self.0) else { return Found::Nothing };
        let files = entries.filter_map(Result::ok).map(|entry| entry.path());
        let mut files: Vec<(Version, PathBuf)> = files.filter_map(|path| Some((version(&path)?, path))).collect();
        files.retain(|(version, _)| usable(*version));
        files.sort();
        let mut damaged = Found::Nothing;
        for (_, file) in files.into_iter().rev() {
            match read(&file) {
                whole @ Found::Whole(_) => return whole,
                found @ Found::Damaged(_) => damaged = found,
                Found::Nothing => {}
            }
        }
        damaged
    }

    /// Writes an entry; nothing of it stays where that fails.
    pub(super) fn keep(&self, file: &Path, code: &[u8]) -> io::Result<()> {
        fs_err::create_dir_all(&self.0)?;
        let mut partial = tempfile::Builder::new().prefix(PARTIAL).tempfile_in(&self.0)?;
        partial.write_all(MAGIC)?;
        partial.write_all(&Sha256::digest(code))?;
        partial.write_all(code)?;
        partial.persist(file).map_err(|error| error.error)?;
        Ok(())
    }

    /// Removes what killed processes left half written.
    pub(super) fn tidy(&self) {
        let Ok(entries) = fs_err::read_dir(&self.0) else { return };
        for entry in entries.filter_map(Result::ok) {
            let ours = entry.file_name().to_string_lossy().starts_with(PARTIAL);
            let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
            if ours && age().is_some_and(|age| age > ABANDONED) {
                let _ = fs_err::remove_file(entry.path());
            }
        }
    }
}

/// Reads an entry and compares its checksum.
pub(super) fn read(file: &Path) -> Found {
    let bytes = match fs_err::read(file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Found::Nothing,
        Err(error) => {
            tracing::debug!("{error}");
            return Found::Damaged(file.to_owned());
        }
    };
    let whole = bytes.strip_prefix(MAGIC).and_then(|rest| {
        let (checksum, code) = rest.split_at_checked(CHECKSUM)?;
        (!code.is_empty() && Sha256::digest(code).as_slice() == checksum).then(|| code.to_vec())
    });
    whole.map_or_else(|| Found::Damaged(file.to_owned()), Found::Whole)
}

/// The beginning of the name of what a source and options make.
pub(super) fn stem(what: &str, source: &str, options: &[String]) -> String {
    let mut hash = Sha256::new();
    hash.update(source);
    for option in options {
        hash.update([0]);
        hash.update(option);
    }
    let digest: String = hash.finalize().iter().take(12).map(|b| format!("{b:02x}")).collect();
    format!("{what}-{digest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Folder) {
        let parent = tempfile::tempdir().unwrap();
        let folder = Folder(parent.path().join("kernels"));
        (parent, folder)
    }

    fn whole(found: Found) -> Option<Vec<u8>> {
        match found {
            Found::Whole(code) => Some(code),
            Found::Damaged(_) | Found::Nothing => None,
        }
    }

    #[test]
    fn every_kind_of_damage_is_seen() {
        let (_parent, folder) = folder();
        let file = folder.file("base-sm_86-00", (12, 8), "cubin");
        assert!(matches!(read(&file), Found::Nothing));
        let code: Vec<u8> = (0..5000_u32).map(|i| (i * 7) as u8).collect();
        folder.keep(&file, &code).unwrap();
        let bytes = fs_err::read(&file).unwrap();
        assert_eq!(whole(read(&file)), Some(code.clone()));
        let mut damaged = 0;
        let mut refuse = |bytes: &[u8]| {
            fs_err::write(&file, bytes).unwrap();
            assert!(matches!(read(&file), Found::Damaged(_)), "{} bytes", bytes.len());
            damaged += 1;
        };
        for length in [0, 1, MAGIC.len(), MAGIC.len() + 31, MAGIC.len() + 32, bytes.len() - 1] {
            refuse(&bytes[..length]);
        }
        for at in [0, MAGIC.len(), MAGIC.len() + 40, bytes.len() - 1] {
            let mut other = bytes.clone();
            other[at] ^= 1;
            refuse(&other);
        }
        refuse(&code);
        refuse(&[&bytes[..], b"x"].concat());
        assert_eq!(damaged, 12);
        fs_err::remove_file(&file).unwrap();
        fs_err::create_dir(&file).unwrap();
        assert!(matches!(read(&file), Found::Damaged(_)), "a folder in its place");
    }

    #[test]
    fn the_newest_usable_entry_that_is_whole_is_taken() {
        let (_parent, folder) = folder();
        let mut keep = |version: Version| {
            let file = folder.file("base-sm_86-00", version, "cubin");
            folder.keep(&file, format!("{version:?}").as_bytes()).unwrap();
            file
        };
        let files = [(12, 8), (12, 10), (13, 0)].map(&mut keep);
        let newest = |driver: u32| whole(folder.newest("base-sm_86-00", "cubin", |version| version.0 <= driver));
        assert_eq!(newest(13).unwrap(), b"(13, 0)");
        assert_eq!(newest(12).unwrap(), b"(12, 10)");
        assert_eq!(newest(11), None);
        fs_err::write(&files[1], b"half").unwrap();
        assert_eq!(newest(12).unwrap(), b"(12, 8)");
        fs_err::write(&files[0], b"").unwrap();
        assert!(matches!(folder.newest("base-sm_86-00", "cubin", |version| version.0 == 12), Found::Damaged(_)));
        assert!(matches!(folder.newest("base-sm_86-0", "cubin", |_| true), Found::Nothing));
    }

    #[test]
    fn many_writers_of_one_entry_leave_one_whole_file() {
        let (_parent, folder) = folder();
        let file = folder.file("base-sm_86-00", (12, 8), "cubin");
        std::thread::scope(|scope| {
            for writer in 0..8_u8 {
                let (folder, file) = (&folder, &file);
                scope.spawn(move || {
                    for _ in 0..20 {
                        folder.keep(file, &[writer; 3000]).unwrap();
                        assert!(matches!(read(file), Found::Whole(_)));
                    }
                });
            }
        });
        assert_eq!(fs_err::read_dir(&folder.0).unwrap().count(), 1, "partial files stay");
    }

    #[test]
    fn what_cannot_be_written_is_an_error_and_leaves_nothing() {
        let (parent, folder) = folder();
        // A folder in the entry's place: all is written, only the last step fails.
        let file = folder.file("base-sm_86-00", (12, 8), "cubin");
        fs_err::create_dir_all(file.join("x")).unwrap();
        assert!(folder.keep(&file, b"code").is_err());
        assert_eq!(fs_err::read_dir(&folder.0).unwrap().count(), 1, "a partial file stays");
        let no_folder = Folder(parent.path().join("file/kernels"));
        fs_err::write(parent.path().join("file"), b"").unwrap();
        assert!(no_folder.keep(&no_folder.file("base-sm_86-00", (12, 8), "cubin"), b"code").is_err());
    }

    #[test]
    fn only_old_partial_files_are_removed() {
        let (_parent, folder) = folder();
        fs_err::create_dir_all(&folder.0).unwrap();
        for (name, age) in [(".writing-old", 7200), (".writing-new", 5), ("base.cubin", 7200), ("notes.txt", 7200)] {
            let file = fs_err::File::create(folder.0.join(name)).unwrap();
            let then = std::time::SystemTime::now() - Duration::from_secs(age);
            file.file().set_modified(then).unwrap();
        }
        folder.tidy();
        let left = ["base.cubin", ".writing-new", "notes.txt"];
        assert!(left.iter().all(|name| folder.0.join(name).exists()));
        assert_eq!(fs_err::read_dir(&folder.0).unwrap().count(), left.len());
    }
}
