//! One port: a device, its addresses and neighbours, and the batch of frames that wait for it.

use core::ops::Range;
use core::time::Duration;
use std::collections::VecDeque;

use super::addresses::Addresses;
use super::counters::Counters;
use super::turn::Turn;
use crate::device::{Device, Frame, FramesOut, HEADER_CAPACITY, Offload, TxBatch, segment};
use crate::ip::neighbour::{self, Cache};
use crate::region::Extent;
use crate::scratch::{Scratch, Slot};
use crate::time::{Instant, earliest};
use crate::wire::checksum::Sum;
use crate::wire::ethernet::{EtherType, Mac};
use crate::wire::vlan::VlanId;
use crate::wire::{HeaderBytes, ethernet, vlan};

/// How often a link that is down is looked at.
const DOWN_CHECK: Duration = Duration::from_millis(10);

/// How often one that is up is, if the port is polled that often.
const UP_CHECK: Duration = Duration::from_millis(100);

/// Room in the batch that only neighbour discovery and ICMP may use, so that a saturated port still answers its
/// neighbours: they remove a host that does not.
const RESERVED: usize = 16;

/// A port of the stack.
#[derive(Debug)]
pub(super) struct Port<D> {
    // Dropped before the interface, whose scratch memory it may refer to.
    pub(super) device: D,
    pub(super) iface: Interface,
}

/// A port apart from its device.
#[derive(Debug)]
pub(super) struct Interface {
    pub(super) addresses: Addresses,
    pub(super) mac: Mac,
    pub(super) mtu: u16,
    pub(super) vlan: Option<VlanId>,
    pub(super) neighbours: Cache,
    tx: TxBatch,
    /// Frames that were ever put into `tx`, and that the device ever took.
    queued: u64,
    sent: u64,
    /// How many were put there before the last mark.
    mark: u64,
    /// Frames that are received in a poll, at most.
    pub(super) rx_budget: usize,
    /// The last of RUD's frames with none of others between them, by their numbers, and those before that waited when it began.
    rud_run: Range<u64>,
    rud_runs: Vec<Range<u64>>,
    scratch: Scratch,
    /// Slots of frames in flight, with the number of their frame.
    in_flight: VecDeque<(u64, Slot)>,
    link: Link,
}

/// Whether frames can pass, as far as we know.
#[derive(Clone, Copy, Debug)]
struct Link {
    up: bool,
    next_check: Instant,
}

/// An Ethernet header, with a tag where the port has one.
pub(super) type LinkHeader = HeaderBytes<{ ethernet::HEADER_LEN + vlan::TAG_LEN }>;

/// Why a frame was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueError {
    /// No room in the batch or in the scratch memory: later.
    Full,
    /// The headers do not fit a frame, or the packet does not fit a slot.
    TooLong,
}

/// The sizes of a port's queues.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    pub(super) tx_frames: usize,
    pub(super) rx_budget: usize,
    pub(super) scratch_slots: u16,
}

impl Interface {
    pub(super) fn new(
        checked: crate::ip::Checked,
        mac: Mac,
        neighbours: neighbour::Config,
        sizes: &Sizes,
    ) -> Self {
        Self {
            addresses: Addresses::new(checked.ipv4, checked.ipv6, mac),
            mac,
            mtu: checked.mtu,
            vlan: checked.vlan,
            neighbours: Cache::new(neighbours, &checked.neighbours),
            tx: TxBatch::with_capacity(sizes.tx_frames.max(1) + RESERVED),
            queued: 0,
            sent: 0,
            mark: 0,
            rx_budget: sizes.rx_budget.min(Turn::frames(checked.mtu)),
            rud_run: 0..0,
            rud_runs: vec![],
            scratch: Scratch::new(sizes.scratch_slots, usize::from(checked.mtu)),
            in_flight: VecDeque::with_capacity(usize::from(sizes.scratch_slots)),
            link: Link { up: false, next_check: Instant::ZERO },
        }
    }

    /// Whether the link was up when it was last looked at.
    pub(super) fn is_link_up(&self) -> bool {
        self.link.up
    }

    /// Marks the frames queued so far.
    pub(super) fn set_mark(&mut self) {
        self.mark = self.queued;
    }

