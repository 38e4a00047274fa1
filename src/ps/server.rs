//! A server: owns its shard of every parameter, and answers clients.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::actors::Actors;
use super::link::{Link, links};
use super::message::{Arrived, Head, Home, INLINE, Layout, Slab, no_memory};
use super::names::Names;
use super::plan::{Lost, Plan};
use super::protocol::{
    ANSWER, Control, LOOK, REQUEST, Reply, Request, bare, elements, memory, next, next_control, send_control,
};
use super::state::{Sender, Shards};
use super::{Error, checkpoint};
use crate::runtime::lock;

/// The most bytes of memory that are kept for the next messages.
const SPARE: usize = 1 << 30;
/// The most pieces of it.
const SPARES: usize = 64;

/// A server of parameters.
pub struct Server {
    plan: Arc<Plan>,
    names: Arc<Names>,
    own: Own,
    links: Vec<Link>,
    home: Home,
}

/// Which of the servers this is.
#[derive(Clone)]
pub(super) struct Own {
    pub(super) name: String,
    pub(super) server: usize,
    pub(super) servers: usize,
}

/// How a server has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Served {
    /// The actor that has shut the servers down; `None` where all clients have left.
    pub shut_down_by: Option<String>,
    /// The trainers that were dropped, in the plan's order.
    pub dropped: Vec<String>,
}

impl Server {
    /// Connects this actor, one of the plan's servers, with all clients. All actors call this or
    /// [`Client::connect`](super::Client::connect), as they would a collective.
    ///
    /// # Errors
    /// [`Error::Plan`] and [`Error::UnknownActor`] for a plan that cannot be, that other actors have not, or in which this one is no server;
    /// the group's.
    pub fn connect(actors: &Actors, plan: Plan) -> Result<Self, Error> {
        plan.agree(actors)?;
        let name = actors.name().to_owned();
        let server = plan.server(&name).ok_or_else(|| {
            Error::Plan(format!(
                "{name} is no server of the plan ({}); connect it as a client",
                plan.servers.join(", ")
            ))
        })?;
        let own = Own { name, server, servers: plan.servers.len() };
        let (links, home) = links(actors, &plan)?;
        Ok(Self { plan: Arc::new(plan), names: actors.names.clone(), own, links, home })
    }

    /// Serves until all clients have left. A thread for each client answers, and one hears its control messages.
    ///
    /// # Errors
    /// [`Error::TrainerLost`], [`Error::ServerLost`] and [`Error::Protocol`] where the job ends with an actor; the group's.
    pub fn serve(self) -> Result<Served, Error> {
        let Self { plan, names, own, links, home } = self;
        let shards = Shards::new(plan.clone(), own.clone(), home.clone());
        let serving =
            Serving { plan, names, own, home, shards, saving: Mutex::default(), spare: Mutex::default() };
        let serving = &serving;
        thread::scope(|scope| {
            for link in &links {
                let left = Arc::new(AtomicBool::new(false));
                let ended = left.clone();
                scope.spawn(move || serving.answer(link, &left));
                scope.spawn(move || serving.hear(link, &ended));
            }
        });
        serving.shards.served()
    }
}

/// A server at work.
struct Serving {
    plan: Arc<Plan>,
    names: Arc<Names>,
    own: Own,
    home: Home,
    shards: Shards,
    /// One checkpoint is written at a time: each is once more the memory of all parameters.
    saving: Mutex<()>,
    /// Memory for messages.
    spare: Mutex<Vec<Slab>>,
}

impl Serving {
    /// Answers a client's requests until it has left, or the server ends.
    fn answer(&self, link: &Link, left: &AtomicBool) {
        let sender = Sender { name: &link.name, trainer: self.plan.trainer(&link.name) };
        loop {
            if left.load(Ordering::Acquire) || self.shards.has_failed() {
                break;
            }
            let asked = match self.next(link) {
                Ok(None) => continue,
                Ok(Some(Ok(asked))) => asked,
                Ok(Some(Err(text))) => {
                    self.fail(Error::Protocol { actor: link.name.clone(), rank: link.rank, text });
                    break;
                }
                Err(error) => {
                    self.broken(link, error.into(), left);
                    break;
                }
            };
            if let Err(error) = self.respond(link, sender, asked) {
                self.broken(link, error, left);
                break;
            }
        }
        left.store(true, Ordering::Release);
    }

