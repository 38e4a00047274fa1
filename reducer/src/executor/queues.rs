//! Send queues that were found full in the current poll: further messages of large operations to the same node wait for the next one. Those of small
//! operations are tried, since a transport may keep room for short messages.

/// The send queues, by node.
#[derive(Debug)]
pub(super) struct Queues {
    poll: u64,
    /// By node: the last poll in which its send queue was full.
    full: Vec<u64>,
}

impl Queues {
    /// Queues to so many nodes.
    pub(super) fn new(nodes: usize) -> Self {
        Self { poll: 0, full: vec![0; nodes] }
    }

    /// Another poll begins: every queue may have room.
    #[inline]
    pub(super) fn next_poll(&mut self) {
        self.poll += 1;
    }

    /// Whether the queue to a node was found full in this poll.
    #[inline]
    pub(super) fn is_full(&self, node: u32) -> bool {
        self.full[node as usize] == self.poll
    }

    /// The queue to a node is full.
    pub(super) fn found_full(&mut self, node: u32) {
        self.full[node as usize] = self.poll;
    }
}
