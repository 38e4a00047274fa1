//! The figures of the cost model, as a file keeps them: a table for each transport, which `shouter plan --measure` writes.
//!
//! ```toml
//! [rud]
//! latency_ns = 500
//! core_mb_s = 9000
//! ```
//!
//! A figure that a table leaves out is that of [`Costs::of_transport`].

mod cache;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use shouter_reducer::cost::Costs;

use super::error::ConfigError;
use super::layers::{Environment, Layers, read_file};
use super::value;
pub use cache::{CostCache, MeasuredFor};

/// The largest file that is read, in bytes.
const LARGEST_FILE: u64 = 64 << 10;
/// What an error calls the file.
const FIGURES: &str = "file with figures of the cost model";
/// What the error of a larger file says has no more bytes.
const FIGURES_HAVE: &str = "figures have";

/// Measured figures by the name of the transport that carries the bytes: `shm`, `rud`, `tcp`, `verbs` or `kernel`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CostTable(BTreeMap<String, Costs>);

impl CostTable {
    /// The transports that have a table, `shm` for jobs on one host.
    pub const TRANSPORTS: [&str; 5] = ["shm", "rud", "tcp", "verbs", "kernel"];

    /// The figures for a transport: measured ones, else those to begin with.
    pub fn of(&self, transport: &str) -> Costs {
        self.0.get(transport).copied().unwrap_or_else(|| Costs::of_transport(transport))
    }

    /// Whether the figures of a transport were measured.
    pub fn has(&self, transport: &str) -> bool {
        self.0.contains_key(transport)
    }

    /// Puts figures in place of those that were there.
    pub fn set(&mut self, transport: &str, costs: Costs) {
        self.0.insert(transport.to_owned(), costs);
    }

    /// Reads the file's text.
    ///
    /// # Errors
    /// A text that says what cannot be used.
    pub fn parse(text: &str) -> Result<Self, String> {
        let tables: BTreeMap<String, BTreeMap<String, u32>> =
            toml::from_str(text).map_err(|error| error.message().to_owned())?;
        let mut all = Self::default();
        for (transport, fields) in tables {
            all.set(&transport, costs_of(&transport, fields)?);
        }
        Ok(all)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError::Unreadable`] for one that cannot be read or used.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = read_file(FIGURES, path, FIGURES_HAVE, LARGEST_FILE)?;
        Self::parse(&text).map_err(|why| ConfigError::Unreadable {
            what: FIGURES,
            path: path.to_owned(),
            why,
        })
    }

    /// Writes the file whole, in a folder that is made if there is none; after an error it is as it was.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        cache::replace(path, &self.text(), 0o666)
    }

    /// The file's text.
    pub(super) fn text(&self) -> String {
        let mut text = String::from("# Figures of the cost model, written by `shouter plan --measure`.\n");
        for (transport, costs) in &self.0 {
            text += &format!("\n[{transport}]\n");
            text.extend(costs.fields().map(|(name, value)| format!("{name} = {value}\n")));
        }
        text
    }

    /// The path of the figures unless the key `costs` names one: `$XDG_CACHE_HOME/shouter/costs.toml`, else below
    /// `~/.cache`. `None` where neither folder is known.
    pub fn usual_path(environment: &Environment) -> Option<PathBuf> {
        Some(cache_folder(environment)?.join("costs.toml"))
    }
}

/// `$XDG_CACHE_HOME/shouter`, else `~/.cache/shouter`.
fn cache_folder(environment: &Environment) -> Option<PathBuf> {
    let absolute = |name| environment.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("shouter"))
}

/// The figures of a transport, of which some are given by name.
fn costs_of(transport: &str, fields: BTreeMap<String, u32>) -> Result<Costs, String> {
    if !CostTable::TRANSPORTS.contains(&transport) {
        let known = CostTable::TRANSPORTS.join(", ");
        return Err(format!("there is no transport \"{transport}\"; use {known}"));
    }
    let mut costs = Costs::of_transport(transport);
    for (name, value) in fields {
        let range = if name.ends_with("_ns") { Costs::NANOSECONDS } else { Costs::RATES };
        let Some(field) = costs.field_mut(&name) else {
            let known = costs.fields().map(|(name, _)| name).join(", ");
            return Err(format!("[{transport}] has no `{name}`; use {known}"));
        };
        if !range.contains(&value) {
            let (least, most) = (range.start(), range.end());
            return Err(format!("[{transport}] `{name}` cannot be {value}; it is from {least} to {most}"));
        }
        *field = value;
    }
    Ok(costs)
}

/// The figures that rank 0 gives the group. A file named by the key must be there; the usual one may be missing, or of
/// another version.
pub(super) fn of(layers: &Layers, environment: &Environment, rank: u32) -> Result<CostTable, ConfigError> {
    let named = value::path(layers, "costs")?;
    if rank != 0 {
        return Ok(CostTable::default());
    }
    if let Some(path) = named {
        return CostTable::read(&path);
    }
    let usual = CostTable::usual_path(environment).filter(|path| path.exists());
    Ok(usual.map_or_else(CostTable::default, |path| {
        CostTable::read(&path).unwrap_or_else(|error| {
            tracing::warn!(%error, "the measured figures of the cost model are not used");
            CostTable::default()
        })
    }))
}

/// The file that keeps what is measured at the join.
pub(super) fn cache_of(layers: &Layers, environment: &Environment) -> Result<Option<PathBuf>, ConfigError> {
    Ok(value::path(layers, "costs_cache")?.or_else(|| CostCache::usual_path(environment)))
}
