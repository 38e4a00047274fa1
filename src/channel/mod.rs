//! Links to peers: [`shm`] between the ranks of one node, [`rud`] between the leaders of different nodes.

pub mod port;
pub mod rud;
pub mod shm;
mod sys;

use shouter_reducer::grid::Rank;
use shouter_reducer::header::Header;
use shouter_reducer::transport::{PayloadRange, SendError, Token, Transport};

/// The up grid of a rank that has none: one that is no leader, or whose node is the only one.
pub(crate) struct Unconnected;

impl Transport for Unconnected {
    fn max_fragment(&self, _: Rank) -> usize {
        64
    }

    fn send(&mut self, _: Rank, _: &Header, _: PayloadRange, _: Token) -> Result<(), SendError> {
        Err(SendError::PeerFailed)
    }
}
