//! The handshake: SYN-SENT and SYN-RECEIVED (RFC 9293 sections 3.5 and 3.10.7.3).

use core::time::Duration;
use std::sync::Arc;

use super::handshake::{Expiry, Handshake};
use super::idle::Idle;
use super::limit::Answers;
use super::socket_pair::SocketPair;
use super::user::User;
use super::{
    Connection, ConnectionState, Context, CookieOptions, Disposition, EndReason, NegotiatedOptions, Open,
    timestamp,
};
use crate::cc::Algorithm;
use crate::tcp::receiver::Receiver;
use crate::tcp::sender::{self, Sender};
use crate::tcp::{Options, Segment, TcpEvent};
use crate::time::Instant;
use crate::wire::tcp::{self, Flags, Header, SeqNumber, Timestamps, UserTimeout};

/// Length of the timestamps option with its padding, on every segment.
const TIMESTAMPS_LEN: u16 = 12;

/// Segments are never smaller than this, even if the peer or the path demand it (RFC 791: every path carries 68 bytes).
const LEAST_MSS: u16 = 48;

/// The largest payload announced to the peer (MSS): that of the path without options.
///
//= RFC 9293 section 3.7.1, MUST-14, MUST-67: the MSS option is sent, and does not count options; section 3.7.3, SHLD-6: it
//= follows from the least MTU of the interface, which here is the only one.
fn own_mss(open_mtu: u16, v6: bool, options: &Options) -> u16 {
    let headers = if v6 { 60 } else { 40 };
    open_mtu.saturating_sub(headers).min(options.max_segment.unwrap_or(u16::MAX)).max(LEAST_MSS)
}

/// Whether a SYN-ACK grants ECN (RFC 3168 section 6.1.1).
fn grants_ecn(flags: Flags) -> bool {
    flags.contains(Flags::ECE) && !flags.contains(Flags::CWR)
}

/// The SYN-ACK for a SYN whose connection is kept in a cookie alone: `iss` is the cookie, `value` the timestamp.
pub(crate) fn cookie_syn_ack(open: &Open, options: &Options, syn: &Header, value: u32) -> Header {
    let peer = &syn.options;
    let timestamps = options.timestamps && peer.timestamps.is_some();
    // Without timestamps there is no place for the other options.
    let offered = |wanted: bool| wanted && timestamps;
    let mut flags = Flags::SYN.with(Flags::ACK);
    if offered(options.ecn) && syn.flags.asks_for_ecn() {
        flags = flags.with(Flags::ECE);
    }
    Header {
        source_port: open.local.port(),
        destination_port: open.remote.port(),
        seq: open.iss,
        ack: syn.seq + 1,
        flags,
        window: Receiver::new(Instant::ZERO, options).syn_window(),
        urgent: 0,
        options: tcp::Options {
            mss: Some(own_mss(open.mtu, open.local.is_ipv6(), options)),
            window_scale: (offered(options.window_scaling) && peer.window_scale.is_some())
                .then(|| Receiver::wanted_shift(options)),
            sack_permitted: offered(options.sack) && peer.sack_permitted,
            timestamps: peer
                .timestamps
                .filter(|_| timestamps)
                .map(|theirs| Timestamps { value, echo: theirs.value }),
            ..tcp::Options::default()
        },
    }
}

impl Connection {
    fn new(now: Instant, open: &Open, options: Arc<Options>, state: ConnectionState) -> Self {
        Self {
            pair: SocketPair::new(open.local, open.remote),
            sender: Sender::new(open.iss, Arc::clone(&options)),
            receiver: Receiver::new(now, &options),
            options,
            state,
            user: User::new(now),
            idle: Idle::new(now),
            answers: Answers::default(),
            timestamp_offset: open.timestamp_offset,
            mtu: open.mtu,
            negotiated: NegotiatedOptions::default(),
        }
    }

    /// ISS, while the handshake goes on.
    pub(super) fn iss(&self) -> SeqNumber {
        self.sender.una() - 1
    }

    /// IRS, as long as nothing but the peer's SYN was taken.
    pub(super) fn irs(&self) -> SeqNumber {
        self.receiver.next() - 1
    }

    /// Active open: SYN-SENT. `transmit` sends the SYN.
    pub(crate) fn connect(now: Instant, open: &Open, options: Arc<Options>) -> Self {
        let handshake = Handshake::new(&options, false, tcp::Options::default());
        Self::new(now, open, options, ConnectionState::SynSent(handshake))
    }

    /// Passive open by this SYN: SYN-RECEIVED. `transmit` sends the SYN-ACK. Anything else in the SYN is not taken and
    /// comes again.
    pub(crate) fn accept(now: Instant, open: &Open, options: Arc<Options>, syn: &Segment<'_>) -> Self {
        let header = &syn.header;
        let handshake = Handshake::new(&options, true, header.options);
        let mut connection = Self::new(now, open, options, ConnectionState::SynReceived(handshake));
        connection.on_peer_syn(now, header, header.flags.asks_for_ecn());
        connection
    }

