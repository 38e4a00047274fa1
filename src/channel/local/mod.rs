//! Messages between the ranks of one host, and by its leader to and from the other ranks of other hosts.
//!
//! ```text
//!   rank of a host ----ring----> rank of the same host
//!   rank of a host --up ring--> leader ====channel====> leader --down ring--> rank of another host
//! ```
//!
//! Each ordered pair of ranks of a host has a [ring] in the memory that the host shares, and each rank has two more: one up to the leader
//! with its messages to other hosts, one down from the leader with those from there. So messages that wait for another
//! host hold up nothing within this one. The pages of a ring that nobody uses are never touched.
//!
//! A payload is copied into a ring, and released with the same poll. A large one that lies in the memory that the host shares is not: the
//! entry [refers](references) to it, and it is released when the reader has read it, whatever waits in front. A rank has one [doorbell](bell) for all the rings
//! that it reads: a poll in which nothing has come costs one load of it. No rank is woken: as with the flags of lanes,
//! a rank that sleeps sees the message when it polls next, at the latest by its helper.
//!
//! The leader's handling of messages to and from other hosts is described at [relay]. A message keeps the header that
//! its sender has given it; a rank takes nothing that names a sender from which it cannot have come.

mod bell;
mod references;
mod relay;
mod ring;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use shouter_reducer::executor::Disposition;
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::{HEADER_BYTES, Header, MessageKind};
use shouter_reducer::memory::Span;
use shouter_reducer::transport::{LEAST_FRAGMENT, PayloadRange, SendError, SendToken};

use super::Inbox;
use super::loss::{Loss, PeerLoss};
use super::shm::NodeSegment;
use super::sys::bytes_of;
use bell::Bell;
use references::{Reference, References};
use relay::Relay;
use ring::{Garbled, Offered, PushError, Reader, RingMessage, Writer};

/// Bits of a doorbell for the rings of pairs, and as many for those up to the leader: ranks share them where there are more. The ring down
/// from the leader has the first of the latter.
const BITS: u32 = 32;

/// The bit of a pair's ring.
fn bit(from: u32) -> u64 {
    1 << (from % BITS)
}

/// The bit of an up ring in the leader's doorbell, and of the down ring (from 0) in the others'.
fn relay_bit(from: u32) -> u64 {
    bit(from) << BITS
}

/// A rank's part in the messages of other hosts.
#[derive(Debug)]
enum Upwards {
    /// There are none.
    Alone,
    /// It goes by the leader.
    ByLeader { up: Writer, down: Reader },
    /// It is the leader.
    Leads(Box<Relay>),
}

/// A rank's messages to and from other ranks, but for those between leaders.
#[derive(Debug)]
pub(super) struct Local {
    segment: Arc<NodeSegment>,
    grid: Grid,
    rank: Rank,
    first: Rank,
    local: u32,
    /// By local rank; its own is not used.
    writers: Vec<Writer>,
    readers: Vec<Reader>,
    upwards: Upwards,
    bell: Bell,
    /// Rings to look at although the bell does not name them.
    due: u64,
    /// Tokens of copied payloads.
    copied: Vec<SendToken>,
    /// Payloads that were not copied.
    references: References,
    losses: Vec<PeerLoss>,
}

impl Local {
    /// The messages of a rank whose host shares `segment`. On a leader `fragment` gives the size of the fragments that
    /// its channels take to every other leader, `None` if there is none.
    pub(super) fn new(
        segment: Arc<NodeSegment>,
        grid: Grid,
        rank: Rank,
        fragment: impl FnOnce() -> Option<usize>,
    ) -> Self {
        let local = segment.local();
        let upwards = match local {
            _ if grid.nodes() == 1 => Upwards::Alone,
            0 => Upwards::Leads(Box::new(Relay::new(&segment, grid, rank, fragment()))),
            _ => Upwards::ByLeader {
                up: Writer::new(segment.ring_up(local)),
                down: Reader::new(segment.ring_down(local)),
            },
        };
        let ranks = 0..segment.ranks();
        Self {
            writers: ranks.clone().map(|to| Writer::new(segment.ring_between(local, to))).collect(),
            readers: ranks.map(|from| Reader::new(segment.ring_between(from, local))).collect(),
            first: Rank(rank.0 - local),
            references: References::new(segment.ranks()),
            segment,
            grid,
            rank,
            local,
            upwards,
            bell: Bell::default(),
            due: 0,
            copied: vec![],
            losses: vec![],
        }
    }

