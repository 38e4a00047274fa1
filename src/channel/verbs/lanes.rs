//! The lanes to all peers, and which of them have something to tell.

use std::ops::Range;

use super::fabric::Fabric;
use super::lane::{Receiver, Sender, Verdict};
use super::link::Link;
use super::message::Word;

/// One queue pair's place, whichever it has.
pub(super) struct Lane {
    pub(super) link: Link,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// Whether it is in [`Lanes::owing`].
    owes: bool,
}

/// The lanes of all peers, one peer's behind the other's.
pub(super) struct Lanes {
    all: Vec<Lane>,
    per_peer: usize,
    /// Lanes that may have something to tell, each once.
    owing: Vec<usize>,
    /// A peer waits to hear what was taken.
    asked: bool,
}

impl Lanes {
    /// So many lanes to each of so many peers.
    pub(super) fn new(peers: usize, per_peer: usize, window: u32) -> Self {
        let lane = |_| Lane {
            link: Link::new(),
            sender: Sender::new(window),
            receiver: Receiver::new(window),
            owes: false,
        };
        let count = peers * per_peer;
        Self { all: (0..count).map(lane).collect(), per_peer, owing: Vec::with_capacity(count), asked: false }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Lane> {
        self.all.get_mut(at)
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Lane> {
        self.all.iter()
    }

    /// Lanes of each peer.
    pub(super) fn per_peer(&self) -> usize {
        self.per_peer
    }

    /// The lanes of a peer.
    #[inline]
    pub(super) fn of_peer(&self, index: usize) -> Range<usize> {
        index * self.per_peer..(index + 1) * self.per_peer
    }

    /// Which peer's lane it is, and which of that peer's.
    #[inline]
    pub(super) fn split(&self, at: usize) -> (usize, usize) {
        (at / self.per_peer, at % self.per_peer)
    }

    /// The lane of a peer that takes the next fragment: the one with the fewest out, which leaves so many slots free.
    #[inline]
    pub(super) fn pick(&self, index: usize, spare: u64, fabric: &impl Fabric) -> Option<usize> {
        let range = self.of_peer(index);
        let lanes = self.all.get(range.clone())?.iter().zip(range);
        let usable = lanes.filter(|(lane, at)| {
            lane.link.is_up() && lane.sender.has_slots(1 + spare) && fabric.has_room(*at, 1)
        });
        usable.min_by_key(|(lane, _)| lane.sender.in_flight()).map(|(_, at)| at)
    }

    /// The peer waits to hear that the next fragment of this lane was taken.
    #[inline]
    pub(super) fn ask(&mut self, at: usize) {
        if let Some(lane) = self.all.get_mut(at) {
            lane.receiver.ask();
            self.asked = true;
        }
    }

    /// Whether a peer has asked since the last call.
    #[inline]
    pub(super) fn take_asked(&mut self) -> bool {
        std::mem::take(&mut self.asked)
    }

    /// The next fragment of a lane has come.
    #[inline]
    pub(super) fn came(&mut self, at: usize, verdict: Verdict) {
        if let Some(lane) = self.all.get_mut(at) {
            lane.receiver.came(verdict);
            self.note(at);
        }
    }

    /// It is known what is made of a fragment that came on a lane before.
    pub(super) fn settle(&mut self, at: usize, number: u64, verdict: Verdict) {
        if let Some(lane) = self.all.get_mut(at) {
            lane.receiver.settle(number, verdict);
            self.asked |= lane.receiver.is_asked();
            self.note(at);
        }
    }

    /// A lane may have something to tell.
    #[inline]
    fn note(&mut self, at: usize) {
        if let Some(lane) = self.all.get_mut(at)
            && !std::mem::replace(&mut lane.owes, true)
        {
            self.owing.push(at);
        }
    }

    /// Tells peers what was taken, where they should know it: at the latest when nothing else is to do.
    pub(super) fn tell(&mut self, fabric: &mut impl Fabric, idle: bool) {
        let Self { all, owing, .. } = self;
        owing.retain(|&at| {
            let Some(lane) = all.get_mut(at) else { return false };
            if lane.link.is_up() {
                while let Some(word) = lane.receiver.refusal()
                    && fabric.has_room(at, 1)
                {
                    fabric.say(at, word.encode());
                    lane.receiver.refusal_said();
                }
                if lane.receiver.due(idle) && fabric.has_room(at, 1) {
                    fabric.say(at, Word::Ack(lane.receiver.tell() as u32).encode());
                }
            }
            lane.owes = !lane.link.is_over() && lane.receiver.due(true);
            lane.owes
        });
    }
}
