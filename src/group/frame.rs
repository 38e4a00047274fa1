//! Messages after the handshake: each with its kind, its length and its proof.
//!
//! ```text
//!   0        4      5                     37
//!   | length | kind | HMAC-SHA256         | payload ... |
//! ```
//!
//! The HMAC covers the message's number in its direction, its kind and its payload, under a key of that direction and of
//! this connection alone, so that a message cannot be changed, moved, repeated, left out or sent back.

use crate::key::{Key, TAG_LEN};

/// The bytes in front of a payload.
pub(super) const HEADER_LEN: usize = 4 + 1 + TAG_LEN;

/// The largest payload after the join, in bytes.
pub(super) const MAX_PAYLOAD: usize = 256 * 1024 * 1024;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A rank says who it is.
    Hello = 1,
    /// Rank 0 says who is still missing.
    Waiting = 2,
    /// Rank 0 says who the members are.
    Roster = 3,
    /// Rank 0 says why not.
    Refused = 4,
    /// A rank's part in an exchange.
    Part = 5,
    /// All parts of an exchange.
    Parts = 6,
    /// Why an exchange failed.
    Failed = 7,
    /// The process of a rank has ended.
    Lost = 8,
    /// A rank goes; that its connection closes next means nothing.
    Leave = 9,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        let all = [
            Self::Hello,
            Self::Waiting,
            Self::Roster,
            Self::Refused,
            Self::Part,
            Self::Parts,
            Self::Failed,
            Self::Lost,
            Self::Leave,
        ];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Why bytes are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameError {
    /// Longer than is allowed at this point.
    TooLong,
    /// Not authentic.
    Forged,
    /// Authentic, and of no known kind.
    UnknownKind,
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

    /// A message ready to be written. Payloads are below 4 GiB; the callers hold them below [`MAX_PAYLOAD`].
    pub(super) fn seal(&mut self, kind: Kind, payload: &[u8]) -> Vec<u8> {
        let tag = self.send.tag("frame", &[&self.sent.to_be_bytes(), &[kind as u8], payload]);
        self.sent += 1;
        let mut bytes = Vec::with_capacity(HEADER_LEN + payload.len());
        bytes.extend(u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes());
        bytes.push(kind as u8);
        bytes.extend(tag);
        bytes.extend_from_slice(payload);
        bytes
    }

    /// Takes the first message from the front of `inbox`; `None` when it is not all there. The length is believed only as
    /// far as `limit`, and nothing is returned before the HMAC holds.
    pub(super) fn open(
        &mut self,
        inbox: &mut Vec<u8>,
        limit: usize,
    ) -> Result<Option<(Kind, Vec<u8>)>, FrameError> {
        let Some((header, rest)) = inbox.split_at_checked(HEADER_LEN) else { return Ok(None) };
        let len = u32::from_be_bytes([header[0], header[1], header[2], header[3]]) as usize;
        if len > limit {
            return Err(FrameError::TooLong);
        }
        let Some(payload) = rest.get(..len) else { return Ok(None) };
        if !self.receive.verify("frame", &[&self.received.to_be_bytes(), &[header[4]], payload], &header[5..])
        {
            return Err(FrameError::Forged);
        }
        let kind = Kind::from_byte(header[4]).ok_or(FrameError::UnknownKind)?;
        let payload = payload.to_vec();
        self.received += 1;
        inbox.drain(..HEADER_LEN + len);
        Ok(Some((kind, payload)))
    }
}

#[cfg(test)]
mod tests;