    /// A request was not received, or not answered: the client is gone, or this server cannot go on.
    fn broken(&self, link: &Link, error: Error, left: &AtomicBool) {
        match error {
            Error::Group(crate::Error::Argument(text)) => self.fail(self.no_memory("", text, 0)),
            Error::Group(error) => self.lost(link, &error, left),
            error => self.fail(error),
        }
    }

    fn no_memory(&self, parameter: &str, text: String, step: u64) -> Error {
        Error::NoMemory { parameter: parameter.to_owned(), server: self.own.name.clone(), text, step }
    }

    /// A client's next request, if one comes soon. Its elements are missing where there is no memory for them.
    fn next(&self, link: &Link) -> Result<Option<Result<Arrived<Request>, String>>, crate::Error> {
        let end = self.plan.end();
        let asked = match next::<Request>(&link.data, (link.peer, REQUEST), LOOK, end)? {
            Some(Ok(asked)) if asked.missing() > 0 => asked,
            other => return Ok(other),
        };
        let due = asked.missing();
        let mut slab = match memory(&self.home, || self.spare_for(due), due) {
            Ok(slab) => slab,
            // A receive that is too short takes them away, and ends the client's send.
            Err(crate::Error::Argument(_)) => {
                return match elements(&link.data, (link.peer, REQUEST), &mut [], end) {
                    Ok(_) => Ok(Some(Err(format!("no elements where the header says {due} bytes")))),
                    Err(crate::Error::Mismatch { .. }) => Ok(Some(Ok(asked))),
                    Err(error) => Err(error),
                };
            }
            Err(error) => return Err(error),
        };
        let came = elements(&link.data, (link.peer, REQUEST), slab.bytes_mut(), end)?;
        Ok(Some(came.map(|()| asked.complete(slab))))
    }

    /// Hears a client's control messages until it leaves.
    fn hear(&self, link: &Link, left: &AtomicBool) {
        while !left.load(Ordering::Acquire) && !self.shards.has_failed() {
            let end = self.plan.end();
            match next_control(&link.control, link.peer, LOOK, end) {
                Ok(None) => {}
                Ok(Some(Ok(Control::Leave))) => {
                    left.store(true, Ordering::Release);
                    self.give_back(self.shards.leave(self.plan.trainer(&link.name), false));
                    // The client drops the groups when it has this. If it is gone already, that is as it wished.
                    let _ = send_control(&link.control, link.peer, &Control::Leave, self.plan.end());
                }
                Ok(Some(Ok(Control::GiveUp))) => {
                    self.lost(link, &crate::Error::closed("it has ended without leaving"), left)
                }
                Ok(Some(Ok(Control::ShutDown))) => self.shards.shut_down(&link.name),
                Ok(Some(Ok(Control::Members))) => {
                    let members = Control::MembersAre(self.shards.members());
                    let end = self.plan.end();
                    if let Err(error) = send_control(&link.control, link.peer, &members, end) {
                        self.lost(link, &error, left);
                    }
                }
                Ok(Some(Ok(Control::MembersAre(_)))) => {
                    let text = "an answer in place of a request".into();
                    self.fail(Error::Protocol { actor: link.name.clone(), rank: link.rank, text });
                }
                Ok(Some(Err(text))) => {
                    self.fail(Error::Protocol { actor: link.name.clone(), rank: link.rank, text });
                }
                Err(error) => self.lost(link, &error, left),
            }
        }
    }

