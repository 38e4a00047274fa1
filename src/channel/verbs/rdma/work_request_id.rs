//! The encoding of a work request's id.

/// The count of a receive's completion.
pub(super) const RECEIVE: u16 = u16::MAX;

/// A decoded work request id: which connection, which of its queue pairs, and how many sends it completes.
#[derive(Clone, Copy)]
pub(super) struct WorkRequestId {
    pub(super) connection: usize,
    pub(super) generation: u16,
    pub(super) count: u16,
}

impl WorkRequestId {
    pub(super) fn encode(self) -> u64 {
        (self.connection as u64) << 32 | u64::from(self.generation) << 16 | u64::from(self.count)
    }

    pub(super) fn decode(number: u64) -> Self {
        Self { connection: (number >> 32) as usize, generation: (number >> 16) as u16, count: number as u16 }
    }
}
