//! Actors: names of ranks.

use std::fmt;

use super::Error;
use crate::communicator::Group;

/// The most bytes of an actor's name.
const LONGEST: usize = 63;

/// The names of a group's ranks, by rank.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Names(Vec<String>);

impl Names {
    /// # Errors
    /// [`Error::Plan`] for a list of another length than the group's, and for a name that cannot be one, or that two ranks have.
    pub(super) fn new(names: Vec<String>, size: u32) -> Result<Self, Error> {
        if names.len() != size as usize {
            return Err(Error::Plan(format!("{} names for {size} ranks; give one for each", names.len())));
        }
        for (rank, name) in names.iter().enumerate() {
            if name.is_empty()
                || name.len() > LONGEST
                || name.chars().any(|letter| letter.is_control() || letter == '/')
            {
                return Err(Error::Plan(format!(
                    "rank {rank} is called {name:?}; give 1 to {LONGEST} bytes without control characters and without '/'"
                )));
            }
            if let Some(other) = names[..rank].iter().position(|other| other == name) {
                return Err(Error::Plan(format!(
                    "ranks {other} and {rank} are both called '{name}'; give each a name of its own, such as {name}{rank}"
                )));
            }
        }
        Ok(Self(names))
    }

    /// Every rank gives its own name. A collective of the group.
    ///
    /// # Errors
    /// As [`new`](Self::new), the same on all ranks; the group's.
    pub(super) fn exchanged(group: &Group, name: &str) -> Result<Self, Error> {
        // Of a name that is too long there is as much as shows that.
        let mut own = [0; LONGEST + 2];
        let len = name.len().min(LONGEST + 1);
        own[0] = len as u8;
        own[1..=len].copy_from_slice(&name.as_bytes()[..len]);
        let mut all = vec![0; own.len() * group.size() as usize];
        group.all_gather(&own, &mut all)?;
        let names = all.chunks_exact(own.len()).map(|name| {
            let len = (name[0] as usize).min(LONGEST + 1);
            String::from_utf8_lossy(&name[1..=len]).into_owned()
        });
        Self::new(names.collect(), group.size())
    }

    /// # Errors
    /// [`Error::UnknownActor`].
    pub(super) fn rank(&self, name: &str) -> Result<u32, Error> {
        let found = self.0.iter().position(|other| other == name);
        found
            .map(|rank| rank as u32)
            .ok_or_else(|| Error::UnknownActor { name: name.to_owned(), known: self.0.clone() })
    }

    /// The name of a rank of the group.
    pub(super) fn of(&self, rank: u32) -> &str {
        self.0.get(rank as usize).map_or("a rank of another group", String::as_str)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0).finish()
    }
}

#[cfg(test)]
mod tests;
