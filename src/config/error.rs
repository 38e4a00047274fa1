//! Errors of the configuration, each with its place.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use crate::key::KeyError;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// A line of the configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
    },
    /// An environment variable.
    Environment(String),
    /// The program's own call.
    Call,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment variable {name}"),
            Self::Call => f.write_str("the program's call"),
        }
    }
}

/// Why a configuration cannot be used. Nothing was started.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file cannot be read or used: that named by `SHOUTER_CONFIG`, or one with figures of the cost model.
    #[error("cannot read the {what} {path}: {why}")]
    Unreadable {
        /// Which file it is.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        why: String,
    },
    /// The text is not TOML (nor, in an environment variable, JSON).
    #[error("{source_of}: not valid TOML: {why}")]
    Syntax {
        /// Its place.
        source_of: Source,
        /// The parser's message.
        why: String,
    },
    /// There is no such key.
    #[error("{source_of}: there is no key `{key}`{}; the keys are {allowed}", suggestion(.nearest))]
    UnknownKey {
        /// The key as found.
        key: String,
        /// Its place.
        source_of: Source,
        /// A key that is spelt almost like it.
        nearest: Option<String>,
        /// All keys.
        allowed: String,
    },
    /// A key's value cannot be used.
    #[error("{source_of}: `{key}` cannot be {found}; it is {allowed}")]
    Value {
        /// The key.
        key: String,
        /// Its place.
        source_of: Source,
        /// The value as found.
        found: String,
        /// The values allowed.
        allowed: String,
    },
    /// Keys that are needed are nowhere.
    #[error("{} missing: {remedy}", are(.keys))]
    Missing {
        /// All of them.
        keys: Vec<String>,
        /// How to give them.
        remedy: String,
    },
    /// Two values cannot both hold.
    #[error("{what}: {remedy}")]
    Conflict {
        /// The values, and where each came from.
        what: String,
        /// How to resolve it.
        remedy: String,
    },
    /// The key of the job cannot be used.
    #[error("{source_of}: {error}")]
    Key {
        /// Its place.
        source_of: Source,
        /// The reason.
        error: KeyError,
    },
}

impl ConfigError {
    /// The key whose value cannot be used by itself; `None` for other errors.
    pub fn key_of_value(&self) -> Option<&str> {
        match self {
            // A part of a list is shown as `ports[0].device`.
            Self::Value { key, .. } => key.split('[').next(),
            _ => None,
        }
    }
}

/// "`a`, `b` and `c` are"
fn are(keys: &[String]) -> String {
    let quoted: Vec<String> = keys.iter().map(|key| format!("`{key}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last} are", rest.join(", ")),
        _ => format!("{} is", quoted.concat()),
    }
}

fn suggestion(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|key| format!(" (did you mean `{key}`?)")).unwrap_or_default()
}

impl From<ConfigError> for crate::error::Error {
    fn from(error: ConfigError) -> Self {
        Self::Config(error.to_string())
    }
}
