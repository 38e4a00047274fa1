//! The handshake of a connection: both the opener and the acceptor prove that they belong to the group.
//!
//! ```text
//!   acceptor --> dialer   challenge   8 magic, 16 nonce
//!   dialer --> acceptor   hello       8 magic, 4 source rank, 4 destination rank, 4 connection, 4 flags, 16 nonce, 32 proof
//!   acceptor --> dialer   welcome     32 proof
//! ```
//!
//! A proof is HMAC-SHA256 under the session's secret over both ranks, the connection, the flags and both nonces, so none can be
//! used again. Flag 1 says that frames carry a CRC. An acceptor with another setting sends a proof of another kind in
//! place of the welcome. Numbers are little endian.

use shouter_reducer::grid::Rank;

use crate::key::Key;

const MAGIC: [u8; 8] = *b"shoutch2";

/// Bytes of a challenge, a hello and a welcome.
pub(super) const CHALLENGE: usize = 24;
pub(super) const HELLO: usize = 72;
pub(super) const WELCOME: usize = 32;

/// Bytes in front of a hello's proof.
const CLAIM: usize = HELLO - WELCOME;

pub(super) type Nonce = [u8; 16];

/// The connection that an opener claims to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// The rank that opens it.
    pub(super) from: Rank,
    /// The rank that accepts it.
    pub(super) to: Rank,
    /// The number of the connection between them.
    pub(super) connection: u32,
    /// Whether frames carry a CRC.
    pub(super) crc: bool,
    /// The opener's nonce.
    pub(super) nonce: Nonce,
}

/// The group's secret, and where this rank's nonces come from.
pub(super) struct Secrets {
    secret: Key,
    salt: Key,
    nonces: u64,
}

/// What the opener's proof is made for; a proof of one purpose is invalid for another.
const OPENER: &str = "shouter channel opener";

/// The acceptor's answer to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The connection is in use from now on.
    Welcome,
    /// It belongs to the group, and has the CRC otherwise.
    CrcDiffers,
}

impl Answer {
    /// What the acceptor's proof of it is made for.
    fn purpose(self) -> &'static str {
        match self {
            Self::Welcome => "shouter channel acceptor",
            Self::CrcDiffers => "shouter channel refuser",
        }
    }
}

impl Claim {
    /// Ranks, connection and flags as they cross the wire.
    fn numbers(&self) -> [[u8; 4]; 4] {
        [self.from.0, self.to.0, self.connection, u32::from(self.crc)].map(u32::to_le_bytes)
    }
}

impl Secrets {
    /// `salt` is fresh from the system's random source.
    pub(super) fn new(secret: Key, salt: Key) -> Self {
        Self { secret, salt, nonces: 0 }
    }

    /// An unpredictable nonce.
    pub(super) fn nonce(&mut self) -> Nonce {
        self.nonces += 1;
        self.salt.tag_prefix("shouter nonce", &[&self.nonces.to_le_bytes()])
    }

    /// The proof of one side.
    fn prove(&self, purpose: &str, challenge: &Nonce, claim: &Claim) -> [u8; 32] {
        self.secret.tag(purpose, &[claim.numbers().as_flattened(), challenge, &claim.nonce])
    }

    /// Whether `proof` is that of one side.
    fn holds(&self, purpose: &str, challenge: &Nonce, claim: &Claim, proof: &[u8]) -> bool {
        self.secret.verify(purpose, &[claim.numbers().as_flattened(), challenge, &claim.nonce], proof)
    }

    /// The opener's answer to a challenge.
    pub(super) fn hello(&self, challenge: &Nonce, claim: &Claim) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        let numbers = claim.numbers();
        let proof = self.prove(OPENER, challenge, claim);
        let fields = MAGIC.iter().chain(numbers.as_flattened()).chain(&claim.nonce).chain(&proof);
        bytes.iter_mut().zip(fields).for_each(|(byte, field)| *byte = *field);
        bytes
    }

    /// The claim of a hello, if its proof holds.
    pub(super) fn check_hello(&self, challenge: &Nonce, bytes: &[u8; HELLO]) -> Option<Claim> {
        let (claim, proof) = bytes.split_at_checked(CLAIM)?;
        let (magic, claim) = claim.split_first_chunk::<8>()?;
        let (from, claim) = claim.split_first_chunk::<4>()?;
        let (to, claim) = claim.split_first_chunk::<4>()?;
        let (connection, claim) = claim.split_first_chunk::<4>()?;
        let (flags, claim) = claim.split_first_chunk::<4>()?;
        let claim = Claim {
            from: Rank(u32::from_le_bytes(*from)),
            to: Rank(u32::from_le_bytes(*to)),
            connection: u32::from_le_bytes(*connection),
            crc: match u32::from_le_bytes(*flags) {
                0 => false,
                1 => true,
                _ => return None,
            },
            nonce: *claim.first_chunk()?,
        };
        (*magic == MAGIC && self.holds(OPENER, challenge, &claim, proof)).then_some(claim)
    }

    /// The acceptor's answer to a valid hello.
    pub(super) fn answer(&self, answer: Answer, challenge: &Nonce, claim: &Claim) -> [u8; WELCOME] {
        self.prove(answer.purpose(), challenge, claim)
    }

    /// The acceptor's answer, if it belongs to the group.
    pub(super) fn check_answer(&self, challenge: &Nonce, claim: &Claim, bytes: &[u8]) -> Option<Answer> {
        let answers = [Answer::Welcome, Answer::CrcDiffers];
        answers.into_iter().find(|answer| self.holds(answer.purpose(), challenge, claim, bytes))
    }
}

/// The acceptor's first message.
pub(super) fn challenge(nonce: &Nonce) -> [u8; CHALLENGE] {
    let mut bytes = [0; CHALLENGE];
    bytes.iter_mut().zip(MAGIC.iter().chain(nonce)).for_each(|(byte, field)| *byte = *field);
    bytes
}

/// The nonce of a challenge, if it is one.
pub(super) fn check_challenge(bytes: &[u8]) -> Option<Nonce> {
    let (magic, nonce) = bytes.split_first_chunk::<8>()?;
    if *magic == MAGIC { nonce.first_chunk().copied() } else { None }
}

#[cfg(test)]
mod tests;
