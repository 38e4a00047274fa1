//! Algorithms that are asked for by name: `all_reduce:ring,reduce:direct`.

use crate::cost;
use crate::header::Collective;
use crate::schedule::Algorithm;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// An algorithm for some of the collectives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides([Option<Algorithm>; Collective::ALL.len()]);

/// Why a text asks for no algorithms.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OverrideError {
    /// A part without a colon.
    #[error("\"{0}\" is no collective with its algorithm, such as all_reduce:ring")]
    Form(String),
    /// There is no such collective.
    #[error("\"{name}\" is no collective; use one of {known}")]
    Collective {
        /// The name that was written.
        name: String,
        /// The names that could be.
        known: String,
    },
    /// The collective has no such algorithm.
    #[error("\"{name}\" is no algorithm of {collective}; use one of {known}")]
    Algorithm {
        /// The collective.
        collective: String,
        /// The name that was written.
        name: String,
        /// The names that could be.
        known: String,
    },
    /// It is there twice.
    #[error("{0} is there twice; name one algorithm for it")]
    Twice(String),
}

impl Overrides {
    /// The algorithm that a collective is to use, if one is named.
    pub fn of(&self, collective: Collective) -> Option<Algorithm> {
        self.0.get(index(collective)).copied().flatten()
    }

    /// The same with an algorithm for one more collective.
    #[must_use]
    pub fn with(mut self, collective: Collective, algorithm: Algorithm) -> Self {
        if let Some(place) = self.0.get_mut(index(collective)) {
            *place = Some(algorithm);
        }
        self
    }
}

fn index(collective: Collective) -> usize {
    Collective::ALL.iter().position(|&other| other == collective).unwrap_or(usize::MAX)
}

/// How a collective is written where names have no hyphens: `all_reduce`.
pub fn word(collective: Collective) -> String {
    collective.name().replace('-', "_")
}

impl FromStr for Overrides {
    type Err = OverrideError;

    /// Reads `all_reduce:ring,reduce:direct`; spaces do not matter, and nothing asks for nothing.
    fn from_str(text: &str) -> Result<Self, OverrideError> {
        let mut overrides = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, algorithm) =
                part.split_once(':').ok_or_else(|| OverrideError::Form(part.to_owned()))?;
            let (name, algorithm) = (name.trim(), algorithm.trim());
            let collective = collective(name)?;
            let served: Vec<_> = cost::serving(collective).collect();
            let found = served.iter().copied().find(|known| known.name() == algorithm);
            let found = found.ok_or_else(|| OverrideError::Algorithm {
                collective: word(collective),
                name: algorithm.to_owned(),
                known: served.iter().map(|known| known.name()).collect::<Vec<_>>().join(", "),
            })?;
            if overrides.of(collective).is_some() {
                return Err(OverrideError::Twice(word(collective)));
            }
            overrides = overrides.with(collective, found);
        }
        Ok(overrides)
    }
}

/// The collective of this name, with its words joined by underscores, by hyphens or by nothing.
///
/// # Errors
/// [`OverrideError::Collective`] names all.
pub fn collective(name: &str) -> Result<Collective, OverrideError> {
    let joined = |name: &str| name.replace(['-', '_'], "");
    Collective::ALL.into_iter().find(|one| joined(one.name()) == joined(name)).ok_or_else(|| {
        OverrideError::Collective { name: name.to_owned(), known: Collective::ALL.map(word).join(", ") }
    })
}

impl fmt::Display for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named =
            Collective::ALL.into_iter().filter_map(|collective| Some((collective, self.of(collective)?)));
        let parts: Vec<_> = named
            .map(|(collective, algorithm)| format!("{}:{}", word(collective), algorithm.name()))
            .collect();
        f.write_str(&parts.join(","))
    }
}
