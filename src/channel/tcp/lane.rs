//! One connection: what is written to it, and the frames that are read from it.
//!
//! A frame is 4 bytes of length (of the payload, little endian), the message header, the payload.

use shouter_netstack::region::Extent;
use shouter_netstack::tcp::{self, ConnectionId, Endpoint};
use shouter_netstack::time::Instant;
use shouter_reducer::header::HEADER_BYTES;
use shouter_reducer::transport::Token;

use super::entrance::{Claim, Nonce};

/// Bytes in front of a payload.
pub(super) const HEAD: usize = 4 + HEADER_BYTES;

/// Payload bytes of a frame, at most: two frames fill 64 KiB.
pub(super) const MAX_FRAGMENT: usize = (32 << 10) - 64;

/// Payloads up to so many bytes are copied, so that their memory is free at once.
const COPIED: usize = 2 << 10;

/// A fragment on its way to a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Post {
    pub(super) head: [u8; HEAD],
    pub(super) payload: Option<Extent>,
    pub(super) token: Token,
}

impl Post {
    /// Bytes on the wire.
    pub(super) fn len(&self) -> usize {
        HEAD + self.payload.as_ref().map_or(0, Extent::len)
    }
}

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// There is none: it is dialled then, or the peer will.
    Down(Option<Instant>),
    /// Opened by this side, not yet challenged.
    Dialled,
    /// The hello is sent, the welcome not yet here.
    Greeted(Nonce, Claim),
    /// In use.
    Up,
    /// Not to be used any more.
    Over,
}

/// One connection to a peer.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) state: State,
    pub(super) id: Option<ConnectionId>,
    pub(super) frames: Frames,
    /// What has come of the handshake.
    pub(super) greeting: Vec<u8>,
    /// What found no room yet: bytes from an offset on, then an extent.
    bytes: Vec<u8>,
    written: usize,
    extent: Option<(Extent, tcp::Token)>,
}

impl Lane {
    pub(super) fn new(state: State) -> Self {
        Self {
            state,
            id: None,
            frames: Frames::default(),
            greeting: vec![],
            bytes: vec![],
            written: 0,
            extent: None,
        }
    }

    /// There is no connection any more: forgets everything about it.
    pub(super) fn end(&mut self, state: State) -> Option<ConnectionId> {
        let id = self.id.take();
        *self = Self::new(state);
        id
    }

    /// Whether something found no room.
    #[inline]
    pub(super) fn is_stuck(&self) -> bool {
        !self.bytes.is_empty() || self.extent.is_some()
    }

    /// Writes what found no room before; true if nothing is left.
    pub(super) fn flush(&mut self, now: Instant, tcp: &mut Endpoint) -> bool {
        let Some(id) = self.id else { return false };
        while let Some(rest) = self.bytes.get(self.written..).filter(|rest| !rest.is_empty()) {
            match tcp.write(now, id, rest) {
                Ok(count) => self.written += count,
                // Whether it failed comes as an event.
                Err(_) => return false,
            }
        }
        self.bytes.clear();
        self.written = 0;
        if let Some((extent, token)) = self.extent {
            if tcp.write_extent(now, id, extent, token).is_err() {
                return false;
            }
            self.extent = None;
        }
        true
    }

    /// Writes bytes behind what was written.
    pub(super) fn write(&mut self, now: Instant, tcp: &mut Endpoint, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.flush(now, tcp);
    }

    /// Writes a fragment; nothing may be stuck. Returns its token if it is free already.
    pub(super) fn post(&mut self, now: Instant, tcp: &mut Endpoint, post: &Post) -> Option<Token> {
        self.bytes.extend_from_slice(&post.head);
        let payload = match &post.payload {
            Some(payload) if payload.len() > COPIED => {
                self.extent = Some((*payload, tcp::Token(post.token.0)));
                None
            }
            Some(payload) => {
                self.bytes.extend_from_slice(payload.as_bytes());
                Some(post.token)
            }
            None => Some(post.token),
        };
        self.flush(now, tcp);
        payload
    }
}

/// The peer's bytes make no frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// Puts frames together from pieces of the stream.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// The beginning of a frame that lies in several pieces.
    partial: Vec<u8>,
}

impl Frames {
    /// Takes the next piece, and hands on header and payload of every frame that is complete: from the piece itself
    /// where the frame lies in it.
    pub(super) fn feed(
        &mut self,
        mut piece: &[u8],
        mut take: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), TooLong> {
        if !self.partial.is_empty() {
            if !self.fill(&mut piece, HEAD) {
                return Ok(());
            }
            let total = HEAD + payload_len(&self.partial)?;
            if !self.fill(&mut piece, total) {
                return Ok(());
            }
            if let Some((head, payload)) = self.partial.split_at_checked(HEAD) {
                take(head.get(4..).unwrap_or_default(), payload);
            }
            self.partial.clear();
        }
        while let Some((head, rest)) = piece.split_at_checked(HEAD) {
            let Some((payload, rest)) = rest.split_at_checked(payload_len(head)?) else { break };
            take(head.get(4..).unwrap_or_default(), payload);
            piece = rest;
        }
        self.partial.extend_from_slice(piece);
        Ok(())
    }

    /// Moves bytes of the piece to `partial`, until that has `total`; false if it has not.
    fn fill(&mut self, piece: &mut &[u8], total: usize) -> bool {
        let missing = total.saturating_sub(self.partial.len()).min(piece.len());
        let (head, rest) = piece.split_at_checked(missing).unwrap_or((piece, &[]));
        self.partial.extend_from_slice(head);
        *piece = rest;
        self.partial.len() >= total
    }
}

/// The payload's length by the frame's head.
fn payload_len(head: &[u8]) -> Result<usize, TooLong> {
    let len = head.first_chunk().map_or(0, |len| u32::from_le_bytes(*len)) as usize;
    if len > MAX_FRAGMENT { Err(TooLong) } else { Ok(len) }
}

#[cfg(test)]
mod tests;
