//! The job's own directory: link sockets and the key file, mode 0700, gone when the job is.
//!
//! It is called `shouter-run-<random>` and holds a `lock` file, locked for as long as the launcher lives. A launcher that is
//! killed with SIGKILL cannot clean up; the next one finds directories whose lock nobody holds and removes them.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rand::TryRngCore;
use rand::rngs::OsRng;

use super::sys;

const PREFIX: &str = "shouter-run-";

/// A directory that is removed when the value goes.
#[derive(Debug)]
pub(super) struct WorkDir {
    path: PathBuf,
    _lock: File,
}

impl WorkDir {
    /// Makes a fresh directory under `parent`, and removes what dead launchers of this user left there.
    pub(super) fn create(parent: &Path) -> io::Result<Self> {
        remove_leftovers(parent);
        let mut random = [0u8; 8];
        OsRng.try_fill_bytes(&mut random).map_err(io::Error::other)?;
        let path = parent.join(format!("{PREFIX}{}", hex(&random)));
        DirBuilder::new().mode(0o700).create(&path)?;
        // From here on a failure must take the directory with it.
        let lock = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path.join("lock"));
        match lock {
            Ok(lock) if lock.try_lock().is_ok() => Ok(Self { path, _lock: lock }),
            Ok(_) => {
                let _ = fs::remove_dir_all(&path);
                Err(io::Error::other("the new directory's lock is taken"))
            }
            Err(error) => {
                let _ = fs::remove_dir_all(&path);
                Err(error)
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
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

impl Drop for WorkDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("shouter run: cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Where job directories go: `$XDG_RUNTIME_DIR` when it is a directory of ours, else /tmp.
pub(super) fn parent() -> PathBuf {
    let ours = |path: &PathBuf| {
        path.is_absolute() && fs::metadata(path).is_ok_and(|m| m.is_dir() && m.uid() == sys::user())
    };
    std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(ours).unwrap_or_else(|| "/tmp".into())
}

/// Removes this user's job directories whose launcher is dead. Best effort: what cannot be removed is left.
fn remove_leftovers(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX))
            && entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == sys::user());
        if !is_ours {
            continue;
        }
        // A directory without a lock file belongs to a launcher that is about to make it; leave that alone.
        let Ok(lock) = File::open(entry.path().join("lock")) else { continue };
        if lock.try_lock().is_ok() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Lower-case hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
