//! Answers on their way back, and the room that they lie in.

use super::slots::{Handle, PLACES, Slots};
use crate::grid::Rank;
use crate::header::{Header, granule};
use crate::memory::{Pool, Pooled};
use crate::transport::{SendError, SendToken, Transport};
use std::collections::VecDeque;

/// The answer to a request.
#[derive(Debug)]
struct Answer {
    to: Rank,
    header: Header,
    room: Pooled,
    len: usize,
    sent: usize,
    granule: usize,
    /// Fragments that the transport has not released.
    unreleased: u32,
    /// The rank that it is for is gone.
    is_lost: bool,
}

impl Answer {
    fn is_over(&self) -> bool {
        self.unreleased == 0 && (self.is_lost || self.sent == self.len)
    }
}

/// Room that an answer has given back.
pub(super) struct GivenBack {
    pub(super) to: Rank,
    pub(super) len: usize,
}

/// All answers to other ranks.
#[derive(Debug, Default)]
pub(super) struct Answers {
    slots: Slots<Answer>,
    /// Answers with fragments to post.
    queue: VecDeque<Handle>,
    room: Option<Pool>,
}

impl Answers {
    /// Room for an answer, of this much for all of them, which is allocated at the first use.
    pub(super) fn take_room(&mut self, len: usize, of: usize) -> Option<Pooled> {
        if self.room.is_none() {
            self.room = Pool::new(of);
        }
        let has_place = self.slots.len() < PLACES;
        self.room.as_mut().filter(|_| has_place)?.take(len)
    }

    /// Gives room back that no answer needs.
    pub(super) fn give_back(&mut self, room: Pooled) {
        if let Some(pool) = &mut self.room {
            pool.put(room);
        }
    }

    /// Sends an answer of `len` bytes, which lies in this room.
    pub(super) fn send(&mut self, to: Rank, header: Header, room: Pooled, len: usize) {
        let answer = Answer { to, header, room, len, sent: 0, granule: 0, unreleased: 0, is_lost: false };
        self.queue.push_back(self.slots.insert(answer));
    }

    /// Whether a poll may post something.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Posts fragments that find room; whether one was posted, and the room of answers whose ranks are gone.
    pub(super) fn post<T: Transport>(&mut self, transport: &mut T) -> (bool, Vec<GivenBack>) {
        let (mut worked, mut full, mut lost) = (false, None, vec![]);
        for _ in 0..self.queue.len() {
            let Some(handle) = self.queue.pop_front() else { break };
            let Some(answer) = self.slots.get(handle) else { continue };
            if full == Some(answer.to) {
                self.queue.push_back(handle);
                continue;
            }
            if answer.granule == 0 {
                answer.granule = granule(transport.max_fragment(answer.to)) as usize;
            }
            while answer.sent < answer.len {
                let len = (answer.len - answer.sent).min(answer.granule);
                let Some(payload) = answer.room.region().span(answer.sent, len) else { break };
                let (offset, granule) = (answer.sent as u64, answer.granule as u32);
                let header = Header { offset, granule, len: len as u32, ..answer.header };
                match transport.send(answer.to, &header, payload, handle.token(true)) {
                    Ok(()) => {
                        worked = true;
                        answer.sent += len;
                        answer.unreleased += 1;
                    }
                    Err(SendError::Full) => {
                        full = Some(answer.to);
                        break;
                    }
                    // No rank takes the rest.
                    Err(SendError::PeerFailed) => {
                        lost.push(handle);
                        break;
                    }
                }
            }
            if answer.sent < answer.len && lost.last() != Some(&handle) {
                self.queue.push_back(handle);
            }
        }
        (worked, lost.into_iter().filter_map(|handle| self.lose(handle)).collect())
    }

    /// The transport has released a fragment of an answer; the room of that answer, if it has ended.
    pub(super) fn released(&mut self, token: SendToken) -> Option<GivenBack> {
        let handle = self.slots.handle_of(token)?;
        let answer = self.slots.get(handle)?;
        answer.unreleased = answer.unreleased.saturating_sub(1);
        self.end_if_over(handle)
    }

    /// No rank takes the rest of an answer.
    fn lose(&mut self, handle: Handle) -> Option<GivenBack> {
        self.slots.get(handle)?.is_lost = true;
        self.end_if_over(handle)
    }

    /// Ends an answer, if all of it was sent, or no rank takes the rest, and nothing refers to it.
    fn end_if_over(&mut self, handle: Handle) -> Option<GivenBack> {
        self.slots.get(handle).filter(|answer| answer.is_over())?;
        let Answer { to, len, room, .. } = self.slots.remove(handle)?;
        self.give_back(room);
        Some(GivenBack { to, len })
    }

    /// The group ends: no rank takes the rest of any answer.
    pub(super) fn abort(&mut self) {
        self.queue.clear();
        let handles: Vec<_> = self.slots.iter().map(|(handle, _)| handle).collect();
        for handle in handles {
            self.lose(handle);
        }
    }

    /// The transport refers to no memory any more.
    pub(super) fn fenced(&mut self) {
        self.slots = Slots::default();
    }

    /// Whether the transport refers to no answer.
    pub(super) fn is_quiesced(&self) -> bool {
        self.slots.iter().all(|(_, answer)| answer.unreleased == 0)
    }

    /// Whether all answers have ended, and all room is given back.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let is_whole = self.room.as_ref().is_none_or(Pool::is_whole);
        self.slots.len() == 0 && self.queue.is_empty() && is_whole
    }
}