    /// A client is gone: what the plan says of it.
    fn lost(&self, link: &Link, error: &crate::Error, left: &AtomicBool) {
        if left.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.plan.lost == Lost::Drop {
            tracing::warn!(
                "{} (rank {}) is lost, and the others go on without it: {error}",
                link.name,
                link.rank
            );
            self.give_back(self.shards.leave(self.plan.trainer(&link.name), true));
            return;
        }
        let ((name, rank), text) = (link.culprit(&self.names, error), error.to_string());
        self.fail(match self.plan.server(&name) {
            Some(_) => Error::ServerLost { server: name, rank, doing: "serving".into(), text, step: 0 },
            None if self.plan.trainer(&name).is_some() => Error::TrainerLost { trainer: name, rank, text },
            None => Error::Group(error.clone()),
        });
    }

    /// Ends the server, with the first such error.
    fn fail(&self, error: Error) {
        self.shards.fail(error);
    }

    fn respond(&self, link: &Link, sender: Sender<'_>, asked: Arrived<Request>) -> Result<(), Error> {
        let meta = &asked.head.meta;
        let (name, step) = (meta.name.clone(), meta.step);
        let mut about = bare(&name, step);
        let due = asked.missing();
        let reply = match asked.head.body {
            _ if due > 0 => Err(no_memory(due).into()),
            Request::Pull(generation) => match self.shards.pulled(sender, meta, generation) {
                Ok((parameter, used)) => {
                    self.give_back(used);
                    // The parameter is not locked while it is sent.
                    let (head, rows) = parameter.read().unwrap_or_else(PoisonError::into_inner).message();
                    return link.send(ANSWER, &head, rows.bytes(), self.plan.end());
                }
                Err(error) => Err(error),
            },
            Request::Set(optimizer) => {
                let set = self.shards.set(meta, optimizer, asked.data());
                self.give_back(vec![asked]);
                set.map(|()| Reply::Done)
            }
            Request::Push(seen) => self.shards.push(sender, seen, asked).map(|used| {
                self.give_back(used);
                Reply::Done
            }),
            Request::Describe => self.shards.describe(sender, meta).map(|(meta, seen)| {
                // The shape, without elements.
                about = super::message::Meta { layout: Layout::Shard(0), step, ..meta };
                Reply::Described(seen)
            }),
            Request::Wait => self.shards.wait(sender, step).map(|()| Reply::Done),
            Request::Reset => self.shards.reset(step).map(|()| Reply::Done),
            Request::Save(ref folder, number) => {
                let _saving = lock(&self.saving);
                checkpoint::save(&self.shards, &self.plan, &self.own, folder, number).map(|()| Reply::Done)
            }
            Request::Check(ref folder) => checkpoint::read(&self.shards, &self.plan, &self.own, folder)
                .map(|read| Reply::Checked(read.number)),
            Request::Restore(ref folder) => checkpoint::read(&self.shards, &self.plan, &self.own, folder)
                .and_then(|read| read.take(&self.shards))
                .map(|()| Reply::Done),
        };
        let body = reply.unwrap_or_else(|error| {
            let error = match error {
                Error::Group(crate::Error::Argument(text)) => self.no_memory(&name, text, step),
                error => error,
            };
            Reply::Refused(error.told(&self.own.name))
        });
        link.send(ANSWER, &Head { meta: about, body }, &[], self.plan.end())
    }

    /// The smallest spare memory that holds so many bytes.
    fn spare_for(&self, len: usize) -> Option<Slab> {
        let mut spare = lock(&self.spare);
        let fits = spare.iter().enumerate().filter(|(_, slab)| slab.capacity() >= len);
        let at = fits.min_by_key(|(_, slab)| slab.capacity()).map(|(at, _)| at)?;
        Some(spare.swap_remove(at))
    }

    fn give_back(&self, used: Vec<Arrived<Request>>) {
        let mut spare = lock(&self.spare);
        for used in used {
            keep(&mut spare, used.into_slab());
        }
    }
}

/// Keeps memory for the next messages, if there can be a use for it.
fn keep(spare: &mut Vec<Slab>, slab: Slab) {
    let kept: usize = spare.iter().map(Slab::capacity).sum();
    if slab.capacity() > INLINE && spare.len() < SPARES && kept + slab.capacity() <= SPARE {
        spare.push(slab);
    }
}

#[cfg(test)]
mod tests;
