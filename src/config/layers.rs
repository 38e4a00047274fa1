//! Values and where they came from, laid over each other: the file, then the environment, then the program's call.
//!
//! A layer holds keys and raw values; a value is checked when it is taken (`value.rs`). Each value keeps its source,
//! down to the elements of a list, so that a message can name the line or the variable.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Source};
use super::keys::{self, KEYS};
use super::launcher::OF_RUN;

/// Variables that begin with `SHOUTER_` and are no keys: the file itself, the log filter, the mark of `shouter run`, and prefixes that examples,
/// tests and benches keep for themselves.
const OTHER_VARIABLES: [&str; 3] = ["SHOUTER_CONFIG", "SHOUTER_LOG", OF_RUN];
const OTHER_PREFIXES: [&str; 3] = ["SHOUTER_DEMO_", "SHOUTER_TEST_", "SHOUTER_BENCH_"];

/// The largest configuration file that is read, in bytes.
const LARGEST_FILE: u64 = 1 << 20;

/// A value as it was written.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Raw {
    Text(String),
    Integer(i64),
    Float(f64),
    Bool(bool),
    List(Vec<Located>),
    Table(Vec<(String, Located)>),
    /// A value of a kind that no key takes, such as a date.
    Other(String),
}

/// A value and its source.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Located {
    pub(super) raw: Raw,
    pub(super) source: Source,
}

impl Located {
    /// The value as a message shows it.
    pub(super) fn shown(&self) -> String {
        match &self.raw {
            Raw::Text(text) => format!("{:?}", text.chars().take(80).collect::<String>()),
            Raw::Integer(number) => number.to_string(),
            // With an exponent where it would have many digits else.
            Raw::Float(number) => format!("{number:?}"),
            Raw::Bool(truth) => truth.to_string(),
            Raw::List(_) => "a list".into(),
            Raw::Table(_) => "a table".into(),
            Raw::Other(text) => text.clone(),
        }
    }

    /// The value as it could be written in TOML, down to the elements of a list.
    pub(super) fn written(&self) -> String {
        match &self.raw {
            Raw::List(items) => {
                format!("[{}]", items.iter().map(Self::written).collect::<Vec<_>>().join(", "))
            }
            Raw::Table(pairs) => {
                let pairs = pairs.iter().map(|(key, value)| format!("{key} = {}", value.written()));
                format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
            }
            _ => self.shown(),
        }
    }
}

/// The text of a file of at most so many bytes; `which` says in an error what has no more.
///
/// # Errors
/// The system's, and one for a file that is larger. No more is read of a device that has no end.
pub(super) fn read_limited(path: &Path, which: &str, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it has more than {most} bytes, and {which} at most so many")));
    }
    String::from_utf8(bytes).map_err(io::Error::other)
}

/// The same, with an error that says `what` the file is, and its path.
pub(super) fn read_file(
    what: &'static str,
    path: &Path,
    which: &str,
    most: u64,
) -> Result<String, ConfigError> {
    let unreadable =
        |error: io::Error| ConfigError::Unreadable { what, path: path.to_owned(), why: error.to_string() };
    read_limited(path, which, most).map_err(unreadable)
}

/// A snapshot of environment variables.
#[derive(Debug, Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The variables of this process that are text.
    pub fn of_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self(std::env::vars_os().filter_map(text).collect())
    }

    /// The same, with this value of a variable.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.0.insert(name.to_owned(), value.to_owned());
        self
    }

    /// The same, without a variable.
    #[must_use]
    pub(super) fn without(mut self, name: &str) -> Self {
        self.0.remove(name);
        self
    }

    /// A variable; one that is set but empty counts as not set.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// The values that hold, by key.
