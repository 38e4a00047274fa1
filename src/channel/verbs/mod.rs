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
mod lend;
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
use digest::OnDevice;
pub use digest::{Digest, Ticket};
pub use fabric::{
    Address, Event, Export, Fabric, Fault, Reach, RegisterError, Registered, Registering, Remote, Sizes,
    Source,
};
use lane::{Receiver, Retry, Sender};
use message::{Payload, TRAILER};
use ranges::Ranges;
#[cfg(feature = "verbs")]
pub use rdma::{Port, Rdma};
use setup::State;
use shouter_netstack::device::DeviceCounters;
use shouter_netstack::time::Instant;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{GRANULE_UNIT, HEADER_BYTES, Header, Kind};
use shouter_reducer::memory::Kind as MemoryKind;
use shouter_reducer::transport::{Landing, PayloadRange, SendError, Token, Transport};
use windows::Windows;

use super::Inbox;
use super::by_rank::ByRank;
use super::sys::bytes_of;
use super::up::PeerLoss;

/// Between two looks at the control connections, while all lanes are up.
const LISTEN_EVERY: Duration = Duration::from_millis(1);

/// One queue pair's place, whichever it has.
struct Lane {
    state: State,
    /// Counts its queue pairs.
    epoch: u32,
    sender: Sender,
    receiver: Receiver,
    /// Since when it does not work, counted until it has worked again.
    down_since: Option<Instant>,
    /// Fragments that the peer had taken when the present queue pair came up.
    taken_before: u64,
    last_fault: Fault,
    pause: Duration,
    /// Whether it is among those that may have something to tell.
    indebted: bool,
}

struct Peer {
    rank: Rank,
    /// Its control connection has been seen.
    greeted: bool,
    lost: bool,
    /// Fragments that came back, in the order of their time.
    retries: VecDeque<Retry>,
    /// Where it wants what it asked for.
    windows: Windows,
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
    control: C,
    crc: bool,
    lend_from: usize,
    ranges: Ranges,
    /// For payloads in a device's memory.
    device: Option<OnDevice>,
    /// That some memory cannot be registered was logged.
    complained: bool,
    /// Lanes of each peer.
    lanes: usize,
    /// The lanes of all peers, one peer's behind the other's.
    all: Vec<Lane>,
    peers: Vec<Peer>,
    /// Indices into `peers`.
    by_rank: ByRank,
    max_fragment: usize,
    patience: Duration,
    ready_until: Instant,
    tend_at: Option<Instant>,
    /// When the control connections are looked at next, and whether they have something to send.
    listen_at: Instant,
    speak: bool,
    events: Vec<Event>,
    /// Lanes that may have something to tell.
    debts: Vec<usize>,
    /// Nothing came in the last turn.
    idle: bool,
    /// A peer waits to hear what was taken.
    asked: bool,
    released: Vec<Token>,
    /// What the control connections had no room for.
    untold: VecDeque<(Rank, Vec<u8>)>,
    lost: Vec<PeerLoss>,
    strays: u64,
    resent: u64,
    damaged: u64,
    lent: u64,
    placed: u64,
    fenced: bool,
}

impl<F: Fabric, C: Control> VerbsChannel<F, C> {
    /// Lanes to these ranks; they come up in the turns that follow.
    pub fn new(fabric: F, control: C, peers: &[Rank], settings: Settings, now: Instant) -> Self {
        let Settings { lanes, crc, dead_after, lend_from } = settings;
        let (lanes, sizes) = (usize::from(lanes.max(1)), fabric.sizes());
        let lane = |_| Lane {
            state: State::Down(None),
            epoch: 0,
            sender: Sender::new(sizes.window),
            receiver: Receiver::new(sizes.window),
            down_since: None,
            taken_before: 0,
            last_fault: Fault::RetryExceeded,
            pause: Duration::ZERO,
            indebted: false,
        };
        let peer = |rank: &Rank| Peer {
            rank: *rank,
            greeted: false,
            lost: false,
            retries: VecDeque::new(),
            windows: Windows::default(),
        };
        let room = (sizes.slot_bytes as usize).saturating_sub(TRAILER) / GRANULE_UNIT * GRANULE_UNIT;
        Self {
            fabric,
            control,
            crc,
            lend_from: lend_from.max(1),
            ranges: Ranges::default(),
            device: None,
            complained: false,
            lanes,
            all: (0..peers.len() * lanes).map(lane).collect(),
            peers: peers.iter().map(peer).collect(),
            by_rank: peers.iter().zip(0..).map(|(rank, index)| (*rank, index)).collect(),
            max_fragment: room.max(GRANULE_UNIT),
            patience: dead_after,
            ready_until: now + dead_after.max(Duration::from_secs(10)),
            tend_at: Some(now),
            listen_at: now,
            speak: true,
            events: Vec::with_capacity(256),
            debts: Vec::with_capacity(peers.len() * lanes),
            idle: true,
            asked: false,
            released: Vec::with_capacity(256),
            untold: VecDeque::new(),
            lost: vec![],
            strays: 0,
            resent: 0,
            damaged: 0,
            lent: 0,
            placed: 0,
            fenced: false,
        }
    }

