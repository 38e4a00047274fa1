//! RUD's interface to the upper layer and the stack: names, errors, and the two traits that they implement.

use core::fmt;
use core::net::IpAddr;
use core::time::Duration;
use std::sync::Arc;

use super::mtu::BASE;
use super::seal::SealSecret;
use crate::region::Extent;
use crate::time::Instant;
use crate::wire::rud::{HEADER_LEN, MAX_BODY, MAX_WINDOW, SEAL_LEN};

/// Largest message header of an upper layer, in bytes.
pub const MAX_MESSAGE_HEADER: usize = MAX_BODY;

/// The longest message, header and payload, in bytes that shares a datagram with others and goes before longer ones: its lengths have a
/// byte each (spec.md section 6.9). To copy so much takes far less time than a datagram.
pub const SMALL_MESSAGE: usize = 255;

/// The most source ports of a session, each of which is a path.
pub(super) const MOST_PATHS: usize = 256;

/// Largest datagram in bytes, whatever the MTU: UDP over IPv4 takes no more.
pub const MAX_DATAGRAM: usize = 65_507;

/// The largest datagram in bytes (the UDP payload), when IP packets may have `mtu` bytes on the path between addresses of `ip`'s
/// family.
pub const fn datagram_room(mtu: usize, ip: &IpAddr) -> usize {
    let ip_header = match ip {
        IpAddr::V4(_) => 20,
        IpAddr::V6(_) => 40,
    };
    let room = mtu.saturating_sub(ip_header + 8);
    if room > MAX_DATAGRAM { MAX_DATAGRAM } else { room }
}

/// Payload bytes that fit one datagram behind a message header of `message_header` bytes, when IP packets may have
/// `mtu` bytes on the path between addresses of `ip`'s family. Zero if nothing fits. In a sealed session there are [`SEAL_BYTES`] less.
pub const fn payload_room(mtu: usize, ip: &IpAddr, message_header: usize) -> usize {
    datagram_room(mtu, ip).saturating_sub(HEADER_LEN + message_header)
}

/// Bytes of a sealed datagram that a datagram of a session that is not sealed does not have.
pub const SEAL_BYTES: usize = SEAL_LEN;

/// Limits and times of an endpoint. The default suits links within a data centre.
#[derive(Clone, Debug)]
pub struct Config {
    /// Sessions that may be open at once, at most 65,535.
    pub max_sessions: usize,
    /// Datagrams a session may have queued and unacknowledged, and a sixteenth more of small messages; at most 4,032.
    pub window_packets: u32,
    /// Payload bytes a session may have unacknowledged on the wire.
    pub window_bytes: usize,
    /// Datagrams that a session sends before it has measured the path, or fewer, but at least four, where they have
    /// more than 1,500 bytes.
    pub initial_window: u32,
    /// The queue in the network that a session aims at, at least; it is longer where the round-trip time is (spec.md section 7.4).
    pub queue_delay: Duration,
    /// The share of lost datagrams, in percent, up to which losses without a queue do not reduce the window: they are not
    /// congestion.
    pub loss_tolerance: u32,
    /// Bounds of the retransmission time-out.
    pub min_rto: Duration,
    /// The back-off of the retransmission time-out ends here.
    pub max_rto: Duration,
    /// A tail-loss probe waits at least this long.
    pub min_probe: Duration,
    /// Stands for the round-trip time until one has been measured.
    pub initial_rtt: Duration,
    /// A datagram may be overtaken by at least this much before it counts as lost.
    pub min_reordering: Duration,
    /// A pure acknowledgement is sent after this many datagrams...
    pub ack_every: u32,
    /// ...or this long after the first one that is not acknowledged yet.
    pub ack_delay: Duration,
    /// A refused datagram is sent again after this long; it doubles with every refusal of the same message, without a limit.
    pub refusal_backoff: Duration,
    /// An idle session sends a heartbeat at this interval.
    pub heartbeat: Duration,
    /// A peer that is silent for this long is dead.
    pub dead_after: Duration,
    /// Where the path carries shorter datagrams than the session may send, longer ones are tried at this interval.
    pub mtu_raise: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_sessions: 1024,
            window_packets: 960,
            window_bytes: 4 << 20,
            initial_window: 10,
            queue_delay: Duration::from_micros(8),
            loss_tolerance: 12,
            // Longer than a peer without a core of its own waits for one, and than a thread that only looks now and
            // then takes to look.
            min_rto: Duration::from_millis(6),
            max_rto: Duration::from_millis(50),
            min_probe: Duration::from_micros(200),
            initial_rtt: Duration::from_micros(500),
            min_reordering: Duration::from_micros(10),
            ack_every: 32,
            ack_delay: Duration::from_micros(20),
            refusal_backoff: Duration::from_micros(50),
            heartbeat: Duration::from_secs(1),
            dead_after: Duration::from_secs(10),
            mtu_raise: Duration::from_secs(10),
        }
    }
}

