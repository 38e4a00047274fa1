//! Values that must not be guessed from outside: initial sequence numbers, timestamp offsets, ports, cookies, hash
//! values. All come from one key through SipHash, a keyed function made for short inputs.

use core::net::{IpAddr, SocketAddr};

use siphasher::sip::{SipHasher13, SipHasher24};

use crate::time::Instant;
use crate::wire::ip::octets;
use crate::wire::tcp::SeqNumber;

/// The purpose of a value, so that no value reveals anything about another.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Purpose {
    Sequence = 1,
    Timestamp = 2,
    PortOffset = 3,
    PortCounter = 4,
    Cookie = 5,
    CookieMask = 6,
    Seed = 7,
}

/// The endpoint's key, ready for use.
pub(super) struct Secret {
    /// For the hash table: quick, and only collisions are at stake.
    quick: SipHasher13,
    strong: SipHasher24,
}

impl Secret {
    pub(super) fn new(key: &[u8; 32]) -> Self {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| key[8 * at + i]));
        Self {
            quick: SipHasher13::new_with_keys(word(0), word(1)),
            strong: SipHasher24::new_with_keys(word(2), word(3)),
        }
    }

    /// The hash of a pair of addresses, for the table.
    #[inline]
    pub(super) fn hash(&self, local: &SocketAddr, remote: &SocketAddr) -> u64 {
        match (local.ip(), remote.ip()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let mut bytes = [0; 12];
                bytes[..4].copy_from_slice(&a.octets());
                bytes[4..8].copy_from_slice(&b.octets());
                bytes[8..10].copy_from_slice(&local.port().to_be_bytes());
                bytes[10..].copy_from_slice(&remote.port().to_be_bytes());
                self.quick.hash(&bytes)
            }
            _ => {
                let mut bytes = [0; 36];
                bytes[..16].copy_from_slice(&octets(local.ip()));
                bytes[16..32].copy_from_slice(&octets(remote.ip()));
                bytes[32..34].copy_from_slice(&local.port().to_be_bytes());
                bytes[34..].copy_from_slice(&remote.port().to_be_bytes());
                self.quick.hash(&bytes)
            }
        }
    }

    /// A value that only the key's holder can work out, from a pair of addresses and `more`.
    pub(super) fn value(&self, purpose: Purpose, local: &SocketAddr, remote: &SocketAddr, more: u64) -> u64 {
        let mut bytes = [0; 45];
        bytes[0] = purpose as u8;
        bytes[1..17].copy_from_slice(&octets(local.ip()));
        bytes[17..33].copy_from_slice(&octets(remote.ip()));
        bytes[33..35].copy_from_slice(&local.port().to_be_bytes());
        bytes[35..37].copy_from_slice(&remote.port().to_be_bytes());
        bytes[37..].copy_from_slice(&more.to_be_bytes());
        self.strong.hash(&bytes)
    }

    /// A start value that must not be predictable.
    pub(super) fn seed(&self, number: u64) -> u64 {
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        self.value(Purpose::Seed, &any, &any, number)
    }

    /// The initial sequence number of a connection opened now.
    pub(super) fn sequence(&self, now: Instant, local: &SocketAddr, remote: &SocketAddr) -> SeqNumber {
        //= RFC 9293 section 3.4.1, MUST-8: a clock that ticks every 4 us; SHLD-1: ISN = M + F(addresses and ports, secret
        //= key); MUST-9: F is SipHash with a secret key.
        let clock = now.as_nanos() / 4000;
        SeqNumber((clock as u32).wrapping_add(self.value(Purpose::Sequence, local, remote, 0) as u32))
    }

    /// The offset of the clock in the timestamps between two addresses. It is the same for all connections of a pair of
    /// addresses and ports, so that timestamps go on rising from one to the next.
    pub(super) fn timestamp_offset(&self, local: &SocketAddr, remote: &SocketAddr) -> u32 {
        //= RFC 7323 section 5.4: a random offset per connection hides the clock; RFC 6191 asks that a new connection's
        // timestamps be later than those of its predecessor in TIME-WAIT.
        self.value(Purpose::Timestamp, local, remote, 0) as u32
    }
}
