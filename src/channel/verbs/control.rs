//! The connections beside the lanes: one to each peer, of the kernel's sockets.

use shouter_netstack::time::Instant;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::Header;
use shouter_reducer::transport::{PayloadRange, SendError, Token, Transport};

use crate::channel::Inbox;
use crate::channel::stream::KernelChannel;
use crate::channel::up::PeerLoss;

/// How the control connections serve the lanes.
pub trait Control {
    /// Receives; the word that ends the group goes to the executor. True if anything came.
    fn receive(&mut self, now: Instant, inbox: &mut impl Inbox) -> bool;
    /// Sends what waits. True if anything was sent.
    fn transmit(&mut self, now: Instant, inbox: &mut impl Inbox) -> bool;
    /// When the next turn is needed although nothing may arrive.
    fn next_deadline(&self) -> Option<Instant>;
    /// A peer that was lost since the last call.
    fn take_lost(&mut self) -> Option<PeerLoss>;
    /// Posts a control message to a peer.
    fn send_control(&mut self, to: Rank, header: &Header) -> Result<(), SendError>;
    /// Posts a control message to every peer.
    fn broadcast(&mut self, header: &Header);
    /// Whether everything that was sent has been acknowledged.
    fn is_drained(&self) -> bool;
    /// Whether the connection to a peer is there.
    fn is_connected(&self, rank: Rank) -> bool;
    /// Sends the peer's channel some bytes, behind those before; false if they found no room.
    fn send_side(&mut self, to: Rank, bytes: &[u8]) -> bool;
    /// What a peer's channel sent.
    fn take_side(&mut self) -> Option<(Rank, Vec<u8>)>;
    /// Tells the peers that this rank leaves in good order.
    fn depart(&mut self);
}

impl Control for KernelChannel {
    fn receive(&mut self, now: Instant, inbox: &mut impl Inbox) -> bool {
        self.receive(now, inbox)
    }

    fn transmit(&mut self, now: Instant, inbox: &mut impl Inbox) -> bool {
        self.transmit(now, inbox)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.next_deadline()
    }

    fn take_lost(&mut self) -> Option<PeerLoss> {
        self.take_lost()
    }

    fn send_control(&mut self, to: Rank, header: &Header) -> Result<(), SendError> {
        self.send(to, header, PayloadRange::empty(), Token::CONTROL)
    }

    fn broadcast(&mut self, header: &Header) {
        self.broadcast(header);
    }

    fn is_drained(&self) -> bool {
        self.is_drained()
    }

    fn is_connected(&self, rank: Rank) -> bool {
        self.is_connected(rank)
    }

    fn send_side(&mut self, to: Rank, bytes: &[u8]) -> bool {
        self.send_side(to, bytes)
    }

    fn take_side(&mut self) -> Option<(Rank, Vec<u8>)> {
        self.take_side()
    }

    fn depart(&mut self) {
        self.depart();
    }
}