impl Config {
    /// The configuration with every value brought into its range.
    pub(super) fn clamped(mut self) -> Self {
        self.max_sessions = self.max_sessions.clamp(1, 65_535);
        self.window_packets = self.window_packets.clamp(1, MAX_WINDOW);
        self.initial_window = self.initial_window.clamp(1, self.window_packets);
        self.window_bytes = self.window_bytes.max(1);
        self.loss_tolerance = self.loss_tolerance.min(100);
        self.ack_every = self.ack_every.max(1);
        self.max_rto = self.max_rto.max(self.min_rto);
        self
    }
}

/// A session of one [`Endpoint`](super::Endpoint): a slot and the slot's generation, so that a stale id finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub(super) u32);

impl SessionId {
    pub(super) fn new(index: u16, generation: u16) -> Self {
        Self(u32::from(generation) << 16 | u32::from(index))
    }

    /// The generation of its slot.
    pub(super) fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Its slot. An endpoint that has closed no session has numbered them from 0, in the order in which they were opened.
    #[inline]
    pub fn index(self) -> usize {
        (self.0 & 0xffff) as usize
    }
}

/// A session's parameters, on which both ends agreed over the authenticated rendezvous (spec.md section 3).
#[derive(Clone, Debug)]
pub struct SessionParams {
    /// The tag of datagrams that we receive: a secret random number, different for every session, not zero.
    pub local_tag: u64,
    /// The tag of datagrams that we send; the peer's `local_tag`.
    pub remote_tag: u64,
    /// The peer's address.
    pub remote_ip: IpAddr,
    /// Our address.
    pub local_ip: IpAddr,
    /// The peer's UDP port.
    pub remote_port: u16,
    /// The UDP source ports, one for each path to spray over: 1 to 256 of them, none 0. Sessions may share the list.
    pub local_ports: Arc<[u16]>,
    /// The largest datagram in bytes: header, message header and payload (see [`datagram_room`]). A path that turns out to carry
    /// less is given less.
    pub max_datagram: usize,
    /// The secret of a session that is sealed (spec.md section 10): its datagrams are encrypted and authenticated. As with tags, every
    /// session has one of its own, and never one that was used before: two sessions with the same tags and secret give both away.
    pub seal: Option<SealSecret>,
}

impl SessionParams {
    /// Bytes of a datagram's seal.
    pub(super) fn seal_len(&self) -> usize {
        if self.seal.is_some() { SEAL_LEN } else { 0 }
    }

    /// The largest datagram without its seal.
    pub(super) fn max_plain(&self) -> usize {
        self.max_datagram.saturating_sub(self.seal_len())
    }
}

/// The user's name for a message, handed back when its memory is free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageToken(pub u64);

/// Addresses, ports and mark of a received UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramMeta {
    /// IP source address.
    pub src_ip: IpAddr,
    /// IP destination address.
    pub dst_ip: IpAddr,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
    /// Whether it was marked on its way (ECN: Congestion Experienced).
    pub congestion_experienced: bool,
}

/// Addresses and ports of a datagram to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// IP source address.
    pub local_ip: IpAddr,
    /// IP destination address.
    pub remote_ip: IpAddr,
    /// UDP source port: it names the path.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
}

/// The upper layer's answer to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// It used or copied the bytes: the message will not be delivered again.
    Consumed,
    /// It cannot use the bytes now: the sender sends them again later.
    Refused(RefusalReason),
}

/// Why a message was refused. Counted here; the peer only learns that it was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalReason {
    /// The operation it belongs to has not been posted here yet.
    NotReady,
    /// There is no memory to keep it in.
    NoMemory,
}

/// Why a session ended by itself. It sends and delivers nothing any more and waits for `close`; tokens that are not
/// released yet stay unreleased, so the caller knows which memory a peer may still be sent from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Nothing valid came from the peer, not even a heartbeat.
    #[error("it has sent nothing for {silent:?}{}; {clue}", Resent(*.timeouts))]
    PeerSilent {
        /// Time since the last valid datagram.
        silent: Duration,
        /// How often all that it had not acknowledged was sent again, in vain; 0 if nothing was.
        timeouts: u32,
        /// Other datagrams that came instead.
        clue: Clue,
    },
    /// The peer lives, and yet none of our datagrams reaches it.
    #[error(
        "it is alive but has acknowledged nothing for {stalled:?}{}; see whether the path {}",
        Resent(*.timeouts),
        Passage(*.bytes)
    )]
    NoProgress {
        /// Time since the last acknowledgement of anything new.
        stalled: Duration,
        /// How often all that it had not acknowledged was sent again.
        timeouts: u32,
        /// Length of the oldest unacknowledged datagram: RUD header, message header, and payload or a part of it.
        bytes: usize,
    },
}