    /// Frames of data that still fit the batch.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.tx.room().saturating_sub(RESERVED)
    }

    /// Frames of data that fit the batch when nothing waits.
    pub(super) fn capacity(&self) -> usize {
        self.tx.capacity().saturating_sub(RESERVED)
    }

    /// What RUD may still put into the batch in a poll: its own waiting frames count.
    #[inline]
    pub(super) fn turn(&self) -> Turn {
        if self.tx.is_empty() { Turn::WHOLE } else { self.rest_of_turn() }
    }

    #[cold]
    fn rest_of_turn(&self) -> Turn {
        let (mut turn, sent) = (Turn::WHOLE, self.sent);
        for run in self.rud_runs.iter().chain([&self.rud_run]) {
            let (from, to) = (run.start.max(sent) - sent, run.end.max(sent) - sent);
            let waiting = self.tx.frames().get(from as usize..to as usize).unwrap_or_default();
            waiting.iter().for_each(|frame| turn.take(frame.len()));
        }
        turn
    }

    /// The frame that was put last is RUD's.
    #[cfg(feature = "rud")]
    #[inline]
    pub(super) fn note_rud(&mut self) {
        if self.rud_run.end + 1 != self.queued {
            self.begin_rud_run();
        }
        self.rud_run.end = self.queued;
    }

    /// Frames of others are between the one that was put last and RUD's one before.
    #[cfg(feature = "rud")]
    #[cold]
    fn begin_rud_run(&mut self) {
        let first = self.queued - 1;
        let before = core::mem::replace(&mut self.rud_run, first..first);
        self.rud_runs.push(before);
        let sent = self.sent;
        self.rud_runs.retain(|run| run.end > sent);
    }

    /// Whether frames wait for the device.
    pub(super) fn is_backlogged(&self) -> bool {
        !self.tx.is_empty()
    }

    /// The header in front of packets to `destination`.
    pub(super) fn link_header(&self, destination: Mac, ethertype: EtherType) -> LinkHeader {
        let outer = if self.vlan.is_some() { EtherType::Vlan } else { ethertype };
        let mut bytes = [0; ethernet::HEADER_LEN + vlan::TAG_LEN];
        let header = ethernet::Repr { destination, source: self.mac, ethertype: outer }.emit();
        bytes[..ethernet::HEADER_LEN].copy_from_slice(&header);
        let mut len = ethernet::HEADER_LEN;
        if let Some(id) = self.vlan {
            bytes[len..].copy_from_slice(&vlan::Repr { id, ethertype }.emit());
            len += vlan::TAG_LEN;
        }
        LinkHeader { bytes, len: len as u8 }
    }

    /// Puts a finished frame into the batch; false if there is no room.
    #[inline]
    pub(super) fn push(&mut self, frame: Frame) -> bool {
        let pushed = self.tx.push(frame);
        self.queued += u64::from(pushed);
        pushed
    }

    /// Room for the header of the next frame of data, which [`push_written`](Self::push_written) puts into the batch then; `None` if that has none.
    #[inline]
    pub(super) fn next_header(&mut self) -> Option<&mut [u8; HEADER_CAPACITY]> {
        self.tx.next_header(RESERVED)
    }

    /// Puts the frame whose header of `len` bytes was written into the batch, with this payload; false if they make none.
    #[inline]
    pub(super) fn push_written(&mut self, len: usize, payload: &[Extent], offload: Offload) -> bool {
        let pushed = self.tx.push_written(len, payload, offload);
        self.queued += u64::from(pushed);
        pushed
    }

    /// The same with a frame that leaves nothing to the device: the checksum that `offload` requests is filled in; `pseudo` is
    /// the sum over the pseudo header.
    #[inline]
    pub(super) fn push_written_summed(
        &mut self,
        len: usize,
        payload: &[Extent],
        offload: Offload,
        pseudo: Sum,
    ) -> bool {
        self.push_written(len, payload, Offload::NONE)
            && self
                .tx
                .last_mut()
                .is_some_and(|frame| segment::add_checksum_from(pseudo, frame, offload).is_some())
    }

    /// The frame that [`push_written`](Self::push_written) would put there; `None` if it would put none.
    pub(super) fn written(&mut self, len: usize, payload: &[Extent], offload: Offload) -> Option<Frame> {
        self.tx.written(len, payload, offload)
    }

    /// Puts a frame of `link` and the `parts` into the batch, in scratch memory if it is longer than a header.
    pub(super) fn queue_bytes(&mut self, link: &LinkHeader, parts: [&[u8]; 3]) -> Result<(), QueueError> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > usize::from(self.mtu) {
            return Err(QueueError::TooLong);
        }
        if link.as_bytes().len() + len <= HEADER_CAPACITY {
            let [a, b, c] = parts;
            let frame = Frame::new(&[link.as_bytes(), a, b, c], None).ok_or(QueueError::TooLong)?;
            return if self.push(frame) { Ok(()) } else { Err(QueueError::Full) };
        }
        if self.tx.room() == 0 {
            return Err(QueueError::Full);
        }
        let stored = self.scratch.store(&parts).ok_or(QueueError::Full)?;
        self.queue_stored(&[link.as_bytes()], stored)
    }

    /// Puts a frame of `link`, `ip_udp` and `len` bytes into the batch; `write` puts these into scratch memory, if there is room.
    #[cfg(feature = "rud")]
    pub(super) fn queue_written(
        &mut self,
        link: &LinkHeader,
        ip_udp: &[u8],
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<(), QueueError> {
        if self.tx.room() == 0 {
            return Err(QueueError::Full);
        }
        let stored = self.scratch.fill(len, write).ok_or(QueueError::Full)?;
        self.queue_stored(&[link.as_bytes(), ip_udp], stored)
    }

    /// Puts a frame of these headers and of what lies in scratch memory into the batch, which has room.
    fn queue_stored(&mut self, headers: &[&[u8]], (slot, extent): (Slot, Extent)) -> Result<(), QueueError> {
        match Frame::new(headers, Some(extent)) {
            Some(frame) => {
                self.in_flight.push_back((self.queued, slot));
                self.push(frame);
                Ok(())
            }
            None => {
                self.scratch.release(slot);
                Err(QueueError::TooLong)
            }
        }
    }

    /// Whether [`Interface::queue_bytes`] takes `count` packets of any length.
    pub(super) fn takes(&self, count: usize) -> bool {
        self.tx.room().min(self.scratch.available()) >= count
    }

    /// Puts a frame of `link`, two headers and an extent into the batch.
    pub(super) fn queue_extent(
        &mut self,
        link: &LinkHeader,
        headers: [&[u8]; 2],
        extent: Extent,
    ) -> Result<(), QueueError> {
        let [a, b] = headers;
        if a.len() + b.len() + extent.len() > usize::from(self.mtu) {
            return Err(QueueError::TooLong);
        }
        let frame = Frame::new(&[link.as_bytes(), a, b], Some(extent)).ok_or(QueueError::TooLong)?;
        if self.push(frame) { Ok(()) } else { Err(QueueError::Full) }
    }

    /// When [`Port::poll_timers`] has work that cannot wait. A link that is up is checked with any poll.
    #[inline]
    fn next_deadline(&self) -> Option<Instant> {
        // Nothing can be resolved over a link that is down.
        if self.link.up { self.neighbours.next_deadline() } else { Some(self.link.next_check) }
    }

    /// Whether [`Port::poll_timers`] has work.
    #[inline]
    fn has_work(&self, now: Instant) -> bool {
        self.link.next_check <= now || self.next_deadline().is_some_and(|deadline| deadline <= now)
    }
}