    /// Whether messages to a rank go by a channel of this rank, as they are.
    #[inline]
    pub(super) fn is_direct(&self, to: Rank) -> bool {
        self.local == 0 && self.grid.is_leader(to) && to != self.rank
    }

    /// Payload bytes of a message to a rank, at most.
    #[inline]
    pub(super) fn max_fragment(&self, to: Rank) -> usize {
        if self.beside(to).is_some() {
            return ring::MAX_PAYLOAD;
        }
        let said = self.segment.relay_fragment().load(Ordering::Relaxed);
        usize::try_from(said)
            .map_or(0, |said| said.saturating_sub(1))
            .clamp(LEAST_FRAGMENT, ring::MAX_PAYLOAD)
    }

    /// Posts a message. The payload must not change before its token is released.
    ///
    /// # Errors
    /// [`SendError::PeerFailed`] also where there is no way to the rank (any more: its leader has left), and for memory that the CPU cannot
    /// read.
    #[inline]
    pub(super) fn send(
        &mut self,
        to: Rank,
        header: &Header,
        payload: PayloadRange,
        token: SendToken,
    ) -> Result<(), SendError> {
        if !self.grid.contains(to) || to == self.rank {
            return Err(SendError::PeerFailed);
        }
        let bytes = match payload.is_empty() {
            true => &[],
            false => bytes_of(&payload).ok_or(SendError::PeerFailed)?,
        };
        let mut head = [0; HEADER_BYTES];
        header.encode(&mut head);
        let beside = self.beside(to);
        let segment = &*self.segment;
        let pushed = if let Some(there) = beside {
            let writer = self.writers.get_mut(there as usize).ok_or(SendError::PeerFailed)?;
            let len = bytes.len();
            // What has no token of its own may change as soon as it is posted.
            let in_arena = match len >= references::MIN_BYTES && token != SendToken::CONTROL {
                true => segment.locate(bytes.as_ptr(), len),
                false => None,
            };
            let pushed = match in_arena {
                Some(offset) => writer.push_in_arena(segment, &head, offset, len),
                None => writer.push(segment, 0, &head, bytes),
            };
            if pushed.is_ok() {
                bell::ring(segment, there, bit(self.local));
                if let Some(offset) = in_arena {
                    self.references.add(there, Reference { end: writer.written(), offset, len, token });
                    return Ok(());
                }
            }
            pushed.map_err(|why| (why, there))
        } else {
            let pushed = match &mut self.upwards {
                Upwards::Alone => return Err(SendError::PeerFailed),
                Upwards::ByLeader { .. } if segment.has_left(0) => return Err(SendError::PeerFailed),
                Upwards::ByLeader { up, .. } => {
                    let pushed = up.push(segment, to.0 + 1, &head, bytes);
                    if pushed.is_ok() {
                        bell::ring(segment, 0, relay_bit(self.local));
                    }
                    pushed
                }
                Upwards::Leads(relay) => relay.post(segment, to, &head, bytes),
            };
            pushed.map_err(|why| (why, 0))
        };
        match pushed {
            Ok(()) => {
                if token != SendToken::CONTROL {
                    self.copied.push(token);
                }
                Ok(())
            }
            Err((PushError::Full, by)) if self.segment.has_left(by) && by != self.local => {
                Err(SendError::PeerFailed)
            }
            Err((PushError::Full, _)) => Err(SendError::Full),
            Err((PushError::TooLarge, _)) => Err(SendError::PeerFailed),
            Err((PushError::Garbled, by)) => {
                self.lose(by);
                Err(SendError::PeerFailed)
            }
        }
    }

    /// Copies a message to a rank of this host, where there is room for it; false if it was not sent: larger ones may be
    /// [read where they lie](Self::send).
    #[inline]
    pub(super) fn send_at_once(&mut self, to: Rank, header: &Header, payload: PayloadRange) -> bool {
        let Some(there) = self.beside(to).filter(|there| *there != self.local) else { return false };
        let bytes = bytes_of(&payload).filter(|bytes| bytes.len() < references::MIN_BYTES);
        let (Some(writer), Some(bytes)) = (self.writers.get_mut(there as usize), bytes) else { return false };
        let short = header.to_short().filter(|_| bytes.len() <= ring::SHORT_PAYLOAD);
        let pushed = match short {
            Some(short) => writer.push_short(&self.segment, &short, bytes),
            None => {
                let mut head = [0; HEADER_BYTES];
                header.encode(&mut head);
                writer.push(&self.segment, 0, &head, bytes)
            }
        };
        if pushed.is_ok() {
            bell::ring(&self.segment, there, bit(self.local));
        }
        pushed.is_ok()
    }

