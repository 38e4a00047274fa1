//! The options of a connection, and the limits of an endpoint.

use core::time::Duration;

use crate::cc::Algorithm;
use crate::ip::path_mtu;

/// The options of a connection. Those that a listener has are its connections'.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The least retransmission time-out: 200 ms for peers of unknown implementation, whose acknowledgements may be
    /// delayed that long (RFC 6298 section 2.4 asks for a second; no stack keeps to that).
    pub min_rto: Duration,
    /// The greatest retransmission time-out (RFC 6298 section 2.5: at least 60 s).
    pub max_rto: Duration,
    /// The retransmission time-out until a round-trip time has been measured (RFC 6298 section 2.1: 1 s).
    pub initial_rto: Duration,
    /// An acknowledgement waits at most this long for data to go with or for a second segment (RFC 9293 section
    /// 3.8.6.3: less than 0.5 s). It adapts below that to the peer's rhythm.
    pub max_ack_delay: Duration,
    /// Nagle's algorithm (RFC 9293 section 3.7.4).
    pub nagle: bool,
    /// Holds back a last segment that is less than full until this is off or, with nothing in flight, a retransmission
    /// time-out has passed.
    pub cork: bool,
    /// Bytes that may wait to be sent or acknowledged.
    pub send_buffer: usize,
    /// Bytes that may wait to be sent for the first time, if that is to be less.
    pub unsent_limit: Option<usize>,
    /// Bytes that may wait to be read: the largest window.
    pub receive_buffer: usize,
    /// The largest segment announced and sent; the path's MTU decides if it is less.
    pub max_segment: Option<u16>,
    /// Window scaling (RFC 7323 section 2).
    pub window_scaling: bool,
    /// Timestamps and PAWS (RFC 7323 sections 3 and 5).
    pub timestamps: bool,
    /// Selective acknowledgement (RFC 2018).
    pub sack: bool,
    /// Explicit congestion notification (RFC 3168), requested and granted.
    pub ecn: bool,
    /// The congestion control.
    pub congestion: Algorithm,
    /// The initial window in segments (RFC 6928: 10).
    pub initial_window: u32,
    /// Spread segments over the round-trip time even if the congestion control does not ask for it.
    pub pacing: bool,
    /// Keep-alive (RFC 9293 section 3.8.4), off by default as required there.
    pub keep_alive: Option<KeepAlive>,
    /// How long data may stay unacknowledged before the connection fails (RFC 5482); `None`: until the
    /// retransmissions are used up (about 15 minutes).
    pub user_timeout: Option<Duration>,
    /// SYN retransmissions before a connection attempt fails.
    pub syn_retries: u8,
    /// How long TIME-WAIT lasts (RFC 9293 section 3.6.1: twice the maximum segment lifetime).
    pub time_wait: Duration,
    /// How long a closed connection waits in FIN-WAIT-2 for the peer's FIN.
    pub fin_wait_2: Duration,
    /// How long a closed connection is kept whose peer acknowledges nothing new, though it may answer: its written
    /// bytes are then lost, and a reset is sent. (RFC 9293 section 3.8.3 asks for 100 s of patience with a silent
    /// peer.)
    pub orphan_timeout: Duration,
    /// Probe for a larger path MTU, and for a black hole, by segments of data (RFC 4821).
    pub mtu_probing: bool,
    /// Repeat an unanswered tail-loss probe, after twice as long each time, and probe for an unanswered retransmission.
    /// RFC 8985 section 7.3 forbids a second probe as long as one is out, so this is for peers of the same network
    /// alone, where a time-out costs thousands of round trips.
    pub repeat_tail_probes: bool,
    /// The least MTU in bytes that is accepted from an ICMP message for an IPv4 path (RFC 5927 section 7.2); of IPv6 it
    /// is 1280.
    pub min_path_mtu: u16,
}

impl Options {
    /// For peers anywhere: options that are safe on the Internet.
    pub fn internet() -> Self {
        Self {
            min_rto: Duration::from_millis(200),
            max_rto: Duration::from_secs(120),
            initial_rto: Duration::from_secs(1),
            max_ack_delay: Duration::from_millis(40),
            nagle: false,
            cork: false,
            send_buffer: 4 << 20,
            unsent_limit: None,
            receive_buffer: 4 << 20,
            max_segment: None,
            window_scaling: true,
            timestamps: true,
            sack: true,
            ecn: false,
            congestion: Algorithm::Cubic,
            initial_window: 10,
            pacing: false,
            keep_alive: None,
            user_timeout: None,
            syn_retries: 6,
            time_wait: Duration::from_secs(60),
            fin_wait_2: Duration::from_secs(60),
            orphan_timeout: Duration::from_secs(100),
            mtu_probing: true,
            repeat_tail_probes: false,
            min_path_mtu: path_mtu::MIN_IPV4,
        }
    }

    /// For the hosts of a group, which all run this stack within one data centre: short time-outs, and buffers for 80
    /// us of 100 Gb/s. Larger ones would only stand in queues, and fall out of the caches there. Tail-loss probes
    /// repeat.
    pub fn group() -> Self {
        Self {
            min_rto: Duration::from_millis(1),
            initial_rto: Duration::from_millis(10),
            max_ack_delay: Duration::from_micros(200),
            time_wait: Duration::from_secs(1),
            send_buffer: 1 << 20,
            receive_buffer: 1 << 20,
            repeat_tail_probes: true,
            ..Self::internet()
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::internet()
    }
}

/// When an idle connection's peer is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Silence before the first probe (RFC 9293 section 3.8.4: two hours by default).
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Probes without an answer after which the connection fails.
    pub probes: u8,
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), probes: 9 }
    }
}

/// Limits of an endpoint, over all connections.
#[derive(Clone, Debug)]
pub struct Config {
    /// Connections at once, those in TIME-WAIT not counted.
    pub max_connections: usize,
    /// Connections in TIME-WAIT at once; the oldest goes when there are more.
    pub max_time_wait: usize,
    /// Connections at once that their users have closed and that still hold written bytes; of more, those that have got
    /// nothing through for long are reset. So are they when a writer finds no memory.
    pub max_orphans: usize,
    /// Half-open connections per listener; above, SYN cookies answer (RFC 4987 section 3.6).
    pub max_half_open: usize,
    /// Bytes of received data that all connections together may hold out of order or unread.
    pub max_receive_memory: usize,
    /// Written and unacknowledged bytes that all connections together may hold.
    pub max_send_memory: usize,
    /// Challenge acknowledgements and other answers to unproven segments, per connection and second (RFC 5961 section
    /// 7), and as many answers to keep-alives.
    pub challenge_acks_per_second: u32,
    /// Resets sent to segments without a connection, per second.
    pub resets_per_second: u32,
    /// The key of initial sequence numbers, cookies and timestamps (RFC 6528), from the system's random source.
    pub key: [u8; 32],
    /// The options of connections and listeners that are opened without any.
    pub options: Options,
}

impl Config {
    /// Defaults with a key.
    pub fn new(key: [u8; 32]) -> Self {
        Self {
            max_connections: 1 << 20,
            max_time_wait: 1 << 18,
            max_orphans: 1 << 16,
            max_half_open: 1024,
            max_receive_memory: 1 << 30,
            max_send_memory: 1 << 30,
            challenge_acks_per_second: 100,
            resets_per_second: 1000,
            key,
            options: Options::default(),
        }
    }
}
