//! Maps a pair of addresses to a connection, or to a record in TIME-WAIT.

use core::net::SocketAddr;

use super::slots::Slots;
use super::table::Table;
use super::time_wait::TimeWaitTable;

/// In the table, values with this bit are records in TIME-WAIT, others connections.
const TIME_WAIT: u32 = 1 << 31;

/// The target of a pair of addresses: the index of a slot, or of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Connection(u32),
    TimeWait(u32),
}

impl Entry {
    #[inline]
    fn from_value(value: u32) -> Self {
        if value & TIME_WAIT != 0 { Self::TimeWait(value & !TIME_WAIT) } else { Self::Connection(value) }
    }

    #[inline]
    fn value(self) -> u32 {
        match self {
            Self::Connection(index) => index,
            Self::TimeWait(index) => index | TIME_WAIT,
        }
    }
}

/// All pairs in use, under the keyed hash of each. There is one entry for each connection that is not over, and for each record; and a
/// pair has one at most.
#[derive(Debug)]
pub(super) struct Demux {
    table: Table,
    /// The slot that the last segment was for: the next one is often for the same.
    last: u32,
}

impl Demux {
    pub(super) fn new() -> Self {
        Self { table: Table::new(), last: 0 }
    }

    /// The target of a pair; `hash` is the pair's.
    #[inline]
    pub(super) fn find(
        &self,
        hash: u64,
        local: &SocketAddr,
        remote: &SocketAddr,
        slots: &Slots,
        records: &TimeWaitTable,
    ) -> Option<Entry> {
        let value = self.table.find(hash, |value| match Entry::from_value(value) {
            Entry::TimeWait(index) => records.get(index).is_some_and(|record| record.is(local, remote)),
            Entry::Connection(index) => slots
                .get(index)
                .is_some_and(|found| found.is_between(local.ip(), local.port(), remote.ip(), remote.port())),
        });
        value.map(Entry::from_value)
    }

    /// The slot that the last segment was for.
    #[inline]
    pub(super) fn last(&self) -> u32 {
        self.last
    }

    /// A segment was for the connection in a slot.
    #[inline]
    pub(super) fn set_last(&mut self, index: u32) {
        self.last = index;
    }

    /// Adds the entry of a pair, which has none.
    pub(super) fn insert(&mut self, hash: u64, entry: Entry) {
        self.table.insert(hash, entry.value());
    }

    /// Removes the entry of a pair, if it is there.
    pub(super) fn remove(&mut self, hash: u64, entry: Entry) {
        self.table.remove(hash, entry.value());
    }
}
