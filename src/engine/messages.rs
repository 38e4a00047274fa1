//! The messages that this rank sends to others and receives from them, outside any collective.

use std::collections::BTreeMap;
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{AbortCause, AbortReason, Disposition};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::Header;
use shouter_reducer::p2p::{
    Ended, Messenger, MessengerConfig, PostError, ReceiveRequest, SendRequest, Status, TransferError,
    TransferId,
};
use shouter_reducer::transport::{SendToken, Transport};
use std::sync::Arc;

use super::Engine;
use crate::runtime::Poller;

/// What a rank that has left in good order has sent arrives within this time.
const ARRIVES: Duration = Duration::from_secs(1);

/// The messenger of the group of all, and how its sends and receives have ended.
pub(super) struct Messages {
    messenger: Messenger,
    ended: BTreeMap<TransferId, Result<Status, TransferError>>,
    /// The ranks that have left, and when nothing of theirs is on its way any more.
    left: Vec<(Rank, Option<Instant>)>,
}

impl Messages {
    /// Of one of so many ranks. The engine drops its channels before it.
    #[allow(unsafe_code)]
    pub(super) fn new(rank: Rank, ranks: u32) -> Self {
        // SAFETY: it is a field of the engine behind the channels, which alone are given what it posts.
        let messenger = unsafe { Messenger::new(MessengerConfig::new(rank, ranks)) };
        Self { messenger, ended: BTreeMap::new(), left: vec![] }
    }

    #[inline]
    pub(super) fn on_message(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        self.messenger.on_message(header, payload)
    }

    #[inline]
    pub(super) fn on_released(&mut self, token: SendToken) {
        self.messenger.on_released(token);
    }

    /// Posts what finds room, and notes what has ended; whether there was anything.
    #[inline]
    pub(super) fn poll(&mut self, now: Duration, transport: &mut impl Transport) -> bool {
        let is_due = self.messenger.next_deadline().is_some_and(|deadline| deadline <= now);
        let mut busy = false;
        if is_due || self.messenger.has_work() {
            busy = self.messenger.poll(now, transport).worked;
        }
        busy | self.gather()
    }

    fn gather(&mut self) -> bool {
        let mut any = false;
        while let Some(Ended { id, result }) = self.messenger.take_ended() {
            self.ended.insert(id, result);
            any = true;
        }
        any
    }

    /// Whether a send or receive has not ended.
    #[inline]
    pub(super) fn are_running(&self) -> bool {
        self.messenger.running() != 0
    }

    /// Whether a send or receive waits for one of these ranks.
    #[cold]
    pub(super) fn wait_for(&self, ranks: impl Fn(Rank) -> bool) -> bool {
        self.messenger.deserter(ranks).is_some()
    }

    /// Whether there is something to post.
    pub(super) fn has_work(&self) -> bool {
        self.messenger.has_work()
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.messenger.next_deadline()
    }

    /// The group ends.
    pub(super) fn abort(&mut self, cause: &Arc<AbortCause>) {
        self.messenger.abort(cause);
    }

    /// No channel refers to any memory any more.
    pub(super) fn fenced(&mut self) {
        self.messenger.fenced();
        self.gather();
    }

    /// A rank has left in good order.
    pub(super) fn left(&mut self, rank: Rank) {
        self.left.push((rank, None));
    }

    /// A rank that has left, and that a send or receive waits for in vain.
    #[cold]
    fn deserter(&mut self, now: Instant) -> Option<Rank> {
        for (_, until) in &mut self.left {
            until.get_or_insert(now + ARRIVES);
        }
        let gone = |rank: Rank| {
            self.left.iter().any(|(left, until)| *left == rank && until.is_some_and(|until| now >= until))
        };
        self.messenger.deserter(gone)
    }
}

impl Engine {
    /// Starts to send a message.
    pub(crate) fn start_send(&mut self, request: SendRequest) -> Result<TransferId, PostError> {
        self.messages.messenger.start_send(request)
    }

    /// Starts a receive.
    pub(crate) fn start_receive(
        &mut self,
        now: Instant,
        request: ReceiveRequest,
    ) -> Result<TransferId, PostError> {
        // The sender may have given that message up before it did what this rank has seen of it since, such as a barrier in shared memory.
        if self.messages.messenger.is_announced(request.from, request.tag) {
            self.poll(now);
        }
        self.messages.messenger.start_receive(request)
    }

    /// Takes the outcome of a send or receive, once it has ended.
    #[inline]
    pub(crate) fn take_transfer(&mut self, id: TransferId) -> Option<Result<Status, TransferError>> {
        if self.settling.is_some() {
            return None;
        }
        self.messages.gather();
        self.messages.ended.remove(&id)
    }

    /// Cancels a receive that no message was matched with; whether it was.
    pub(crate) fn cancel_receive(&mut self, id: TransferId) -> bool {
        self.messages.messenger.cancel(id)
    }

    /// The first message that has come and that no receive has taken.
    pub(crate) fn probe(&self, from: Option<Rank>, tag: Option<u32>) -> Option<Status> {
        self.messages.messenger.probe(from, tag)
    }

    /// How a send that had ended has failed since.
    pub(crate) fn take_late(&mut self) -> Option<TransferError> {
        self.messages.messenger.take_late()
    }

    /// Ends the group where a send or receive waits for a rank that has left.
    #[cold]
    pub(super) fn look_for_deserters(&mut self, now: Instant) {
        if self.messages.are_running()
            && !self.liveness.departures_expected()
            && self.executor.aborted().is_none()
            && let Some(rank) = self.messages.deserter(now)
        {
            self.end(rank, AbortReason::Aborted);
        }
    }
}
