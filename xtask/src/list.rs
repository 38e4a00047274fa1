//! Committed lists: a line an entry, `#` begins a comment.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::sources;

/// The entries of a list in this crate's folder.
pub(crate) fn read(name: &str) -> Result<BTreeSet<String>, String> {
    let text = sources::text(path(name))?;
    let entries = text.lines().map(|line| line.split('#').next().unwrap_or("").trim());
    Ok(entries.filter(|entry| !entry.is_empty()).map(str::to_owned).collect())
}

/// Replaces the entries of a list; the comments at its head stay.
pub(crate) fn write(name: &str, entries: &[String]) -> Result<(), String> {
    let text = sources::text(path(name))?;
    let head = text.lines().take_while(|line| line.starts_with('#'));
    let lines: Vec<&str> = head.chain(entries.iter().map(String::as_str)).collect();
    fs::write(path(name), lines.join("\n") + "\n").map_err(|error| format!("{name}: {error}"))
}

/// An error with a line for each thing that is wrong, if there is any.
pub(crate) fn none(wrong: &[String]) -> Result<(), String> {
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

fn path(name: &str) -> PathBuf {
    sources::root().join("xtask").join(name)
}
