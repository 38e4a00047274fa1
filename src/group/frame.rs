//! Messages after the handshake: each with its length and its proof.
//!
//! ```text
//!   0        4             36
//!   | length | HMAC-SHA256 | message ... |
//! ```
//!
//! The HMAC covers the message's number in its direction and its bytes, under a key of that direction and of this connection
//! alone, so that a message cannot be changed, moved, repeated, left out or sent back.

use super::message::Message;
use crate::key::{Key, TAG_LEN};
use crate::wire;

/// The bytes in front of a message.
pub(super) const HEADER_LEN: usize = 4 + TAG_LEN;

/// Why bytes are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameError {
    /// Longer than is allowed at this point.
    TooLong,
    /// Not authentic.
    Forged,
    /// Authentic, and without meaning.
    Malformed,
}

/// Seals and opens the messages of one connection.
pub(super) struct Framer {
    send: Key,
    receive: Key,
    sent: u64,
    received: u64,
}

impl Framer {
    pub(super) fn new(send: Key, receive: Key) -> Self {
        Self { send, receive, sent: 0, received: 0 }
    }

    /// An encoded message ready to be written; it has less than 4 GiB, for callers keep to
    /// [`MAX_MESSAGE`](super::message::MAX_MESSAGE).
    pub(super) fn seal(&mut self, message: &[u8]) -> Vec<u8> {
        let tag = self.send.tag("frame", &[&self.sent.to_be_bytes(), message]);
        self.sent += 1;
        let mut bytes = Vec::with_capacity(HEADER_LEN + message.len());
        bytes.extend(u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
        bytes.extend(tag);
        bytes.extend_from_slice(message);
        bytes
    }

    /// Takes the first message from the front of `inbox`; `None` when it is not all there. The length is accepted only
    /// as far as `limit`, and nothing is decoded before the HMAC holds.
    pub(super) fn open(&mut self, inbox: &mut Vec<u8>, limit: usize) -> Result<Option<Message>, FrameError> {
        let Some((header, rest)) = inbox.split_at_checked(HEADER_LEN) else { return Ok(None) };
        let (len, tag) = header.split_at(4);
        let len = len.iter().fold(0, |len, byte| len << 8 | usize::from(*byte));
        if len > limit {
            return Err(FrameError::TooLong);
        }
        let Some(bytes) = rest.get(..len) else { return Ok(None) };
        if !self.receive.verify("frame", &[&self.received.to_be_bytes(), bytes], tag) {
            return Err(FrameError::Forged);
        }
        let message = wire::decode(bytes).map_err(|_| FrameError::Malformed)?;
        self.received += 1;
        inbox.drain(..HEADER_LEN + len);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests;
