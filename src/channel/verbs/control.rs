//! The control connections: one kernel socket to each peer.

use std::collections::VecDeque;
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::Header;
use shouter_reducer::transport::{PayloadRange, SendError, SendToken};

use crate::channel::Inbox;
use crate::channel::loss::PeerLoss;
use crate::channel::stream::KernelChannel;
use crate::channel::up::Channel;

/// The interval of the polls of the control connections, while all connections are up.
const LISTEN_EVERY: Duration = Duration::from_millis(1);

/// The control connections as the verbs channel uses them: for control messages, and for its own set-up messages.
pub trait Control: Channel {
    /// Whether the connection to a peer is there.
    fn is_connected(&self, rank: Rank) -> bool;
    /// Sends the peer's channel some bytes, behind those before; false if they found no room.
    fn send_side(&mut self, to: Rank, bytes: &[u8]) -> bool;
    /// The next message from a peer's channel.
    fn take_side(&mut self) -> Option<(Rank, Vec<u8>)>;
}

impl Control for KernelChannel {
    fn is_connected(&self, rank: Rank) -> bool {
        self.is_connected(rank)
    }

    fn send_side(&mut self, to: Rank, bytes: &[u8]) -> bool {
        self.send_side(to, bytes)
    }

    fn take_side(&mut self) -> Option<(Rank, Vec<u8>)> {
        self.take_side()
    }
}

/// The control connections, which are looked at once in a while only: each look costs a system call.
pub(super) struct ControlPath<C> {
    control: C,
    listen_at: Instant,
    /// Whether they may have something to send.
    has_output: bool,
    /// Set-up messages that found no room yet, in order.
    pending_control: VecDeque<(Rank, Vec<u8>)>,
}

impl<C: Control> ControlPath<C> {
    pub(super) fn new(control: C, now: Instant) -> Self {
        Self { control, listen_at: now, has_output: true, pending_control: VecDeque::new() }
    }

    /// Receives, if that is due; true if anything was received, `None` if it was not due. With `often` it is due in each poll.
    #[inline]
    pub(super) fn receive(&mut self, now: Instant, often: bool, inbox: &mut dyn Inbox) -> Option<bool> {
        if now < self.listen_at {
            return None;
        }
        self.listen_at = now + if often { Duration::ZERO } else { LISTEN_EVERY };
        self.has_output = true;
        Some(self.control.receive(now, inbox))
    }

    /// The next set-up message of a peer.
    pub(super) fn take_side(&mut self) -> Option<(Rank, Vec<u8>)> {
        self.control.take_side()
    }

    /// Sends queued messages; true if anything was sent.
    pub(super) fn transmit(&mut self, now: Instant, inbox: &mut dyn Inbox) -> bool {
        while let Some((rank, bytes)) = self.pending_control.front()
            && self.control.send_side(*rank, bytes)
        {
            self.pending_control.pop_front();
            self.has_output = true;
        }
        std::mem::take(&mut self.has_output) && self.control.transmit(now, inbox)
    }

    /// Queues a set-up message to a peer, behind those that wait.
    pub(super) fn enqueue(&mut self, rank: Rank, bytes: Vec<u8>) {
        self.pending_control.push_back((rank, bytes));
    }

    /// Drops the set-up messages that wait for a peer.
    pub(super) fn forget(&mut self, rank: Rank) {
        self.pending_control.retain(|(to, _)| *to != rank);
    }

    /// Posts a control message.
    pub(super) fn send(&mut self, to: Rank, header: &Header) -> Result<(), SendError> {
        self.has_output = true;
        self.control.send(to, header, PayloadRange::empty(), SendToken::CONTROL)
    }

    /// Posts a control message to every peer.
    pub(super) fn broadcast(&mut self, header: &Header) {
        self.has_output = true;
        self.control.broadcast(header);
    }

    /// Announces a graceful close to the peers.
    pub(super) fn depart(&mut self) {
        self.has_output = true;
        self.control.depart();
    }

    /// Whether the connection to a peer is there.
    pub(super) fn is_connected(&self, rank: Rank) -> bool {
        self.control.is_connected(rank)
    }

    /// Whether all control messages to the peers that are `awaited` have been acknowledged.
    pub(super) fn is_drained_to(&self, awaited: &dyn Fn(Rank) -> bool) -> bool {
        self.control.is_drained_to(awaited)
    }

    /// How much a peer has acknowledged.
    pub(super) fn acknowledged_by(&self, rank: Rank) -> u64 {
        self.control.acknowledged_by(rank)
    }

    /// A peer whose connection was lost since the last call.
    pub(super) fn take_lost(&mut self) -> Option<PeerLoss> {
        self.control.take_lost()
    }

    /// When the control connections are polled next.
    pub(super) fn next_deadline(&self) -> Instant {
        self.control.next_deadline().map_or(self.listen_at, |at| at.min(self.listen_at))
    }
}
