//! Send queues that were found full in the current poll: further messages of large operations to the same node wait for the next one. Those of small
//! operations are tried, since a transport may keep room for short messages.
//!
//! Transports queue little, so the room that a queue has in a poll goes to the most urgent operation. Others are not held back for ever:
//! after some polls in a row in which some were, the oldest of these has its turn before all. It ends some day, and then the next is the oldest.

/// So many polls in a row in which operations were held back, before the oldest has its turn.
const PATIENCE: u32 = 16;

/// The send queues, by node.
#[derive(Debug)]
pub(super) struct Queues {
    poll: u64,
    /// By node: the last poll in which its send queue was full, and the operation that found it so.
    full: Vec<(u64, u64)>,
    /// The oldest operation that was held back in this poll, as another had found a queue full.
    held_back: Option<u64>,
    /// Polls in a row in which one was.
    waits: u32,
}

impl Queues {
    /// Queues to so many nodes.
    pub(super) fn new(nodes: usize) -> Self {
        Self { poll: 0, full: vec![(0, 0); nodes], held_back: None, waits: 0 }
    }

    /// Another poll begins: every queue may have room. The operation that has its turn before all others, if there is one.
    #[inline]
    pub(super) fn next_poll(&mut self) -> Option<u64> {
        self.poll += 1;
        let held_back = self.held_back.take();
        self.waits = if held_back.is_some() { self.waits + 1 } else { 0 };
        if self.waits < PATIENCE {
            return None;
        }
        self.waits = 0;
        held_back
    }

    /// Whether the queue to a node was found full in this poll; another operation than the one that found it so is held back.
    #[inline]
    pub(super) fn is_full(&mut self, node: u32, seq: u64) -> bool {
        let (poll, by) = self.full[node as usize];
        if poll == self.poll && by != seq {
            self.held_back = Some(self.held_back.map_or(seq, |other| other.min(seq)));
        }
        poll == self.poll
    }

    /// This operation finds the queue to a node full.
    pub(super) fn found_full(&mut self, node: u32, seq: u64) {
        self.full[node as usize] = (self.poll, seq);
    }
}
