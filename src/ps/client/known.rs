//! What a client knows of the parameters, and that it asks again where that may be out of date.

use super::Client;
use super::elements::Elements;
use crate::ps::Error;
use crate::ps::message::{Head, Layout, Meta};
use crate::ps::protocol::{Reply, Request, Seen, bare};
use crate::ps::shard::Shard;
use crate::ps::state::{check_new, check_same};

/// What a client knows of a parameter.
pub(super) struct Known {
    pub(super) meta: Meta,
    pub(super) shards: Vec<Shard>,
    /// Its generation on each server.
    pub(super) generations: Vec<u64>,
    /// This trainer's pushes: the fewest that a server has. One that has more does not take a push twice.
    pub(super) pushes: u64,
}

impl Known {
    pub(super) fn seen(&self) -> Vec<Seen> {
        self.generations
            .iter()
            .map(|generation| Seen { generation: *generation, pushes: self.pushes })
            .collect()
    }
}

impl Client {
    /// A call for a parameter. What is known of it may be out of date, since another client may have set it anew: the servers are asked
    /// again before the call is refused for that.
    pub(super) fn up_to_date<R>(
        &mut self,
        name: &str,
        mut call: impl FnMut(&mut Self) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.begin();
        let was_known = self.known.contains_key(name);
        match call(self) {
            Err(Error::NotSet { .. } | Error::Shape { .. } | Error::Type { .. } | Error::Rows { .. })
                if was_known =>
            {
                self.known.remove(name);
                self.begin();
                call(self)
            }
            other => other,
        }
    }

    /// What is known of a parameter; the first time all servers are asked for it.
    pub(super) fn known(&mut self, name: &str) -> Result<&mut Known, Error> {
        if !self.known.contains_key(name) {
            let known = self.described(name)?;
            self.known.insert(name.to_owned(), known);
        }
        let not_set = self.not_set(name, 0);
        self.known.get_mut(name).ok_or(not_set)
    }

    fn described(&mut self, name: &str) -> Result<Known, Error> {
        let (step, servers) = (self.step, self.links.len());
        let answers = self.call(&format!("asking for '{name}'"), |_, _| {
            Ok((Head { meta: bare(name, step), body: Request::Describe }, Elements::There(&[])))
        })?;
        let mut all: Vec<(Meta, Seen)> = vec![];
        for (at, answer) in answers.into_iter().enumerate() {
            let Head { meta, body: Reply::Described(seen) } = answer.head else {
                return Err(self.meaningless(at, format!("no description of '{name}'")));
            };
            all.push((Meta { layout: Layout::Dense, ..meta }, seen));
        }
        let Some((meta, _)) = all.first().cloned() else { return Err(self.not_set(name, 0)) };
        // Another client is setting it.
        if let Some(at) = all.iter().position(|(other, _)| *other != meta) {
            return Err(self.not_set(name, at));
        }
        check_new(&meta)?;
        let shard = |server| self.plan.sharding.shard(meta.rows(), server, servers);
        Ok(Known {
            shards: (0..servers).map(shard).collect(),
            generations: all.iter().map(|(_, seen)| seen.generation).collect(),
            pushes: all.iter().map(|(_, seen)| seen.pushes).min().unwrap_or(0),
            meta,
        })
    }

    fn not_set(&self, name: &str, at: usize) -> Error {
        let server = self.links.get(at).map_or_else(String::new, |link| link.name.clone());
        Error::NotSet { parameter: name.to_owned(), server, step: self.step }
    }

    pub(super) fn known_as(&mut self, name: &str, given: &Meta, what: &str) -> Result<&mut Known, Error> {
        let known = self.known(name)?;
        check_same(&known.meta, given, what)?;
        Ok(known)
    }
}
