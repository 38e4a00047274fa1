//! A client: a trainer, or another actor that uses the servers.

mod ask;
mod elements;
mod known;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use shouter_reducer::dtype::DType;

use super::Error;
use super::actors::Actors;
use super::link::{Link, links};
use super::message::{Array, Arrived, Head, Home, Layout, Meta, Slab};
use super::names::Names;
use super::optimizer::Optimizer;
use super::parameter::check_rows;
use super::plan::Plan;
use super::protocol::{Control, Reply, Request, bare, send_control};
use super::shard::Shard;
use super::state::{check_new, check_same};
use crate::key::random;
use elements::Elements;
use known::Known;

/// Sets, pushes and pulls parameters.
///
/// A gradient goes to each server in one message with its name, type, shape and step. All calls wait for the servers' answers. A call ends
/// within twice the plan's deadline, all its messages to all servers together; one that finds the parameter set anew begins once more.
pub struct Client {
    plan: Plan,
    name: String,
    names: Arc<Names>,
    links: Vec<Link>,
    home: Home,
    step: u64,
    /// When the call that is made has to have ended.
    end: Instant,
    known: HashMap<String, Known>,
    /// The memory of the last elements that were copied for, and of the last ones that were copied from, each server.
    sent: Vec<Option<Slab>>,
    received: Vec<Option<Slab>>,
    /// A server is lost: the answers of the others are not known.
    lost: Option<Error>,
    /// The servers, from the first on, that have heard of its leave.
    left: usize,
}

impl Client {
    /// Connects this actor, which is no server of the plan, with all servers. All actors call this or
    /// [`Server::connect`](super::Server::connect), as they would a collective.
    ///
    /// # Errors
    /// [`Error::Plan`] and [`Error::UnknownActor`] for a plan that cannot be, that other actors have not, or in which this one is a server;
    /// the group's.
    pub fn connect(actors: &Actors, plan: Plan) -> Result<Self, Error> {
        plan.agree(actors)?;
        let name = actors.name().to_owned();
        if plan.server(&name).is_some() {
            return Err(Error::Plan(format!("{name} is a server of the plan; connect it as one")));
        }
        let (links, home) = links(actors, &plan)?;
        let none = || links.iter().map(|_| None).collect();
        Ok(Self {
            name,
            names: actors.names.clone(),
            home,
            step: 0,
            end: Instant::now(),
            known: HashMap::new(),
            sent: none(),
            received: none(),
            lost: None,
            left: 0,
            links,
            plan,
        })
    }

    /// Sets the step that messages and errors name.
    pub fn set_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Sets a parameter of f32 or f64, and how the servers update it. One that is set gets another value and optimizer, without
    /// state; its type and shape stay until [`reset`](Self::reset). Gradients that have not taken effect are dropped, and all trainers' pushes to it count from zero.
    ///
    /// # Errors
    /// [`Error::Type`] and [`Error::Shape`] for a type that parameters cannot have, and for another one than is set; [`Error::Plan`] for an
    /// optimizer that cannot be; [`Error::ServerLost`], [`Error::ShutDown`]; the group's.
    pub fn set(&mut self, name: &str, value: Array<'_>, optimizer: Optimizer) -> Result<(), Error> {
        self.begin();
        let meta = self.meta(name, value);
        check_new(&meta)?;
        optimizer.check().map_err(Error::Plan)?;
        let servers = self.links.len();
        let shards: Vec<_> =
            (0..servers).map(|server| self.plan.sharding.shard(meta.rows(), server, servers)).collect();
        self.known.remove(name);
        match self.known(name) {
            Ok(known) => check_same(&known.meta, &meta, "the value")?,
            Err(Error::NotSet { .. }) => {}
            Err(error) => return Err(error),
        }
        // It is another generation then.
        self.known.remove(name);
        let row = meta.row_bytes().unwrap_or(0);
        self.call(&format!("setting '{name}'"), |server, room| {
            let meta = Meta { layout: Layout::Shard(shards[server].len() as u64), ..meta.clone() };
            let elements = room.of_shard(&shards[server], value.bytes, row)?;
            Ok((Head { meta, body: Request::Set(optimizer) }, elements))
        })
        .map(drop)
    }

