//! The messages that this rank sends to others of a group and receives from them, outside any collective.

use std::sync::Arc;
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{AbortCause, Disposition};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::Header;
use shouter_reducer::p2p::{
    Ended, Messenger, PostError, ReceiveRequest, SendRequest, Status, TransferError, TransferId,
};
use shouter_reducer::transport::{SendToken, Transport};

use super::Engine;
use super::groups::GroupId;
use super::served::{Completion, Machine};
use crate::runtime::Poller;

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

/// Of any group of this process: without a [`GroupId`] those of the group of all. Of a group that is gone there are none.
impl Engine {
    /// Starts to send a message.
    pub(crate) fn start_send(
        &mut self,
        group: Option<GroupId>,
        request: SendRequest,
    ) -> Result<TransferId, PostError> {
        let beside = self.beside_in(group).ok_or(PostError::Busy { max: 0 })?;
        beside.messages.machine.start_send(request)
    }

    /// The elements of a send are there that was held.
    pub(crate) fn release_send(&mut self, group: Option<GroupId>, to: Rank, id: TransferId) {
        if let Some(beside) = self.beside_in(group) {
            beside.messages.machine.release(to, id);
        }
    }

    /// Starts a receive.
    pub(crate) fn start_receive(
        &mut self,
        group: Option<GroupId>,
        now: Instant,
        request: ReceiveRequest,
    ) -> Result<TransferId, PostError> {
        let gone = PostError::Busy { max: 0 };
        let beside = self.beside_in(group).ok_or(gone.clone())?;
        // The sender may have given that message up before it did what this rank has seen of it since, such as a barrier in shared memory.
        if beside.messages.machine.is_announced(request.from, request.tag) {
            self.poll(now);
        }
        self.beside_in(group).ok_or(gone)?.messages.machine.start_receive(request)
    }

    /// Takes the outcome of a send or receive, once it has ended.
    #[inline]
    pub(crate) fn take_transfer(
        &mut self,
        group: Option<GroupId>,
        id: TransferId,
    ) -> Option<Result<Status, TransferError>> {
        if self.is_settling_in(group) {
            return None;
        }
        self.beside_in(group)?.messages.take(id)
    }

    /// Has the outcome of a send or receive that was just started told, rather than taken.
    pub(crate) fn tell_of_transfer(
        &mut self,
        group: Option<GroupId>,
        id: TransferId,
        tell: impl FnOnce(Option<Result<Status, TransferError>>) + Send + 'static,
    ) {
        let told = Completion::new(tell);
        if let Some(beside) = self.beside_in(group) {
            beside.messages.tell_of(id, told);
        }
    }

    /// Cancels a receive that no message was matched with; whether it was.
    pub(crate) fn cancel_receive(&mut self, group: Option<GroupId>, id: TransferId) -> bool {
        self.beside_in(group).is_some_and(|beside| beside.messages.machine.cancel(id))
    }

    /// The first message that has come and that no receive has taken.
    pub(crate) fn probe(
        &mut self,
        group: Option<GroupId>,
        from: Option<Rank>,
        tag: Option<u32>,
    ) -> Option<Status> {
        self.beside_in(group)?.messages.machine.probe(from, tag)
    }

    /// How a send that had ended has failed since.
    pub(crate) fn take_late(&mut self, group: Option<GroupId>) -> Option<TransferError> {
        self.beside_in(group)?.messages.machine.take_late()
    }
}
