//! One queue for many shards: a device without receive-side scaling, steered in software.
//!
//! ```text
//!                   +--> shard 0's stack (the owner polls the device)
//!   device --hash--<---ring--> shard 1's stack        frames are copied once each way;
//!                   +--ring--> shard 2's stack        their buffers go round
//! ```
//!
//! The owner computes the hash of each received frame as a NIC would ([`crate::rss`]), and keeps the frame or passes it
//! on. Frames that the other shards transmit reach the owner by ring and leave with its own next burst. Replies of ARP
//! and neighbour discovery go to all shards, so that each stack learns the neighbours; requests are the owner's. The
//! fragments of a datagram follow the first one, which has the ports.

use super::dealing::{DEPTH, Dealer, Inlet, Outlet, ring};
use super::{
    Announce, Capabilities, Device, DeviceCounters, Frame, HEADER_CAPACITY, RxChecksum, RxFrame, TxBatch,
    Wakes,
};
use crate::rss::Rss;
use crate::scratch::{Scratch, Slot};
use crate::time::Instant;
use crate::wire::{ethernet, vlan};

#[cfg(test)]
mod tests;

/// A shard's share of a steered device.
#[derive(Debug)]
pub struct Steered<D>(Share<D>);

#[derive(Debug)]
enum Share<D> {
    Owner(Box<Owner<D>>),
    Secondary(Secondary),
}

/// The shard that polls the device.
struct Owner<D> {
    device: D,
    capabilities: Capabilities,
    dealer: Dealer,
    inlets: Vec<Inlet>,
    /// Frames of the other shards, to be transmitted.
    batch: TxBatch,
    scratch: Scratch,
    in_flight: Vec<Slot>,
    /// Frames of the other shards that were dropped.
    dropped: u64,
}

/// A shard that is served by the owner.
struct Secondary {
    capabilities: Capabilities,
    mac: [u8; 6],
    outlet: Outlet,
    inlet: Inlet,
    counters: DeviceCounters,
}

impl<D> core::fmt::Debug for Owner<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Owner").field("shards", &self.dealer.shards()).finish_non_exhaustive()
    }
}

impl core::fmt::Debug for Secondary {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Secondary").field("counters", &self.counters).finish_non_exhaustive()
    }
}

/// Cuts a device into `shards` shares (at least one); the first is the owner's. `rss` says where a flow belongs, and
/// must spread over as many queues.
pub fn steer<D: Device>(device: D, rss: Rss, shards: u16) -> Vec<Steered<D>> {
    let plain = {
        let Capabilities { kind, mtu, burst, .. } = *device.capabilities();
        Capabilities::plain(kind, mtu, burst)
    };
    let mac = device.mac();
    let (mut outlets, mut inlets, mut secondaries) = (vec![], vec![], vec![]);
    for _ in 1..shards.max(1) {
        let ((to_secondary, at_secondary), (to_owner, at_owner)) = (ring(DEPTH), ring(DEPTH));
        outlets.push(to_secondary);
        inlets.push(at_owner);
        let counters = DeviceCounters::default();
        let secondary =
            Secondary { capabilities: plain.clone(), mac, outlet: to_owner, inlet: at_secondary, counters };
        secondaries.push(Steered(Share::Secondary(secondary)));
    }
    let longest = usize::from(plain.mtu) + ethernet::HEADER_LEN + vlan::TAG_LEN;
    let owner = Owner {
        capabilities: device.capabilities().clone(),
        device,
        dealer: Dealer::new(rss, outlets),
        scratch: Scratch::new(if secondaries.is_empty() { 0 } else { 256 }, longest),
        inlets,
        batch: TxBatch::with_capacity(256),
        in_flight: Vec::with_capacity(256),
        dropped: 0,
    };
    let mut shares = vec![Steered(Share::Owner(Box::new(owner)))];
    shares.append(&mut secondaries);
    shares
}