    /// Receives and hands fragments to the executor. True if anything came.
    pub fn receive(&mut self, now: Instant, inbox: &mut impl Inbox) -> bool {
        let mut came = false;
        if now >= self.listen_at {
            // A look costs a system call, so not in every turn.
            self.listen_at = now + if self.tend_at.is_some() { Duration::ZERO } else { LISTEN_EVERY };
            came |= self.control.receive(now, inbox);
            while let Some((rank, bytes)) = self.control.take_side() {
                if let Some(index) = self.index(rank).filter(|_| !self.fenced) {
                    self.on_side(now, index, &bytes);
                }
            }
            self.speak = true;
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
        if std::mem::take(&mut self.asked) {
            // Ahead of what the executor sends now: it may answer what was sent from the memory that the peer wants back.
            self.pay(false);
            self.fabric.flush();
        }
        if self.tend_at.is_some_and(|at| at <= now) {
            self.tend(now);
        }
        came
    }

    /// Sends what the executor has posted, and tells peers what was taken. True if anything was sent.
    pub fn transmit(&mut self, now: Instant, inbox: &mut impl Inbox) -> bool {
        let mut sent = self.tend_device(now, inbox);
        self.pay(self.idle);
        sent |= self.fabric.flush();
        for token in self.released.drain(..) {
            inbox.released(token);
        }
        while let Some((rank, bytes)) = self.untold.front()
            && self.control.send_side(*rank, bytes)
        {
            self.untold.pop_front();
            self.speak = true;
        }
        if std::mem::take(&mut self.speak) {
            sent |= self.control.transmit(now, inbox);
        }
        sent
    }

    /// Sends what came back, if its time has come.
    fn retry(&mut self, now: Instant, index: usize) {
        loop {
            let Some(peer) = self.peers.get_mut(index) else { return };
            let Some(retry) = peer.retries.front() else { return };
            if retry.at > now {
                let at = retry.at;
                return self.wake(at);
            }
            let Some(at) = self.pick(index, 0) else {
                return self.wake(now + Duration::from_micros(20));
            };
            let Some(peer) = self.peers.get_mut(index) else { return };
            let Some(Retry { bytes, refusals, .. }) = peer.retries.pop_front() else { return };
            let Some((payload, trailer)) = bytes.split_last_chunk::<TRAILER>() else { continue };
            let Some(header) = trailer.first_chunk::<HEADER_BYTES>() else { continue };
            self.resent += 1;
            self.post(at, header, payload);
            if let Some(lane) = self.all.get_mut(at) {
                lane.sender.was_refused(refusals);
            }
        }
    }

    /// The lane of a peer that takes the next fragment: the one with the fewest out, which leaves so many slots free.
    #[inline]
    fn pick(&self, index: usize, spare: u64) -> Option<usize> {
        let first = index * self.lanes;
        let lanes = self.all.get(first..first + self.lanes)?.iter().zip(first..);
        let usable = lanes.filter(|(lane, at)| {
            lane.state == State::Up && lane.sender.has_slots(1 + spare) && self.fabric.has_room(*at, 1)
        });
        usable.min_by_key(|(lane, _)| lane.sender.in_flight()).map(|(_, at)| at)
    }

    /// Fills the next slot of a lane, which has one, and queues its write.
    #[inline]
    fn post(&mut self, at: usize, header: &[u8; HEADER_BYTES], payload: &[u8]) {
        let Some(lane) = self.all.get_mut(at) else { return };
        let Some(slot) = lane.sender.slot() else { return };
        let len = payload.len() + TRAILER;
        let Some(bytes) = self.fabric.outgoing(at, slot).get_mut(..len) else { return };
        if let Some(place) = bytes.get_mut(..payload.len()) {
            place.copy_from_slice(payload);
        }
        let counts = (lane.sender.next(), lane.receiver.tell());
        message::seal(bytes, Payload::Slot, header, counts, self.crc);
        lane.sender.sent(len as u32, None);
        self.fabric.write(at, slot, len as u32);
    }

    /// When the next turn is needed although nothing may arrive.
    pub fn next_deadline(&self) -> Option<Instant> {
        let ask_at = self.device.as_ref().and_then(|device| device.ask_at);
        [self.control.next_deadline(), self.tend_at, Some(self.listen_at), ask_at].into_iter().flatten().min()
    }

    /// A peer that was lost since the last call.
    pub fn take_lost(&mut self) -> Option<PeerLoss> {
        if let Some(loss) = self.lost.pop() {
            return Some(loss);
        }
        let loss = self.control.take_lost()?;
        if let Some(index) = self.index(loss.rank) {
            if let Some(peer) = self.peers.get_mut(index) {
                peer.lost = true;
            }
            self.end_lanes(index);
        }
        Some(loss)
    }

    /// Posts a control message to every peer, by the control connections.
    pub fn broadcast(&mut self, header: &Header) {
        self.speak = true;
        self.control.broadcast(header);
    }

    /// Closes all queue pairs: afterwards nothing refers to any memory. Control messages still get through.
    pub fn fence(&mut self) {
        self.fenced = true;
        for index in 0..self.peers.len() {
            self.end_lanes(index);
            if let Some(peer) = self.peers.get_mut(index) {
                peer.retries.clear();
                peer.windows.clear();
            }
        }
        self.forget_device(None);
        self.released.clear();
    }

    /// Tells the peers that this rank leaves in good order.
    pub fn depart(&mut self) {
        self.speak = true;
        self.control.depart();
    }

    /// Nothing: no frame of this channel passes through a device of ours.
    pub fn device_counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }

