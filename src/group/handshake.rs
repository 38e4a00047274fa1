//! Two processes prove to each other that they hold the job's key.
//!
//! ```text
//!   connector                                    rank 0
//!   opening: magic, version, nonce        -->
//!                                         <--    opening: magic, version, nonce
//!   job tag, proof                        -->
//!                                         <--    verdict, proof
//! ```
//!
//! A proof is the HMAC of both openings (and the job tag) under the key, with a purpose that distinguishes the two
//! directions, so neither end can be made to answer its own challenge. The nonces are fresh, so nothing can be replayed. All
//! lengths are fixed: until its proof holds, a peer occupies 80 bytes of ours, and nothing that it sends is parsed
//! further than its magic. Every later version keeps this exchange, so that two versions can report their difference.
//!
//! No I/O here: bytes come in, bytes go out.

use super::frame::Framer;
use crate::key::{Key, TAG_LEN};

const CONNECTOR_MAGIC: [u8; 8] = *b"SHOUTER\x01";
const LISTENER_MAGIC: [u8; 8] = *b"SHOUTER\x02";

/// The version of the protocol after the handshake.
pub(super) const VERSION: u32 = 6;

/// Magic, version, nonce.
pub(super) const OPENING_LEN: usize = 8 + 4 + TAG_LEN;
/// Job tag, proof.
pub(super) const PROOF_LEN: usize = 2 * TAG_LEN;
/// Verdict, proof.
pub(super) const VERDICT_LEN: usize = 1 + TAG_LEN;

const ACCEPTED: u8 = 0;
const REFUSED: u8 = 1;

/// The purpose of a job tag.
const JOB_TAG: &str = "shouter job v1";

type Opening = [u8; OPENING_LEN];

fn opening(magic: [u8; 8], version: u32, nonce: &[u8; TAG_LEN]) -> Opening {
    let mut bytes = [0; OPENING_LEN];
    bytes[..8].copy_from_slice(&magic);
    bytes[8..12].copy_from_slice(&version.to_be_bytes());
    bytes[12..].copy_from_slice(nonce);
    bytes
}

fn version_of(opening: &Opening) -> u32 {
    u32::from_be_bytes([opening[8], opening[9], opening[10], opening[11]])
}

/// The tag by which two ranks find out that they serve the same job.
fn job_tag(key: &Key, job: &str) -> [u8; TAG_LEN] {
    key.tag(JOB_TAG, &[job.as_bytes()])
}

/// Why a peer is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandshakeError {
    /// It does not speak this protocol.
    OtherProtocol,
    /// It does not hold the key.
    WrongKey,
}

/// Rank 0's findings about a peer in a handshake.
pub(super) struct Peer {
    pub(super) framer: Framer,
    pub(super) version: u32,
    pub(super) same_job: bool,
}

/// Rank 0's side.
pub(super) struct Acceptor {
    version: u32,
    nonce: [u8; TAG_LEN],
    openings: Option<(Opening, Opening)>,
}

/// The next step of rank 0.
pub(super) enum Answer {
    /// Send this and wait for more.
    Send(Opening),
    /// Send this; the peer has proved itself.
    Welcome([u8; VERDICT_LEN], Peer),
    /// Send this and close.
    Refuse([u8; VERDICT_LEN]),
}

impl Acceptor {
    pub(super) fn new(version: u32, nonce: [u8; TAG_LEN]) -> Self {
        Self { version, nonce, openings: None }
    }

    /// The number of bytes that the next step takes.
    pub(super) fn wanted(&self) -> usize {
        if self.openings.is_none() { OPENING_LEN } else { PROOF_LEN }
    }

    /// Whether the bytes that have come so far can become the next step.
    pub(super) fn plausible(&self, so_far: &[u8]) -> bool {
        self.openings.is_some() || so_far.iter().zip(CONNECTOR_MAGIC).all(|(a, b)| *a == b)
    }

    /// Takes the next step on exactly [`wanted`](Self::wanted) bytes.
    pub(super) fn step(&mut self, key: &Key, job: &str, bytes: &[u8]) -> Result<Answer, HandshakeError> {
        let Some((theirs, ours)) = &self.openings else {
            let theirs: Opening = bytes.try_into().map_err(|_| HandshakeError::OtherProtocol)?;
            if theirs[..8] != CONNECTOR_MAGIC {
                return Err(HandshakeError::OtherProtocol);
            }
            let ours = opening(LISTENER_MAGIC, self.version, &self.nonce);
            self.openings = Some((theirs, ours));
            return Ok(Answer::Send(ours));
        };
        let (tag, proof) = bytes.split_at_checked(TAG_LEN).ok_or(HandshakeError::OtherProtocol)?;
        if !key.verify("shouter connector v1", &[theirs, ours, tag], proof) {
            let mut verdict = [0; VERDICT_LEN];
            verdict[0] = REFUSED;
            return Ok(Answer::Refuse(verdict));
        }
        let mut verdict = [ACCEPTED; VERDICT_LEN];
        verdict[1..].copy_from_slice(&key.tag("shouter listener v1", &[theirs, ours, tag]));
        let framer = Framer::new(
            key.derive("shouter frames down v1", &[theirs, ours, tag]),
            key.derive("shouter frames up v1", &[theirs, ours, tag]),
        );
        let same_job = key.verify(JOB_TAG, &[job.as_bytes()], tag);
        Ok(Answer::Welcome(verdict, Peer { framer, version: version_of(theirs), same_job }))
    }
}

/// The side of every other rank.
pub(super) struct Connector {
    ours: Opening,
    state: Option<(Opening, [u8; TAG_LEN])>,
}

impl Connector {
    pub(super) fn new(version: u32, nonce: [u8; TAG_LEN]) -> Self {
        Self { ours: opening(CONNECTOR_MAGIC, version, &nonce), state: None }
    }

    /// The first message.
    pub(super) fn opening(&self) -> &Opening {
        &self.ours
    }

    /// Whether the first eight bytes of an answer are rank 0's.
    pub(super) fn plausible(answer: &[u8]) -> bool {
        answer == LISTENER_MAGIC
    }

    /// Takes rank 0's opening and returns the proof to send.
    pub(super) fn prove(
        &mut self,
        key: &Key,
        job: &str,
        theirs: &Opening,
    ) -> Result<[u8; PROOF_LEN], HandshakeError> {
        if theirs[..8] != LISTENER_MAGIC {
            return Err(HandshakeError::OtherProtocol);
        }
        let tag = job_tag(key, job);
        self.state = Some((*theirs, tag));
        let mut bytes = [0; PROOF_LEN];
        bytes[..TAG_LEN].copy_from_slice(&tag);
        bytes[TAG_LEN..].copy_from_slice(&key.tag("shouter connector v1", &[&self.ours, theirs, &tag]));
        Ok(bytes)
    }

    /// Takes the verdict, and returns rank 0's version as well.
    pub(super) fn conclude(
        self,
        key: &Key,
        verdict: &[u8; VERDICT_LEN],
    ) -> Result<(Framer, u32), HandshakeError> {
        let Some((theirs, tag)) = self.state else { return Err(HandshakeError::OtherProtocol) };
        let parts: [&[u8]; 3] = [&self.ours, &theirs, &tag];
        if verdict[0] != ACCEPTED || !key.verify("shouter listener v1", &parts, &verdict[1..]) {
            return Err(HandshakeError::WrongKey);
        }
        let framer = Framer::new(
            key.derive("shouter frames up v1", &parts),
            key.derive("shouter frames down v1", &parts),
        );
        Ok((framer, version_of(&theirs)))
    }
}

#[cfg(test)]
mod tests;
