//! A rank's view of an operation in a few words of shared memory.

use shouter_reducer::executor::Divergence;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Identity, Shape, View};

/// Words of a divergence.
pub(super) const DIVERGENCE: usize = 7;

/// A shape in one word.
pub(crate) fn pack(shape: &Shape) -> u64 {
    shape.count << 16 | u64::from(shape.code())
}

/// A tensor's identity in one word: outside the table, by its root.
pub(crate) fn pack_identity(identity: &Identity) -> u64 {
    match *identity {
        Identity::Registered { generation, tensor, instance } => {
            1 << 63
                | u64::from(generation & 0x7ff) << 52
                | u64::from(tensor & 0xf_ffff) << 32
                | u64::from(instance)
        }
        Identity::AdHoc { root } => root.0.into(),
        Identity::Started { root } => 1 << 62 | u64::from(root.0),
    }
}

/// The shape and tensor that two words stand for.
pub(crate) fn unpack(shape: u64, identity: u64) -> Option<View> {
    let shape = Shape::from_code(shape as u16, shape >> 16).ok()?;
    let identity = match identity {
        word if word >> 62 == 0 => Identity::AdHoc { root: Rank(word as u32) },
        word if word >> 62 == 1 => Identity::Started { root: Rank(word as u32) },
        word => Identity::Registered {
            generation: (word >> 52 & 0x7ff) as u32,
            tensor: (word >> 32 & 0xf_ffff) as u32,
            instance: word as u32,
        },
    };
    Some(View { identity, shape })
}

/// A small operation in one word, for the tag of its cells: it has few elements, so there is room for the root.
pub(crate) fn pack_small(shape: &Shape, root: Rank) -> u64 {
    pack(shape) | u64::from(root.0) << 32
}

/// The small operation that a word stands for.
pub(crate) fn unpack_small(word: u64) -> Option<View> {
    unpack(word & u64::from(u32::MAX), word >> 32)
}

pub(super) fn pack_divergence(divergence: &Divergence) -> [u64; DIVERGENCE] {
    let Divergence { seq, rank, found, other, expected, is_majority } = divergence;
    [
        *seq,
        u64::from(rank.0) | u64::from(*is_majority) << 32,
        pack(&found.shape),
        pack_identity(&found.identity),
        pack(&expected.shape),
        pack_identity(&expected.identity),
        other.0.into(),
    ]
}

pub(super) fn unpack_divergence(words: [u64; DIVERGENCE]) -> Option<Divergence> {
    let [seq, rank, found_shape, found, expected_shape, expected, other] = words;
    Some(Divergence {
        seq,
        rank: Rank(rank as u32),
        found: unpack(found_shape, found)?,
        other: Rank(other as u32),
        expected: unpack(expected_shape, expected)?,
        is_majority: rank >> 32 & 1 == 1,
    })
}