/// How often something was sent again, as part of a sentence.
struct Resent(u32);

impl fmt::Display for Resent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            1 => f.write_str(", though what it had to acknowledge was sent again once"),
            times => write!(f, ", though what it had to acknowledge was sent again {times} times"),
        }
    }
}

/// What to look for on a path on which datagrams of so many bytes vanish, as part of a sentence.
struct Passage(usize);

impl fmt::Display for Passage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A path that takes none of the base's length takes shorter ones; one that drops these does not drop them for their length.
        if self.0 >= BASE.into() {
            return write!(f, "carries datagrams of {} bytes (MTU)", self.0);
        }
        f.write_str(
            "to it drops datagrams whatever their length: a filter, or a link that fails in one direction",
        )
    }
}

/// Datagrams that came in place of those of a peer that was suspected dead. Of several kinds the last in this list is
/// named. It is for people (spec.md section 8): anyone can forge [`UnknownSession`](Self::UnknownSession).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum Clue {
    /// Nothing.
    #[error("see whether its process and the path to it are alive")]
    Nothing,
    /// Its address sent datagrams with a tag of no session here.
    #[error(
        "its address sends datagrams of a session that is not known here: its process was started again, or belongs to \
         another job with the same port"
    )]
    UnknownSession,
    /// The session's datagrams came from another address or to another one.
    #[error(
        "its datagrams come with other addresses than were agreed on; see whether an address has changed, or is translated \
         on the way (NAT)"
    )]
    OtherAddress,
    /// The session's datagrams came damaged.
    #[error("its datagrams come damaged; see whether a network card, a cable or memory on the way is faulty")]
    Damaged,
}

/// Why a session cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The endpoint is full.
    #[error("{limit} RUD sessions are open already; close one or raise max_sessions")]
    TooMany {
        /// The endpoint's limit.
        limit: usize,
    },
    /// Two sessions with the same local tag could not be distinguished.
    #[error("the local tag belongs to another open session; agree on a fresh random tag")]
    TagInUse,
    /// Zero is no random number.
    #[error("a session tag is zero; agree on a random one")]
    ZeroTag,
    /// A sealed session's keys would be the same in both directions.
    #[error("both tags of a sealed RUD session are the same; agree on random ones")]
    SameTags,
    /// One address is IPv4, the other IPv6.
    #[error("local address {local} and remote address {remote} are of different families")]
    MixedFamilies {
        /// Our address.
        local: IpAddr,
        /// The peer's address.
        remote: IpAddr,
    },
    /// There is no source port, one is 0, or there are too many; or the peer's port is 0.
    #[error(
        "a RUD session needs 1 to 256 source ports, not {paths}, and neither they nor the peer's port may be 0"
    )]
    Ports {
        /// How many there are.
        paths: usize,
    },
    /// A datagram cannot be that long.
    #[error("datagrams of {asked} bytes exceed the {limit} that UDP carries; ask for less")]
    DatagramTooLong {
        /// The requested limit in bytes.
        asked: usize,
        /// The largest possible in bytes.
        limit: usize,
    },
}

/// Why a message was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The window is full: try again after acknowledgements have come in.
    #[error("the session's window is full; try again after the next poll")]
    Full,
    /// The id is of a session that was closed.
    #[error("the session is closed")]
    Closed,
    /// The session has failed; the sink was given the reason.
    #[error("the session has failed; close it")]
    Failed,
    /// The message header is too long.
    #[error("a message header of {len} bytes exceeds 64")]
    HeaderTooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// The payload is too long for the session.
    #[error("a payload of {len} bytes exceeds the session's {limit}; send smaller fragments")]
    PayloadTooLong {
        /// Its length in bytes.
        len: usize,
        /// The session's limit in bytes.
        limit: usize,
    },
}

