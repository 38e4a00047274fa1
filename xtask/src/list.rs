//! Committed lists: a line an entry, `#` begins a comment.

use std::collections::BTreeSet;
use std::fs;

use crate::sources;

/// The entries of a list that lies in this crate's folder.
pub(crate) fn read(name: &str) -> Result<BTreeSet<String>, String> {
    let path = sources::root().join("xtask").join(name);
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let entries = text.lines().map(|line| line.split('#').next().unwrap_or("").trim());
    Ok(entries.filter(|entry| !entry.is_empty()).map(str::to_owned).collect())
}