#[derive(Debug, Clone, Default)]
pub(super) struct Layers(BTreeMap<&'static str, Located>);

impl Layers {
    /// Reads the file that `SHOUTER_CONFIG` names, if it is set, and lays the environment over it.
    pub(super) fn read(environment: &Environment) -> Result<Self, ConfigError> {
        let mut layers = Self::default();
        if let Some(path) = environment.get("SHOUTER_CONFIG") {
            layers.add_file(Path::new(path))?;
        }
        layers.add_environment(environment)?;
        Ok(layers)
    }

    /// Sets one value, in place of any that is there.
    pub(super) fn set(&mut self, key: &str, raw: Raw, source: Source) -> Result<(), ConfigError> {
        match KEYS.iter().find(|spec| spec.name == key) {
            Some(spec) => {
                self.0.insert(spec.name, Located { raw, source });
                Ok(())
            }
            None => Err(ConfigError::UnknownKey {
                key: key.to_owned(),
                source_of: source,
                nearest: keys::nearest(key),
                allowed: keys::names(),
            }),
        }
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.0.remove(key);
    }

    pub(super) fn get(&self, key: &str) -> Option<&Located> {
        self.0.get(key)
    }

    fn add_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text = read_file(
            "configuration file (given to the call, or named by SHOUTER_CONFIG)",
            path,
            "a configuration has",
            LARGEST_FILE,
        )?;
        for (key, value) in parse_file(path, &text)? {
            self.set(&key, value.raw, value.source)?;
        }
        Ok(())
    }

    fn add_environment(&mut self, environment: &Environment) -> Result<(), ConfigError> {
        for (name, value) in &environment.0 {
            let Some(key) = name.strip_prefix("SHOUTER_") else { continue };
            let is_other = OTHER_VARIABLES.contains(&name.as_str())
                || OTHER_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
            if is_other || value.is_empty() {
                continue;
            }
            let source = Source::Environment(name.clone());
            let key = key.to_lowercase();
            let raw = parse_text(&key, value, &source);
            self.set(&key, raw, source)?;
        }
        Ok(())
    }
}

/// The keys whose value can be a list.
const LISTS: [&str; 3] = ["ports", "cores", "levels"];

/// A value that came as text: where the key takes one, a list in TOML's inline form or in JSON; else the text itself.
pub(super) fn parse_text(key: &str, text: &str, source: &Source) -> Raw {
    let trimmed = text.trim();
    if LISTS.contains(&key) && trimmed.starts_with(['[', '{']) {
        if let Ok(value) = DeValue::parse(trimmed) {
            return from_toml(value.get_ref(), &|_| source.clone());
        }
        if let Ok(value) = serde_json::from_str(trimmed) {
            return from_json(value, source);
        }
    }
    Raw::Text(trimmed.to_owned())
}

/// The keys and values of a TOML file, each with its line.
fn parse_file(path: &Path, text: &str) -> Result<Vec<(String, Located)>, ConfigError> {
    let at = |offset: usize| {
        let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
        Source::File { path: PathBuf::from(path), line: 1 + before.iter().filter(|&&b| b == b'\n').count() }
    };
    let table = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
        source_of: at(error.span().map_or(0, |span| span.start)),
        why: error.message().to_owned(),
    })?;
    let entry = |(key, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
        let key: &std::borrow::Cow<'_, str> = key.get_ref();
        let raw = from_toml(value.get_ref(), &at);
        (key.to_string(), Located { raw, source: at(value.span().start) })
    };
    Ok(table.get_ref().iter().map(entry).collect())
}

fn from_toml(value: &DeValue<'_>, at: &dyn Fn(usize) -> Source) -> Raw {
    let located = |value: &toml::Spanned<DeValue<'_>>| Located {
        raw: from_toml(value.get_ref(), at),
        source: at(value.span().start),
    };
    match value {
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| Raw::Other(number.as_str().to_owned()), Raw::Integer),
        DeValue::Float(number) => {
            number.as_str().parse().map_or_else(|_| Raw::Other(number.as_str().to_owned()), Raw::Float)
        }
        DeValue::Boolean(truth) => Raw::Bool(*truth),
        DeValue::Datetime(time) => Raw::Other(time.to_string()),
        DeValue::Array(items) => Raw::List(items.iter().map(located).collect()),
        DeValue::Table(table) => {
            Raw::Table(table.iter().map(|(key, value)| (key.get_ref().to_string(), located(value))).collect())
        }
    }
}

fn from_json(value: serde_json::Value, source: &Source) -> Raw {
    let located = |value| Located { raw: from_json(value, source), source: source.clone() };
    match value {
        serde_json::Value::Null => Raw::Other("null".into()),
        serde_json::Value::Bool(truth) => Raw::Bool(truth),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => Raw::Integer(integer),
            (None, Some(float)) => Raw::Float(float),
            (None, None) => Raw::Other(number.to_string()),
        },
        serde_json::Value::String(text) => Raw::Text(text),
        serde_json::Value::Array(items) => Raw::List(items.into_iter().map(located).collect()),
        serde_json::Value::Object(table) => {
            Raw::Table(table.into_iter().map(|(key, value)| (key, located(value))).collect())
        }
    }
}
