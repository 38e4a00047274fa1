//! The identity of a group, which all members derive without communication.
//!
//! A group is made of another one, its parent, by members of that. Its lineage is a digest of the parent's lineage and of the members
//! in their order, and how many groups of this digest there were before. Members make groups of the same parent and the same members in
//! the same order, as they start operations; so they have the same lineage for the same group, and no other group has it: digests are
//! 128 bits of SHA-256, of which two of a billion groups are alike with a probability below 10^-20.

use sha2::{Digest, Sha256};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{GRANULE_UNIT, Header, Identity, MatchKey, MessageKind};

/// Which group it is, the same on all members and no other group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lineage {
    /// Of the parent and the members.
    pub(super) digest: u128,
    /// Groups with this digest before.
    pub(super) number: u32,
}

/// A member's message to another one about a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Greeting {
    /// It has made the group, and wants the group's messages under this number.
    Made(u32),
    /// It has left the group after so many operations, all of which have ended there.
    Left(u64),
}

impl Lineage {
    /// The group of all ranks.
    pub(crate) const ALL: Self = Self { digest: 0, number: 0 };

    /// The digest of a group that is made of this one.
    pub(super) fn digest_of(&self, members: &[Rank]) -> u128 {
        let mut digest = Sha256::new_with_prefix(b"shouter group v1\0");
        digest.update(self.digest.to_le_bytes());
        digest.update(self.number.to_le_bytes());
        members.iter().for_each(|rank| digest.update(rank.0.to_le_bytes()));
        let digest: [u8; 32] = digest.finalize().into();
        let (half, _) = digest.split_at(16);
        half.iter().fold(0, |number, &byte| number << 8 | u128::from(byte))
    }

    /// The message that says this of the group, from rank `src` of the job.
    pub(crate) fn message(&self, src: Rank, greeting: Greeting) -> Header {
        let high = (self.digest >> 64) as u64;
        let (round, len, granule) = match greeting {
            Greeting::Made(id) => (id, 0, 0),
            Greeting::Left(started) => ((started >> 32) as u32, started as u32, GRANULE_UNIT as u32),
        };
        let key = MatchKey { group: MatchKey::MAKING, epoch: 0, seq: self.digest as u64 };
        let (generation, tensor) = (high as u32, (high >> 32) as u32);
        let identity = Identity::Registered { generation, tensor, instance: self.number };
        Header { identity, round, granule, len, ..Header::new(MessageKind::Member, src, key) }
    }

    /// The group and the greeting of such a message; `None` if it is none.
    pub(super) fn parse(header: &Header) -> Option<(Self, Greeting)> {
        let Identity::Registered { generation, tensor, instance } = header.identity else { return None };
        if header.kind != MessageKind::Member {
            return None;
        }
        let high = u64::from(tensor) << 32 | u64::from(generation);
        let lineage = Self { digest: u128::from(high) << 64 | u128::from(header.key.seq), number: instance };
        let greeting = match header.granule {
            0 => Greeting::Made(header.round),
            _ => Greeting::Left(u64::from(header.round) << 32 | u64::from(header.len)),
        };
        Some((lineage, greeting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shouter_reducer::header::HEADER_BYTES;

    #[test]
    fn a_greeting_survives_the_wire() {
        let lineage = Lineage { digest: 0x0123_4567_89ab_cdef_1122_3344_5566_7788, number: 3 };
        for greeting in [Greeting::Made(0xffff_0001), Greeting::Left(u64::MAX - 5), Greeting::Left(0)] {
            let mut bytes = [0; HEADER_BYTES];
            lineage.message(Rank(4), greeting).encode(&mut bytes);
            let header = Header::parse(&bytes).unwrap();
            assert_eq!((header.src, header.key.group), (Rank(4), MatchKey::MAKING));
            assert_eq!(Lineage::parse(&header), Some((lineage, greeting)));
        }
    }

    #[test]
    fn parents_members_and_their_order_tell_groups_apart() {
        let ranks = |ranks: &[u32]| ranks.iter().copied().map(Rank).collect::<Vec<_>>();
        let all = Lineage::ALL;
        let digest = all.digest_of(&ranks(&[1, 2]));
        assert_eq!(digest, all.digest_of(&ranks(&[1, 2])));
        assert_ne!(digest, all.digest_of(&ranks(&[2, 1])));
        assert_ne!(digest, all.digest_of(&ranks(&[1, 2, 3])));
        assert_ne!(digest, Lineage { digest: 0, number: 1 }.digest_of(&ranks(&[1, 2])));
        assert_ne!(digest, Lineage { digest, number: 0 }.digest_of(&ranks(&[1, 2])));
    }
}
