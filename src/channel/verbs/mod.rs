//! The channel between leaders of nodes over RDMA verbs: reliable connections, whose fragments are written straight to
//! slots in the peer's memory.
//!
//! Every peer has some lanes, each a queue pair with slots of its own at both ends. A fragment goes out as one RDMA write
//! with immediate; the immediate value is the slot's index. The receiver checks its CRC32C, hands it to the executor from
//! the slot, and tells how many it has taken: with its own next fragment, or by a word when it has none. That is the credit, so
//! no receive is ever missing. A fragment that is damaged or comes too early is told so, and sent again.
//!
//! A payload is copied to a slot of this rank and written from there. One that lies in registered memory and is not small is
//! written from where it lies, with the trailer from the slot behind it. Its token is released when the peer has taken it; one
//! that has to be sent again is copied to its slot then, so that whatever fails, nothing is lent for longer.
//!
//! Where a message is only placed (allgather, broadcast), into registered memory, the credit for it says where. Its fragments are
//! written right there and their trailers to the slots behind them; the CRC is that of what lies there in the end. One
//! that has to be sent again goes by its slot. A member of the group can write to all registered memory of another: do not
//! run members that do not trust each other over RDMA.
//!
//! | file | what |
//! |---|---|
//! | `fabric` | what is needed of queue pairs |
//! | `rdma` | that, over libibverbs |
//! | `registrations` | memory that a device may read |
//! | `message` | what a slot and an immediate value hold |
//! | `lend` | payloads that are sent from where they lie |
//! | `receive` | what comes, and what is told of it |
//! | `windows` | where peers want what they asked for |
//! | `digest` | payloads in a device's memory, which the host does not read |
//! | `ranges` | which memory of this process is registered |
//! | `lane` | which fragments are out, taken, refused |
//! | `lanes` | the lanes of all peers, and what is to be told of them |
//! | `link` | the state of a lane's queue pair |
//! | `setup` | a lane comes up, fails, and comes up again |
//! | `control` | the connections beside the lanes |
//! | `choice` | which device and port lead to a peer |
//!
//! Set-up, liveness and the word that ends the group go by authenticated connections of kernel sockets, the channel
//! `kernel`, on the network on which the ranks met: a group whose RDMA ports are gone can still say so.

#[cfg(feature = "verbs")]
mod choice;
mod control;
mod digest;
mod fabric;
mod lane;
mod lanes;
mod lend;
mod link;
mod message;
mod ranges;
#[cfg(feature = "verbs")]
mod rdma;
mod receive;
#[cfg(feature = "verbs")]
mod registrations;
mod setup;
mod windows;

use std::collections::VecDeque;
use std::time::Duration;

#[cfg(feature = "verbs")]
pub use choice::{Found, Reachable, survey};
pub use control::Control;
use control::ControlPath;
use digest::OnDevice;
pub use digest::{Digest, Ticket};
pub use fabric::{
    Address, Event, Export, Fabric, Fault, Reach, RegisterError, Registered, Registering, Remote, Sizes,
    Source,
};
use lane::Retry;
use lanes::Lanes;
use lend::Memory;
use message::{Head, Payload, TRAILER};
#[cfg(feature = "verbs")]
pub use rdma::{Port, Rdma};
use shouter_netstack::time::Instant;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{GRANULE_UNIT, HEADER_BYTES, Header, MessageKind};
use shouter_reducer::memory::MemoryKind;
use shouter_reducer::transport::{Landing, PayloadRange, SendError, SendToken, Transport};
use windows::Windows;

use super::Inbox;
use super::alarm::Alarm;
use super::peers::Peers;
use super::sys::bytes_of;
use super::up::{Channel, PeerLoss, Registry};

/// What is kept for a peer.
#[derive(Default)]
struct Peer {
    /// Its control connection has been seen.
    greeted: bool,
    /// Fragments that came back, in the order of their time.
    retries: VecDeque<Retry>,
    /// Where it wants what it asked for.
    windows: Windows,
}

/// What was counted.
#[derive(Default)]
struct Counts {
    /// Messages that are none of this group.
    strays: u64,
    /// Fragments sent again.
    resent: u64,
    /// Fragments that came damaged.
    damaged: u64,
    /// Fragments that were sent without a copy.
    lent: u64,
    /// Fragments that were written to where they belong.
    placed: u64,
}

/// Bytes of a slot: a fragment of 64 KiB and what stands behind it.
pub const SLOT_BYTES: u32 = (64 << 10) + 128;

/// The channel as it runs.
#[cfg(feature = "verbs")]
pub type OverRdma = VerbsChannel<Rdma, super::stream::KernelChannel>;

