//! The channel between leaders of nodes: RUD sessions over this rank's ports, as the reducer's [`Transport`].
//!
//! A fragment goes out as one datagram, message header and payload, and is handed to the executor straight from the
//! receive buffer. Session tags, and secrets of sealed sessions, are derived from the group's secret, so no handshake crosses the data network.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use shouter_netstack::device::{Announce, Device, DeviceCounters, Wakes};
use shouter_netstack::rud::{self, SessionId, SessionParams};
use shouter_netstack::stack::Stack;
use shouter_netstack::time::Instant;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{HEADER_BYTES, Header};
use shouter_reducer::transport::{LEAST_FRAGMENT, PayloadRange, SendError, SendToken, Transport};

use super::loss::{Loss, PeerLoss};
use super::peers::Peers;
use super::sys::extent_of;
use super::up::{Channel, PeerAddress, Registry};
use super::{Inbox, Links};
use crate::key::{Key, TAG_LEN};

#[cfg(feature = "dpdk")]
pub(crate) mod memory;

/// UDP source ports of a session's paths start here.
const FIRST_SOURCE_PORT: u16 = 50_000;

struct Peer {
    session: SessionId,
}

/// Sessions to the other leaders over one stack, each of which begins with its first use.
pub struct RudChannel<D: Device> {
    stack: Stack<D>,
    /// Memory that the ports' NICs read. After the stack, whose devices do.
    memory: Option<Box<dyn Registry + Send>>,
    peers: Peers<Peer>,
    strays: u64,
    /// Control messages that have found no room yet.
    pending_control: Vec<(Rank, Header)>,
}

/// Why the channel cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A session was refused.
    #[error("a RUD session to {rank}: {why}")]
    Session {
        /// The peer.
        rank: Rank,
        /// Why.
        why: rud::OpenError,
    },
    /// The MTU leaves no room for a payload.
    #[error(
        "a RUD session to {rank}: an MTU of {mtu} has no room for headers and 64 bytes of payload; raise it"
    )]
    Mtu {
        /// The peer.
        rank: Rank,
        /// The MTU in bytes.
        mtu: usize,
    },
}

impl<D: Device + 'static> RudChannel<D> {
    /// Enlists a session to every peer, which begins with its first use: until then it has no state but its parameters. `secret` is the group's; `seals`: all sessions are sealed; `paths` are the paths of each session; `port` the UDP port
    /// that every leader listens on; `mtu` the largest IP packet of the data network, the same on all ranks.
    pub fn open(
        mut stack: Stack<D>,
        rank: Rank,
        peers: &[PeerAddress],
        (secret, seals): (&Key, bool),
        (paths, port, mtu): (u16, u16, u16),
    ) -> Result<Self, OpenError> {
        let mut sessions = Vec::with_capacity(peers.len());
        let consecutive: Arc<[u16]> = (FIRST_SOURCE_PORT..=u16::MAX).take(paths.into()).collect();
        let head = HEADER_BYTES + if seals { rud::SEAL_BYTES } else { 0 };
        for peer in peers {
            if rud::payload_room(mtu.into(), &peer.ip.into(), head) < LEAST_FRAGMENT {
                return Err(OpenError::Mtu { rank: peer.rank, mtu: mtu.into() });
            }
            let (local_ip, remote_ip) = (IpAddr::V4(peer.local_ip), IpAddr::V4(peer.ip));
            let params = SessionParams {
                local_tag: tag(secret, peer.rank, rank),
                remote_tag: tag(secret, rank, peer.rank),
                remote_ip,
                local_ip,
                remote_port: port,
                // Where a NIC of the peer's deals flows out, those that it gives this shard's peer.
                local_ports: match stack.source_ports(local_ip, (remote_ip, port).into(), FIRST_SOURCE_PORT) {
                    Some(ports) => ports.take(paths.into()).collect(),
                    None => consecutive.clone(),
                },
                max_datagram: rud::datagram_room(mtu.into(), &peer.ip.into()),
                seal: seals.then(|| rud::SealSecret::new(seal_secret(secret, rank, peer.rank))),
            };
            let session =
                stack.rud_mut().enlist(params).map_err(|why| OpenError::Session { rank: peer.rank, why })?;
            sessions.push((peer.rank, Peer { session }));
        }
        let peers = sessions.into_iter().collect();
        Ok(Self { stack, memory: None, peers, strays: 0, pending_control: vec![] })
    }

    /// The same with a registry of the memory that the ports' NICs read where it lies.
    #[must_use]
    pub fn with_memory(self, memory: Option<Box<dyn Registry + Send>>) -> Self {
        Self { memory, ..self }
    }

    /// Posts the control messages that found no room yet.
    #[cold]
    fn send_pending(&mut self) {
        let mut pending_control = std::mem::take(&mut self.pending_control);
        pending_control.retain(|(rank, header)| {
            match self.send(*rank, header, PayloadRange::empty(), SendToken::CONTROL) {
                Ok(()) => false,
                Err(SendError::Full) => true,
                Err(SendError::PeerFailed) => {
                    tracing::debug!(%rank, "a control message was not sent: the peer is gone");
                    false
                }
            }
        });
        self.pending_control = pending_control;
    }

    /// Sends every peer a heartbeat with the next transmit; all sessions begin by that.
    pub fn announce(&mut self) {
        for (_, peer) in self.peers.iter() {
            self.stack.rud_mut().announce(peer.session);
        }
    }

    /// Whether anything valid has come from a peer.
    pub fn has_heard_from(&self, rank: Rank) -> bool {
        let counters = self.peers.of(rank).map(|peer| self.stack.rud().counters(peer.session));
        counters.is_some_and(|counters| counters.acks_received + counters.received > 0)
    }

    /// The stack below.
    pub fn stack_mut(&mut self) -> &mut Stack<D> {
        &mut self.stack
    }
}

