//! Compiled images on disk, named by the hash of all that they depend on. An entry begins with the hash of its image, so
//! a damaged one is not taken; it is written under another name and renamed, so no reader sees half of one. Without a
//! place to write, nothing is kept.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use sha2::{Digest, Sha256};

/// Bytes of a hash.
const HASH: usize = 32;
/// Between two looks at whether another process has compiled.
const BETWEEN: Duration = Duration::from_millis(20);
/// After so many of them, two minutes, this one does it, too.
const LOOKS: u32 = 6000;
/// Larger entries are not ours: images have about a megabyte.
const LARGEST: u64 = 64 << 20;

/// `$XDG_CACHE_HOME/shouter`, else `~/.cache/shouter`; `None` where neither is known (XDG base directories: relative
/// paths are ignored).
pub(super) fn directory() -> Option<PathBuf> {
    let from = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = from("XDG_CACHE_HOME").or_else(|| from("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("shouter"))
}

/// The name of the entry that depends on `parts`, and on their borders.
pub(super) fn key(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let hash = hash.finalize();
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("kernels-{hex}")
}

/// The entry's image, if it is there and whole.
pub(super) fn read(directory: &Path, key: &str) -> Option<Vec<u8>> {
    let path = directory.join(key);
    let about = fs::metadata(&path).ok()?;
    if !about.is_file() || about.len() > LARGEST {
        return None;
    }
    let mut entry = fs::read(path).ok()?;
    let (hash, image) = entry.split_at_checked(HASH)?;
    if image.is_empty() || Sha256::digest(image)[..] != *hash {
        return None;
    }
    entry.drain(..HASH);
    Some(entry)
}

/// The right to make an entry, until the file is dropped or this process ends; `None` where it cannot be had, or not in time.
pub(super) fn lock(directory: &Path, key: &str) -> Option<File> {
    make(directory).ok()?;
    let path = directory.join(format!("{key}.turn"));
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path).ok()?;
    for _ in 0..LOOKS {
        match file.try_lock() {
            Ok(()) => return Some(file),
            Err(TryLockError::WouldBlock) => thread::sleep(BETWEEN),
            Err(TryLockError::Error(_)) => return None,
        }
    }
    None
}

fn make(directory: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Keeps the image, if that can be done.
pub(super) fn write(directory: &Path, key: &str, image: &[u8]) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    if make(directory).is_err() {
        return;
    }
    let unique = COUNT.fetch_add(1, Ordering::Relaxed);
    let temporary = directory.join(format!("{key}.{}.{unique}", std::process::id()));
    let write = || -> std::io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(&Sha256::digest(image))?;
        file.write_all(image)?;
        fs::rename(&temporary, directory.join(key))
    };
    if write().is_err() {
        // Nothing is left behind where that can be helped; a stale name is only waste.
        let _ = fs::remove_file(&temporary);
    }
}
