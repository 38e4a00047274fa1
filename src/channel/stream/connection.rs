//! One connection: the frames that are written to it and read from it.
//!
//! A frame is a head and a payload. The head is 4 bytes with the kind of the frame and the length of its payload, the
//! message header, and 4 bytes of CRC32C over both and over the payload's own CRC32C (zero where the group does
//! without). Numbers are little endian.
//!
//! | bit 31, 30 | what | payload |
//! |---|---|---|
//! | 0, 0 | a message | its fragment, up to 32 KiB |
//! | 1, 0 | a side message; its header is zero | up to 64 KiB |
//! | 0, 1 | a heartbeat or a farewell | none; the header's first byte is 1 for a farewell |

use shouter_netstack::crc::crc32c;
use shouter_netstack::region::Extent;
use shouter_netstack::tcp;
use shouter_netstack::time::Instant;
use shouter_reducer::header::{HEADER_BYTES, Header};
use shouter_reducer::transport::SendToken;

use super::handshake::{Claim, Nonce};
use super::streams::Streams;

/// Bytes in front of a payload.
pub(super) const HEAD: usize = COVERED + 4;

/// Bytes of a head that its CRC covers.
const COVERED: usize = 4 + HEADER_BYTES;

/// Payload bytes of a fragment, at most: two frames fill 64 KiB.
pub(super) const MAX_FRAGMENT: usize = (32 << 10) - 64;

/// Bytes of a side message, at most.
pub const MAX_SIDE: usize = 64 << 10;

/// Payloads up to so many bytes are copied, so that their memory is free at once.
const COPIED: usize = 2 << 10;

/// The bits that distinguish the kinds of frames.
const SIDE: u32 = 1 << 31;
const SIGN: u32 = 1 << 30;

/// A frame as it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    /// Header and payload of a message.
    Message(&'a [u8], &'a [u8]),
    /// A side message.
    Side(&'a [u8]),
    /// The peer's process runs.
    Alive,
    /// The peer closes gracefully: its connections that end from now on are no failure.
    Farewell,
}

/// The head of a message's frame.
#[inline]
pub(super) fn message_head(header: &Header, payload: &[u8], crc: bool) -> [u8; HEAD] {
    head(payload.len() as u32, |bytes| header.encode(bytes), payload, crc)
}

/// The frame of a side message of at most [`MAX_SIDE`] bytes.
pub(super) fn side_frame(bytes: &[u8], crc: bool) -> Vec<u8> {
    let mut frame = head(SIDE | bytes.len() as u32, |_| {}, bytes, crc).to_vec();
    frame.extend_from_slice(bytes);
    frame
}

/// A heartbeat, or a farewell, which announces a graceful close.
pub(super) fn sign(farewell: bool, crc: bool) -> [u8; HEAD] {
    head(SIGN, |[first, ..]| *first = u8::from(farewell), &[], crc)
}

/// A head whose message header `write` fills in.
#[inline]
fn head(what: u32, write: impl FnOnce(&mut [u8; HEADER_BYTES]), payload: &[u8], crc: bool) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    if let Some((first, rest)) = head.split_first_chunk_mut::<4>()
        && let Some((header, _)) = rest.split_first_chunk_mut()
    {
        *first = what.to_le_bytes();
        write(header);
    }
    if crc {
        let sum = sum_of(&mut head, payload).to_le_bytes();
        set_sum(&mut head, sum);
    }
    head
}

/// The CRC of a frame: over the head's bytes in front of it, and over the payload's CRC, which this leaves in its
/// place.
#[inline]
fn sum_of(head: &mut [u8; HEAD], payload: &[u8]) -> u32 {
    set_sum(head, crc32c(payload).to_le_bytes());
    crc32c(head)
}

#[inline]
fn set_sum(head: &mut [u8; HEAD], sum: [u8; 4]) {
    if let Some(place) = head.last_chunk_mut() {
        *place = sum;
    }
}

/// A fragment on its way to a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Post {
    pub(super) head: [u8; HEAD],
    pub(super) payload: Option<Extent>,
    pub(super) token: SendToken,
}