impl<D: Device + 'static> Channel for RudChannel<D> {
    #[inline]
    fn receive(&mut self, now: Instant, inbox: &mut dyn Inbox) -> bool {
        let mut sink = Sink { inbox, peers: &mut self.peers, strays: &mut self.strays };
        let frames = self.stack.receive_with(now, &mut sink);
        frames != 0
    }

    #[inline]
    fn transmit(&mut self, now: Instant, _: &mut dyn Inbox) -> bool {
        if !self.pending_control.is_empty() {
            self.send_pending();
        }
        self.stack.transmit(now) != 0
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.stack.next_deadline()
    }

    fn arm(&mut self, announce: &mut Announce<'_>) -> Wakes {
        let wakes = self.stack.arm(announce);
        if self.pending_control.is_empty() { wakes } else { wakes.with_polling() }
    }

    fn disarm(&mut self) {
        self.stack.disarm();
    }

    fn take_lost(&mut self) -> Option<PeerLoss> {
        self.peers.take_lost()
    }

    fn is_used(&self, rank: Rank) -> bool {
        self.peers.of(rank).is_some_and(|peer| self.stack.rud().has_begun(peer.session))
    }

    fn acknowledged_by(&self, rank: Rank) -> u64 {
        let present = self.peers.present(rank).and_then(|index| self.peers.get(index));
        present.map_or(0, |peer| {
            let counters = self.stack.rud().counters(peer.session);
            // A refusal has come back as well.
            counters.acked + counters.refused_by_peer
        })
    }

    fn used(&self) -> usize {
        self.peers.iter().filter(|(_, peer)| self.stack.rud().has_begun(peer.session)).count()
    }

    fn joined(&mut self) {
        for (_, peer) in self.peers.iter() {
            self.stack.rud_mut().rest(peer.session);
        }
    }

    fn broadcast(&mut self, header: &Header) {
        self.pending_control.extend(self.peers.iter().map(|(rank, _)| (rank, *header)));
        self.send_pending();
    }

    fn fence(&mut self) {
        for (_, peer) in self.peers.iter() {
            self.stack.rud_mut().fence(peer.session);
        }
        self.stack.drop_waiting();
    }

    fn is_drained_to(&self, awaited: &dyn Fn(Rank) -> bool) -> bool {
        let is_pending = |rank| self.pending_control.iter().any(|(to, _)| *to == rank);
        self.peers
            .all_present()
            .filter(|(rank, _)| awaited(*rank))
            .all(|(rank, peer)| !is_pending(rank) && self.stack.rud().is_idle(peer.session))
    }

    fn registry(&mut self) -> Option<&mut dyn Registry> {
        Some(self.memory.as_deref_mut()?)
    }

    fn resent(&self) -> u64 {
        self.peers.iter().map(|(_, peer)| self.stack.rud().counters(peer.session).resent).sum()
    }

    fn paths_out(&self) -> u64 {
        self.peers.iter().map(|(_, peer)| u64::from(self.stack.rud().counters(peer.session).paths_out)).sum()
    }

    fn lost(&self) -> u64 {
        self.peers.iter().map(|(_, peer)| self.stack.rud().counters(peer.session).lost).sum()
    }

    fn last_resent(&self) -> Option<(Rank, SendToken)> {
        let of = |(rank, peer): (Rank, &Peer)| {
            let (at, token) = self.stack.rud().counters(peer.session).last_resent?;
            Some((at, rank, SendToken(token.0)))
        };
        let last = self.peers.iter().filter_map(of).max_by_key(|(at, ..)| *at);
        last.map(|(_, rank, token)| (rank, token))
    }

    fn crc_dropped(&self) -> u64 {
        self.stack.rud().endpoint_counters().crc_dropped
    }

    fn replayed(&self) -> u64 {
        self.stack.rud().endpoint_counters().replayed
    }

    fn device_counters(&self) -> DeviceCounters {
        super::device_counters(&self.stack)
    }

    fn links(&self) -> Links {
        super::links(&self.stack)
    }

    fn addresses_down(&self) -> Vec<IpAddr> {
        super::addresses_down(&self.stack)
    }
}

