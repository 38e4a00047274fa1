//! How much of small operations may be sent ahead of its receiver.
//!
//! Every small operation has a *cost*: the most that a rank sends to one peer of it. It depends on the shape, the plan and the grid
//! only, so the sums of the costs, the *positions*, are the same on all ranks without a message. A rank's *floor* is the position at which its
//! oldest unfinished small operation begins: everything before it was consumed. A message is sent without
//! credit (eagerly) if its operation ends within the budget after the floor that the receiver has announced. The receiver knows the
//! floor that it has announced, so it knows which messages are not sent eagerly, and grants those when their steps are ready, as it
//! does for large operations.
//!
//! ```text
//!   positions   |--op 7--|--op 9--|-op 12-|----op 13----|--op 14--|
//!               floor that the receiver has announced
//!               |<------------- budget ------------->|
//!                sent eagerly: 7, 9, 12;              granted one by one: 13, 14
//! ```
//!
//! So a receiver never has to keep more than the budget of any peer, whichever order a transport delivers in, and the messages
//! that its oldest operation needs can always be sent.

use super::Executor;
use super::api::Disposition;
use super::control::Control;
use crate::grid::Rank;
use crate::header::{Header, MessageKind};

/// The floors announced to peers and received from them.
#[derive(Debug)]
pub(super) struct Budget {
    /// The budget, in the unit of positions.
    window: u64,
    /// Where the next small operation begins.
    next: u64,
    floor: u64,
    /// No operation before this one is unfinished and small.
    floor_seq: u64,
    /// The floor at which it is announced again to the nodes that have sent.
    announce_at: u64,
    /// By node: the floor announced to it, and the one received from it.
    announced: Vec<u64>,
    received: Vec<u64>,
    /// Nodes that have sent since the last announcement to them, as a list and by node.
    senders: Vec<u32>,
    has_sent: Vec<bool>,
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
            announce_at: window / 2,
            announced: vec![0; nodes],
            received: vec![0; nodes],
            senders: Vec::new(),
            has_sent: vec![false; nodes],
        }
    }

    /// An operation starts; returns where it begins and ends.
    pub(super) fn begin(&mut self, cost: u64) -> (u64, u64) {
        let begins = self.next;
        self.next += cost;
        (begins, self.next)
    }

    /// Whether an operation that ends at this position may send to the node eagerly.
    #[inline]
    pub(super) fn covers(&self, node: u32, ends: u64) -> bool {
        self.received.get(node as usize).is_some_and(|floor| ends.saturating_sub(*floor) <= self.window)
    }

    /// A node has sent something.
    #[inline]
    pub(super) fn on_message_from(&mut self, node: u32) {
        if let Some(has_sent @ false) = self.has_sent.get_mut(node as usize) {
            *has_sent = true;
            self.senders.push(node);
        }
    }

    /// A node has announced its floor; whether it has risen.
    fn on_floor(&mut self, node: u32, floor: u64) -> bool {
        let received = self.received.get_mut(node as usize).filter(|received| **received < floor);
        received.map(|received| *received = floor).is_some()
    }
}

impl Control {
    /// Whether a message of a small operation that ends at this position needs a grant. If the sender only lacks this rank's current
    /// floor, that is announced instead.
    #[inline]
    pub(super) fn must_grant(&mut self, (from, node): (Rank, u32), template: &Header, ends: u64) -> bool {
        let Budget { window, floor, announced, .. } = &self.budget;
        let announced = announced.get(node as usize).copied().unwrap_or(0);
        if ends.saturating_sub(announced) <= *window {
            return false;
        }
        let enough = ends.saturating_sub(*floor) <= *window;
        if enough {
            self.announce_floor(from, node, template);
        }
        !enough
    }

    #[cold]
    fn announce_floor(&mut self, to: Rank, node: u32, template: &Header) {
        let floor = self.budget.floor;
        if let Some(announced) = self.budget.announced.get_mut(node as usize) {
            *announced = floor;
        }
        let (round, len) = ((floor >> 32) as u32, floor as u32);
        let header = Header { kind: MessageKind::Floor, round, offset: 0, granule: 0, len, ..*template };
        self.push(to, header);
    }
}

impl Executor {
    /// The small operation has ended: the floor may rise.
    pub(super) fn raise_floor(&mut self, seq: u64) {
        let budget = &mut self.control.budget;
        // While an operation at the floor runs, no later one has its entry of the ring reused.
        while budget.floor_seq < self.ring.next_seq() {
            let op = self.ring.op(budget.floor_seq);
            if op.runs(budget.floor_seq) && !op.sends.wait_for_credit() {
                break;
            }
            budget.floor_seq += 1;
        }
        budget.floor = match budget.floor_seq < self.ring.next_seq() {
            true => self.ring.op(budget.floor_seq).sends.begins(),
            false => budget.next,
        };
        if budget.floor < budget.announce_at {
            return;
        }
        budget.announce_at = budget.floor + budget.window / 2;
        while let Some(node) = self.control.budget.senders.pop() {
            if let Some(has_sent) = self.control.budget.has_sent.get_mut(node as usize) {
                *has_sent = false;
            }
            self.control.announce_floor(self.config.grid.leader_of(node), node, self.ring.op(seq).template());
        }
    }

    /// A peer has announced its floor: more may be sent to it eagerly.
    pub(super) fn on_floor(&mut self, header: &Header) -> Disposition {
        let node = self.config.grid.node_of(header.src);
        let floor = u64::from(header.round) << 32 | u64::from(header.len);
        if self.control.budget.on_floor(node, floor) {
            self.ring.edit_running(|op| op.cover(header.src, node, &mut self.control));
        }
        Disposition::Consumed
    }
}
