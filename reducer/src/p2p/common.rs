//! The state that sends and receives share: the configuration, their numbers and ends, and the queue of control messages.

use super::api::{
    Direction, MessageCounters, MessengerConfig, Status, TransferError, TransferId, TransferSubject,
};
use super::peer::Receive;
use crate::executor::{Disposition, Refusal};
use crate::grid::Rank;
use crate::header::Header;
use crate::machine::Ended;
use crate::memory::Span;
use crate::transport::{SendError, SendToken, Transport};
use core::time::Duration;
use std::collections::VecDeque;

/// State that sends and receives share.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) config: MessengerConfig,
    pub(super) counters: MessageCounters,
    /// The time of the last poll.
    pub(super) now: Duration,
    control: VecDeque<(Rank, Header)>,
    ended: VecDeque<Ended<TransferId, Result<Status, TransferError>>>,
    running: usize,
    next: u64,
    /// No deadline is earlier.
    earliest: Duration,
}

impl Common {
    pub(super) fn new(config: MessengerConfig) -> Self {
        Self {
            config,
            counters: MessageCounters::default(),
            now: Duration::ZERO,
            control: VecDeque::new(),
            ended: VecDeque::new(),
            running: 0,
            next: 0,
            earliest: Duration::MAX,
        }
    }

    /// There is one more deadline.
    #[inline]
    pub(super) fn expect(&mut self, deadline: Duration) {
        self.earliest = self.earliest.min(deadline);
    }

    /// A send or receive starts.
    pub(super) fn begin(&mut self, deadline: Duration) -> TransferId {
        self.expect(deadline);
        self.running += 1;
        self.next += 1;
        TransferId(self.next - 1)
    }

    /// One ends.
    pub(super) fn end(&mut self, id: TransferId, result: Result<Status, TransferError>) {
        self.running -= 1;
        self.ended.push_back(Ended { id, result });
    }

    pub(super) fn take_ended(&mut self) -> Option<Ended<TransferId, Result<Status, TransferError>>> {
        self.ended.pop_front()
    }

    pub(super) fn running(&self) -> usize {
        self.running
    }

    pub(super) fn earliest(&self) -> Duration {
        self.earliest
    }

    /// The earliest deadline, when all have been looked at.
    pub(super) fn set_earliest(&mut self, earliest: Duration) {
        self.earliest = earliest;
    }

    /// Whether a deadline may have passed.
    #[inline]
    pub(super) fn has_passed(&self, now: Duration) -> bool {
        now >= self.earliest
    }

    /// A receive, for errors.
    pub(super) fn receiving(&self, receive: &Receive) -> TransferSubject {
        let &Receive { from, tag, dtype, into, .. } = receive;
        let count = (into.len() / dtype.size()) as u64;
        TransferSubject {
            direction: Direction::Receive,
            own: self.config.rank,
            peer: from,
            tag,
            dtype,
            count,
        }
    }

    /// One more control message.
    pub(super) fn control(&mut self, to: Rank, header: Header) {
        self.control.push_back((to, header));
    }

    pub(super) fn has_control(&self) -> bool {
        !self.control.is_empty()
    }

    /// Posts the control messages that find room; whether one did. Those to one peer may overtake each other.
    pub(super) fn flush<T: Transport>(&mut self, transport: &mut T) -> bool {
        let (mut worked, mut full) = (false, None);
        for _ in 0..self.control.len() {
            let Some((to, header)) = self.control.pop_front() else { break };
            let posted = match full == Some(to) {
                true => Err(SendError::Full),
                false => transport.send(to, &header, Span::empty(), SendToken::CONTROL),
            };
            match posted {
                Ok(()) => worked = true,
                Err(SendError::Full) => {
                    full = Some(to);
                    self.control.push_back((to, header));
                }
                // The transport reports the loss to its owner, which decides what becomes of the group.
                Err(SendError::PeerFailed) => {}
            }
        }
        worked
    }

    /// Nothing is to be posted and no deadline kept any more.
    pub(super) fn clear(&mut self) {
        self.control.clear();
        self.earliest = Duration::MAX;
    }

    pub(super) fn malformed(&mut self) -> Disposition {
        self.counters.malformed += 1;
        Disposition::Refused(Refusal::Malformed)
    }

    pub(super) fn not_ready(&mut self) -> Disposition {
        self.counters.not_ready += 1;
        Disposition::Refused(Refusal::NotReady)
    }

    pub(super) fn repeated(&mut self) -> Disposition {
        self.counters.duplicates += 1;
        Disposition::Consumed
    }
}
