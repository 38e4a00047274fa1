//! Receive-side scaling as NICs compute it: the shard that a flow belongs to.
//!
//! A NIC with several receive queues hashes each packet's addresses and ports with the Toeplitz function under a
//! 40-byte key, looks the hash's low bits up in an indirection table, and so finds the queue. With key and table a
//! shard can compute beforehand where the reply to a packet will arrive, and choose a source port that leads it back to
//! itself; and a device without such hardware can be steered by the same function in software.

use core::net::{IpAddr, SocketAddr};

#[cfg(test)]
mod tests;

/// Bytes of a key: enough for the addresses and ports of IPv6.
pub const KEY_LEN: usize = 40;

/// A key of which every 16 bits are the same: both directions of a flow have one hash (Woo and Park, "Scalable TCP
/// Session Monitoring with Symmetric Receive-side Scaling", 2012).
pub const SYMMETRIC_KEY: [u8; KEY_LEN] = {
    let mut key = [0x6d; KEY_LEN];
    let mut at = 1;
    while at < KEY_LEN {
        key[at] = 0x5a;
        at += 2;
    }
    key
};

/// Bytes of input: two IPv6 addresses and two ports.
const INPUT_LEN: usize = 36;

/// The Toeplitz hash under one key, a table look-up per byte of input.
#[derive(Clone)]
pub struct Toeplitz {
    key: [u8; KEY_LEN],
    tables: Box<[[u32; 256]; INPUT_LEN]>,
}

impl core::fmt::Debug for Toeplitz {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Toeplitz({:02x?})", self.key)
    }
}

impl Toeplitz {
    /// The hash under `key`.
    pub fn new(key: &[u8; KEY_LEN]) -> Self {
        let mut tables = Box::new([[0; 256]; INPUT_LEN]);
        for (position, table) in tables.iter_mut().enumerate() {
            // The 40 bits of the key over which this byte's bits slide.
            let window =
                key[position..].iter().chain([&0; 5]).take(5).fold(0u64, |w, b| w << 8 | u64::from(*b));
            for (value, entry) in table.iter_mut().enumerate() {
                *entry = (0..8)
                    .filter(|bit| value & (0x80 >> bit) != 0)
                    .fold(0, |hash, bit| hash ^ (window >> (8 - bit)) as u32);
            }
        }
        Self { key: *key, tables }
    }

    /// The hash of a packet from `source` to `destination`, ports included; zero if one is IPv4 and the other IPv6.
    pub fn hash(&self, source: SocketAddr, destination: SocketAddr) -> u32 {
        let ports = u32::from(source.port()) << 16 | u32::from(destination.port());
        match (source.ip(), destination.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let words = u64::from(from.to_bits()) << 32 | u64::from(to.to_bits());
                self.over([words.to_be_bytes().as_slice(), &ports.to_be_bytes()])
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let mut addresses = [0; 32];
                addresses[..16].copy_from_slice(&from.octets());
                addresses[16..].copy_from_slice(&to.octets());
                self.over([addresses.as_slice(), &ports.to_be_bytes()])
            }
            _ => 0,
        }
    }

    fn over(&self, parts: [&[u8]; 2]) -> u32 {
        parts
            .into_iter()
            .flatten()
            .zip(self.tables.iter())
            .fold(0, |hash, (byte, table)| hash ^ table[usize::from(*byte)])
    }
}

/// Entries of the table: the fewest that a NIC with one has. A longer one repeats them, so that all NICs, and both ends of a flow, agree.
const ENTRIES: usize = 64;

/// The hash and the table behind it: from a packet to a queue, and so to a shard.
#[derive(Clone, Debug)]
pub struct Rss {
    toeplitz: Toeplitz,
    table: [u16; ENTRIES],
}

impl Rss {
    /// `queues` queues (at least one, and 64 at most) dealt out evenly; the first entry is queue 0, which gets what is not hashed.
    pub fn new(key: &[u8; KEY_LEN], queues: u16) -> Self {
        let table = core::array::from_fn(|entry| entry as u16 % queues.max(1));
        Self { toeplitz: Toeplitz::new(key), table }
    }

    /// The key.
    #[cfg(feature = "dpdk")]
    pub(crate) fn key(&self) -> &[u8; KEY_LEN] {
        &self.toeplitz.key
    }

    /// The queue of each entry.
    #[cfg(feature = "dpdk")]
    pub(crate) fn table(&self) -> &[u16; ENTRIES] {
        &self.table
    }

    /// The ports of `local`, from `first` on, from which packets to `remote` arrive at its queue `queue`: if that is such a device, too.
    pub fn source_ports(
        &self,
        queue: u16,
        local: IpAddr,
        remote: SocketAddr,
        first: u16,
    ) -> impl Iterator<Item = u16> {
        (first..=u16::MAX).filter(move |port| self.queue(SocketAddr::new(local, *port), remote) == queue)
    }

    /// The queue at which a packet from `source` to `destination` arrives.
    #[inline]
    pub fn queue(&self, source: SocketAddr, destination: SocketAddr) -> u16 {
        self.table[self.toeplitz.hash(source, destination) as usize % ENTRIES]
    }

    /// Whether replies of `remote` to `local` arrive at `queue`.
    #[inline]
    pub fn replies_to(&self, queue: u16, local: SocketAddr, remote: SocketAddr) -> bool {
        self.queue(remote, local) == queue
    }
}
