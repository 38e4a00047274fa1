//! How much of small operations may be sent ahead of its receiver.
//!
//! Every small operation has a *cost*: the most that a rank sends to one peer of it. It depends on the shape, the plan and the grid
//! only, so the sums of the costs, the *positions*, are the same on all ranks without a message. A rank's *floor* is the position at which its
//! oldest unfinished small operation begins: everything in front of it was used. A message goes out unasked if its
//! operation ends within the budget behind the floor that the receiver has told. The receiver knows which floor it has told, so it
//! knows which messages are not sent unasked, and grants those when their steps are ready, as it does for large operations.
//!
//! ```text
//!   positions   |--op 7--|--op 9--|-op 12-|----op 13----|--op 14--|
//!               floor of the receiver, as it has told
//!               |<------------- budget ------------->|
//!                sent unasked: 7, 9, 12;              granted one by one: 13, 14
//! ```
//!
//! So a receiver never has to keep more than the budget of any peer, whichever order a transport delivers in, and what its
//! oldest operation needs can always be sent.

use super::Executor;
use super::api::Disposition;
use super::control::{Control, ControlMessage};
use crate::grid::Rank;
use crate::header::{Header, MessageKind};

/// What has been told and heard of floors.
#[derive(Debug)]
pub(super) struct Budget {
    /// The budget, in the unit of positions.
    window: u64,
    /// Where the next small operation begins.
    next: u64,
    floor: u64,
    /// No operation in front of this one is unfinished and small.
    floor_seq: u64,
    /// The floor at which those who send are told it.
    tell_at: u64,
    /// By node: the floor that it was told, and the one that it has told.
    told: Vec<u64>,
    heard: Vec<u64>,
    /// Nodes that have sent something since they were last told.
    talkers: Vec<u32>,
    talks: Vec<bool>,
}

impl Budget {
    /// A budget for peers that keep `pool_bytes` of early messages each. A message is kept with up to as much again as its cost says:
    /// its fragments may be as small as what is counted for each of them.
    pub(super) fn new(nodes: usize, pool_bytes: usize) -> Self {
        let window = pool_bytes as u64 / 2;
        Self {
            window,
            next: 0,
            floor: 0,
            floor_seq: 0,
            tell_at: window / 2,
            told: vec![0; nodes],
            heard: vec![0; nodes],
            talkers: Vec::new(),
            talks: vec![false; nodes],
        }
    }

    /// An operation starts; returns where it begins and ends.
    pub(super) fn begin(&mut self, cost: u64) -> (u64, u64) {
        let begins = self.next;
        self.next += cost;
        (begins, self.next)
    }

    /// Whether a node takes what an operation that ends there sends it, unasked.
    #[inline]
    pub(super) fn covers(&self, node: u32, ends: u64) -> bool {
        self.heard.get(node as usize).is_some_and(|heard| ends.saturating_sub(*heard) <= self.window)
    }

    /// A node has sent something.
    #[inline]
    pub(super) fn spoke(&mut self, node: u32) {
        if let Some(talks @ false) = self.talks.get_mut(node as usize) {
            *talks = true;
            self.talkers.push(node);
        }
    }

    /// A node has told its floor; whether that is news.
    fn hear(&mut self, node: u32, floor: u64) -> bool {
        let heard = self.heard.get_mut(node as usize).filter(|heard| **heard < floor);
        heard.map(|heard| *heard = floor).is_some()
    }
}

impl Control {
    /// Whether a message has to be asked for that belongs to a small operation which ends there. If the sender only has to know this
    /// rank's floor, it is told that instead.
    #[inline]
    pub(super) fn must_ask(&mut self, (from, node): (Rank, u32), template: &Header, ends: u64) -> bool {
        let Budget { window, floor, told, .. } = &self.budget;
        let told = told.get(node as usize).copied().unwrap_or(0);
        if ends.saturating_sub(told) <= *window {
            return false;
        }
        let enough = ends.saturating_sub(*floor) <= *window;
        if enough {
            self.tell_floor(from, node, template);
        }
        !enough
    }

    #[cold]
    fn tell_floor(&mut self, to: Rank, node: u32, template: &Header) {
        let floor = self.budget.floor;
        if let Some(told) = self.budget.told.get_mut(node as usize) {
            *told = floor;
        }
        let (round, len) = ((floor >> 32) as u32, floor as u32);
        let header = Header { kind: MessageKind::Floor, round, offset: 0, granule: 0, len, ..*template };
        self.messages.push_back(ControlMessage { to, header, landing: None });
    }
}

impl Executor {
    /// The small operation at this place of the ring has ended: the floor may rise.
    pub(super) fn raise_floor(&mut self, at: usize) {
        let budget = &mut self.control.budget;
        // While an operation at the floor runs, none that comes behind it has its place of the ring used again.
        while budget.floor_seq < self.next_seq {
            let op = &self.ops[(budget.floor_seq & self.mask) as usize];
            if op.runs(budget.floor_seq) && !op.sends.wait_for_credit() {
                break;
            }
            budget.floor_seq += 1;
        }
        budget.floor = match budget.floor_seq < self.next_seq {
            true => self.ops[(budget.floor_seq & self.mask) as usize].sends.begins(),
            false => budget.next,
        };
        if budget.floor < budget.tell_at {
            return;
        }
        budget.tell_at = budget.floor + budget.window / 2;
        while let Some(node) = self.control.budget.talkers.pop() {
            if let Some(talks) = self.control.budget.talks.get_mut(node as usize) {
                *talks = false;
            }
            self.control.tell_floor(self.config.grid.leader_of(node), node, self.ops[at].template());
        }
    }

    /// A peer has told its floor: more may be sent to it unasked.
    pub(super) fn on_floor(&mut self, header: &Header) -> Disposition {
        let node = self.config.grid.node_of(header.src);
        let floor = u64::from(header.round) << 32 | u64::from(header.len);
        if self.control.budget.hear(node, floor) {
            for &(_, seq) in &self.order {
                self.ops[(seq & self.mask) as usize].cover(header.src, node, &mut self.control);
            }
        }
        Disposition::Consumed
    }
}
