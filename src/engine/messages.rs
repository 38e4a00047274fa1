//! The messages that this rank sends to others and receives from them, outside any collective.

use std::sync::Arc;
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{AbortCause, Disposition};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::Header;
use shouter_reducer::p2p::{
    Ended, Messenger, MessengerConfig, PostError, ReceiveRequest, SendRequest, Status, TransferError,
    TransferId,
};
use shouter_reducer::transport::{SendToken, Transport};

use super::Engine;
use super::served::{Machine, Served, Told};
use crate::runtime::Poller;

/// The messenger of the group of all, of one of so many ranks. The engine drops its channels before it.
#[allow(unsafe_code)]
pub(super) fn messages(rank: Rank, ranks: u32) -> Served<Messenger> {
    // SAFETY: it is a field of the engine behind the channels, which alone are given what it posts.
    Served::around(unsafe { Messenger::new(MessengerConfig::new(rank, ranks)) })
}

impl Machine for Messenger {
    type Id = TransferId;
    type Outcome = Result<Status, TransferError>;

    fn on_message(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        self.on_message(header, payload)
    }

    fn on_released(&mut self, token: SendToken) {
        self.on_released(token);
    }

    fn poll(&mut self, now: Duration, transport: &mut impl Transport) -> bool {
        self.poll(now, transport).worked
    }

    fn take_ended(&mut self) -> Option<(Self::Id, Self::Outcome)> {
        self.take_ended().map(|Ended { id, result }| (id, result))
    }

    fn running(&self) -> usize {
        self.running()
    }

    fn has_work(&self) -> bool {
        self.has_work()
    }

    fn next_deadline(&self) -> Option<Duration> {
        self.next_deadline()
    }

    fn deserter(&self, ranks: impl Fn(Rank) -> bool) -> Option<Rank> {
        self.deserter(ranks)
    }

    fn abort(&mut self, cause: &Arc<AbortCause>) {
        self.abort(cause);
    }

    fn fenced(&mut self) {
        self.fenced();
    }
}

impl Engine {
    /// Starts to send a message.
    pub(crate) fn start_send(&mut self, request: SendRequest) -> Result<TransferId, PostError> {
        self.messages.machine.start_send(request)
    }

    /// Starts a receive.
    pub(crate) fn start_receive(
        &mut self,
        now: Instant,
        request: ReceiveRequest,
    ) -> Result<TransferId, PostError> {
        // The sender may have given that message up before it did what this rank has seen of it since, such as a barrier in shared memory.
        if self.messages.machine.is_announced(request.from, request.tag) {
            self.poll(now);
        }
        self.messages.machine.start_receive(request)
    }

    /// Takes the outcome of a send or receive, once it has ended.
    #[inline]
    pub(crate) fn take_transfer(&mut self, id: TransferId) -> Option<Result<Status, TransferError>> {
        if self.settling.is_some() {
            return None;
        }
        self.messages.take(id)
    }

    /// Has the outcome of a send or receive that was just started told, rather than taken.
    pub(crate) fn tell_of_transfer(
        &mut self,
        id: TransferId,
        tell: impl FnOnce(Option<Result<Status, TransferError>>) + Send + 'static,
    ) {
        self.messages.tell_of(id, Told::new(tell));
    }

    /// Cancels a receive that no message was matched with; whether it was.
    pub(crate) fn cancel_receive(&mut self, id: TransferId) -> bool {
        self.messages.machine.cancel(id)
    }

    /// The first message that has come and that no receive has taken.
    pub(crate) fn probe(&self, from: Option<Rank>, tag: Option<u32>) -> Option<Status> {
        self.messages.machine.probe(from, tag)
    }

    /// How a send that had ended has failed since.
    pub(crate) fn take_late(&mut self) -> Option<TransferError> {
        self.messages.machine.take_late()
    }
}
