//! The part of a message that only a transmission touches: the head of its datagram, and its payload.

use crate::region::Extent;
use crate::rud::crc::HEAD_ROOM;
use crate::wire::rud::{DatagramKind, HEADER_LEN, MAX_BODY};

/// A message. The upper layer's header is written once, where every transmission is sent from; each puts its own fixed
/// header in front of it.
#[derive(Clone, Copy, Debug)]
pub(in crate::rud) struct Message {
    head: [u8; HEAD_ROOM],
    body_len: u8,
    /// How often the peer has refused it.
    refusals: u8,
    asks_for_ack: bool,
    /// That of a bundle, or of data.
    kind: DatagramKind,
    payload: Option<Extent>,
    /// CRC of the payload, once it was computed.
    payload_crc: Option<u32>,
}

impl Message {
    /// No message.
    pub(super) const NONE: Self = Self {
        head: [0; HEAD_ROOM],
        body_len: 0,
        refusals: 0,
        asks_for_ack: false,
        kind: DatagramKind::Data,
        payload: None,
        payload_crc: None,
    };

    /// Becomes a new message, whose header of `len` bytes `write` puts in its place.
    #[inline]
    pub(super) fn renew(
        &mut self,
        len: u8,
        write: impl FnOnce(&mut [u8; MAX_BODY]),
        payload: Option<Extent>,
    ) {
        if let Some(body) = self.head[HEADER_LEN..].first_chunk_mut() {
            write(body);
        }
        self.body_len = len;
        self.refusals = 0;
        self.asks_for_ack = false;
        self.kind = DatagramKind::Data;
        self.payload = payload;
        self.payload_crc = None;
    }

    /// Bytes of the upper layer's header.
    #[inline]
    pub(in crate::rud) fn body_len(&self) -> u8 {
        self.body_len
    }

    /// The head, with the upper layer's header in it.
    #[inline]
    pub(in crate::rud) fn head_mut(&mut self) -> &mut [u8; HEAD_ROOM] {
        &mut self.head
    }

    /// The payload and its CRC, which is computed the first time; 0 if the datagram `has_seal`, and so no CRC.
    #[inline]
    pub(in crate::rud) fn payload(&mut self, has_seal: bool) -> (Option<Extent>, u32) {
        let payload = self.payload;
        let summed = || payload.filter(|_| !has_seal);
        let compute = || summed().map_or(0, |extent| crate::crc::crc32c(extent.as_bytes()));
        (payload, *self.payload_crc.get_or_insert_with(compute))
    }

    /// Whether it is data, or several messages.
    #[inline]
    pub(in crate::rud) fn kind(&self) -> DatagramKind {
        self.kind
    }

    /// Whether the peer has never refused it.
    #[inline]
    pub(super) fn is_new(&self) -> bool {
        self.refusals == 0
    }

    /// The upper layer's header.
    pub(super) fn header(&self) -> &[u8] {
        self.head.get(HEADER_LEN..HEADER_LEN + usize::from(self.body_len)).unwrap_or_default()
    }

    /// The payload.
    pub(super) fn extent(&self) -> Option<Extent> {
        self.payload
    }

    /// It is a bundle from now on, which has its header in this payload, too.
    #[inline]
    pub(super) fn become_bundle(&mut self, payload: Option<Extent>) {
        (self.kind, self.body_len) = (DatagramKind::Bundle, 0);
        (self.payload, self.payload_crc) = (payload, None);
    }

    /// From now on it is sent without payload.
    pub(super) fn forget_payload(&mut self) {
        self.payload = None;
        self.payload_crc = None;
    }

    /// Whether its sender waits for the acknowledgement.
    #[inline]
    pub(in crate::rud) fn asks_for_ack(&self) -> bool {
        self.asks_for_ack
    }

    /// Its sender waits for the acknowledgement.
    #[inline]
    pub(super) fn ask_for_ack(&mut self) {
        self.asks_for_ack = true;
    }

    /// The peer has refused it once more: how often it had before.
    pub(super) fn on_refused(&mut self) -> u8 {
        let before = self.refusals;
        self.refusals = before.saturating_add(1);
        before
    }
}