    /// Pushes a gradient of the whole parameter.
    ///
    /// After an error other than those of the argument, and but for [`Error::ServerLost`], push the same gradient again: a server that has it
    /// does not take it twice.
    ///
    /// # Errors
    /// [`Error::NotSet`]; [`Error::Shape`] and [`Error::Type`]; [`Error::Stale`] where other trainers are too far behind until the deadline;
    /// [`Error::Plan`] where this actor is no trainer; [`Error::ServerLost`], [`Error::ShutDown`]; the group's.
    pub fn push(&mut self, name: &str, gradient: Array<'_>) -> Result<(), Error> {
        self.up_to_date(name, |client| client.push_known(name, gradient))
    }

    fn push_known(&mut self, name: &str, gradient: Array<'_>) -> Result<(), Error> {
        let meta = self.meta(name, gradient);
        let known = self.known_as(name, &meta, "the gradient")?;
        let (row, seen) = (meta.row_bytes().unwrap_or(0), known.seen());
        let shards = std::mem::take(&mut known.shards);
        let pushed = self.call(&format!("pushing '{name}'"), |server, room| {
            let meta = Meta { layout: Layout::Shard(shards[server].len() as u64), ..meta.clone() };
            let elements = room.of_shard(&shards[server], gradient.bytes, row)?;
            Ok((Head { meta, body: Request::Push(seen[server]) }, elements))
        });
        self.pushed(name, shards, pushed)
    }

    /// Pushes some rows of a gradient: row `rows[i]` of the parameter's is row `i` of `values`. The indices are in ascending order; rows
    /// with equal ones are summed.
    ///
    /// # Errors
    /// As [`push`](Self::push), and [`Error::Rows`].
    pub fn push_rows(&mut self, name: &str, rows: &[u64], values: Array<'_>) -> Result<(), Error> {
        self.up_to_date(name, |client| client.push_rows_known(name, rows, values))
    }

    fn push_rows_known(&mut self, name: &str, rows: &[u64], values: Array<'_>) -> Result<(), Error> {
        let given = self.meta(name, values);
        let whole = self.known(name)?.meta.clone();
        // As many rows as there are indices, and otherwise the parameter's shape.
        let mut due = Meta { step: self.step, ..whole.clone() };
        match due.shape.first_mut() {
            Some(first) => *first = rows.len() as u64,
            None => {
                return Err(Error::Plan(format!("'{name}' has no dimensions, so no rows; push it whole")));
            }
        }
        check_same(&due, &given, "the values")?;
        let meta = Meta { step: self.step, ..whole };
        check_rows(&meta, rows)?;
        let known = self.known(name)?;
        let (row, seen) = (meta.row_bytes().unwrap_or(0), known.seen());
        let shards = std::mem::take(&mut known.shards);
        let pushed = self.call(&format!("pushing rows of '{name}'"), |server, room| {
            let own: Vec<_> =
                (0..rows.len()).filter(|at| shards[server].place(rows[*at]).is_some()).collect();
            let meta = Meta { layout: Layout::Rows(own.len() as u64), ..meta.clone() };
            let head = Head { meta, body: Request::Push(seen[server]) };
            let mut slab = room.memory(head.data_bytes()?)?;
            let (indices, to) = slab.bytes_mut().split_at_mut(own.len() * 8);
            for (nth, at) in own.into_iter().enumerate() {
                indices[nth * 8..][..8].copy_from_slice(&rows[at].to_ne_bytes());
                to[nth * row..][..row].copy_from_slice(&values.bytes[at * row..][..row]);
            }
            Ok((head, Elements::Copied(slab)))
        });
        self.pushed(name, shards, pushed)
    }

    fn pushed(
        &mut self,
        name: &str,
        shards: Vec<Shard>,
        pushed: Result<Vec<Arrived<Reply>>, Error>,
    ) -> Result<(), Error> {
        // An answer of NotSet has made the client forget the parameter.
        if let Some(known) = self.known.get_mut(name) {
            known.shards = shards;
            known.pushes += u64::from(pushed.is_ok());
        }
        pushed.map(drop)
    }

    /// Pulls a parameter into `into`, which has its type and as many bytes, and its shape where one is given. Returns the number of updates so
    /// far, the least of all servers'.
    ///
    /// # Errors
    /// [`Error::NotSet`]; [`Error::Type`] and [`Error::Shape`]; [`Error::Stale`] as of [`push`](Self::push); [`Error::ServerLost`],
    /// [`Error::ShutDown`]; the group's. After an error `into` is as it was, but for [`Error::ServerLost`], [`Error::TrainerLost`],
    /// [`Error::Protocol`] and the group's: then some of it may be of the parameter.
    pub fn pull_into(
        &mut self,
        name: &str,
        (dtype, shape): (DType, Option<&[u64]>),
        into: &mut [u8],
    ) -> Result<u64, Error> {
        self.up_to_date(name, |client| client.pull_known(name, (dtype, shape), into))
    }

