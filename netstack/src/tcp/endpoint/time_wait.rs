//! Connections in TIME-WAIT, as small records, which serve to answer a repeated FIN and to check whether a new
//! connection may open.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::collections::VecDeque;

use super::super::connection::TimeWaitRecord;
use crate::time::Instant;
use crate::wire::ip::octets;
use crate::wire::tcp::{Flags, Header, SeqNumber, Timestamps};

#[cfg(test)]
mod tests;

/// A connection that is over, but whose segments may still be in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeWaitEntry {
    local: [u8; 16],
    remote: [u8; 16],
    local_port: u16,
    remote_port: u16,
    snd_nxt: SeqNumber,
    rcv_nxt: SeqNumber,
    ts_recent: u32,
    ts_offset: u32,
    /// When it goes, in milliseconds modulo 2^32.
    deadline: u32,
    /// How long it stays after a repeated FIN, in units of 16 ms.
    duration: u16,
    window: u16,
    generation: u16,
    timestamps: bool,
    /// The half second of the last answer that anybody could provoke, modulo 256.
    answered: u8,
}

/// The answer to a segment for a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeWaitAction {
    /// Nothing.
    Drop,
    /// Send the last acknowledgement again; it is a plain one.
    Acknowledge,
    /// The same, and TIME-WAIT begins anew.
    Restart,
    /// The segment opens a new connection, if there is a listener.
    Reopen,
}

/// Milliseconds of a point in time, modulo 2^32.
fn millis(at: Instant) -> u32 {
    (at.as_nanos() / 1_000_000) as u32
}

/// About half a second.
fn half_second(at: Instant) -> u8 {
    (millis(at) >> 9) as u8
}

fn address(bytes: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(bytes).to_canonical()
}

impl TimeWaitEntry {
    fn new(now: Instant, from: &TimeWaitRecord, generation: u16) -> Self {
        let duration = u16::try_from(from.duration.as_millis().div_ceil(16)).unwrap_or(u16::MAX);
        Self {
            local: octets(from.local.ip()),
            remote: octets(from.remote.ip()),
            local_port: from.local.port(),
            remote_port: from.remote.port(),
            snd_nxt: from.snd_nxt,
            rcv_nxt: from.rcv_nxt,
            ts_recent: from.ts_recent.unwrap_or(0),
            ts_offset: from.timestamp_offset,
            deadline: millis(now).wrapping_add(u32::from(duration) * 16),
            duration,
            window: from.window,
            generation,
            timestamps: from.ts_recent.is_some(),
            answered: half_second(now).wrapping_sub(1),
        }
    }

    pub(super) fn local(&self) -> SocketAddr {
        SocketAddr::new(address(self.local), self.local_port)
    }

    pub(super) fn remote(&self) -> SocketAddr {
        SocketAddr::new(address(self.remote), self.remote_port)
    }

    /// No host sends from port 0.
    #[inline]
    fn in_use(&self) -> bool {
        self.remote_port != 0
    }

    #[inline]
    pub(super) fn is(&self, local: &SocketAddr, remote: &SocketAddr) -> bool {
        self.in_use()
            && self.remote_port == remote.port()
            && self.local_port == local.port()
            && self.remote == octets(remote.ip())
            && self.local == octets(local.ip())
    }

    /// Our next sequence number: a new connection of the pair begins after it.
    pub(super) fn snd_nxt(&self) -> SeqNumber {
        self.snd_nxt
    }

    /// Whether this side may open the pair anew before the time is over.
    pub(super) fn reusable(&self, now: Instant) -> bool {
        //= RFC 6191 section 2: timestamps that go on rising distinguish old segments from new ones; the clock ticks in
        // milliseconds, and two have to pass so that they really rose. RFC 1337's hazards need sequence numbers or
        // timestamps of the old connection to be acceptable in the new one: PAWS refuses them.
        let age = u32::from(self.duration) * 16 - self.left(now).min(u32::from(self.duration) * 16);
        self.timestamps && age >= 2
    }

    /// Milliseconds until it goes.
    fn left(&self, now: Instant) -> u32 {
        let left = self.deadline.wrapping_sub(millis(now)) as i32;
        if left < 0 { 0 } else { left as u32 }
    }

