//! The messages that this rank sends to others of a group and receives from them, outside any collective.

use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::header::Header;
use shouter_reducer::p2p::{
    Messenger, PostError, ReceiveRequest, SendRequest, Status, TransferError, TransferId,
};
use shouter_reducer::transport::Transport;

use super::groups::GroupId;
use super::requests::Callback;
use super::{Engine, executor_time};
use crate::runtime::Poller;

/// Of any group of this process: without a [`GroupId`] those of the group of all. Of a group that is gone there are none.
impl Engine {
    /// The sends and receives.
    pub(crate) fn messages_in(&mut self, group: Option<GroupId>) -> Option<&mut Messenger> {
        Some(&mut self.pairwise_in(group)?.messages.machine)
    }

    /// Sends a small message of the group of all to a rank of this host in this call, with so much time until its receive; `None` where
    /// that has to be [started](Self::start_send).
    #[inline]
    pub(crate) fn send_at_once(&mut self, request: &SendRequest, within: Duration) -> Option<Status> {
        // The deadline is counted from the last poll, which is long ago only in a process that was stopped.
        if within <= 2 * self.times.dead_after() || !self.may_act_at_once() {
            return None;
        }
        let Self { up, pairwise, times, .. } = self;
        let request = SendRequest { deadline: executor_time(times.polled_at() + within), ..*request };
        let fragment = up.max_fragment(request.to);
        let post = |header: &Header, payload| up.send_at_once(request.to, header, payload);
        pairwise.messages.machine.send_at_once(&request, fragment, post)
    }

    /// Receives a small message of the group of all from a rank of this host in this call, for which it looks so many times; `None` where
    /// that has to be [started](Self::start_receive).
    #[inline]
    pub(crate) fn receive_at_once(&mut self, request: &ReceiveRequest, looks: u32) -> Option<Status> {
        let from = request.from?;
        if !self.pairwise.messages.machine.may_receive_at_once(from) || !self.may_act_at_once() {
            return None;
        }
        let Self { up, pairwise, .. } = self;
        let (messages, mut status) = (&mut pairwise.messages.machine, None);
        up.take_next(from, looks, |header, payload| {
            status = messages.receive_at_once((from, request), header, payload);
            status.is_some()
        });
        status
    }

    /// Whether a message may be exchanged now without a poll: each counts as one that is spared.
    #[inline]
    fn may_act_at_once(&mut self) -> bool {
        !self.ending.is_settling() && self.times.spare_poll()
    }

    /// Starts to send a message.
    pub(crate) fn start_send(
        &mut self,
        group: Option<GroupId>,
        request: SendRequest,
    ) -> Result<TransferId, PostError> {
        self.messages_in(group).ok_or(PostError::Busy { max: 0 })?.start_send(request)
    }

    /// Starts a receive.
    pub(crate) fn start_receive(
        &mut self,
        group: Option<GroupId>,
        now: Instant,
        request: ReceiveRequest,
    ) -> Result<TransferId, PostError> {
        let gone = PostError::Busy { max: 0 };
        let messages = self.messages_in(group).ok_or(gone.clone())?;
        // The sender may have given that message up before it did what this rank has seen of it since, such as a barrier in shared memory.
        if messages.is_announced(request.from, request.tag) {
            self.poll(now);
        }
        self.messages_in(group).ok_or(gone)?.start_receive(request)
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
        self.pairwise_in(group)?.messages.take(id)
    }

    /// The outcome of a send or receive that was just started goes to `callback`, and is not taken.
    pub(crate) fn call_back_transfer(
        &mut self,
        group: Option<GroupId>,
        id: TransferId,
        callback: impl FnOnce(Option<Result<Status, TransferError>>) + Send + 'static,
    ) {
        let callback = Callback::new(callback);
        if let Some(pairwise) = self.pairwise_in(group) {
            pairwise.messages.call_back(id, callback);
        }
    }
}
