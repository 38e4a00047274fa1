//! The state of a handshake: the SYN or SYN-ACK, how often it was sent, and the peer's options.

use core::time::Duration;

use crate::tcp::Options;
use crate::time::Instant;
use crate::wire::tcp;

/// A SYN, or SYN-ACK, that is sent until it is answered: one is due, or the last one has a deadline, or both if a
/// repeat of the peer requires another before that.
#[derive(Debug, Default)]
pub(super) struct Handshake {
    /// When it is sent again; `None` until it was sent.
    deadline: Option<Instant>,
    rto: Duration,
    /// When the first was sent.
    first_sent: Option<Instant>,
    /// How many were sent.
    sent: u8,
    /// One should leave now.
    due: bool,
    passive: bool,
    /// The options of the peer's SYN.
    peer: tcp::Options,
}

/// The result of the handshake's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    /// It has not run out.
    NotYet,
    /// Another SYN is to be sent.
    Again,
    /// The retries are used up, after so long.
    GiveUp(Duration),
}

impl Handshake {
    /// A SYN, or with `passive` a SYN-ACK, is to be sent; `peer` has the options of the peer's SYN, if it came.
    pub(super) fn new(options: &Options, passive: bool, peer: tcp::Options) -> Box<Self> {
        Box::new(Self { rto: options.initial_rto, due: true, passive, peer, ..Self::default() })
    }

    /// A SYN-ACK has left before, with a cookie in place of this.
    pub(super) fn from_cookie(now: Instant, options: &Options, peer: tcp::Options) -> Box<Self> {
        let mut handshake = Self::new(options, true, peer);
        handshake.due = false;
        handshake.sent = 1;
        handshake.deadline = Some(now + handshake.rto);
        handshake
    }

    /// The peer has sent a SYN, too, which offered `peer`: a SYN-ACK is to be sent.
    pub(super) fn crossed(&self, options: &Options, peer: tcp::Options) -> Box<Self> {
        let mut handshake = Self::new(options, false, peer);
        handshake.first_sent = self.first_sent;
        handshake.sent = self.sent;
        handshake
    }

    /// The peer's SYN-ACK has come.
    pub(super) fn on_answered(&mut self, peer: tcp::Options) {
        self.peer = peer;
    }

    /// When the timer runs out.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether one should leave now.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// How many left.
    pub(super) fn sent(&self) -> u8 {
        self.sent
    }

    /// When the first left; `None` if a cookie did.
    pub(super) fn first_sent(&self) -> Option<Instant> {
        self.first_sent
    }

    /// Whether the peer has opened the connection.
    pub(super) fn is_passive(&self) -> bool {
        self.passive
    }

    /// The options of the peer's SYN.
    pub(super) fn peer(&self) -> &tcp::Options {
        &self.peer
    }

    /// It left.
    pub(super) fn on_sent(&mut self, now: Instant) {
        self.first_sent.get_or_insert(now);
        self.sent = self.sent.saturating_add(1);
        self.due = false;
        self.deadline = Some(now + self.rto);
    }

    /// The peer's SYN has come again: it has not seen the SYN-ACK.
    pub(super) fn on_repeated_syn(&mut self) {
        self.due = true;
    }

    /// The peer repeats an unacceptable segment: it has not got this side's SYN, unless that is on its way.
    pub(super) fn on_unacceptable(&mut self) {
        self.due |= self.deadline.is_none();
    }

    //= RFC 9293 section 3.8.3, MUST-22, MUST-23: a SYN is sent again for a while, and may be given up.
    /// Time has passed.
    pub(super) fn on_timer(&mut self, now: Instant, options: &Options) -> Expiry {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return Expiry::NotYet;
        }
        self.deadline = None;
        if self.sent > options.syn_retries {
            return Expiry::GiveUp(now.saturating_since(self.first_sent.unwrap_or(now)));
        }
        self.rto = self.rto.saturating_mul(2).min(options.max_rto);
        self.due = true;
        Expiry::Again
    }
}
