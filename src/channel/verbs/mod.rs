//! The channel between leaders of nodes over RDMA verbs: reliable connections, whose fragments are written straight to
//! slots in the peer's memory.
//!
//! There are several connections to each peer. Each is a queue pair with its own slots at both ends. A fragment goes out as one RDMA write
//! with immediate; the immediate value is the slot's index. The receiver checks its CRC32C, hands it to the executor from
//! the slot, and acknowledges the number of fragments taken: in its own next fragment, or in a SEND with immediate if it has
//! none. This count is the credit, so a receive is always posted. A damaged or early fragment is refused and sent again.
//!
//! A payload is copied to a slot of this rank and written from there. One that lies in registered memory and is not small is
//! written from where it lies, with the trailer from the slot behind it. Its token is released when the peer has taken it; one
//! that has to be sent again is first copied to its slot, so a failure never holds the caller's memory for longer.
//!
//! If a message is only placed (allgather, broadcast) into registered memory, its credit carries the address. Its fragments are
//! written right there and their trailers to the slots behind them; the CRC is that of the bytes that lie there in the
//! end. One that has to be sent again goes by its slot. A member of the group can write to all registered memory of
//! another: do not run members that do not trust each other over RDMA.
//!
//! | file | what |
//! |---|---|
//! | `fabric` | the operations on queue pairs that the channel uses |
//! | `rdma` | these over libibverbs |
//! | `registrations` | memory that a device may read |
//! | `message` | the content of a slot and of an immediate value |
//! | `zero_copy` | payloads that are sent from where they lie |
//! | `receive` | received fragments and their acknowledgements |
//! | `windows` | the places to which peers want their messages written |
//! | `digest` | payloads in a device's memory, which the host does not read |
//! | `ranges` | which memory of this process is registered |
//! | `fragments` | which fragments are out, taken, refused |
//! | `retries` | refused fragments until they are sent again |
//! | `connections` | the connections to all peers, and pending acknowledgements |
//! | `link` | the state of a connection's queue pair |
//! | `setup` | a connection comes up, fails, and comes up again |
//! | `control` | the control connections, one socket to each peer |
//! | `choice` | which device and port lead to a peer |
//!
//! Set-up, liveness and the abort message go by authenticated connections of kernel sockets, the channel `kernel`, on
//! the network on which the ranks met: a group whose RDMA ports are gone can still report it.

#[cfg(feature = "verbs")]
mod choice;
mod connections;
mod control;
mod digest;
mod fabric;
mod fragments;
mod link;
mod message;
mod ranges;
#[cfg(feature = "verbs")]
mod rdma;
mod receive;
#[cfg(feature = "verbs")]
mod registrations;
mod retries;
mod setup;
mod windows;
mod zero_copy;

use std::time::Duration;

#[cfg(feature = "verbs")]
pub use choice::{PortSurvey, Reachable, survey};
use connections::Connections;
pub use control::Control;
use control::ControlPath;
pub(crate) use digest::ASK_EVERY;
use digest::OnDevice;
pub use digest::{CrcTicket, Digest};
pub use fabric::{
    Export, Fabric, FabricEvent, Fault, QueuePairAddress, Reach, RegisterError, Registered, Registering,
    Remote, Sizes, Source,
};
use message::{Head, Payload, TRAILER};
#[cfg(feature = "verbs")]
pub use rdma::{Port, Rdma};
use retries::{Retries, Retry};
use shouter_netstack::time::Instant;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{GRANULE_UNIT, HEADER_BYTES, Header, MessageKind};
use shouter_reducer::memory::MemoryKind;
use shouter_reducer::transport::{Landing, PayloadRange, SendError, SendToken, Transport};
use windows::CreditWindows;
use zero_copy::RegisteredMemory;

use super::Inbox;
use super::alarm::Alarm;
use super::loss::PeerLoss;
use super::peers::Peers;
use super::sys::bytes_of;
use super::up::{Channel, Registry};

/// The state of a peer.
#[derive(Default)]
struct Peer {
    /// Its control connection has been seen.
    greeted: bool,
    retries: Retries,
    /// The places to which it wants its messages written.
    windows: CreditWindows,
}

/// The channel's counters.
#[derive(Default)]
struct Counts {
    /// Messages that are none of this group.
    strays: u64,
    /// Fragments sent again.
    resent: u64,
    /// Fragments received damaged.
    damaged: u64,
    /// Fragments that were sent without a copy.
    zero_copy: u64,
    /// Fragments that were written to where they belong.
    placed: u64,
}