    fn pull_known(
        &mut self,
        name: &str,
        (dtype, given): (DType, Option<&[u64]>),
        into: &mut [u8],
    ) -> Result<u64, Error> {
        let step = self.step;
        let known = self.known(name)?;
        let Meta { shape, .. } = known.meta.clone();
        if known.meta.dtype != dtype {
            let (parameter, expected) = (name.to_owned(), known.meta.dtype);
            return Err(Error::Type {
                parameter,
                what: "the array to pull into".into(),
                expected,
                found: dtype,
                step,
            });
        }
        if known.meta.data_bytes() != Some(into.len()) || given.is_some_and(|given| given != shape) {
            let parameter = name.to_owned();
            let found = given.map_or_else(|| vec![(into.len() / dtype.size()) as u64], <[u64]>::to_vec);
            return Err(Error::Shape {
                parameter,
                what: "the array to pull into".into(),
                expected: shape,
                found,
                step,
            });
        }
        let (row, seen) = (known.meta.row_bytes().unwrap_or(0), known.seen());
        let doing = format!("pulling '{name}'");
        let pulled = self.call(&doing, |server, _| {
            let body = Request::Pull(seen[server].generation);
            Ok((Head { meta: bare(name, step), body }, Elements::There(&[])))
        })?;
        for (at, arrived) in pulled.iter().enumerate() {
            let rows = self.known(name)?.shards[at].len() as u64;
            let meta = &arrived.head.meta;
            if (meta.layout, meta.dtype, &meta.shape) != (Layout::Shard(rows), dtype, &shape) {
                return Err(self.meaningless(at, format!("{meta:?} in answer to a pull of '{name}'")));
            }
        }
        let updates = pulled.iter().map(|arrived| arrived.head.meta.step).min().unwrap_or(0);
        let shards = std::mem::take(&mut self.known(name)?.shards);
        let first = self.first();
        let came = (0..pulled.len()).map(|nth| (nth + first) % pulled.len()).try_for_each(|at| {
            let (arrived, shard) = (&pulled[at], &shards[at]);
            match (arrived.missing(), shard.run(row)) {
                (0, _) => shard.scatter(arrived.data(), row, into),
                (_, Some(run)) => self.elements(at, &doing, &mut into[run])?,
                (due, None) => {
                    let mut slab = self.scratch(at, due)?;
                    self.elements(at, &doing, slab.bytes_mut())?;
                    shard.scatter(slab.bytes(), row, into);
                    self.received[at] = Some(slab);
                }
            }
            Ok(())
        });
        if let Some(known) = self.known.get_mut(name) {
            known.shards = shards;
        }
        came.map(|()| updates)
    }

    /// As [`pull_into`](Self::pull_into), into the elements of any shape.
    ///
    /// # Errors
    /// As [`pull_into`](Self::pull_into).
    pub fn pull<T: crate::Element + bytemuck::Pod>(
        &mut self,
        name: &str,
        into: &mut [T],
    ) -> Result<u64, Error> {
        self.pull_into(name, (T::DTYPE, None), bytemuck::cast_slice_mut(into))
    }

    /// The type and the shape of a parameter.
    ///
    /// # Errors
    /// [`Error::NotSet`], [`Error::ServerLost`]; the group's.
    pub fn describe(&mut self, name: &str) -> Result<(DType, Vec<u64>), Error> {
        self.begin();
        self.known.remove(name);
        let meta = &self.known(name)?.meta;
        Ok((meta.dtype, meta.shape.clone()))
    }

    /// Waits until all trainers that take part have called it.
    ///
    /// # Errors
    /// [`Error::Stale`] with those that have not, at the deadline; [`Error::Plan`] where this actor is no trainer; [`Error::ServerLost`],
    /// [`Error::ShutDown`]; the group's.
    pub fn wait_for_all(&mut self) -> Result<(), Error> {
        self.begin();
        let step = self.step;
        // One server counts.
        self.call_some("waiting for all trainers", 1, |_, _| {
            Ok((Head { meta: bare("", step), body: Request::Wait }, Elements::There(&[])))
        })
        .map(drop)
    }