    /// Offers the next message of a rank of this host, for which it looks so many times; whether it was taken.
    #[inline]
    pub(super) fn take_next(
        &mut self,
        from: Rank,
        looks: u32,
        mut take: impl FnMut(&Header, &[u8]) -> bool,
    ) -> bool {
        let Some(from) = self.beside(from).filter(|from| *from != self.local) else { return false };
        let segment = &*self.segment;
        let Some(reader) = self.readers.get_mut(from as usize) else { return false };
        for _ in 1..looks {
            if reader.has_entry(segment) {
                break;
            }
            std::hint::spin_loop();
        }
        let source = Rank(self.first.0 + from);
        let taken = reader.take_next(segment, |message| {
            header_of(message, source).is_some_and(|header| take(&header, message.payload))
        });
        if taken && segment.ranks() <= BITS {
            self.bell.watch(segment, from);
        }
        taken
    }

    /// Hands received messages to the inbox; true if there were any.
    #[inline]
    pub(super) fn receive(&mut self, inbox: &mut dyn Inbox) -> bool {
        let Self { segment, readers, upwards, .. } = self;
        self.due |= self.bell.look(segment, |at| match (readers.get(at as usize), &*upwards) {
            (Some(reader), _) if at < BITS => reader.has_entry(segment),
            (_, Upwards::ByLeader { down, .. }) => down.has_entry(segment),
            _ => false,
        });
        let has_rung = Bell::has_rung(segment);
        if !has_rung && self.due == 0 && !matches!(upwards, Upwards::Leads(relay) if relay.holds()) {
            return false;
        }
        self.take_all(has_rung, inbox)
    }

    fn take_all(&mut self, has_rung: bool, inbox: &mut dyn Inbox) -> bool {
        let mut due = std::mem::take(&mut self.due);
        if has_rung {
            due |= Bell::take(&self.segment);
        }
        let mut any = false;
        let watches = self.segment.ranks() <= BITS;
        let (segment, grid, first) = (&*self.segment, self.grid, self.first);
        for (from, reader) in (0u32..).zip(&mut self.readers) {
            if due & bit(from) == 0 || from == self.local {
                continue;
            }
            let source = Rank(first.0 + from);
            match reader.look(segment, |message| offer(message, inbox, header_of(message, source))) {
                Ok(looked) => {
                    any |= looked.any;
                    self.due |= if looked.more || looked.waits { bit(from) } else { 0 };
                    if looked.any && watches {
                        self.bell.watch(segment, from);
                    }
                }
                Err(Garbled) => self.losses.push(lost(source)),
            }
        }
        let node = grid.node_of(self.rank);
        match &mut self.upwards {
            Upwards::Alone => {}
            Upwards::ByLeader { down, .. } if due & relay_bit(0) != 0 => {
                let elsewhere = |rank| grid.contains(rank) && grid.node_of(rank) != node;
                let from_there = |message: &RingMessage<'_>| {
                    let is_sound = |header: &Header| message.to == 0 && elsewhere(header.src);
                    Header::parse(message.header).ok().filter(is_sound)
                };
                match down.look(segment, |message| offer(message, inbox, from_there(message))) {
                    Ok(looked) => {
                        any |= looked.any;
                        self.due |= if looked.more || looked.waits { relay_bit(0) } else { 0 };
                        if looked.any {
                            self.bell.watch(segment, BITS);
                        }
                    }
                    Err(Garbled) => self.losses.push(lost(first)),
                }
            }
            Upwards::ByLeader { .. } => {}
            Upwards::Leads(relay) => {
                relay.ring(due >> BITS);
                any |= relay.hand_on(segment, inbox, &mut self.losses);
            }
        }
        any
    }

    /// Sends messages of this host on to others, by `send`, and releases payloads that were copied or read. True if anything was done.
    #[inline]
    pub(super) fn transmit(
        &mut self,
        inbox: &mut dyn Inbox,
        send: impl FnMut(Rank, &Header, Span, SendToken) -> Result<(), SendError>,
    ) -> bool {
        let mut any = !self.copied.is_empty();
        for token in self.copied.drain(..) {
            inbox.released(token);
        }
        if !self.references.is_empty() {
            any |= self.release_read(inbox);
        }
        if let Upwards::Leads(relay) = &mut self.upwards
            && relay.has_work()
        {
            any |= relay.send_on(&self.segment, send, &mut self.losses);
        }
        any
    }

    /// Releases payloads in the arena that their readers have read, or that have left; whether there were any.
    fn release_read(&mut self, inbox: &mut dyn Inbox) -> bool {
        let Self { segment, writers, references, losses, first, .. } = self;
        references.release(
            segment,
            writers,
            |token| inbox.released(token),
            |reader| losses.push(lost(Rank(first.0 + reader))),
        )
    }

    /// The inbox of the channels to other leaders: messages on their way to other ranks, and back, do not reach
    /// `inbox`.
    pub(super) fn through<'a>(&'a mut self, inbox: &'a mut dyn Inbox) -> Through<'a> {
        Through { local: self, inbox }
    }

    /// A peer whose rings make no sense, since the last call.
    pub(super) fn take_lost(&mut self) -> Option<PeerLoss> {
        self.losses.pop()
    }

    /// The group has ended: nothing is sent on any more. The channels refer to no ring by now, and what the trainer writes to payloads
    /// does not reach their readers.
    pub(super) fn fence(&mut self) {
        self.copied.clear();
        self.references.fence(&self.segment);
        if let Upwards::Leads(relay) = &mut self.upwards {
            relay.close();
        }
    }

    /// The local rank that a rank is; `None` if it is on another host.
    #[inline]
    fn beside(&self, rank: Rank) -> Option<u32> {
        Some(rank.0.wrapping_sub(self.first.0)).filter(|local| *local < self.segment.ranks())
    }

    /// Whether all payloads are released, and all was sent on to those leaders that are `awaited`.
    pub(super) fn is_drained_to(&self, awaited: &dyn Fn(Rank) -> bool) -> bool {
        let is_behind = matches!(&self.upwards, Upwards::Leads(relay) if !relay.is_drained_to(awaited));
        self.references.is_empty() && !is_behind
    }

    #[cfg(test)]
    pub(super) fn is_drained(&self) -> bool {
        self.is_drained_to(&|_| true)
    }

    #[cfg(test)]
    pub(super) fn segment(&self) -> Arc<NodeSegment> {
        self.segment.clone()
    }

    fn lose(&mut self, local: u32) {
        self.losses.push(lost(Rank(self.first.0 + local)));
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.fence();
    }
}

