//! Pairwise exchange: an all-to-all with one partner at a time, so that no node is sent to by several at once.
//!
//! The partner of node i in round k is k - i modulo H, which pairs the nodes for any H. A round is begun when the blocks of the
//! last one are there.

/// The partners of a node, in the order of the rounds.
pub(super) fn partners(me: u32, nodes: u32) -> impl Iterator<Item = u32> {
    (0..nodes).map(move |round| (round + nodes - me) % nodes).filter(move |&partner| partner != me)
}
