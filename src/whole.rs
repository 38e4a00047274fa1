//! Files that are written whole, or not at all: under another name, by which they then replace what was there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rand::TryRngCore;
use rand::rngs::OsRng;

/// Why something that is there is not replaced.
pub(crate) const NO_FILE: &str = "it is no file";

/// The most links on the way to a file, as in Linux.
const MOST_LINKS: usize = 40;

/// Replaces the file at `path` by one that `fill` writes, so that no reader sees a part of it, and after an error it is as it was. Links stay,
/// and lead to the new file. It has the permissions of the one before it, and `mode`, less the process's mask, where there was none.
///
/// # Errors
/// The system's, those of `fill`, and [`NO_FILE`] for what is there and is no file.
pub(crate) fn replace(
    path: &Path,
    mode: u32,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    // The kernel follows the links first: it may refuse those that other users have made (fs.protected_symlinks).
    let before = match fs::metadata(path) {
        Ok(there) if there.is_file() => Some(there.permissions()),
        Ok(_) => return Err(io::Error::other(NO_FILE)),
        Err(why) if why.kind() == ErrorKind::NotFound => None,
        Err(why) => return Err(why),
    };
    let path = &target(path)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    // Processes of other containers, too, write here: a process id would not tell them apart.
    name.push(format!(".{:016x}", OsRng.try_next_u64().map_err(io::Error::other)?));
    let temporary = path.with_file_name(name);
    let mode = before.as_ref().map_or(mode, |before| before.mode() & 0o777);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
    // The mask counts for new files alone.
    let permitted = before.map_or(Ok(()), |before| file.set_permissions(before));
    let filled = permitted.and_then(|()| fill(&mut file));
    filled.and_then(|()| fs::rename(&temporary, path)).inspect_err(|_| {
        // A part of it is only waste.
        let _ = fs::remove_file(&temporary);
    })
}

/// Where the links at `path` lead, whether something is there or not.
fn target(path: &Path) -> io::Result<PathBuf> {
    let mut at = path.to_owned();
    for _ in 0..=MOST_LINKS {
        match fs::read_link(&at) {
            Ok(to) => at = at.with_file_name("").join(to),
            Err(_) => return Ok(at),
        }
    }
    Err(io::Error::other("too many links lead from one to the other"))
}

#[cfg(test)]
mod tests;