impl<D: Device> Port<D> {
    /// When this port needs the next poll although nothing arrives.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        earliest(self.iface.next_deadline(), self.device.next_deadline())
    }

    /// Whether [`Port::poll_timers`] and [`Port::flush`] have nothing to do.
    #[inline]
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        let iface = &self.iface;
        !iface.has_work(now) && iface.tx.is_empty() && iface.in_flight.is_empty()
    }

    /// Runs the timers of the link and the neighbours.
    #[inline]
    pub(super) fn poll_timers(&mut self, now: Instant, counters: &mut Counters) {
        if self.iface.has_work(now) {
            self.poll_timers_now(now, counters);
        }
    }

    #[cold]
    fn poll_timers_now(&mut self, now: Instant, counters: &mut Counters) {
        let iface = &mut self.iface;
        if iface.link.next_check <= now {
            let up = self.device.link_up();
            if up && !iface.link.up {
                // Switches may have lost our address, and there may be others than before.
                iface.announce(counters);
            }
            counters.link_losses += u64::from(iface.link.up && !up);
            iface.link = Link { up, next_check: now + if up { UP_CHECK } else { DOWN_CHECK } };
        }
        if iface.link.up {
            iface.poll_neighbours(now, counters);
        }
    }

    /// Hands the batch to the device, as much as it takes, and returns how many frames that was.
    #[inline]
    pub(super) fn flush(&mut self, now: Instant) -> usize {
        let taken = if self.iface.tx.is_empty() { 0 } else { self.device.transmit(now, &mut self.iface.tx) };
        self.iface.sent += taken as u64;
        if !self.iface.in_flight.is_empty() {
            self.reclaim();
        }
        taken
    }

    /// Drops all frames that wait.
    pub(super) fn drop_waiting(&mut self) {
        let waiting = self.iface.tx.len();
        self.iface.tx.consume(waiting);
        self.iface.sent += waiting as u64;
        self.device.drop_waiting();
        self.reclaim();
    }

    /// Frees scratch memory that neither the batch nor the device refers to.
    #[cold]
    fn reclaim(&mut self) {
        if self.device.holds_extents() {
            return;
        }
        let iface = &mut self.iface;
        while iface.in_flight.front().is_some_and(|(number, _)| *number < iface.sent) {
            if let Some((_, slot)) = iface.in_flight.pop_front() {
                iface.scratch.release(slot);
            }
        }
    }

    /// Whether the frames before the mark have left, and the device keeps none.
    pub(super) fn is_past_mark(&self) -> bool {
        self.iface.sent >= self.iface.mark && !self.device.holds_extents()
    }

    /// Whether no frame waits, and the device keeps none.
    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        self.iface.tx.is_empty() && !self.device.holds_extents()
    }

    /// The state of frames in flight that may still refer to a sender's memory.
    pub(super) fn frames_out(&self) -> FramesOut {
        if self.device.holds_extents() {
            FramesOut::Held
        } else if self.iface.tx.frames().iter().any(|frame| !frame.extents().is_empty()) {
            FramesOut::Waiting
        } else {
            FramesOut::None
        }
    }
}