/// A rank whose rings make no sense.
fn lost(rank: Rank) -> PeerLoss {
    PeerLoss { rank, why: Loss::Scrambled }
}

/// The header of a message from a rank of this host to this one; `None` if it is none.
#[inline]
fn header_of(message: &RingMessage<'_>, source: Rank) -> Option<Header> {
    match message.is_short() {
        _ if message.to != 0 => None,
        true => Header::of_short(source, message.header, message.payload.len()).ok(),
        false => Header::parse(message.header).ok().filter(|header| header.src == source),
    }
}

/// Hands a message to the inbox, if it has a header that it can have.
#[inline]
fn offer(message: &RingMessage<'_>, inbox: &mut dyn Inbox, header: Option<Header>) -> Offered {
    match header {
        Some(header) => match inbox.fragment(&header, message.payload).is_retryable() {
            true => Offered::Later,
            false => Offered::Taken,
        },
        None => Offered::Garbled,
    }
}

/// See [`Local::through`].
pub(super) struct Through<'a> {
    local: &'a mut Local,
    inbox: &'a mut dyn Inbox,
}

impl Inbox for Through<'_> {
    #[inline]
    fn fragment(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        if !matches!(header.kind, MessageKind::Relay | MessageKind::Relayed) {
            return self.inbox.fragment(header, payload);
        }
        let Local { segment, upwards, losses, .. } = &mut *self.local;
        match upwards {
            Upwards::Leads(relay) => relay.take(segment, header, payload, self.inbox, losses),
            _ => self.inbox.fragment(header, payload),
        }
    }

    #[inline]
    fn landing(&self, header: &Header) -> Option<Span> {
        self.inbox.landing(header)
    }

    #[inline]
    fn placed(&mut self, header: &Header) -> Disposition {
        self.inbox.placed(header)
    }

    #[inline]
    fn released(&mut self, token: SendToken) {
        match (relay::number_of(token), &mut self.local.upwards) {
            (Some(of), Upwards::Leads(relay)) => relay.released(&self.local.segment, of),
            _ => self.inbox.released(token),
        }
    }
}

#[cfg(test)]
mod tests;
