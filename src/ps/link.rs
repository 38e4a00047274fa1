//! The ways between a client and a server: a group for data, and one for control.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::Error;
use super::actors::Actors;
use super::message::{Envelope, Head, Home, INLINE};
use super::plan::{Lost, Plan};
use super::protocol::{ELEMENTS, left};
use crate::communicator::{Group, init_through};
use crate::config::{Builder, ConfigError};
use crate::group::store::{Store, StoreError};

/// One end of it.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) data: Arc<Group>,
    pub(super) control: Arc<Group>,
    /// The other end's rank in both groups.
    pub(super) peer: u32,
    /// Its name.
    pub(super) name: String,
    /// Its rank among the actors.
    pub(super) rank: u32,
    /// Whether the groups have these two alone.
    is_pair: bool,
    /// Whether the other end reads elements where they lie, if that is in the memory of `Home`.
    pub(super) is_near: bool,
}

impl Link {
    /// Sends a message of the data plane until `end` at the latest. The elements are as many as its header says.
    pub(super) fn send<B: Serialize>(
        &self,
        tag: u32,
        head: &Head<B>,
        elements: &[u8],
        end: Instant,
    ) -> Result<(), Error> {
        let envelope = Envelope::about(head, elements)?;
        self.data.send_within(envelope.bytes(), self.peer, tag, left(end))?;
        if elements.len() > INLINE {
            match self.data.send_within(elements, self.peer, tag + ELEMENTS, left(end)) {
                // The other end has no memory for them, and its answer says so.
                Ok(()) | Err(crate::Error::Mismatch { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The name and the rank, among the actors, of the rank that an error of the groups names; those of the other end where it names none, or
    /// this one.
    pub(super) fn culprit(&self, actors: &super::names::Names, error: &crate::Error) -> (String, u32) {
        match error
            .rank()
            .filter(|rank| !self.is_pair && *rank != self.data.rank() && *rank < self.data.size())
        {
            Some(rank) => (actors.of(rank).to_owned(), rank),
            None => (self.name.clone(), self.rank),
        }
    }
}

/// The links of this actor, to each client of a server and to each server of a client, in the order of ranks and of the plan. Every actor
/// calls it.
pub(super) fn links(actors: &Actors, plan: &Plan) -> Result<(Vec<Link>, Home), Error> {
    let group = actors.group();
    let (is_server, patience) = (plan.server(actors.name()).is_some(), plan.patience());
    let others: Vec<&str> = if is_server {
        actors.names().filter(|name| plan.server(name).is_none()).collect()
    } else {
        plan.servers.iter().map(String::as_str).collect()
    };
    let mut hosts = vec![0; group.size() as usize];
    group.all_gather(&[group.node()], &mut hosts)?;
    if plan.lost == Lost::End {
        let all: Vec<u32> = (0..group.size()).collect();
        let (data, control) = (group.group_within(&all, patience)?, group.group_within(&all, patience)?);
        let (data, control) = (Arc::new(data), Arc::new(control));
        let link = |name: &str| {
            let rank = actors.rank(name)?;
            Ok(Link {
                data: data.clone(),
                control: control.clone(),
                peer: rank,
                name: name.to_owned(),
                rank,
                is_pair: false,
                is_near: hosts[rank as usize] == group.node(),
            })
        };
        let links = others.into_iter().map(link).collect::<Result<_, Error>>()?;
        return Ok((links, Some(data)));
    }
    // All go through the pairs in one order, servers first, so nobody waits in a circle.
    let meet = |name: &str| {
        let rank = actors.rank(name)?;
        let place = Place { is_server, with_peer: hosts[rank as usize] == group.node() };
        let mut store = ThroughGroup { group, peer: rank, values: HashMap::new() };
        let builder = place.builder(patience).map_err(|why| crate::Error::Config(why.to_string()))?;
        let data = init_through(builder, &mut store)?;
        let control = data.duplicate()?;
        let (data, control) = (Arc::new(data), Arc::new(control));
        let name = name.to_owned();
        Ok(Link { data, control, peer: u32::from(is_server), name, rank, is_pair: true, is_near: false })
    };
    Ok((others.into_iter().map(meet).collect::<Result<_, Error>>()?, None))
}

/// This process's place in a pair, of which the server is rank 0.
struct Place {
    is_server: bool,
    /// Both are on one host.
    with_peer: bool,
}

impl Place {
    /// The process's configuration, but for the deadline, the place in the job and what only one job can have: the meeting point, the port
    /// for counters, devices. So pairs on two hosts use the kernel's sockets.
    fn builder(&self, deadline: Duration) -> Result<Builder, ConfigError> {
        let rank = if self.is_server { "0" } else { "1" };
        let (local_size, local_rank, node) = if self.with_peer { ("2", rank, "0") } else { ("1", "0", rank) };
        let deadline = format!("{}s", deadline.as_secs_f64());
        let own = [
            ("size", "2"),
            ("rank", rank),
            ("local_size", local_size),
            ("local_rank", local_rank),
            ("node", node),
            ("deadline", &deadline),
            ("transport", if self.with_peer { "auto" } else { "kernel" }),
        ];
        let of_job = ["addr", "port", "ports", "levels", "metrics", "timeline"];
        let builder = Builder::from_process()?.without(&of_job);
        own.into_iter().try_fold(builder, |builder, (key, value)| builder.set(key, value))
    }
}

/// The store through which a pair meets: messages in the actors' group.
struct ThroughGroup<'a> {
    group: &'a Group,
    peer: u32,
    values: HashMap<String, Vec<u8>>,
}

/// The tag of the pairs' values; that of actors' messages is 0.
const MEETING: u32 = 1;

impl Store for ThroughGroup<'_> {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let mut message = key.as_bytes().to_vec();
        message.push(0);
        message.extend(value);
        self.values.insert(key.to_owned(), value.to_vec());
        Ok(self.group.send(&message, self.peer, MEETING)?)
    }

    fn get(&mut self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError> {
        while !self.values.contains_key(key) {
            let status = self.group.probe(self.peer, MEETING, timeout)?;
            let status = status.ok_or_else(|| format!("{key} did not come within {timeout:?}"))?;
            let mut message = vec![0u8; status.bytes() as usize];
            self.group.receive(&mut message, self.peer, MEETING)?;
            let end = message.iter().position(|byte| *byte == 0).ok_or("a value without a key")?;
            let name = String::from_utf8(message[..end].to_vec())?;
            self.values.insert(name, message.split_off(end + 1));
        }
        Ok(self.values[key].clone())
    }
}

#[cfg(test)]
mod tests;
