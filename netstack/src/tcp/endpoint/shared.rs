//! State that the connections of an endpoint share: memory, events to the user, and scratch space.

use std::collections::{BTreeSet, VecDeque};

use super::super::api::{ConnectionId, ReleaseToken, TcpEvent};
use super::super::connection::Context;
use super::super::memory::Memory;
use super::super::options::Config;
use super::super::receiver::Pool;
use super::events::Events;
use crate::region::Extent;

/// The scratch space is empty between calls. A connection is starved only while memory for writes is short.
pub(super) struct Shared {
    memory: Memory,
    pool: Pool,
    /// Challenge acknowledgements of a connection per second.
    challenges: u32,
    events: Events,
    /// Connections that were refused memory; they are notified when there is some.
    starved: BTreeSet<ConnectionId>,
    /// Events of connections that were not accepted yet end here.
    muted: VecDeque<TcpEvent>,
    released: Vec<ReleaseToken>,
    extents: Vec<Extent>,
}

impl Shared {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            memory: Memory::new(config.max_send_memory),
            pool: Pool::new(config.max_receive_memory),
            challenges: config.challenge_acks_per_second,
            events: Events::default(),
            starved: BTreeSet::new(),
            muted: VecDeque::new(),
            released: Vec::new(),
            extents: Vec::new(),
        }
    }

    /// The state that a call of a connection borrows; `muted`: the connection was not accepted yet.
    #[inline]
    pub(super) fn context(&mut self, id: ConnectionId, muted: bool) -> Context<'_> {
        self.muted.clear();
        Context {
            id,
            events: if muted { &mut self.muted } else { self.events.queue() },
            memory: &mut self.memory,
            pool: &mut self.pool,
            challenges: self.challenges,
            released: &mut self.released,
            extents: &mut self.extents,
        }
    }

    /// The events for the user.
    #[inline]
    pub(super) fn events(&mut self) -> &mut Events {
        &mut self.events
    }

    /// Whether events of released extents wait until no frame is out.
    #[inline]
    pub(super) fn awaits_releases(&self) -> bool {
        self.events.are_held()
    }

    /// A connection's write found no room. Returns whether memory is short; the connection is then notified when there
    /// is some.
    pub(super) fn on_refused(&mut self, id: ConnectionId) -> bool {
        let full = self.memory.is_full();
        if full {
            self.starved.insert(id);
        }
        full
    }

    /// Whether there will be memory for writes when no frame waits any more.
    pub(super) fn awaits_memory(&self) -> bool {
        self.memory.awaits_frames()
    }

    /// Whether [`Shared::on_frames_released`] would change anything.
    #[inline]
    pub(super) fn awaits_frames(&self) -> bool {
        self.memory.awaits_frames() || !self.starved.is_empty()
    }

    /// No frame from before the last mark waits any more, and here is the next mark.
    pub(super) fn on_mark(&mut self) {
        self.memory.on_mark();
        self.wake_starved();
    }

    /// No frame waits any more, in a batch or in a device.
    #[inline]
    pub(super) fn on_frames_released(&mut self) {
        self.memory.on_frames_released();
        self.wake_starved();
    }

    #[inline]
    fn wake_starved(&mut self) {
        if !self.starved.is_empty() && !self.memory.is_full() {
            let starved = core::mem::take(&mut self.starved);
            self.events.queue().extend(starved.into_iter().map(TcpEvent::Writable));
        }
    }
}
