//! The figures that jobs have measured while they joined, as a file keeps them for later jobs.
//!
//! ```toml
//! [[measured]]
//! host = "node7"
//! hosts = "2x8"
//! transport = "rud"
//! link = "virtio, MTU 9000, 64 connections"
//! [measured.figures]
//! latency_ns = 500
//! ```
//!
//! A file that is damaged, or not of this form, is not used; the next measurement writes it anew. Entries with figures that this release does
//! not know, or refuses, are left out.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::system::uname;
use serde::{Deserialize, Serialize};
use shouter_reducer::cost::Costs;
use shouter_reducer::grid::Grid;

use super::{FIGURES_HAVE, LARGEST_FILE, cache_folder, costs_of};
use crate::config::error::ConfigError;
use crate::config::layers::{Environment, read_limited};
use crate::whole::{self, NO_FILE};

/// Entries that a file keeps: the last ones.
const MOST: usize = 64;

/// What figures hold for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredFor {
    /// The name of rank 0's host.
    pub host: String,
    /// The ranks of each host, such as `2x8` for two hosts of eight, or `1x4+1x2`.
    pub hosts: String,
    /// The transport, as in [`CostTable::TRANSPORTS`](super::CostTable::TRANSPORTS).
    pub transport: String,
    /// The kind of the ports, the MTU, connections.
    pub link: String,
}

impl MeasuredFor {
    /// On this host, for the ranks of a grid.
    pub fn here(grid: &Grid, transport: &str, link: &str) -> Self {
        let locals: Vec<u32> = (0..grid.nodes()).map(|node| grid.locals(node)).collect();
        let equal = locals.chunk_by(|a, b| a == b);
        let hosts: Vec<String> = equal.map(|equal| format!("{}x{}", equal.len(), equal[0])).collect();
        Self {
            host: uname().nodename().to_string_lossy().into_owned(),
            hosts: hosts.join("+"),
            transport: transport.to_owned(),
            link: link.to_owned(),
        }
    }
}

/// The figures of a measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    of: MeasuredFor,
    figures: BTreeMap<String, u32>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    measured: Vec<Entry>,
}

/// Measured figures, the latest last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CostCache(Vec<(MeasuredFor, Costs)>);

impl CostCache {
    /// The path of the file unless the key `costs_cache` names one: `measured.toml` beside the
    /// [usual file](super::CostTable::usual_path) of figures.
    pub fn usual_path(environment: &Environment) -> Option<PathBuf> {
        Some(cache_folder(environment)?.join("measured.toml"))
    }

    /// The figures that were measured for exactly this.
    pub fn find(&self, of: &MeasuredFor) -> Option<Costs> {
        self.0.iter().rev().find(|(known, _)| known == of).map(|(_, costs)| *costs)
    }

    /// The latest figures for such hosts and this transport, whatever the link; those of this host before those of others.
    pub fn like(&self, of: &MeasuredFor) -> Option<Costs> {
        let is_like = |known: &MeasuredFor| (&known.hosts, &known.transport) == (&of.hosts, &of.transport);
        let all = || self.0.iter().rev().filter(|(known, _)| is_like(known));
        let here = all().find(|(known, _)| known.host == of.host);
        here.or_else(|| all().next()).map(|(_, costs)| *costs)
    }

    /// Puts figures in place of those that there were for the same.
    pub fn put(&mut self, of: MeasuredFor, costs: Costs) {
        self.0.retain(|(known, _)| *known != of);
        self.0.push((of, costs));
        let beyond = self.0.len().saturating_sub(MOST);
        self.0.drain(..beyond);
    }

    /// Reads the file's text.
    ///
    /// # Errors
    /// A text that says what cannot be used.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        let entry = |Entry { of, figures }: Entry| {
            let costs = costs_of(&of.transport, figures)
                .inspect_err(|why| tracing::debug!(why, host = of.host, "measured figures are left out"))
                .ok()?;
            Some((of, costs))
        };
        Ok(Self(file.measured.into_iter().filter_map(entry).collect()))
    }

    /// Reads a file; one that is not there has no figures.
    ///
    /// # Errors
    /// [`ConfigError::Unreadable`] for one that cannot be read or used.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let unreadable =
            |why: String| ConfigError::Unreadable { what: super::FIGURES, path: path.to_owned(), why };
        if path.exists() && !path.is_file() {
            return Err(unreadable(NO_FILE.into()));
        }
        match read_limited(path, FIGURES_HAVE, LARGEST_FILE) {
            Ok(text) => Self::parse(&text).map_err(unreadable),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(unreadable(error.to_string())),
        }
    }

    /// The file's text.
    fn text(&self) -> Result<String, toml::ser::Error> {
        let figures = |costs: &Costs| costs.fields().map(|(name, value)| (name.to_owned(), value)).into();
        let entry = |(of, costs): &(MeasuredFor, Costs)| Entry { of: of.clone(), figures: figures(costs) };
        let text = toml::to_string(&File { measured: self.0.iter().map(entry).collect() })?;
        Ok(format!("# Figures of the cost model that jobs have measured while they joined.\n\n{text}"))
    }

    /// Writes the file as `replace` does.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        replace(path, &self.text().map_err(io::Error::other)?, 0o600)
    }
}

/// Writes a file as [`whole::replace`] does. Its folder is made, for the same users.
///
/// # Errors
/// The system's.
pub(super) fn replace(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    // Who may read there may search.
    let of_folder = mode | (mode & 0o444) >> 2;
    folder.map_or(Ok(()), |folder| DirBuilder::new().recursive(true).mode(of_folder).create(folder))?;
    whole::replace(path, mode, |file| file.write_all(text.as_bytes()))
}

#[cfg(test)]
mod tests;