/// What a channel needs to know beside its peers.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Queue pairs between two leaders.
    pub lanes: u16,
    /// Whether fragments have a CRC.
    pub crc: bool,
    /// A peer that a lane cannot reach for so long is dead.
    pub dead_after: Duration,
    /// A payload of registered memory with fewer bytes is copied.
    pub lend_from: usize,
}

/// [`Settings::lend_from`] where nothing speaks for another.
pub const LEND_FROM: usize = 4096;

/// Queue pairs to all other leaders.
pub struct VerbsChannel<F: Fabric, C: Control> {
    fabric: F,
    control: ControlPath<C>,
    settings: Settings,
    max_fragment: usize,
    peers: Peers<Peer>,
    lanes: Lanes,
    /// Registered memory.
    memory: Memory,
    /// For payloads in a device's memory.
    device: Option<OnDevice>,
    ready_until: Instant,
    /// When `tend` has something to do.
    alarm: Alarm,
    events: Vec<Event>,
    /// Nothing came in the last turn.
    idle: bool,
    released: Vec<SendToken>,
    counts: Counts,
    fenced: bool,
}

impl<F: Fabric, C: Control> VerbsChannel<F, C> {
    /// Lanes to these ranks; they come up in the turns that follow.
    pub fn new(fabric: F, control: C, peers: &[Rank], settings: Settings, now: Instant) -> Self {
        let (lanes, sizes) = (usize::from(settings.lanes.max(1)), fabric.sizes());
        let room = (sizes.slot_bytes as usize).saturating_sub(TRAILER) / GRANULE_UNIT * GRANULE_UNIT;
        let mut alarm = Alarm::default();
        alarm.set(now);
        Self {
            fabric,
            control: ControlPath::new(control, now),
            max_fragment: room.max(GRANULE_UNIT),
            peers: peers.iter().map(|rank| (*rank, Peer::default())).collect(),
            lanes: Lanes::new(peers.len(), lanes, sizes.window),
            memory: Memory::new(settings.lend_from),
            device: None,
            ready_until: now + settings.dead_after.max(Duration::from_secs(10)),
            settings,
            alarm,
            events: Vec::with_capacity(256),
            idle: true,
            released: Vec::with_capacity(256),
            counts: Counts::default(),
            fenced: false,
        }
    }

    /// Sends what came back, if its time has come.
    fn retry(&mut self, now: Instant, index: usize) {
        loop {
            let Some(peer) = self.peers.get_mut(index) else { return };
            let Some(retry) = peer.retries.front() else { return };
            if retry.at > now {
                let at = retry.at;
                return self.alarm.set(at);
            }
            let Some(at) = self.lanes.pick(index, 0, &self.fabric) else {
                return self.alarm.set(now + Duration::from_micros(20));
            };
            let Some(peer) = self.peers.get_mut(index) else { return };
            let Some(Retry { bytes, refusals, .. }) = peer.retries.pop_front() else { return };
            let Some((payload, trailer)) = bytes.split_last_chunk::<TRAILER>() else { continue };
            let Some(header) = trailer.first_chunk::<HEADER_BYTES>() else { continue };
            self.counts.resent += 1;
            self.post(at, Head::Encoded(header), payload);
            if let Some(lane) = self.lanes.get_mut(at) {
                lane.sender.was_refused(refusals);
            }
        }
    }

    /// Fills the next slot of a lane, which has one, and queues its write.
    #[inline]
    fn post(&mut self, at: usize, header: Head<'_>, payload: &[u8]) {
        let Some(lane) = self.lanes.get_mut(at) else { return };
        let Some(slot) = lane.sender.slot() else { return };
        let len = payload.len() + TRAILER;
        let Some(bytes) = self.fabric.outgoing(at, slot).get_mut(..len) else { return };
        if let Some(place) = bytes.get_mut(..payload.len()) {
            place.copy_from_slice(payload);
        }
        let counts = (lane.sender.next(), lane.receiver.tell());
        message::seal(bytes, Payload::Slot, header, counts, self.settings.crc);
        lane.sender.sent(len as u32, None);
        self.fabric.write(at, slot, len as u32);
    }
}