/// Bytes of a slot: a fragment of 64 KiB and its trailer.
pub const SLOT_BYTES: u32 = (64 << 10) + 128;

/// The channel as it runs.
#[cfg(feature = "verbs")]
pub type OverRdma = VerbsChannel<Rdma, super::stream::KernelChannel>;

/// The channel's parameters besides its peers.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Queue pairs between two leaders.
    pub connections: u16,
    /// Whether fragments have a CRC.
    pub crc: bool,
    /// A peer that a connection cannot reach for so long is dead.
    pub dead_after: Duration,
    /// A payload of registered memory with fewer bytes is copied.
    pub zero_copy_from: usize,
}

/// The default of [`Settings::zero_copy_from`].
pub const ZERO_COPY_FROM: usize = 4096;

/// Queue pairs to all other leaders.
pub struct VerbsChannel<F: Fabric, C: Control> {
    fabric: F,
    control: ControlPath<C>,
    settings: Settings,
    max_fragment: usize,
    peers: Peers<Peer>,
    connections: Connections,
    /// Registered memory.
    memory: RegisteredMemory,
    /// For payloads in a device's memory.
    device: Option<OnDevice>,
    ready_until: Instant,
    /// When `poll_timers` has something to do.
    alarm: Alarm,
    events: Vec<FabricEvent>,
    /// Nothing was received in the last poll.
    idle: bool,
    released: Vec<SendToken>,
    counts: Counts,
    fenced: bool,
}

impl<F: Fabric, C: Control> VerbsChannel<F, C> {
    /// Connections to these ranks; they come up in the polls that follow.
    pub fn new(fabric: F, control: C, peers: &[Rank], settings: Settings, now: Instant) -> Self {
        let (connections, sizes) = (usize::from(settings.connections.max(1)), fabric.sizes());
        let room = (sizes.slot_bytes as usize).saturating_sub(TRAILER) / GRANULE_UNIT * GRANULE_UNIT;
        let mut alarm = Alarm::default();
        alarm.set(now);
        Self {
            fabric,
            control: ControlPath::new(control, now),
            max_fragment: room.max(GRANULE_UNIT),
            peers: peers.iter().map(|rank| (*rank, Peer::default())).collect(),
            connections: Connections::new(peers.len(), connections, sizes.window),
            memory: RegisteredMemory::new(settings.zero_copy_from),
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

    /// Sends refused fragments again when they are due.
    fn retry(&mut self, now: Instant, index: usize) {
        loop {
            let Some(peer) = self.peers.get_mut(index) else { return };
            let Some(due) = peer.retries.next_due() else { return };
            if due > now {
                return self.alarm.set(due);
            }
            let Some(at) = self.connections.pick(index, 0, &self.fabric) else {
                return self.alarm.set(now + Duration::from_micros(20));
            };
            let Some(peer) = self.peers.get_mut(index) else { return };
            let Some(Retry { bytes, refusals, .. }) = peer.retries.pop() else { return };
            let Some((payload, trailer)) = bytes.split_last_chunk::<TRAILER>() else { continue };
            let Some(header) = trailer.first_chunk::<HEADER_BYTES>() else { continue };
            self.counts.resent += 1;
            self.post(at, Head::Encoded(header), payload);
            if let Some(connection) = self.connections.get_mut(at) {
                connection.sender.was_refused(refusals);
            }
        }
    }

    /// Fills the next slot of a connection, which has one, and queues its write.
    #[inline]
    fn post(&mut self, at: usize, header: Head<'_>, payload: &[u8]) {
        let Some(connection) = self.connections.get_mut(at) else { return };
        let Some(slot) = connection.sender.slot() else { return };
        let len = payload.len() + TRAILER;
        let Some(bytes) = self.fabric.outgoing(at, slot).get_mut(..len) else { return };
        if let Some(place) = bytes.get_mut(..payload.len()) {
            place.copy_from_slice(payload);
        }
        let counts = (connection.sender.next(), connection.receiver.report());
        message::seal(bytes, Payload::Slot, header, counts, self.settings.crc);
        connection.sender.sent(len as u32, None);
        self.fabric.write(at, slot, len as u32);
    }
}

impl<F: Fabric, C: Control> Channel for VerbsChannel<F, C> {
    fn receive(&mut self, now: Instant, inbox: &mut dyn Inbox) -> bool {
        let mut came = false;
        // In each poll, while there is something to set up.
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
                FabricEvent::Written { connection, slot, len } => {
                    self.written(now, connection, slot, len, inbox)
                }
                FabricEvent::Immediate { connection, value } => self.on_immediate(now, connection, value),
                FabricEvent::Broken { connection, why } => self.broken(now, connection, why),
            }
        }
        self.events = events;
        came |= self.poll_device(now, inbox);
        if self.connections.take_asked() {
            // Ahead of the executor's messages, as they may answer data sent from memory that the peer wants back.
            self.connections.report(&mut self.fabric, false);
            self.fabric.flush();
        }
        if self.alarm.take_due(now) {
            self.poll_timers(now);
        }
        came
    }

