//! Several queues of one device, whose hardware deals flows out (RSS): a queue for each shard.
//!
//! Hardware hashes the ports of flows, and gives queue 0 all else. So queue 0's shard hands on what is meant for others: answers of ARP and
//! neighbour discovery to all, fragments and ICMP errors to the shard of their flow, and flows that the hardware has not hashed. Such
//! frames are few; they are copied once. Each shard sends on its own queue.

use super::dealing::{DEPTH, Dealer, Inlet, ring};
use super::{Announce, Capabilities, Device, DeviceCounters, RxFrame, TxBatch, Wakes};
use crate::rss::Rss;
use crate::time::Instant;

#[cfg(test)]
mod tests;

/// A shard's queue of a device of several.
#[derive(Debug)]
pub struct Spread<D> {
    device: D,
    role: Role,
}

enum Role {
    /// Everything that arrives at the queue is the shard's own.
    Alone,
    /// Queue 0.
    First(Box<Dealer>),
    /// The others, and the frames that queue 0's shard hands them.
    Further(Inlet),
}

impl core::fmt::Debug for Role {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Alone => f.write_str("Alone"),
            Self::First(dealer) => write!(f, "First(of {})", dealer.shards()),
            Self::Further(_) => f.write_str("Further"),
        }
    }
}

/// Queues whose hardware deals flows out by `rss`, which must spread over as many; or, without it, queues that share nothing.
pub fn spread<D>(devices: Vec<D>, rss: Option<&Rss>) -> Vec<Spread<D>> {
    let Some(rss) = rss.filter(|_| devices.len() > 1) else {
        return devices.into_iter().map(|device| Spread { device, role: Role::Alone }).collect();
    };
    let (outlets, inlets): (Vec<_>, Vec<_>) = (1..devices.len()).map(|_| ring(DEPTH)).unzip();
    let first = Role::First(Box::new(Dealer::new(rss.clone(), outlets)));
    let roles = core::iter::once(first).chain(inlets.into_iter().map(Role::Further));
    devices.into_iter().zip(roles).map(|(device, role)| Spread { device, role }).collect()
}

impl<D> Spread<D> {
    /// Packets of other shards' flows that arrived at this queue, if it is queue 0: with hardware that deals flows out, none.
    pub fn strayed(&self) -> u64 {
        match &self.role {
            Role::First(dealer) => dealer.strayed,
            _ => 0,
        }
    }
}

// SAFETY: frames are sent by the inner device, which keeps the promise.
#[allow(unsafe_code)]
unsafe impl<D: Device> Device for Spread<D> {
    #[inline]
    fn capabilities(&self) -> &Capabilities {
        self.device.capabilities()
    }

    fn mac(&self) -> [u8; 6] {
        self.device.mac()
    }

    fn link_up(&mut self) -> bool {
        self.device.link_up()
    }

    #[inline]
    fn transmit(&mut self, now: Instant, batch: &mut TxBatch) -> usize {
        self.device.transmit(now, batch)
    }

    #[inline]
    fn receive(&mut self, now: Instant, budget: usize, sink: &mut impl FnMut(RxFrame<'_>)) -> usize {
        match &mut self.role {
            Role::Alone => self.device.receive(now, budget, sink),
            Role::First(dealer) => {
                self.device.receive(now, budget, &mut |frame: RxFrame<'_>| dealer.deal(frame, sink))
            }
            Role::Further(inlet) => {
                // A flood of frames that are handed on leaves the queue half of the budget, and the queue leaves them half.
                let kept = inlet.waiting().min(budget / 2);
                let mut received = self.device.receive(now, budget - kept, sink);
                while received < budget && inlet.take(|passed| sink(passed.frame())) {
                    received += 1;
                }
                received
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.device.next_deadline()
    }

    #[inline]
    fn holds_extents(&self) -> bool {
        self.device.holds_extents()
    }

    fn arm(&mut self, announce: &mut Announce<'_>) -> Wakes {
        let wakes = self.device.arm(announce);
        match &self.role {
            Role::Alone | Role::First(_) => wakes,
            // What the first shard hands on is not announced.
            Role::Further(_) => wakes.with_polling(),
        }
    }

    fn disarm(&mut self) {
        self.device.disarm();
    }

    fn drop_waiting(&mut self) {
        self.device.drop_waiting();
    }

    /// Those of the queue; frames that found no room in another shard's ring count as dropped.
    fn counters(&self) -> DeviceCounters {
        let counters = self.device.counters();
        match &self.role {
            Role::First(dealer) => DeviceCounters { dropped: counters.dropped + dealer.dropped, ..counters },
            _ => counters,
        }
    }
}
