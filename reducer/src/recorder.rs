//! A flight recorder: the last [`EVENTS`] events of one shard, for diagnosis when its group fails.
//!
//! A [`Recorder`] writes fixed-size records into a ring that is allocated once; it neither formats nor reads a clock. [`Records`]
//! copies the ring at any time and from any thread, without a lock, so also while the thread that writes hangs.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::grid::Rank;

/// Events that are kept.
pub const EVENTS: usize = 4096;

/// One more than are kept: the writer may be about to overwrite the oldest.
const SLOTS: usize = EVENTS + 1;

/// An operation's number has the bits below; above them is its group.
const SEQ_BITS: u32 = 48;

/// Stands for no rank and no tensor.
const NONE: u32 = u32::MAX;

type Slot = [AtomicU64; 5];

coded_enum! {
    /// The kind of an event.
    #[derive(Default)]
    pub enum RecordKind {
        /// An operation was started: `seq`, `tensor` (if registered), the trainer's step as `value`, `bytes`.
        #[default]
        Started = 0, "started";
        /// An operation has its result: `seq`.
        Done = 1, "operation";
        /// An operation has failed: `seq`; `rank` is the culprit, where one is known.
        Failed = 2, "failed";
        /// The first fragment of a message was handed to the transport: `seq`, `rank`, the message's `bytes`.
        Sent = 3, "first fragment sent";
        /// The first fragment of a message has come: `seq`, `rank`, the message's `bytes`.
        Received = 4, "first fragment received";
        /// A message was ready to send, but `rank` has not granted it yet: `seq`, `bytes`.
        CreditWait = 5, "wait for credit";
        /// Ranks run different operations as `seq`; `rank` is one of them.
        Diverged = 6, "divergence";
        /// This host's leader has voted on operation `seq`.
        Voted = 7, "vote sent";
        /// The leader `rank` has voted on operation `seq`.
        VoteReceived = 8, "vote received";
        /// `rank` has sent an abort message; `value` is the cause's [code](crate::executor::AbortReason::code).
        AbortReceived = 9, "abort received";
        /// The group has ended here: `rank` is the culprit, `value` the cause's code.
        Ended = 10, "group ended";
        /// The other ranks were notified that the group has ended: `rank` is the culprit, `value` the cause's code.
        AbortSent = 11, "abort sent";
        /// The channel has declared `rank` lost.
        PeerLost = 12, "peer lost";
        /// `value` datagrams or segments were sent again; `rank` is the last one's receiver, where that is known.
        Resent = 13, "resend";
        /// `value` datagrams or segments were declared lost; `rank` as above.
        Lost = 14, "lost";
        /// `value` datagrams have come with a wrong checksum.
        Damaged = 15, "damaged";
        /// `value` connections or queue pairs were made again.
        Reconnected = 16, "reconnect";
        /// The link of a port of this host went down, `value` times.
        LinkLost = 17, "link down";
    }
}

/// A registered tensor, as an [`Identity`](crate::header::Identity) numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisteredTensor {
    /// The registration. One above 65,535 has no place in a record: its tensors are recorded as none.
    pub generation: u16,
    /// The tensor's number within it; from its number of tensors on, that of a fused bucket.
    pub tensor: u32,
}

/// An event. A field that its kind does not use is 0 or `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// When: the time of the poll in which it happened, since the executor's origin.
    pub at: Duration,
    /// Its kind.
    pub what: RecordKind,
    /// The group, where that is not all: as [`Recorder::of_group`] was told.
    pub group: u16,
    /// The other rank, or the culprit.
    pub rank: Option<Rank>,
    /// The registered tensor.
    pub tensor: Option<RegisteredTensor>,
    /// The operation's number.
    pub seq: u64,
    /// The trainer's step, a number of datagrams, a cause.
    pub value: u64,
    /// Bytes of the tensor or of the message.
    pub bytes: u64,
}

impl Record {
    /// An event of this kind, of which nothing is said yet.
    pub const fn of(what: RecordKind) -> Self {
        Self { at: Duration::ZERO, what, group: 0, rank: None, tensor: None, seq: 0, value: 0, bytes: 0 }
    }

