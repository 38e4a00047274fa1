//! The completion queue of all connections.

use std::collections::VecDeque;
use std::time::Duration;

use shouter_netstack::verbs::{Completion, CompletionQueue, VerbsError};

use super::work_request_id::{RECEIVE, WorkRequestId};
use crate::runtime::Clock;

/// Completions taken from the queue at a time.
pub(super) const BURST: usize = 64;

/// How long a queue pair that was closed is given to flush its receives.
const DRAIN: Duration = Duration::from_millis(50);

/// Each completion is handed out once: those that were met while another connection was closed come before those in the queue.
pub(super) struct Completions {
    queue: CompletionQueue,
    early: VecDeque<Completion>,
    /// Room for the completions of a look. It is kept: to clear it in every poll would take longer than the look.
    room: Box<[Completion]>,
}

impl Completions {
    pub(super) fn new(queue: CompletionQueue) -> Self {
        Self { queue, early: VecDeque::new(), room: vec![Completion::default(); BURST].into() }
    }

    /// For queue pairs that complete there.
    pub(super) fn queue(&self) -> &CompletionQueue {
        &self.queue
    }

    #[inline]
    pub(super) fn pop_early(&mut self) -> Option<Completion> {
        self.early.pop_front()
    }

    /// Looks into the queue: the first so many of these are new. To be given back by [`keep`](Self::keep).
    #[inline]
    pub(super) fn look(&mut self) -> (Box<[Completion]>, Result<usize, VerbsError>) {
        let mut room = std::mem::take(&mut self.room);
        let count = self.queue.poll(&mut room);
        (room, count)
    }

    #[inline]
    pub(super) fn keep(&mut self, room: Box<[Completion]>) {
        self.room = room;
    }

    /// Waits a while until the posted receives of a queue pair in the error state are flushed, and forgets what it has completed; how many
    /// receives are missing. They complete one by one, so their number shows when that is done. (Fragments that had arrived whole count as
    /// not taken, and are sent again.)
    pub(super) fn drain(&mut self, connection: usize, generation: u16, receives: u32) -> u32 {
        let mut left = receives;
        let until = Clock.now() + DRAIN;
        let mut done = [Completion::default(); BURST];
        let mut others = VecDeque::new();
        let mut sort = |done: &Completion| {
            let id = WorkRequestId::decode(done.wr_id);
            if (id.connection, id.generation) != (connection, generation) {
                others.push_back(*done);
            } else if id.count == RECEIVE {
                left = left.saturating_sub(1);
            }
            left
        };
        let mut go_on = self.early.drain(..).fold(true, |_, done| sort(&done) > 0);
        while go_on && Clock.now() < until {
            let Ok(count) = self.queue.poll(&mut done) else { break };
            go_on = done.iter().take(count).fold(true, |_, done| sort(done) > 0);
        }
        self.early = others;
        left
    }
}
