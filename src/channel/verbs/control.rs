//! The connections beside the lanes: one to each peer, of the kernel's sockets.

use std::collections::VecDeque;
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::Header;
use shouter_reducer::transport::{PayloadRange, SendError, SendToken};

use crate::channel::Inbox;
use crate::channel::stream::KernelChannel;
use crate::channel::up::{Channel, PeerLoss};

/// Between two looks at the control connections, while all lanes are up.
const LISTEN_EVERY: Duration = Duration::from_millis(1);

/// How the control connections serve the lanes: as a channel for control messages, and for messages of the lanes' own.
pub trait Control: Channel {
    /// Whether the connection to a peer is there.
    fn is_connected(&self, rank: Rank) -> bool;
    /// Sends the peer's channel some bytes, behind those before; false if they found no room.
    fn send_side(&mut self, to: Rank, bytes: &[u8]) -> bool;
    /// What a peer's channel sent.
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
    /// What they had no room for, in order.
    untold: VecDeque<(Rank, Vec<u8>)>,
}

impl<C: Control> ControlPath<C> {
    pub(super) fn new(control: C, now: Instant) -> Self {
        Self { control, listen_at: now, has_output: true, untold: VecDeque::new() }
    }

    /// Receives, if that is due; true if anything came, `None` if it was not due. With `often` it is due in each turn.
    #[inline]
    pub(super) fn receive(&mut self, now: Instant, often: bool, inbox: &mut dyn Inbox) -> Option<bool> {
        if now < self.listen_at {
            return None;
        }
        self.listen_at = now + if often { Duration::ZERO } else { LISTEN_EVERY };
        self.has_output = true;
        Some(self.control.receive(now, inbox))
    }

    /// What a peer's lanes have said.
    pub(super) fn take_side(&mut self) -> Option<(Rank, Vec<u8>)> {
        self.control.take_side()
    }

    /// Sends what waits; true if anything was sent.
    pub(super) fn transmit(&mut self, now: Instant, inbox: &mut dyn Inbox) -> bool {
        while let Some((rank, bytes)) = self.untold.front()
            && self.control.send_side(*rank, bytes)
        {
            self.untold.pop_front();
            self.has_output = true;
        }
        std::mem::take(&mut self.has_output) && self.control.transmit(now, inbox)
    }

    /// Says something to a peer's lanes, in order with what waits.
    pub(super) fn tell(&mut self, rank: Rank, bytes: Vec<u8>) {
        self.untold.push_back((rank, bytes));
    }

    /// What waits for a peer is not said any more.
    pub(super) fn forget(&mut self, rank: Rank) {
        self.untold.retain(|(to, _)| *to != rank);
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

    /// Tells the peers that this rank leaves in good order.
    pub(super) fn depart(&mut self) {
        self.has_output = true;
        self.control.depart();
    }

    /// Whether the connection to a peer is there.
    pub(super) fn is_connected(&self, rank: Rank) -> bool {
        self.control.is_connected(rank)
    }

    /// Whether all control messages have been acknowledged.
    pub(super) fn is_drained(&self) -> bool {
        self.control.is_drained()
    }

    /// A peer whose connection was lost since the last call.
    pub(super) fn take_lost(&mut self) -> Option<PeerLoss> {
        self.control.take_lost()
    }

    /// When the next look is due.
    pub(super) fn next_deadline(&self) -> Instant {
        self.control.next_deadline().map_or(self.listen_at, |at| at.min(self.listen_at))
    }
}
