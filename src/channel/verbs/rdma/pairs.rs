//! The queue pairs of all connections.

use shouter_netstack::verbs::QueuePair;

use super::super::fabric::QueuePairAddress;

/// One connection's queue pair.
pub(super) struct Pair {
    pub(super) pair: QueuePair,
    pub(super) psn: u32,
    pub(super) remote: Option<QueuePairAddress>,
    /// Receives posted.
    pub(super) receives: u32,
    /// Places of the send queue in use, as far as completions report, and the unsignaled ones since the last signaled one.
    pub(super) sends: u32,
    pub(super) unsignaled: u32,
    pub(super) broken: bool,
}

/// Each connection has one queue pair at most, and the number of those it has had: completions of former ones are recognised by it.
pub(super) struct Pairs {
    all: Vec<Option<Pair>>,
    generations: Vec<u16>,
}

impl Pairs {
    /// None yet, of so many connections.
    pub(super) fn new(connections: usize) -> Self {
        Self { all: (0..connections).map(|_| None).collect(), generations: vec![0; connections] }
    }

    /// How many connections there are.
    pub(super) fn connections(&self) -> usize {
        self.all.len()
    }

    #[inline]
    pub(super) fn get(&self, connection: usize) -> Option<&Pair> {
        self.all.get(connection)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, connection: usize) -> Option<&mut Pair> {
        self.all.get_mut(connection)?.as_mut()
    }

    /// The number of a connection's current queue pair.
    #[inline]
    pub(super) fn generation(&self, connection: usize) -> u16 {
        self.generations.get(connection).copied().unwrap_or(0)
    }

    /// Whether a completion is of a connection's current queue pair.
    #[inline]
    pub(super) fn is_current(&self, connection: usize, generation: u16) -> bool {
        self.generations.get(connection) == Some(&generation)
    }

    /// A connection has another queue pair from now on.
    pub(super) fn put(&mut self, connection: usize, pair: Pair) {
        if let (Some(place), Some(generation)) =
            (self.all.get_mut(connection), self.generations.get_mut(connection))
        {
            *place = Some(pair);
            *generation = generation.wrapping_add(1);
        }
    }

    pub(super) fn take(&mut self, connection: usize) -> Option<Pair> {
        self.all.get_mut(connection)?.take()
    }
}
