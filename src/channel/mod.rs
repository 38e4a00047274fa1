//! Links to peers: `shm` between the ranks of one node, [`rud`], [`stream`] or [`verbs`] between the leaders of different nodes, and
//! `local` for messages from any rank to any.

mod alarm;
mod by_rank;
pub(crate) mod descriptors;
mod local;
pub mod loss;
mod peers;
pub mod port;
pub mod rud;
pub mod shm;
pub mod stream;
mod sys;
pub mod up;
pub mod verbs;

use std::net::IpAddr;

use shouter_netstack::device::{Device, DeviceCounters};
use shouter_netstack::stack::{PortId, Stack};
use shouter_reducer::executor::{Disposition, Executor, Refusal};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Header, HeaderError};
use shouter_reducer::memory::Span;
use shouter_reducer::transport::SendToken;

/// The most bytes that a rank gives in an operation of one host that goes through cells of its memory, without a schedule.
pub const CELL_BYTES: usize = shm::CELL_PAYLOAD;

/// The receiver of a channel's messages: the executor, or a bench's counter.
pub trait Inbox {
    /// A checked fragment; the payload is only borrowed.
    fn fragment(&mut self, header: &Header, payload: &[u8]) -> Disposition;

    /// The place of a fragment that the peer may have written there itself; `None` if no such fragment is expected.
    fn landing(&self, _header: &Header) -> Option<Span> {
        None
    }

    /// A checked fragment that lies at its landing.
    fn placed(&mut self, _header: &Header) -> Disposition {
        Disposition::Refused(Refusal::Malformed)
    }

    /// Nothing refers any more to the payload posted with this token.
    fn released(&mut self, token: SendToken);
}

impl Inbox for Executor {
    #[inline]
    fn fragment(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        self.on_fragment(header, payload)
    }

    #[inline]
    fn landing(&self, header: &Header) -> Option<Span> {
        Self::landing(self, header)
    }

    #[inline]
    fn placed(&mut self, header: &Header) -> Disposition {
        self.on_placed(header)
    }

    #[inline]
    fn released(&mut self, token: SendToken) {
        self.on_released(token);
    }
}

/// The links of some ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// Those that are down, as they were last found.
    pub down: u64,
    /// Times that one went down after it was up.
    pub losses: u64,
}

/// The links of a stack's ports.
fn links<D: Device>(stack: &Stack<D>) -> Links {
    Links { down: stack.links_down().count() as u64, losses: stack.counters().link_losses }
}

/// The addresses of a stack's ports whose link is down.
fn addresses_down<D: Device>(stack: &Stack<D>) -> Vec<IpAddr> {
    let down: Vec<PortId> = stack.links_down().collect();
    stack.addresses().filter(|(port, _)| down.contains(port)).map(|(_, address)| address).collect()
}

/// The sum of the counters of all ports.
fn device_counters<D: Device>(stack: &Stack<D>) -> DeviceCounters {
    sum(stack.ports().map(|port| stack.device_counters(port)))
}

/// The sum of some counters.
fn sum(all: impl Iterator<Item = DeviceCounters>) -> DeviceCounters {
    all.fold(DeviceCounters::default(), |sum, one| DeviceCounters {
        rx_frames: sum.rx_frames + one.rx_frames,
        rx_bytes: sum.rx_bytes + one.rx_bytes,
        tx_frames: sum.tx_frames + one.tx_frames,
        tx_bytes: sum.tx_bytes + one.tx_bytes,
        tx_uncopied: sum.tx_uncopied + one.tx_uncopied,
        dropped: sum.dropped + one.dropped,
    })
}

/// Counts messages that do not belong to this group, and logs the first.
#[cold]
fn stray(strays: &mut u64, sender: Option<Rank>, why: Option<HeaderError>) {
    if *strays == 0 {
        let why = why.map_or_else(|| "it names another sender".into(), |why| why.to_string());
        tracing::warn!(?sender, why, "a peer sent what is no message of this group; more are only counted");
    }
    *strays += 1;
}