impl Post {
    /// Bytes on the wire.
    pub(super) fn len(&self) -> usize {
        HEAD + self.payload.as_ref().map_or(0, Extent::len)
    }
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionState {
    /// There is none: it is dialled then, or by the peer.
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
pub(super) struct Connection<Id> {
    state: ConnectionState,
    /// There while it is dialled, greeted or up.
    id: Option<Id>,
    frames: Frames,
    /// The part of the handshake received so far.
    greeting: Vec<u8>,
    /// Bytes that found no room yet, from an offset on, then an extent.
    bytes: Vec<u8>,
    written: usize,
    extent: Option<(Extent, tcp::ReleaseToken)>,
}

impl<Id: Copy> Connection<Id> {
    pub(super) fn new(state: ConnectionState) -> Self {
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

    #[inline]
    pub(super) fn state(&self) -> ConnectionState {
        self.state
    }

    #[inline]
    pub(super) fn id(&self) -> Option<Id> {
        self.id
    }

    #[inline]
    pub(super) fn is_up(&self) -> bool {
        self.state == ConnectionState::Up
    }

    /// Whether this side has dialled it, and it is not in use yet.
    pub(super) fn is_being_made(&self) -> bool {
        matches!(self.state, ConnectionState::Dialled | ConnectionState::Greeted(..))
    }

    /// This side has begun to open it.
    pub(super) fn dialled(&mut self, id: Id) {
        (self.id, self.state) = (Some(id), ConnectionState::Dialled);
    }

    /// It could not be opened, and is dialled again at `at`.
    pub(super) fn redial(&mut self, at: Instant) {
        self.state = ConnectionState::Down(Some(at));
    }

    /// The peer has opened it, and is authenticated.
    pub(super) fn accepted(&mut self, id: Id) {
        (self.id, self.state) = (Some(id), ConnectionState::Up);
    }

    /// The hello is sent that answers this challenge with this claim.
    pub(super) fn greeted(&mut self, challenge: Nonce, claim: Claim) {
        self.state = ConnectionState::Greeted(challenge, claim);
    }

    /// The peer has welcomed this side.
    pub(super) fn welcomed(&mut self) {
        self.state = ConnectionState::Up;
    }

    /// The buffer in which the present part of the handshake is put together.
    pub(super) fn greeting(&mut self) -> &mut Vec<u8> {
        &mut self.greeting
    }

    /// Hands on every frame that the next piece of the stream completes.
    pub(super) fn feed(
        &mut self,
        piece: &[u8],
        crc: bool,
        take: impl FnMut(Frame<'_>),
    ) -> Result<(), BadFrame> {
        self.frames.feed(piece, crc, take)
    }

    /// There is no connection any more: forgets everything about it.
    pub(super) fn end(&mut self, state: ConnectionState) -> Option<Id> {
        let id = self.id.take();
        *self = Self::new(state);
        id
    }

    /// Whether something found no room.
    #[inline]
    pub(super) fn is_stuck(&self) -> bool {
        !self.bytes.is_empty() || self.extent.is_some()
    }

    /// Writes the bytes that found no room before; true if nothing is left.
    pub(super) fn flush(&mut self, now: Instant, streams: &mut impl Streams<Id = Id>) -> bool {
        let Some(id) = self.id else { return false };
        while let Some(rest) = self.bytes.get(self.written..).filter(|rest| !rest.is_empty()) {
            match streams.write(now, id, rest) {
                Ok(count) => self.written += count,
                // Whether it failed comes as an event.
                Err(_) => return false,
            }
        }
        self.bytes.clear();
        self.written = 0;
        if let Some((extent, token)) = self.extent {
            if streams.write_extent(now, id, extent, token).is_err() {
                return false;
            }
            self.extent = None;
        }
        true
    }

    /// Writes bytes behind those written before; no extent may be stuck.
    pub(super) fn write(&mut self, now: Instant, streams: &mut impl Streams<Id = Id>, bytes: &[u8]) {
        let taken = match self.id {
            Some(id) if self.bytes.is_empty() => streams.write(now, id, bytes).unwrap_or(0),
            _ => 0,
        };
        self.bytes.extend_from_slice(bytes.get(taken..).unwrap_or_default());
        self.flush(now, streams);
    }

    /// Writes a fragment; nothing may be stuck. Returns its token if it is free already.
    pub(super) fn post(
        &mut self,
        now: Instant,
        streams: &mut impl Streams<Id = Id>,
        post: &Post,
    ) -> Option<SendToken> {
        let Some(payload) = &post.payload else {
            self.write(now, streams, &post.head);
            return Some(post.token);
        };
        if payload.len() > COPIED {
            self.write(now, streams, &post.head);
            self.extent = Some((*payload, tcp::ReleaseToken(post.token.0)));
            self.flush(now, streams);
            return None;
        }
        self.bytes.extend_from_slice(&post.head);
        self.bytes.extend_from_slice(payload.as_bytes());
        self.flush(now, streams);
        Some(post.token)
    }
}

/// The peer's bytes make no frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadFrame {
    /// There are no such frames.
    Nonsense,
    /// The CRC is wrong.
    Corrupted,
}

/// Puts frames together from pieces of the stream.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// The beginning of a frame that lies in several pieces.
    partial: Vec<u8>,
}

impl Frames {
    /// Takes the next piece, and hands on every frame that is complete: from the piece itself where the frame lies in it.
    /// With `crc` every frame's CRC is checked.
    pub(super) fn feed(
        &mut self,
        mut piece: &[u8],
        crc: bool,
        mut take: impl FnMut(Frame<'_>),
    ) -> Result<(), BadFrame> {
        if !self.partial.is_empty() {
            if !self.fill(&mut piece, HEAD) {
                return Ok(());
            }
            let total = HEAD + payload_len(&self.partial)?;
            if !self.fill(&mut piece, total) {
                return Ok(());
            }
            if let Some((head, payload)) = self.partial.split_at_checked(HEAD) {
                take(open(head, payload, crc)?);
            }
            self.partial.clear();
        }
        while let Some((head, rest)) = piece.split_at_checked(HEAD) {
            let Some((payload, rest)) = rest.split_at_checked(payload_len(head)?) else { break };
            take(open(head, payload, crc)?);
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

/// The first word of a head: the kind of the frame, and the length of its payload.
fn what(head: &[u8]) -> u32 {
    head.first_chunk().map_or(0, |what| u32::from_le_bytes(*what))
}

/// The payload's length by the frame's head.
fn payload_len(head: &[u8]) -> Result<usize, BadFrame> {
    let what = what(head);
    let (len, most) = match what & (SIDE | SIGN) {
        0 => (what, MAX_FRAGMENT),
        SIDE => (what & !SIDE, MAX_SIDE),
        SIGN => (what & !SIGN, 0),
        _ => return Err(BadFrame::Nonsense),
    };
    let len = len as usize;
    if len > most { Err(BadFrame::Nonsense) } else { Ok(len) }
}

/// Decodes a whole frame.
#[inline]
fn open<'a>(head: &'a [u8], payload: &'a [u8], crc: bool) -> Result<Frame<'a>, BadFrame> {
    let (covered, sum) = head.split_last_chunk::<4>().ok_or(BadFrame::Nonsense)?;
    if crc {
        let mut copy = *head.first_chunk().ok_or(BadFrame::Nonsense)?;
        if u32::from_le_bytes(*sum) != sum_of(&mut copy, payload) {
            return Err(BadFrame::Corrupted);
        }
    }
    let header = covered.get(4..).unwrap_or_default();
    Ok(match what(head) & (SIDE | SIGN) {
        SIDE => Frame::Side(payload),
        SIGN if header.first() == Some(&1) => Frame::Farewell,
        SIGN => Frame::Alive,
        _ => Frame::Message(header, payload),
    })
}

#[cfg(test)]
mod tests;
