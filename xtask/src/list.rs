//! Committed lists: a line an entry, `#` begins a comment.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::sources;

/// The entries of a list in this crate's folder.
pub(crate) fn read(name: &str) -> Result<BTreeSet<String>, String> {
    let text = text(name)?;
    let entries = text.lines().map(|line| line.split('#').next().unwrap_or("").trim());
    Ok(entries.filter(|entry| !entry.is_empty()).map(str::to_owned).collect())
}

/// Replaces the entries of a list; the comments at its head stay.
pub(crate) fn write(name: &str, entries: &[String]) -> Result<(), String> {
    let text = text(name)?;
    let head = text.lines().take_while(|line| line.starts_with('#'));
    let lines: Vec<&str> = head.chain(entries.iter().map(String::as_str)).collect();
    fs::write(path(name), lines.join("\n") + "\n").map_err(|error| format!("{name}: {error}"))
}

fn path(name: &str) -> PathBuf {
    sources::root().join("xtask").join(name)
}

fn text(name: &str) -> Result<String, String> {
    fs::read_to_string(path(name)).map_err(|error| format!("{name}: {error}"))
}
