//! New files of a rank, in a folder that other ranks and other users may write to.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::perfetto::{self, Trace};
use super::timeline::TimelineError;

/// Files that one process may write for one job, rank and kind.
const MOST: u32 = 1000;

/// Writes a trace to the file at `path`, which has just been opened for it.
///
/// # Errors
/// [`TimelineError::Io`] if it cannot be written whole; then the file is removed.
pub(super) fn write(file: File, path: &Path, trace: &impl Serialize) -> Result<(), TimelineError> {
    perfetto::write(file, trace).map_err(|error| {
        // A part of a trace is of no use. A device or a pipe stays.
        if path.is_file() {
            let _ = fs::remove_file(path);
        }
        TimelineError::Io { path: path.into(), error }
    })
}

/// Writes a trace to a new file `KIND-JOB-rankRANK-PID.json` in a folder, with a number behind it where there is one already.
///
/// # Errors
/// [`TimelineError::Io`] if the file cannot be written; then there is none.
pub(super) fn write_new(
    folder: &Path,
    (kind, job, rank): (&str, &str, u32),
    trace: &Trace,
) -> Result<PathBuf, TimelineError> {
    let name = format!("{kind}-{job}-rank{rank}-{}", std::process::id());
    let mut number = 1;
    loop {
        let path = match number {
            1 => folder.join(format!("{name}.json")),
            _ => folder.join(format!("{name}-{number}.json")),
        };
        // The folder may be world-writable: nothing that is there is overwritten, and no link followed.
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return write(file, &path, trace).map(|()| path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number < MOST => number += 1,
            Err(error) => return Err(TimelineError::Io { path, error }),
        }
    }
}