impl<D: Device + 'static> Transport for RudChannel<D> {
    #[inline]
    fn max_fragment(&self, to: Rank) -> usize {
        let room = |peer: &Peer| self.stack.rud().payload_limit(peer.session, HEADER_BYTES) / 64 * 64;
        self.peers.of(to).map_or(LEAST_FRAGMENT, room)
    }

    #[inline]
    fn send(
        &mut self,
        to: Rank,
        header: &Header,
        payload: PayloadRange,
        token: SendToken,
    ) -> Result<(), SendError> {
        let session = self.peers.of(to).ok_or(SendError::PeerFailed)?.session;
        // The executor has the order of operations: one that is more urgent has the room that there is next.
        if HEADER_BYTES + payload.len() > rud::SMALL_MESSAGE && self.stack.rud().is_ahead(session) {
            return Err(SendError::Full);
        }
        let (payload, token) = (extent_of(&payload), rud::MessageToken(token.0));
        let encode = |bytes: &mut [u8; HEADER_BYTES]| header.encode(bytes);
        match self.stack.rud_mut().send_with(session, encode, payload, token) {
            Ok(()) => Ok(()),
            Err(rud::SendError::Full) => Err(SendError::Full),
            Err(_) => Err(SendError::PeerFailed),
        }
    }

    #[inline]
    fn request_ack(&mut self, to: Rank) {
        if let Some(session) = self.peers.of(to).map(|peer| peer.session) {
            self.stack.rud_mut().request_ack(session);
        }
    }
}

/// Takes checked datagrams to the executor, while the bytes are in the receive buffer.
struct Sink<'a> {
    inbox: &'a mut dyn Inbox,
    peers: &'a mut Peers<Peer>,
    strays: &'a mut u64,
}

impl Sink<'_> {
    /// The index of the peer of a session: sessions were opened in the order of peers, and none is closed.
    #[inline]
    fn index(&self, session: SessionId) -> Option<usize> {
        let index = session.index();
        self.peers.get(index).filter(|peer| peer.session == session).map(|_| index)
    }
}

impl rud::Sink for Sink<'_> {
    #[inline]
    fn deliver(&mut self, session: SessionId, header: &[u8], payload: &[u8]) -> rud::Disposition {
        let sender = self.index(session).and_then(|index| self.peers.rank(index));
        match Header::parse(header) {
            Ok(header) if Some(header.src) == sender => {
                match self.inbox.fragment(&header, payload).is_retryable() {
                    true => rud::Disposition::Refused(rud::RefusalReason::NotReady),
                    false => rud::Disposition::Consumed,
                }
            }
            // Authenticated, but not of this protocol: a fault of the peer. It is counted and forgotten.
            stray => {
                super::stray(self.strays, sender, stray.err());
                rud::Disposition::Consumed
            }
        }
    }

    #[inline]
    fn released(&mut self, _: SessionId, token: rud::MessageToken) {
        self.inbox.released(SendToken(token.0));
    }

    fn failed(&mut self, session: SessionId, why: rud::Failure) {
        if let Some(index) = self.index(session) {
            self.peers.lose(index, Loss::Rud(why));
        }
    }

    fn path_changed(&mut self, session: SessionId, bytes: usize) {
        if let Some(rank) = self.index(session).and_then(|index| self.peers.rank(index)) {
            tracing::warn!(
                %rank,
                bytes,
                "the path to another host now carries UDP datagrams of this length, and messages are cut to it; where the ports' MTU allows \
                 longer ones, see whether an MTU on the way was changed"
            );
        }
    }
}

/// The tag of datagrams from one rank to another: 64 bits of HMAC-SHA256 over both ranks under the group's secret. One of
/// zero, which is no tag, is refused when the session is opened.
fn tag(secret: &Key, from: Rank, to: Rank) -> u64 {
    //= rud/spec.md section 3.1, RUD-1
    let ranks = [&from.0.to_le_bytes()[..], &to.0.to_le_bytes()];
    u64::from_le_bytes(secret.tag_prefix("shouter rud session tag", &ranks))
}

/// The secret of the session between two ranks, from the group's: that is derived, with a fresh nonce, from the job's key, which no rank
/// sends. Tags are derived from the group's secret, too, for another purpose: who reads them on the wire learns nothing of this one.
fn seal_secret(secret: &Key, a: Rank, b: Rank) -> [u8; TAG_LEN] {
    //= rud/spec.md section 10, RUD-89
    let ranks = [&a.0.min(b.0).to_le_bytes()[..], &a.0.max(b.0).to_le_bytes()];
    secret.tag("shouter rud session secret", &ranks)
}

/// The RUD configuration for a group whose dead ranks are found after `dead_after`, and a leader with `peers` others to
/// reach.
pub fn rud_config(dead_after: Duration, peers: usize) -> rud::Config {
    let heartbeat = (dead_after / 8).clamp(Duration::from_millis(1), Duration::from_secs(1));
    rud::Config { dead_after, heartbeat, max_sessions: peers, ..rud::Config::default() }
}

#[cfg(test)]
mod tests;