impl<F: Fabric, C: Control> Channel for VerbsChannel<F, C> {
    fn receive(&mut self, now: Instant, inbox: &mut dyn Inbox) -> bool {
        let mut came = false;
        // In each turn, while there is something to set up.
        if let Some(any) = self.control.receive(now, self.alarm.at().is_some(), inbox) {
            came |= any;
            while let Some((rank, bytes)) = self.control.take_side() {
                if let Some(index) = self.peers.index(rank).filter(|_| !self.fenced) {
                    self.on_side(now, index, &bytes);
                }
            }
        }
        let mut events = std::mem::take(&mut self.events);
        self.fabric.poll(&mut events);
        self.idle = events.is_empty();
        came |= !self.idle;
        for event in events.drain(..) {
            match event {
                Event::Written { lane, slot, len } => self.written(now, lane, slot, len, inbox),
                Event::Said { lane, word } => self.said(now, lane, word),
                Event::Broken { lane, why } => self.broken(now, lane, why),
            }
        }
        self.events = events;
        came |= self.tend_device(now, inbox);
        if self.lanes.take_asked() {
            // Ahead of what the executor sends now: it may answer what was sent from the memory that the peer wants back.
            self.lanes.tell(&mut self.fabric, false);
            self.fabric.flush();
        }
        if self.alarm.take_due(now) {
            self.tend(now);
        }
        came
    }

    fn transmit(&mut self, now: Instant, inbox: &mut dyn Inbox) -> bool {
        let mut sent = self.tend_device(now, inbox);
        self.lanes.tell(&mut self.fabric, self.idle);
        sent |= self.fabric.flush();
        for token in self.released.drain(..) {
            inbox.released(token);
        }
        sent |= self.control.transmit(now, inbox);
        sent
    }

    fn next_deadline(&self) -> Option<Instant> {
        let ask_at = self.device.as_ref().and_then(|device| device.ask_at);
        [Some(self.control.next_deadline()), self.alarm.at(), ask_at].into_iter().flatten().min()
    }

    fn take_lost(&mut self) -> Option<PeerLoss> {
        if let Some(loss) = self.peers.take_lost() {
            return Some(loss);
        }
        let loss = self.control.take_lost()?;
        if let Some(index) = self.peers.index(loss.rank) {
            self.peers.forget(index);
            self.end_lanes(index);
        }
        Some(loss)
    }

    fn broadcast(&mut self, header: &Header) {
        self.control.broadcast(header);
    }

    fn fence(&mut self) {
        self.fenced = true;
        for index in self.peers.indices() {
            self.end_lanes(index);
            if let Some(peer) = self.peers.get_mut(index) {
                peer.retries.clear();
                peer.windows.clear();
            }
        }
        self.forget_device(None);
        self.released.clear();
    }

    fn depart(&mut self) {
        self.control.depart();
    }

    fn is_drained(&self) -> bool {
        self.control.is_drained()
            && self.device_is_drained()
            && self.peers.all_present().all(|peer| peer.retries.is_empty())
            && self.lanes.iter().all(|lane| lane.sender.in_flight() == 0)
    }

    fn registry(&mut self) -> Option<&mut dyn Registry> {
        Some(self)
    }

    fn resent(&self) -> u64 {
        self.counts.resent
    }

    fn reconnected(&self) -> u64 {
        self.lanes.iter().map(|lane| u64::from(lane.link.epoch())).sum()
    }

    fn crc_dropped(&self) -> u64 {
        self.counts.damaged
    }
}

impl<F: Fabric, C: Control> Transport for VerbsChannel<F, C> {
    #[inline]
    fn max_fragment(&self, _: Rank) -> usize {
        self.max_fragment
    }

    #[inline]
    fn send(
        &mut self,
        to: Rank,
        header: &Header,
        payload: PayloadRange,
        token: SendToken,
    ) -> Result<(), SendError> {
        let index = self.peers.present(to).ok_or(SendError::PeerFailed)?;
        if matches!(header.kind, MessageKind::Vote | MessageKind::Abort) {
            // The lanes are closed when the group ends, and these say why it does.
            return self.control.send(to, header);
        }
        if self.fenced {
            return Err(SendError::PeerFailed);
        }
        if payload.region().kind() == MemoryKind::Device && !payload.is_empty() {
            return self.send_from_device(index, header, payload, token);
        }
        let at = self.lanes.pick(index, 0, &self.fabric).ok_or(SendError::Full)?;
        let into = self.destination(index, header);
        if !self.lend(at, header, (payload, into), token, None) {
            self.post(at, Head::New(header), bytes_of(&payload).unwrap_or_default());
            // Its bytes are in the slot.
            self.released.push(token);
        }
        Ok(())
    }

    fn credit(&mut self, to: Rank, header: &Header, landing: Option<Landing>) -> Result<(), SendError> {
        let index = self.peers.present(to).ok_or(SendError::PeerFailed)?;
        if self.fenced {
            return Err(SendError::PeerFailed);
        }
        let at = self.lanes.pick(index, 0, &self.fabric).ok_or(SendError::Full)?;
        let window = landing.and_then(|landing| self.window(landing, header.len));
        match window {
            Some(window) => self.post(at, Head::New(header), &window.encode()),
            None => self.post(at, Head::New(header), &[]),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