    /// Passive open by an ACK whose cookie was right: SYN-RECEIVED with the SYN-ACK sent. The ACK goes to
    /// [`Connection::on_segment`] next, which returns [`Disposition::Opened`].
    pub(crate) fn from_cookie(
        now: Instant,
        open: &Open,
        options: Arc<Options>,
        negotiated: &CookieOptions,
        ack: &Segment<'_>,
    ) -> Self {
        let header = &ack.header;
        let peer = tcp::Options {
            mss: Some(negotiated.mss),
            window_scale: negotiated.window_scale,
            sack_permitted: negotiated.sack,
            timestamps: header.options.timestamps.filter(|_| negotiated.timestamps),
            ..tcp::Options::default()
        };
        let handshake = Handshake::from_cookie(now, &options, peer);
        let mut connection = Self::new(now, open, options, ConnectionState::SynReceived(handshake));
        let syn = Header { seq: header.seq - 1, options: peer, ..*header };
        connection.on_peer_syn(now, &syn, negotiated.ecn);
        connection
    }

    /// Takes in the peer's SYN, in any state: it settles the options.
    fn on_peer_syn(&mut self, now: Instant, syn: &Header, ecn: bool) {
        let (own, peer) = (&self.options, &syn.options);
        let scaling = own.window_scaling && peer.window_scale.is_some();
        self.negotiated = NegotiatedOptions {
            //= RFC 7323 section 2.2: scaling works in both directions, or in none.
            peer_shift: peer.window_scale.filter(|_| scaling).unwrap_or(0).min(14),
            own_shift: if scaling { Receiver::wanted_shift(own) } else { 0 },
            scaling,
            timestamps: own.timestamps && peer.timestamps.is_some(),
            sack: own.sack && peer.sack_permitted,
            ecn: own.ecn && ecn,
        };
        let mss = own_mss(self.mtu, self.pair.is_ipv6(), own);
        let value = peer.timestamps.filter(|_| self.negotiated.timestamps).map(|theirs| theirs.value);
        self.receiver.open(now, syn.seq, mss, value);
        let NegotiatedOptions { own_shift, sack, ecn, .. } = self.negotiated;
        self.receiver.establish(own_shift, sack, ecn, own.congestion == Algorithm::Dctcp);
        if let Some(UserTimeout { seconds }) = peer.user_timeout {
            self.idle.on_user_timeout_option(seconds);
        }
    }

    /// The handshake is complete: the peer has acknowledged the SYN.
    pub(super) fn establish(&mut self, now: Instant, header: &Header, cx: &mut Context<'_>) -> Disposition {
        let state =
            if self.user.has_shut() { ConnectionState::FinWait1 } else { ConnectionState::Established };
        let before = core::mem::replace(&mut self.state, state);
        let (ConnectionState::SynSent(handshake) | ConnectionState::SynReceived(handshake)) = before else {
            return Disposition::Keep;
        };
        let v6 = self.pair.is_ipv6();
        let option_len = if self.negotiated.timestamps { TIMESTAMPS_LEN } else { 0 };
        //= RFC 9293 section 3.7.1, MUST-15: without an MSS option, 536 bytes (IPv4) or 1220 (IPv6).
        let theirs = handshake.peer().mss.unwrap_or(if v6 { 1220 } else { 536 });
        //= RFC 9293 section 3.7.1, MUST-16: the least of what the peer takes and the path carries, less the options.
        let mss = theirs.min(own_mss(self.mtu, v6, &self.options));
        let mss = mss.max(LEAST_MSS + option_len) - option_len;
        let negotiated = sender::SenderOptions {
            mss,
            overhead: if v6 { 60 } else { 40 } + option_len,
            sack: self.negotiated.sack,
            ecn: self.negotiated.ecn,
        };
        //= RFC 7323 section 2.2: the window of a SYN is not scaled.
        let syn = header.flags.contains(Flags::SYN);
        let window = u32::from(header.window) << if syn { 0 } else { self.negotiated.peer_shift };
        let resent = handshake.sent() > 1;
        //= RFC 6298 section 3: no round-trip time is taken from a SYN that was sent twice, but by its timestamp.
        let rtt = match handshake.first_sent() {
            Some(at) if !resent => Some(now.saturating_since(at)),
            _ => {
                let stamps = header.options.timestamps.filter(|_| self.negotiated.timestamps);
                stamps.and_then(|stamps| self.round_trip(now, stamps.echo))
            }
        };
        self.sender.establish(now, &negotiated, window, header.seq, rtt, resent);
        self.idle.on_heard(now);
        if handshake.is_passive() {
            return Disposition::Opened;
        }
        if !self.user.has_released() {
            cx.events.push_back(TcpEvent::Connected(cx.id));
        }
        Disposition::Keep
    }

    /// The round-trip time by the echo of a timestamp; `None` below the clock's resolution.
    #[inline]
    pub(super) fn round_trip(&self, now: Instant, echo: u32) -> Option<Duration> {
        let millis = timestamp(now, self.timestamp_offset).wrapping_sub(echo);
        (echo != 0 && (1..3_600_000).contains(&millis)).then(|| Duration::from_millis(u64::from(millis)))
    }