    /// Whether everything that was sent has been taken.
    pub fn is_drained(&self) -> bool {
        let quiet = |peer: &Peer| peer.lost || peer.retries.is_empty();
        self.control.is_drained()
            && self.device_is_drained()
            && self.peers.iter().all(quiet)
            && self.all.iter().all(|lane| lane.sender.in_flight() == 0)
    }

    /// Fragments sent again.
    pub fn resent(&self) -> u64 {
        self.resent
    }

    /// Fragments that came damaged.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    fn index(&self, rank: Rank) -> Option<usize> {
        self.by_rank.get(rank)
    }

    /// The index of a peer that is not lost.
    #[inline]
    fn usable(&self, rank: Rank) -> Result<usize, SendError> {
        let index = self.index(rank).ok_or(SendError::PeerFailed)?;
        let there = self.peers.get(index).is_some_and(|peer| !peer.lost);
        if there { Ok(index) } else { Err(SendError::PeerFailed) }
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
        token: Token,
    ) -> Result<(), SendError> {
        let index = self.usable(to)?;
        if matches!(header.kind, Kind::Vote | Kind::Abort) {
            // The lanes are closed when the group ends, and these say why it does.
            self.speak = true;
            return self.control.send_control(to, header);
        }
        if self.fenced {
            return Err(SendError::PeerFailed);
        }
        if payload.region().kind() == MemoryKind::Device && !payload.is_empty() {
            return self.send_from_device(index, header, payload, token);
        }
        let at = self.pick(index, 0).ok_or(SendError::Full)?;
        let mut bytes = [0; HEADER_BYTES];
        header.encode(&mut bytes);
        let into = self.destination(index, header);
        if !self.lend(at, &bytes, (payload, into), token, None) {
            self.post(at, &bytes, bytes_of(&payload).unwrap_or_default());
            // Its bytes are in the slot.
            self.released.push(token);
        }
        Ok(())
    }

    fn credit(&mut self, to: Rank, header: &Header, landing: Option<Landing>) -> Result<(), SendError> {
        let index = self.usable(to)?;
        let at = self.pick(index, 0).filter(|_| !self.fenced).ok_or(if self.fenced {
            SendError::PeerFailed
        } else {
            SendError::Full
        })?;
        let mut bytes = [0; HEADER_BYTES];
        header.encode(&mut bytes);
        let window = landing.and_then(|landing| self.window(landing, header.len));
        match window {
            Some(window) => self.post(at, &bytes, &window.encode()),
            None => self.post(at, &bytes, &[]),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
