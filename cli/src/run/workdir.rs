//! The job's own directory: link sockets and the key file, mode 0700, removed at the end of the job. A bench has one for
//! the peers' programs.
//!
//! It is called `shouter-run-<random>` and holds a `lock` file, locked for as long as the launcher lives. A launcher
//! that is killed with SIGKILL cannot clean up; the next one finds directories without a locked file and removes them.
//! It may remove a directory that is being made and has no locked file yet; that directory's launcher then makes
//! another.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rand::TryRngCore;
use rand::rngs::OsRng;

use super::output::tell;
use super::sys;

/// The number of attempts to make a directory: only launchers that start at the same instant remove each other's.
const TRIES: u32 = 100;

const PREFIX: &str = "shouter-run-";

/// A directory that is removed on drop.
#[derive(Debug)]
pub(crate) struct WorkDir {
    path: PathBuf,
    _lock: File,
}

impl WorkDir {
    /// Makes a fresh directory under `parent`, and removes this user's leftovers of dead launchers there.
    pub(crate) fn create(parent: &Path) -> io::Result<Self> {
        remove_leftovers(parent);
        for _ in 0..TRIES {
            if let Some(dir) = Self::make(parent)? {
                return Ok(dir);
            }
        }
        Err(io::Error::other(format!("other launchers have removed each of {TRIES} new directories")))
    }

    /// Makes a directory; `None` if another launcher removed it as a leftover before its lock was held.
    fn make(parent: &Path) -> io::Result<Option<Self>> {
        let mut random = [0u8; 8];
        OsRng.try_fill_bytes(&mut random).map_err(io::Error::other)?;
        let path = parent.join(format!("{PREFIX}{}", hex::encode(random)));
        DirBuilder::new().mode(0o700).create(&path)?;
        match locked(&path.join("lock")) {
            Ok(Some(lock)) => Ok(Some(Self { path, _lock: lock })),
            failed => {
                let _ = fs::remove_dir_all(&path);
                failed.map(|_| None)
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file that only this user can read.
    pub(super) fn write_private(&self, name: &str, text: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(text.as_bytes())?;
        Ok(path)
    }
}

/// Makes a lock file and locks it; `None` if another launcher has it, or has removed it or its directory.
fn locked(path: &Path) -> io::Result<Option<File>> {
    let lock = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        lock => lock?,
    };
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // A directory is removed only under its lock, so one that exists now stays.
    Ok((lock.metadata()?.nlink() > 0).then_some(lock))
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tell(&format!("cannot remove {}: {error}", self.path.display()));
        }
    }
}

/// The directory for job directories: `$XDG_RUNTIME_DIR` if this user owns it, else /tmp.
pub(super) fn parent() -> PathBuf {
    let ours = |path: &PathBuf| {
        path.is_absolute() && fs::metadata(path).is_ok_and(|m| m.is_dir() && m.uid() == sys::user())
    };
    std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(ours).unwrap_or_else(|| "/tmp".into())
}

/// Removes this user's job directories of dead launchers. Errors are ignored.
fn remove_leftovers(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX))
            && entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == sys::user());
        if !is_ours {
            continue;
        }
        match File::open(entry.path().join("lock")) {
            Ok(lock) if lock.try_lock().is_ok() => drop(fs::remove_dir_all(entry.path())),
            // Its launcher died before it had made the file; one that is about to makes another directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => drop(fs::remove_dir(entry.path())),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