    fn transmit(&mut self, now: Instant, inbox: &mut dyn Inbox) -> bool {
        let mut sent = self.poll_device(now, inbox);
        self.connections.report(&mut self.fabric, self.idle);
        sent |= self.fabric.flush();
        for token in self.released.drain(..) {
            inbox.released(token);
        }
        sent |= self.control.transmit(now, inbox);
        sent
    }

    fn next_deadline(&self) -> Option<Instant> {
        let ask_at = self.device.as_ref().and_then(OnDevice::next_question);
        [Some(self.control.next_deadline()), self.alarm.at(), ask_at].into_iter().flatten().min()
    }

    fn take_lost(&mut self) -> Option<PeerLoss> {
        if let Some(loss) = self.peers.take_lost() {
            return Some(loss);
        }
        let loss = self.control.take_lost()?;
        if let Some(index) = self.peers.index(loss.rank) {
            self.peers.forget(index);
            self.end_connections(index);
        }
        Some(loss)
    }

    fn broadcast(&mut self, header: &Header) {
        self.control.broadcast(header);
    }

    fn fence(&mut self) {
        self.fenced = true;
        for index in self.peers.indices() {
            self.end_connections(index);
            if let Some(peer) = self.peers.get_mut(index) {
                peer.retries.clear();
                peer.windows.clear();
            }
        }
        self.forget_device(None);
        self.released.clear();
    }

    /// By the control connections, which control messages go by: a loss that is silence is one of theirs.
    fn acknowledged_by(&self, rank: Rank) -> u64 {
        self.control.acknowledged_by(rank)
    }

    /// Queue pairs to all leaders are set up at the join.
    fn used(&self) -> usize {
        self.peers.indices().len()
    }

    fn depart(&mut self) {
        self.control.depart();
    }

    fn is_drained_to(&self, awaited: &dyn Fn(Rank) -> bool) -> bool {
        let is_drained = |index: usize| {
            let connections = self.connections.of_peer(index);
            let mut connections = self.connections.iter().skip(connections.start).take(connections.len());
            self.peers.get(index).is_none_or(|peer| peer.retries.is_empty())
                && connections.all(|connection| connection.sender.in_flight() == 0)
        };
        let is_awaited =
            |index: &usize| !self.peers.is_lost(*index) && self.peers.rank(*index).is_some_and(awaited);
        self.control.is_drained_to(awaited)
            && self.device_is_drained()
            && self.peers.indices().filter(is_awaited).all(is_drained)
    }

    fn registry(&mut self) -> Option<&mut dyn Registry> {
        Some(self)
    }

    fn resent(&self) -> u64 {
        self.counts.resent
    }

    fn reconnected(&self) -> u64 {
        self.connections.iter().map(|connection| u64::from(connection.link.epoch())).sum()
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
            // The queue pairs are closed when the group ends; these messages carry the reason.
            return self.control.send(to, header);
        }
        if self.fenced {
            return Err(SendError::PeerFailed);
        }
        if payload.region().kind() == MemoryKind::Device && !payload.is_empty() {
            return self.send_from_device(index, header, payload, token);
        }
        let at = self.connections.pick(index, 0, &self.fabric).ok_or(SendError::Full)?;
        let into = self.destination(index, header);
        if !self.send_zero_copy(at, header, (payload, into), token, None) {
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
        let at = self.connections.pick(index, 0, &self.fabric).ok_or(SendError::Full)?;
        let window = landing.and_then(|landing| self.window(landing, header.len));
        match window {
            Some(window) => self.post(at, Head::New(header), &window.encode()),
            None => self.post(at, Head::New(header), &[]),
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests;