    #[inline]
    fn to_words(self) -> [u64; 5] {
        // No kind has both.
        let tensor = self.tensor.map(|tensor| tensor.tensor);
        let whom = self.rank.map(|rank| rank.0).or(tensor).unwrap_or(NONE);
        let generation = self.tensor.map_or(0, |tensor| u64::from(tensor.generation));
        [
            self.at.as_nanos() as u64,
            u64::from(self.group) << SEQ_BITS | self.seq,
            self.value,
            self.bytes,
            u64::from(whom) << 32 | generation << 16 | self.what as u64,
        ]
    }

    fn from_words([at, seq, value, bytes, last]: [u64; 5]) -> Self {
        let (group, seq) = ((seq >> SEQ_BITS) as u16, seq & ((1 << SEQ_BITS) - 1));
        let what = u8::try_from(last & 0xffff).ok().and_then(RecordKind::from_code).unwrap_or_default();
        let generation = (last >> 16) as u16;
        let whom = Some((last >> 32) as u32).filter(|whom| *whom != NONE);
        let named = whom.map(|tensor| RegisteredTensor { generation, tensor });
        let (tensor, rank) = if what == RecordKind::Started { (named, None) } else { (None, whom) };
        Self { at: Duration::from_nanos(at), what, group, rank: rank.map(Rank), tensor, seq, value, bytes }
    }
}

struct Ring {
    slots: Box<[Slot]>,
    /// Events so far; event `n` lies in slot `n % SLOTS`.
    events: AtomicU64,
}

/// Writes the events of one shard. Those of several groups may go to one ring, by one thread at a time.
pub struct Recorder {
    ring: Arc<Ring>,
    /// The group whose events these are, where that is not all, and its ranks in the job by their numbers in the group.
    group: Option<(u16, Arc<[Rank]>)>,
}

/// Reads the events that a [`Recorder`] wrote.
#[derive(Clone)]
pub struct Records(Arc<Ring>);

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// Allocates the ring.
    pub fn new() -> Self {
        let slots = std::iter::repeat_with(Slot::default).take(SLOTS).collect();
        Self { ring: Arc::new(Ring { slots, events: AtomicU64::new(0) }), group: None }
    }

    /// Writes to the same ring the events of a group of some ranks, which has this number: with the ranks' numbers in the job.
    pub fn of_group(&self, group: u16, ranks: Arc<[Rank]>) -> Self {
        Self { ring: Arc::clone(&self.ring), group: Some((group, ranks)) }
    }

    /// A reader of the ring.
    pub fn records(&self) -> Records {
        Records(Arc::clone(&self.ring))
    }

    /// Keeps an event in the place of the oldest.
    #[inline]
    pub fn record(&mut self, mut record: Record) {
        if let Some((group, ranks)) = &self.group {
            // One that is no member has a number behind those of the members.
            let behind = |rank: Rank| Rank(rank.0.saturating_sub(ranks.len() as u32));
            let job = |rank: Rank| ranks.get(rank.0 as usize).copied().unwrap_or_else(|| behind(rank));
            (record.group, record.rank) = (*group, record.rank.map(job));
        }
        let events = self.ring.events.load(Ordering::Relaxed);
        let Some(slot) = self.ring.slots.get((events % SLOTS as u64) as usize) else { return };
        // A reader that sees a word of this event sees the count of all before it.
        fence(Ordering::Release);
        for (word, value) in slot.iter().zip(record.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        self.ring.events.store(events + 1, Ordering::Release);
    }
}

impl Records {
    /// The events that are kept, the oldest first, and how many there were before them.
    pub fn copy(&self) -> (Vec<Record>, u64) {
        let Ring { slots, events } = &*self.0;
        let before = events.load(Ordering::Acquire);
        let oldest = before.saturating_sub(EVENTS as u64);
        let slot = |event: u64| slots.get((event % SLOTS as u64) as usize);
        let words = |slot: &Slot| slot.each_ref().map(|word| word.load(Ordering::Relaxed));
        let copied: Vec<_> = (oldest..before).filter_map(slot).map(words).collect();
        fence(Ordering::Acquire);
        // Event `after` may be half written, over the one that is SLOTS older; events younger than that one were whole.
        let after = events.load(Ordering::Relaxed);
        let first = oldest.max((after + 1).saturating_sub(SLOTS as u64));
        let whole = copied.into_iter().skip((first - oldest) as usize).map(Record::from_words);
        (whole.collect(), first)
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("events", &self.ring.events).finish_non_exhaustive()
    }
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
