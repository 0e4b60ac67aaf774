//! Files that a subcommand writes: checked before the work, whole or not there after it.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use fs_err::File;

/// A file that gets its name only when it is complete.
pub struct PartFile {
    part: PathBuf,
    target: PathBuf,
}

impl PartFile {
    /// Opens the part beside its target.
    pub fn create(target: &Path) -> anyhow::Result<(Self, File)> {
        ensure!(!target.is_dir(), "cannot write {}: it is a folder; give the name of a file", target.display());
        let mut name = target.as_os_str().to_owned();
        name.push(".part");
        let part = PathBuf::from(name);
        let file = File::create(&part).with_context(|| {
            format!("cannot write {}; choose a folder that is there and may be written", target.display())
        })?;
        Ok((Self { part, target: target.to_owned() }, file))
    }

    /// Whether the file could be written; leaves nothing.
    pub fn check(target: &Path) -> anyhow::Result<()> {
        Self::create(target).map(drop)
    }

    /// Path of the part.
    pub fn path(&self) -> &Path {
        &self.part
    }

    /// Gives the complete file its name.
    pub fn keep(self) -> anyhow::Result<()> {
        Ok(fs_err::rename(&self.part, &self.target)?)
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        // After `keep` there is none; otherwise the error that is told is the first one, not that of the clean-up.
        let _ = fs_err::remove_file(&self.part);
    }
}