    /// Decides as RFC 9293 section 3.10.7.4 does in the state TIME-WAIT.
    pub(super) fn judge(&self, header: &Header, payload_len: usize) -> TimeWaitAction {
        let Header { flags, seq, .. } = header;
        if flags.contains(Flags::RST) {
            //= RFC 1337 section 3 (F1): resets are ignored, or TIME-WAIT could be assassinated.
            return TimeWaitAction::Drop;
        }
        let stamps = header.options.timestamps.filter(|_| self.timestamps);
        let age = stamps.map(|stamps| stamps.value.wrapping_sub(self.ts_recent) as i32);
        if flags.contains(Flags::SYN) {
            // A SYN with ACK or FIN opens nothing.
            if flags.intersects(Flags::ACK.with(Flags::FIN)) {
                return TimeWaitAction::Acknowledge;
            }
            //= RFC 9293 section 3.6.1, SHLD-4 (RFC 6191 section 2): a later timestamp is enough; with an equal one, or none,
            //= the sequence number must be beyond the last (RFC 9293 section 3.6.1, MAY-2).
            let later = match age {
                Some(age) => age > 0 || age == 0 && seq.is_after(self.rcv_nxt),
                None => seq.is_after(self.rcv_nxt),
            };
            //= RFC 5961 section 4.2: any other SYN is answered by an acknowledgement.
            return if later { TimeWaitAction::Reopen } else { TimeWaitAction::Acknowledge };
        }
        if !flags.contains(Flags::ACK) {
            return TimeWaitAction::Drop;
        }
        //= RFC 7323 section 5.3, R1: an old timestamp is answered by an acknowledgement, and the segment dropped.
        if age.is_some_and(|age| age < 0) {
            return TimeWaitAction::Acknowledge;
        }
        let end = *seq + u32::try_from(payload_len).unwrap_or(u32::MAX);
        if flags.contains(Flags::FIN) && end + 1 == self.rcv_nxt {
            //= RFC 9293 section 3.10.7.4, eighth: a retransmission of the FIN is acknowledged, and the 2 MSL begin anew.
            return TimeWaitAction::Restart;
        }
        if *seq == self.rcv_nxt && payload_len == 0 && !flags.contains(Flags::FIN) {
            // A plain acknowledgement in sequence.
            return TimeWaitAction::Drop;
        }
        //= RFC 9293 section 3.10.7.4, first: what is not acceptable is answered by an acknowledgement.
        TimeWaitAction::Acknowledge
    }

    /// The acknowledgement; `clock` is the timestamp clock without offset.
    pub(super) fn acknowledgement(&self, clock: u32) -> Header {
        let mut header = Header {
            source_port: self.local_port,
            destination_port: self.remote_port,
            seq: self.snd_nxt,
            ack: self.rcv_nxt,
            flags: Flags::ACK,
            window: self.window,
            ..Header::default()
        };
        if self.timestamps {
            let value = clock.wrapping_add(self.ts_offset);
            header.options.timestamps = Some(Timestamps { value, echo: self.ts_recent });
        }
        header
    }
}

/// All records of an endpoint.
#[derive(Debug)]
pub(super) struct TimeWaitTable {
    records: Vec<TimeWaitEntry>,
    free: Vec<u32>,
    /// In the order they came, those that are gone included.
    order: VecDeque<(u32, u16)>,
    len: usize,
}

impl TimeWaitTable {
    pub(super) fn new() -> Self {
        Self { records: Vec::new(), free: Vec::new(), order: VecDeque::new(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&TimeWaitEntry> {
        self.records.get(index as usize).filter(|record| record.in_use())
    }

    /// Adds a record: its index, and its generation for a timer.
    pub(super) fn insert(&mut self, now: Instant, from: &TimeWaitRecord) -> (u32, u16) {
        self.len += 1;
        let (index, generation) = match self.free.pop() {
            Some(index) => {
                let place = self.records.get_mut(index as usize);
                let generation = place.as_ref().map_or(0, |record| record.generation);
                if let Some(place) = place {
                    *place = TimeWaitEntry::new(now, from, generation);
                }
                (index, generation)
            }
            None => {
                self.records.push(TimeWaitEntry::new(now, from, 0));
                (self.records.len() as u32 - 1, 0)
            }
        };
        if self.order.len() > 2 * self.len + 64 {
            let records = &self.records;
            self.order.retain(|(index, generation)| {
                records
                    .get(*index as usize)
                    .is_some_and(|record| record.in_use() && record.generation == *generation)
            });
        }
        self.order.push_back((index, generation));
        (index, generation)
    }

    /// Removes a record and gives it back.
    pub(super) fn remove(&mut self, index: u32) -> Option<TimeWaitEntry> {
        let record = self.records.get_mut(index as usize).filter(|record| record.in_use())?;
        let old = *record;
        record.remote_port = 0;
        record.generation = record.generation.wrapping_add(1);
        self.free.push(index);
        self.len -= 1;
        Some(old)
    }

    /// The oldest record.
    pub(super) fn oldest(&mut self) -> Option<u32> {
        while let Some((index, generation)) = self.order.pop_front() {
            if self.get(index).is_some_and(|record| record.generation == generation) {
                return Some(index);
            }
        }
        None
    }

    /// Whether an answer that anybody could provoke may leave: one in half a second for each record.
    pub(super) fn may_answer(&mut self, now: Instant, index: u32) -> bool {
        let tick = half_second(now);
        let record = self.records.get_mut(index as usize).filter(|record| record.answered != tick);
        record.map(|record| record.answered = tick).is_some()
    }

    /// TIME-WAIT begins anew.
    pub(super) fn restart(&mut self, now: Instant, index: u32) {
        if let Some(record) = self.records.get_mut(index as usize) {
            record.deadline = millis(now).wrapping_add(u32::from(record.duration) * 16);
        }
    }

    /// A timer of a record fired: `Some(None)` if its time is over, else how long it still has; `None` if it is another
    /// by now.
    pub(super) fn expired(&self, now: Instant, index: u32, generation: u16) -> Option<Option<Duration>> {
        let record = self.get(index).filter(|record| record.generation == generation)?;
        match record.left(now) {
            0 => Some(None),
            left => Some(Some(Duration::from_millis(u64::from(left)))),
        }
    }

    /// How long a record that was just made, or restarted, has.
    pub(super) fn lasts(&self, index: u32) -> Duration {
        self.get(index)
            .map_or(Duration::ZERO, |record| Duration::from_millis(u64::from(record.duration) * 16))
    }
}