    /// Makes the servers forget all parameters. Calls that wait for one end with [`Error::NotSet`].
    ///
    /// # Errors
    /// [`Error::ServerLost`], [`Error::ShutDown`]; the group's.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.begin();
        self.known.clear();
        self.ask("resetting", |_| Request::Reset).map(drop)
    }

    /// Makes each server write its shards and the optimizers' state to `NAME.safetensors` in `folder` on its host, in place of a former
    /// checkpoint. Call it while nobody pushes, such as after [`wait_for_all`](Self::wait_for_all), or parameters are of different steps.
    ///
    /// # Errors
    /// [`Error::Checkpoint`]; [`Error::ServerLost`]; the group's.
    pub fn save(&mut self, folder: &str) -> Result<(), Error> {
        self.begin();
        let number = random::<8>().map_err(|why| Error::Plan(why.to_string()))?;
        let number = u64::from_le_bytes(number);
        self.ask("saving a checkpoint", |_| Request::Save(folder.to_owned(), number)).map(drop)
    }

    /// Makes each server take the checkpoint in `folder`, which [`save`](Self::save) has written with as many servers of the same names and
    /// the same sharding. All servers look first whether theirs fits: either all take it or none. Gradients that have not taken effect are
    /// dropped, and all trainers' pushes count from zero.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for one that is not there, damaged, or has other shapes than are set, and for files that do not belong together;
    /// [`Error::ServerLost`]; the group's.
    pub fn restore(&mut self, folder: &str) -> Result<(), Error> {
        self.begin();
        self.known.clear();
        let checked = self.ask("reading a checkpoint", |_| Request::Check(folder.to_owned()))?;
        let numbers = checked.iter().map(|arrived| match arrived.head.body {
            Reply::Checked(number) => Some(number),
            _ => None,
        });
        let numbers: Vec<_> = numbers.collect();
        if numbers.windows(2).any(|pair| pair[0] != pair[1]) {
            let text =
                "the servers' files are of different checkpoints; restore one that was saved by all".into();
            return Err(Error::Checkpoint { path: folder.to_owned(), text });
        }
        self.ask("restoring a checkpoint", |_| Request::Restore(folder.to_owned())).map(drop)
    }

    /// The trainers that take part: those that have neither left nor been dropped, as the first server knows.
    ///
    /// # Errors
    /// [`Error::ServerLost`]; the group's.
    pub fn members(&mut self) -> Result<Vec<String>, Error> {
        self.check_lost()?;
        self.begin();
        match self.control(0, &Control::Members, "asking for the members")? {
            Control::MembersAre(there) if there.len() == self.plan.trainers.len() => {
                let there = self.plan.trainers.iter().zip(there).filter(|(_, there)| *there);
                Ok(there.map(|(name, _)| name.clone()).collect())
            }
            other => Err(self.meaningless(0, format!("{other:?} in answer to a question for the members"))),
        }
    }

    /// Ends the service: calls of all clients that wait, or come later, end with [`Error::ShutDown`]. Clients leave as ever.
    ///
    /// # Errors
    /// [`Error::ServerLost`]; the group's.
    pub fn shut_down(&mut self) -> Result<(), Error> {
        self.check_lost()?;
        self.begin();
        for at in 0..self.links.len() {
            let link = &self.links[at];
            send_control(&link.control, link.peer, &Control::ShutDown, self.end)
                .map_err(|error| self.gone(at, "shutting down", &error))?;
        }
        Ok(())
    }

    /// Leaves the servers, which end when all clients have. The other trainers do not wait for this one any more. A client that is dropped
    /// without it is lost.
    ///
    /// # Errors
    /// [`Error::ServerLost`]; the group's.
    pub fn leave(mut self) -> Result<(), Error> {
        self.check_lost()?;
        self.begin();
        for at in 0..self.links.len() {
            match self.control(at, &Control::Leave, "leaving")? {
                Control::Leave => self.left = at + 1,
                other => return Err(self.meaningless(at, format!("{other:?} in answer to a leave"))),
            }
        }
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let end = self.plan.end();
        for link in &self.links[self.left..] {
            // Where the groups have ended, the server has heard of that.
            let _ = send_control(&link.control, link.peer, &Control::GiveUp, end);
        }
    }
}