/// Statistics of a session since it was opened. Counts are of datagrams, where they are not said to be of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Data sent for the first time.
    pub sent: u64,
    /// Data sent again under the same PSN.
    pub resent: u64,
    /// When that was last, and of which message.
    pub last_resent: Option<(Instant, MessageToken)>,
    /// Payload bytes sent for the first time.
    pub sent_bytes: u64,
    /// Data acknowledged as consumed; of several messages, all.
    pub acked: u64,
    /// Data declared lost.
    pub lost: u64,
    /// Data declared lost that had arrived after all.
    pub spurious: u64,
    /// Tail-loss probes.
    pub probes: u64,
    /// Retransmission time-outs.
    pub timeouts: u64,
    /// Our messages refused by the peer.
    pub refused_by_peer: u64,
    /// Messages consumed by the sink.
    pub received: u64,
    /// Payload bytes consumed by the sink.
    pub received_bytes: u64,
    /// Data that had been received before.
    pub duplicates: u64,
    /// Messages refused by the sink.
    pub refused: u64,
    /// Of those, refused because the operation was not posted.
    pub refused_not_ready: u64,
    /// Data whose PSN lies outside the window.
    pub out_of_window: u64,
    /// Datagrams whose CRC, or seal, was wrong.
    pub crc_dropped: u64,
    /// Pure acknowledgements sent, heartbeats included.
    pub acks_sent: u64,
    /// Pure acknowledgements received.
    pub acks_received: u64,
    /// Heartbeats sent.
    pub heartbeats: u64,
    /// The smoothed round-trip time; zero before the first measurement.
    pub srtt: Duration,
    /// The congestion window in datagrams.
    pub window: u32,
    /// The distance that is kept between datagrams; zero if none is.
    pub gap: Duration,
    /// How long data has waited for that distance.
    pub paced: Duration,
    /// Our data that the peer reports as marked (ECN).
    pub marked: u64,
    /// Data received with a mark.
    pub marks_received: u64,
    /// Paths that are left out because they lose what the others deliver.
    pub paths_out: u16,
    /// The longest datagram, in bytes, that the path is held to carry.
    pub path_datagram: u16,
    /// Parts of messages sent whose datagrams are longer.
    pub pieces: u64,
    /// Parts of messages received that found no room, or made no sense.
    pub pieces_dropped: u64,
}

/// Statistics of an endpoint: datagrams that belong to no session, and totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounters {
    /// The header was not one of RUD.
    pub malformed: u64,
    /// The tag is that of no open session.
    pub unknown_session: u64,
    /// The addresses are not the session's.
    pub wrong_address: u64,
    /// The CRC, or seal, was wrong, over all sessions.
    pub crc_dropped: u64,
    /// Sealed datagrams that had come before, or were too old to tell.
    pub replayed: u64,
}

/// Receives an endpoint's datagrams and events. Called from within the endpoint: keep it short.
pub trait Sink {
    /// A new message, checked, in order of arrival. The bytes are borrowed for the call.
    fn deliver(&mut self, session: SessionId, header: &[u8], payload: &[u8]) -> Disposition;

    /// The message is acknowledged and no frame refers to its extent: the memory is free.
    fn released(&mut self, session: SessionId, token: MessageToken);

    /// The session ended by itself. Called once.
    fn failed(&mut self, session: SessionId, why: Failure);

    /// The path was found to carry datagrams of `bytes` bytes, and none that are longer; or of as many as the session may send, after it
    /// had carried less. Messages go on as before. For people; the default ignores it.
    fn path_changed(&mut self, _session: SessionId, _bytes: usize) {}
}

/// Takes datagrams that are to be sent; the stack adds UDP and IP.
pub trait Emit {
    /// Whether what is emitted is sealed after that, and so needs no CRC. RUD's own.
    const SEALS: bool = false;

    /// How many datagrams `emit` would take now. A session that has more waits for the next call, behind the others.
    fn room(&self) -> usize;

    /// Whether no more data shall be sent in this call. Acknowledgements and probes still leave: they are few, and what they say is asked for.
    fn is_turn_over(&self) -> bool {
        false
    }

    /// Sends the bytes of `header`, which are copied, followed by the payload. They are RUD's header and the body. False if it was not taken; then
    /// it will be offered again.
    fn emit(&mut self, to: &Destination, header: &[u8], payload: Option<Extent>) -> bool;

    /// Sends a datagram of `len` bytes, all of which `write` puts into their place, as those of a sealed session. It is called once at most, and not
    /// where there is no room. False if the datagram was not taken; then another will be offered. The default makes it in memory of its own.
    fn emit_written(&mut self, to: &Destination, len: usize, write: impl FnOnce(&mut [u8])) -> bool {
        let mut datagram = vec![0; len];
        write(&mut datagram);
        self.emit(to, &datagram, None)
    }
}

/// The sink of a poll without one. What comes for a session stays with its sender, which sends it again later.
pub(crate) struct NoSink;

impl Sink for NoSink {
    fn deliver(&mut self, _: SessionId, _: &[u8], _: &[u8]) -> Disposition {
        Disposition::Refused(RefusalReason::NotReady)
    }
    fn released(&mut self, _: SessionId, _: MessageToken) {}
    fn failed(&mut self, _: SessionId, _: Failure) {}
}
