//! Messages between actors, by name.

use std::sync::Arc;
use std::time::Duration;

use bytemuck::Pod;
use sha2::{Digest, Sha256};

use super::Error;
use super::message::{Array, Arrived, Envelope, Head, Layout, Meta, Slab};
use super::names::Names;
use super::sys::OwnedSend;
use crate::communicator::{Element, Group, Source};

/// The tag of actors' messages in their group.
const TAG: u32 = 0;

/// The ranks of a group under names: the way to send a message to a name, and to a [`Client`](super::Client) and a
/// [`Server`](super::Server).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shouter::config::{Builder, Environment};
/// use std::time::Duration;
/// use shouter::ps::{Actors, Array};
///
/// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
/// let group = shouter::init(config)?;
/// let actors = Actors::meet(&group, "master")?;
/// let sent = actors.isend("master", "losses", 7, Array::new(&[0.5f32, 0.25], &[2])?)?;
/// let losses = actors.irecv(Some("master"))?.wait(Duration::from_secs(10))?;
/// assert_eq!((losses.from(), losses.meta().step, losses.elements::<f32>()), ("master", 7, Some(&[0.5, 0.25][..])));
/// sent.wait(None)?;
/// # Ok(())
/// # }
/// ```
pub struct Actors {
    pub(super) names: Arc<Names>,
    /// A group of their own, so that their messages meet no others.
    group: Arc<Group>,
}

impl Actors {
    /// Every rank of `group` calls it, as it would a collective, with its own name.
    ///
    /// # Errors
    /// [`Error::Plan`] for a name that cannot be one, or that two ranks have, the same on all ranks; the group's.
    pub fn meet(group: &Group, name: &str) -> Result<Self, Error> {
        let names = Names::exchanged(group, name)?;
        Self::of(group, names)
    }

    /// The same with names from a configuration: that of each rank, in the order of ranks, on all ranks the same.
    ///
    /// # Errors
    /// As [`meet`](Self::meet), and [`Error::Plan`] where ranks have other lists, on all ranks.
    pub fn configured(group: &Group, names: &[&str]) -> Result<Self, Error> {
        // All compare, whatever their own list is, or some would wait for the others.
        let mut digest = Sha256::new();
        for name in names {
            digest.update((name.len() as u64).to_le_bytes());
            digest.update(name);
        }
        let own = <[u8; 32]>::from(digest.finalize());
        let mut all = vec![0; own.len() * group.size() as usize];
        group.all_gather(&own, &mut all)?;
        let first = &all[..own.len()];
        if let Some(rank) = all.chunks_exact(own.len()).position(|digest| digest != first) {
            return Err(Error::Plan(format!(
                "rank {rank} has another list of names than rank 0, and rank {} has {names:?}; give all the same",
                group.rank()
            )));
        }
        Self::of(group, Names::new(names.iter().map(|name| (*name).to_owned()).collect(), group.size())?)
    }

    fn of(group: &Group, names: Names) -> Result<Self, Error> {
        Ok(Self { names: Arc::new(names), group: Arc::new(group.duplicate()?) })
    }

    /// This rank's name.
    pub fn name(&self) -> &str {
        self.names.of(self.group.rank())
    }

    /// All names, by rank.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter()
    }

    /// The rank that has this name.
    ///
    /// # Errors
    /// [`Error::UnknownActor`].
    pub fn rank(&self, name: &str) -> Result<u32, Error> {
        self.names.rank(name)
    }

    pub(super) fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Starts to send a tensor to an actor, in one message with its name, type, shape, layout and step. It is copied, so `data` may be
    /// changed at once.
    ///
    /// # Errors
    /// [`Error::UnknownActor`]; [`Error::Plan`] for what does not fit a message; the group's.
    pub fn isend(&self, to: &str, name: &str, step: u64, data: Array<'_>) -> Result<Sending, Error> {
        let rank = self.names.rank(to)?;
        let meta = Meta {
            name: name.to_owned(),
            dtype: data.dtype,
            shape: data.shape.to_vec(),
            layout: Layout::Dense,
            step,
        };
        let mut envelope = Envelope::new(&Some(self.group.clone()), &Head { meta, body: () })?;
        envelope.data_mut().copy_from_slice(data.bytes);
        Ok(Sending(OwnedSend::start(&self.group, envelope, rank, TAG)?))
    }

    /// Prepares to receive the next message of an actor, or of any. The message is matched by [`Receiving::is_there`] or
    /// [`Receiving::wait`], whichever is first, since nothing is known of its size before.
    ///
    /// # Errors
    /// [`Error::UnknownActor`].
    pub fn irecv(&self, from: Option<&str>) -> Result<Receiving<'_>, Error> {
        let from = from.map(|name| self.names.rank(name)).transpose()?;
        Ok(Receiving { actors: self, from })
    }
}

/// A message on its way; dropped, it goes on.
pub struct Sending(OwnedSend);

impl Sending {
    /// Whether the message has been sent, or has failed.
    pub fn is_done(&self) -> bool {
        self.0.work().test().is_some()
    }

    /// Waits until it has been sent, for `timeout` at most.
    ///
    /// # Errors
    /// The group's, as of [`Group::send`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<(), Error> {
        Ok(self.0.work().wait(timeout)?)
    }
}

/// A message that is expected.
pub struct Receiving<'a> {
    actors: &'a Actors,
    from: Option<u32>,
}

impl Receiving<'_> {
    fn source(&self) -> Source {
        self.from.map_or(Source::Any, Source::Rank)
    }

    /// Whether a message has come.
    ///
    /// # Errors
    /// The group's.
    pub fn is_there(&self) -> Result<bool, Error> {
        Ok(self.actors.group.probe(self.source(), TAG, Duration::ZERO)?.is_some())
    }

    /// The message; waits for `timeout` at most.
    ///
    /// # Errors
    /// [`Error::NoMessage`]; [`Error::Protocol`] for a message without meaning; the group's.
    pub fn wait(self, timeout: Duration) -> Result<Received, Error> {
        let Actors { group, names, .. } = self.actors;
        let Some(status) = group.probe(self.source(), TAG, timeout)? else {
            let actor = self.from.map_or("any actor", |rank| names.of(rank)).to_owned();
            return Err(Error::NoMessage { actor, after: timeout });
        };
        let from = names.of(status.rank).to_owned();
        let meaningless = |text| Error::Protocol { actor: from.clone(), rank: status.rank, text };
        let len = usize::try_from(status.bytes()).map_err(|why| meaningless(why.to_string()))?;
        let mut slab = Slab::new(&Some(group.clone()), len)?;
        group.receive(slab.bytes_mut(), status.rank, TAG)?;
        let arrived = Arrived::<()>::open(slab).map_err(meaningless)?;
        Ok(Received { from, arrived })
    }
}

/// A message of an actor.
pub struct Received {
    from: String,
    arrived: Arrived<()>,
}

impl Received {
    /// The sender's name.
    pub fn from(&self) -> &str {
        &self.from
    }

    /// What it holds.
    pub fn meta(&self) -> &Meta {
        &self.arrived.head.meta
    }

    /// Its elements, if they are of this type.
    pub fn elements<T: Element + Pod>(&self) -> Option<&[T]> {
        (self.meta().dtype == T::DTYPE).then(|| bytemuck::cast_slice(self.bytes()))
    }

    /// The bytes of its elements.
    pub fn bytes(&self) -> &[u8] {
        self.arrived.data()
    }
}