    //= RFC 9293 section 3.10.7.3: a segment in SYN-SENT.
    pub(super) fn on_syn_sent(
        &mut self,
        now: Instant,
        segment: &Segment<'_>,
        cx: &mut Context<'_>,
    ) -> Disposition {
        let header = &segment.header;
        let flags = header.flags;
        //= RFC 9293 section 3.10.7.3, first: an acknowledgement of anything but the SYN is answered by a reset.
        let acked = flags.contains(Flags::ACK);
        if acked && header.ack != self.iss() + 1 {
            if flags.contains(Flags::RST) {
                return Disposition::Keep;
            }
            return Disposition::Answer(self.reset_for_ack(now, header));
        }
        //= RFC 9293 section 3.10.7.3, second: a reset counts if it acknowledges the SYN.
        if flags.contains(Flags::RST) {
            return if acked { self.end(EndReason::Refused, cx) } else { Disposition::Keep };
        }
        if !flags.contains(Flags::SYN) {
            return Disposition::Keep;
        }
        let ConnectionState::SynSent(handshake) = &mut self.state else { return Disposition::Keep };
        handshake.on_answered(header.options);
        if acked {
            // ECN only if this side still requested it (a SYN that is sent again does not).
            let ecn = handshake.sent() == 1 && grants_ecn(flags);
            self.on_peer_syn(now, header, ecn);
            self.receiver.acknowledge_now();
            let _ = self.establish(now, header, cx);
            // Data and FIN behind the SYN are taken as in ESTABLISHED.
            let fin = flags.contains(Flags::FIN);
            if fin || !segment.payload.is_empty() {
                return self.on_text(now, header.seq + 1, segment, fin, cx);
            }
            return Disposition::Keep;
        }
        //= RFC 9293 section 3.10.7.3, fourth; section 3.5, MUST-10: both sides have opened at once.
        let ecn = flags.asks_for_ecn();
        let crossed = handshake.crossed(&self.options, header.options);
        self.state = ConnectionState::SynReceived(crossed);
        self.on_peer_syn(now, header, ecn);
        Disposition::Keep
    }

    /// The SYN or SYN-ACK to send.
    pub(super) fn syn(&self, now: Instant) -> Option<Header> {
        let own = &self.options;
        let value = timestamp(now, self.timestamp_offset);
        let (handshake, received) = match &self.state {
            ConnectionState::SynSent(handshake) => (handshake, false),
            ConnectionState::SynReceived(handshake) => (handshake, true),
            _ => return None,
        };
        let mut flags = if received { Flags::SYN.with(Flags::ACK) } else { Flags::SYN };
        if received && self.negotiated.ecn {
            flags = flags.with(Flags::ECE);
        }
        //= RFC 3168 section 6.1.1.1: a SYN that was not answered is sent again without asking for ECN.
        if !received && own.ecn && handshake.sent() == 0 {
            flags = flags.with(Flags::ECE).with(Flags::CWR);
        }
        //= RFC 9293 section 3.2, RFC 7323 sections 2.2 and 3.2, RFC 2018 section 2: a SYN-ACK answers offers only.
        let offer = |wanted: bool, theirs: bool| if received { theirs } else { wanted };
        Some(Header {
            source_port: self.pair.local_port(),
            destination_port: self.pair.remote_port(),
            seq: self.iss(),
            ack: if received { self.receiver.next() } else { SeqNumber(0) },
            flags,
            window: self.receiver.syn_window(),
            urgent: 0,
            options: tcp::Options {
                //= RFC 9293 section 3.7.1, SHLD-5: in every SYN; section 3.2, MUST-65: in no other segment.
                mss: Some(own_mss(self.mtu, self.pair.is_ipv6(), own)),
                window_scale: offer(own.window_scaling, self.negotiated.scaling)
                    .then(|| Receiver::wanted_shift(own)),
                sack_permitted: offer(own.sack, self.negotiated.sack),
                timestamps: offer(own.timestamps, self.negotiated.timestamps)
                    .then(|| Timestamps { value, echo: self.receiver.ts_recent().unwrap_or(0) }),
                //= RFC 5482 section 3.1: announced if the user chose one.
                user_timeout: own.user_timeout.map(|time| UserTimeout {
                    seconds: u32::try_from(time.as_secs()).unwrap_or(u32::MAX).max(1),
                }),
                ..tcp::Options::default()
            },
        })
    }

    /// The SYN was not answered in time.
    pub(super) fn on_handshake_timer(&mut self, now: Instant, cx: &mut Context<'_>) -> Disposition {
        let (ConnectionState::SynSent(handshake) | ConnectionState::SynReceived(handshake)) = &mut self.state
        else {
            return Disposition::Keep;
        };
        match handshake.on_timer(now, &self.options) {
            Expiry::GiveUp(after) => self.end(self.idle.end_reason(after), cx),
            Expiry::NotYet | Expiry::Again => Disposition::Keep,
        }
    }

    /// Whether the connection was opened by the peer.
    pub(super) fn is_passive_handshake(&self) -> bool {
        matches!(&self.state, ConnectionState::SynReceived(handshake) if handshake.is_passive())
    }
}