impl<D: Device> Owner<D> {
    fn receive(&mut self, now: Instant, budget: usize, sink: &mut impl FnMut(RxFrame<'_>)) -> usize {
        let Self { device, dealer, .. } = self;
        device.receive(now, budget, &mut |frame: RxFrame<'_>| dealer.deal(frame, sink))
    }

    /// Hands on the frames that the other shards send, as many as there is room for. Returns how many frames the device
    /// took.
    fn forward(&mut self, now: Instant) -> usize {
        if !self.in_flight.is_empty() && self.batch.is_empty() && !self.device.holds_extents() {
            self.in_flight.drain(..).for_each(|slot| self.scratch.release(slot));
        }
        let Self { inlets, batch, scratch, in_flight, dropped, .. } = self;
        for inlet in inlets {
            while batch.room() > 0 && scratch.available() > 0 {
                let taken = inlet.take(|passed| {
                    let bytes = passed.bytes.as_slice();
                    let frame = if bytes.len() <= HEADER_CAPACITY {
                        Frame::new(&[bytes], None)
                    } else {
                        let (header, payload) = bytes.split_at(ethernet::HEADER_LEN);
                        scratch.store(&[payload]).and_then(|(slot, extent)| {
                            in_flight.push(slot);
                            Frame::new(&[header], Some(extent))
                        })
                    };
                    if !frame.is_some_and(|frame| batch.push(frame)) {
                        *dropped += 1;
                    }
                });
                if !taken {
                    break;
                }
            }
        }
        if self.batch.is_empty() { 0 } else { self.device.transmit(now, &mut self.batch) }
    }
}

// SAFETY: the owner's frames are the inner device's, which keeps the promise; the other shards' are copied within `transmit`.
#[allow(unsafe_code)]
unsafe impl<D: Device> Device for Steered<D> {
    fn capabilities(&self) -> &Capabilities {
        match &self.0 {
            Share::Owner(owner) => &owner.capabilities,
            Share::Secondary(secondary) => &secondary.capabilities,
        }
    }

    fn mac(&self) -> [u8; 6] {
        match &self.0 {
            Share::Owner(owner) => owner.device.mac(),
            Share::Secondary(secondary) => secondary.mac,
        }
    }

    /// A secondary's link is up as long as the owner is there.
    fn link_up(&mut self) -> bool {
        match &mut self.0 {
            Share::Owner(owner) => owner.device.link_up(),
            Share::Secondary(secondary) => secondary.outlet.is_served(),
        }
    }

    fn transmit(&mut self, now: Instant, batch: &mut TxBatch) -> usize {
        match &mut self.0 {
            Share::Owner(owner) => {
                owner.forward(now);
                owner.device.transmit(now, batch)
            }
            Share::Secondary(secondary) => {
                let mut taken = 0;
                for frame in batch.frames() {
                    if !secondary.outlet.room()
                        || !secondary.outlet.pass(frame.pieces(), (RxChecksum::Unknown, 0))
                    {
                        break;
                    }
                    secondary.counters.tx_frames += 1;
                    secondary.counters.tx_bytes += frame.len() as u64;
                    taken += 1;
                }
                batch.consume(taken);
                taken
            }
        }
    }

    fn receive(&mut self, now: Instant, budget: usize, sink: &mut impl FnMut(RxFrame<'_>)) -> usize {
        match &mut self.0 {
            Share::Owner(owner) => {
                // Frames handed on count as work, so that the owner does not go to sleep on them.
                let forwarded = owner.forward(now);
                owner.receive(now, budget, sink) + forwarded
            }
            Share::Secondary(secondary) => {
                let Secondary { inlet, counters, .. } = secondary;
                let mut count = 0;
                while count < budget
                    && inlet.take(|passed| {
                        counters.rx_frames += 1;
                        counters.rx_bytes += passed.bytes.len() as u64;
                        sink(passed.frame());
                    })
                {
                    count += 1;
                }
                count
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        match &self.0 {
            Share::Owner(owner) => owner.device.next_deadline(),
            Share::Secondary(_) => None,
        }
    }

    fn holds_extents(&self) -> bool {
        match &self.0 {
            Share::Owner(owner) => owner.device.holds_extents(),
            Share::Secondary(_) => false,
        }
    }

    fn arm(&mut self, announce: &mut Announce<'_>) -> Wakes {
        match &mut self.0 {
            Share::Owner(owner) => {
                let wakes = owner.device.arm(announce);
                // What other shards hand over to be sent is not announced, and neither is room for it.
                if owner.inlets.is_empty() { wakes } else { wakes.with_polling() }
            }
            Share::Secondary(_) => Wakes::Never,
        }
    }

    fn disarm(&mut self) {
        if let Share::Owner(owner) = &mut self.0 {
            owner.device.disarm();
        }
    }

    fn drop_waiting(&mut self) {
        if let Share::Owner(owner) = &mut self.0 {
            owner.batch.consume(owner.batch.frames().len());
            owner.device.drop_waiting();
        }
    }

    fn counters(&self) -> DeviceCounters {
        match &self.0 {
            Share::Owner(owner) => {
                let device = owner.device.counters();
                DeviceCounters { dropped: device.dropped + owner.dropped + owner.dealer.dropped, ..device }
            }
            Share::Secondary(secondary) => secondary.counters,
        }
    }
}
