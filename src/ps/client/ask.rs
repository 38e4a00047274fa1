//! Requests to the servers, their answers, and how a server is lost.

use super::Client;
use super::elements::{Elements, Room, keep};
use crate::ps::Error;
use crate::ps::link::Link;
use crate::ps::message::{Array, Arrived, Head, Layout, Meta, Slab};
use crate::ps::protocol::{
    ANSWER, Control, REQUEST, Reply, Request, bare, elements, left, memory, next, next_control, send_control,
};

impl Client {
    /// A call begins: all its messages share the time until `end`.
    pub(super) fn begin(&mut self) {
        self.end = self.plan.end();
    }

    pub(super) fn meta(&self, name: &str, array: Array<'_>) -> Meta {
        let Array { dtype, shape, .. } = array;
        Meta { name: name.to_owned(), dtype, shape: shape.to_vec(), layout: Layout::Dense, step: self.step }
    }

    /// Asks all servers for something without elements.
    pub(super) fn ask(
        &mut self,
        doing: &str,
        request: impl Fn(usize) -> Request,
    ) -> Result<Vec<Arrived<Reply>>, Error> {
        let step = self.step;
        self.call(doing, |server, _| {
            Ok((Head { meta: bare("", step), body: request(server) }, Elements::There(&[])))
        })
    }

    pub(super) fn call<'a>(
        &mut self,
        doing: &str,
        request: impl FnMut(usize, Room<'_>) -> Result<(Head<Request>, Elements<'a>), Error>,
    ) -> Result<Vec<Arrived<Reply>>, Error> {
        self.call_some(doing, self.links.len(), request)
    }

    /// Sends a request to each of the first servers, then takes all their answers, in their order. The first refusal is the error. Where there
    /// is none, elements that are missing are to be received.
    pub(super) fn call_some<'a>(
        &mut self,
        doing: &str,
        servers: usize,
        mut request: impl FnMut(usize, Room<'_>) -> Result<(Head<Request>, Elements<'a>), Error>,
    ) -> Result<Vec<Arrived<Reply>>, Error> {
        self.check_lost()?;
        let first = self.first();
        let order = (0..servers).map(|nth| (nth + first) % servers);
        for (nth, at) in order.clone().enumerate() {
            let (home, link, spare) = (&self.home, &self.links[at], &mut self.sent[at]);
            let (head, elements) = match request(at, Room { home, link, spare }) {
                Ok(asked) => asked,
                Err(error) if nth == 0 => return Err(error),
                // The servers that have been asked would answer the next call.
                Err(error) => return Err(self.lost.insert(error).clone()),
            };
            match link.send(REQUEST, &head, elements.bytes(), self.end) {
                Ok(()) => {}
                Err(Error::Group(error)) => return Err(self.gone(at, doing, &error)),
                Err(error) if nth == 0 => return Err(error),
                Err(error) => return Err(self.lost.insert(error).clone()),
            }
            if let Elements::Copied(slab) = elements {
                keep(&mut self.sent[at], slab);
            }
        }
        let mut answers: Vec<_> = (0..servers).map(|_| None).collect();
        for at in order {
            answers[at] = Some(self.answer(at, doing)?);
        }
        let mut refused = None;
        for answer in answers.iter().flatten() {
            if let Reply::Refused(error) = &answer.head.body {
                refused.get_or_insert(error.clone());
            }
        }
        match refused {
            None => Ok(answers.into_iter().flatten().collect()),
            Some(error) => {
                for (at, answer) in answers.iter().enumerate() {
                    let due = answer.as_ref().map_or(0, Arrived::missing);
                    if due > 0 {
                        let mut slab = self.scratch(at, due)?;
                        self.elements(at, doing, slab.bytes_mut())?;
                        self.received[at] = Some(slab);
                    }
                }
                match &error {
                    Error::NotSet { parameter, .. } => drop(self.known.remove(parameter)),
                    Error::TrainerLost { .. } | Error::ServerLost { .. } | Error::Protocol { .. } => {
                        self.lost = Some(error.clone());
                    }
                    _ => {}
                }
                Err(error)
            }
        }
    }

    /// The server that this client begins with: trainers with different ones, or all would wait for the first.
    pub(super) fn first(&self) -> usize {
        self.plan.trainer(&self.name).unwrap_or(0)
    }

    /// Memory for elements of a server that go elsewhere afterwards.
    pub(super) fn scratch(&mut self, at: usize, len: usize) -> Result<Slab, Error> {
        let spare = &mut self.received[at];
        match memory(&self.home, || spare.take(), len) {
            Ok(slab) => Ok(slab),
            // The elements would be in the way of the next answer.
            Err(error) => Err(self.lost.insert(Error::Group(error)).clone()),
        }
    }

    /// Receives the elements that were missing in a server's answer.
    pub(super) fn elements(&mut self, at: usize, doing: &str, into: &mut [u8]) -> Result<(), Error> {
        let link = &self.links[at];
        match elements(&link.data, (link.peer, ANSWER), into, self.end) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(text)) => Err(self.meaningless(at, text)),
            Err(error) => Err(self.gone(at, doing, &error)),
        }
    }

    fn answer(&mut self, at: usize, doing: &str) -> Result<Arrived<Reply>, Error> {
        let link = &self.links[at];
        let patience = self.plan.patience();
        match next(&link.data, (link.peer, ANSWER), left(self.end), self.end) {
            Ok(Some(Ok(answer))) => Ok(answer),
            Ok(Some(Err(text))) => Err(self.meaningless(at, text)),
            Ok(None) => {
                let error = Error::ServerLost {
                    server: link.name.clone(),
                    rank: link.rank,
                    doing: doing.to_owned(),
                    text: format!("no answer within {patience:?}"),
                    step: self.step,
                };
                Err(self.lost.insert(error).clone())
            }
            Err(error) => Err(self.gone(at, doing, &error)),
        }
    }

    pub(super) fn control(&mut self, at: usize, control: &Control, doing: &str) -> Result<Control, Error> {
        let link = &self.links[at];
        let asked = send_control(&link.control, link.peer, control, self.end)
            .and_then(|()| next_control(&link.control, link.peer, left(self.end), self.end));
        match asked {
            Ok(Some(Ok(answer))) => Ok(answer),
            Ok(Some(Err(text))) => Err(self.meaningless(at, text)),
            Ok(None) => {
                let after = self.plan.patience();
                Err(self.lost.insert(Error::NoMessage { actor: self.links[at].name.clone(), after }).clone())
            }
            Err(error) => Err(self.gone(at, doing, &error)),
        }
    }

    pub(super) fn check_lost(&self) -> Result<(), Error> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// The error for a link that has failed: of the actor that it names.
    pub(super) fn gone(&mut self, at: usize, doing: &str, error: &crate::Error) -> Error {
        let link = &self.links[at];
        let ((name, rank), text) = (link.culprit(&self.names, error), error.to_string());
        let error = if self.plan.server(&name).is_some() {
            Error::ServerLost { server: name, rank, doing: doing.to_owned(), text, step: self.step }
        } else if self.plan.trainer(&name).is_some() {
            Error::TrainerLost { trainer: name, rank, text }
        } else {
            Error::Group(error.clone())
        };
        self.lost.insert(error).clone()
    }

    pub(super) fn meaningless(&mut self, at: usize, text: String) -> Error {
        let Link { name, rank, .. } = &self.links[at];
        self.lost.insert(Error::Protocol { actor: name.clone(), rank: *rank, text }).clone()
    }
}
