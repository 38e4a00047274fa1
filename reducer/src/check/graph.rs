//! The order of the steps of all ranks, as a graph.

use super::{CONSUMED, Flaw, StepLocation, at, boxed, previous_use, steps, successors};
use crate::grid::Rank;
use crate::schedule::{Action, Schedule};
use crate::transport::LaneFlag;
use std::collections::HashMap;

/// Two points per step: its start and its end.
#[derive(Debug)]
pub(super) struct Graph {
    /// The first point of each rank's first step.
    base: Vec<usize>,
    points: usize,
    /// Orders that are certain: enough to order accesses.
    order: Vec<(usize, usize)>,
    /// Waits that may occur besides: for the receiver's readiness, and for an acknowledgement after use.
    waits: Vec<(usize, usize)>,
    /// Send and receive as (rank, step).
    pub(super) messages: Vec<((usize, usize), (usize, usize))>,
    signals: HashMap<(usize, u32, LaneFlag), usize>,
    /// By rank and chunk: the wait for the lane.
    waits_free: HashMap<(usize, u32), usize>,
}

/// Which points come after which.
#[derive(Debug)]
pub(super) struct Reach {
    words: usize,
    bits: Vec<u64>,
}

impl Reach {
    /// Whether `a` always comes before `b` (or is it).
    pub(super) fn before(&self, a: usize, b: usize) -> bool {
        a == b || self.bits[a * self.words + b / 64] >> (b % 64) & 1 == 1
    }
}

/// More points than this need too much memory (the square of it in bits).
const MAX_POINTS: usize = 1 << 16;

impl Graph {
    pub(super) fn start(&self, rank: usize, step: usize) -> usize {
        self.base[rank] + 2 * step
    }

    pub(super) fn end(&self, rank: usize, step: usize) -> usize {
        self.base[rank] + 2 * step + 1
    }

    /// The rank, step and side of a point.
    pub(super) fn point(&self, point: usize) -> (usize, usize, bool) {
        let rank = self.base.partition_point(|&base| base <= point) - 1;
        // Ranks without steps share a base with the next; partition_point finds the last of them.
        (rank, (point - self.base[rank]) / 2, !(point - self.base[rank]).is_multiple_of(2))
    }

    pub(super) fn new(schedules: &[Schedule]) -> Result<Self, Flaw> {
        let mut base = Vec::new();
        let mut points = 0;
        for schedule in schedules {
            base.push(points);
            points += 2 * schedule.steps().len();
        }
        if points > MAX_POINTS {
            return Err(Flaw::TooLarge(points / 2));
        }
        let mut graph = Self {
            base,
            points,
            order: Vec::new(),
            waits: Vec::new(),
            messages: Vec::new(),
            signals: HashMap::new(),
            waits_free: HashMap::new(),
        };
        for (rank, i, _) in steps(schedules) {
            graph.order.push((graph.start(rank, i), graph.end(rank, i)));
            for &next in successors(&schedules[rank], i) {
                graph.order.push((graph.end(rank, i), graph.start(rank, next as usize)));
            }
        }
        graph.match_messages(schedules)?;
        graph.match_flags(schedules)?;
        graph.all_consume(schedules)?;
        Ok(graph)
    }

    fn match_messages(&mut self, schedules: &[Schedule]) -> Result<(), Flaw> {
        let mut sends = HashMap::new();
        for (rank, i, step) in steps(schedules) {
            if let Action::Send { to, round, len, .. } = step.action {
                let flaw = |what| Err(Flaw::Message { at: boxed(schedules, rank, i), what });
                let grid = schedules[rank].problem().grid;
                if to.0 as usize == rank || !grid.contains(to) || !grid.is_leader(to) {
                    return flaw("sends to a rank that is not another node's leader");
                }
                if !grid.is_leader(Rank(rank as u32)) {
                    return flaw("sends without being its node's leader");
                }
                if sends.insert((rank, to.0 as usize, round), (i, len)).is_some() {
                    return flaw("its round is used twice between these ranks");
                }
            }
        }
        for (rank, i, step) in steps(schedules) {
            let (Action::Receive { from, round, len, .. } | Action::ReceiveReduce { from, round, len, .. }) =
                step.action
            else {
                continue;
            };
            let flaw = |what| Err(Flaw::Message { at: boxed(schedules, rank, i), what });
            let Some((send, sent)) = sends.remove(&(from.0 as usize, rank, round)) else {
                return flaw("no rank sends this message (or it is received twice)");
            };
            if sent != len {
                return flaw("the message is sent with another length");
            }
            if schedules[rank].receive(from, round).is_none_or(|step| step.0 as usize != i) {
                return flaw("the table of messages does not lead to this step");
            }
            let from = from.0 as usize;
            self.messages.push(((from, send), (rank, i)));
            self.order.push((self.start(from, send), self.end(rank, i)));
            self.waits.push((self.start(rank, i), self.start(from, send)));
            self.waits.push((self.end(rank, i), self.end(from, send)));
        }
        if let Some(&(rank, _, _)) = sends.keys().min() {
            let i = sends.iter().filter(|(key, _)| key.0 == rank).map(|(_, &(i, _))| i).min().unwrap_or(0);
            return Err(Flaw::Message {
                at: boxed(schedules, rank, i),
                what: "no rank receives this message",
            });
        }
        Ok(())
    }

    fn match_flags(&mut self, schedules: &[Schedule]) -> Result<(), Flaw> {
        for (rank, i, step) in steps(schedules) {
            if let Action::Signal { flag } = step.action
                && self.signals.insert((rank, step.chunk, flag), i).is_some()
            {
                return Err(Flaw::LaneFlag {
                    at: boxed(schedules, rank, i),
                    what: "the flag is set twice in a chunk",
                });
            }
        }
        for (rank, i, step) in steps(schedules) {
            let schedule = &schedules[rank];
            let grid = schedule.problem().grid;
            let (node, me) = (grid.node_of(Rank(rank as u32)), grid.local_of(Rank(rank as u32)));
            let (locals, flag, chunk) = match step.action {
                Action::Wait { local, flag } => (local..local + 1, flag, Some(step.chunk)),
                Action::WaitAll { flag } => (0..grid.locals(node), flag, Some(step.chunk)),
                Action::WaitFree => {
                    self.waits_free.insert((rank, step.chunk), i);
                    (0..grid.locals(node), CONSUMED, previous_use(schedule, step.chunk))
                }
                _ => continue,
            };
            let Some(chunk) = chunk else { continue };
            for local in locals {
                if matches!(step.action, Action::WaitAll { .. }) && local == me {
                    continue;
                }
                let other = grid.rank_at(node, local).0 as usize;
                let Some(&signal) = self.signals.get(&(other, chunk, flag)) else {
                    let what = "waits for a flag that a local rank never sets";
                    return Err(Flaw::LaneFlag { at: boxed(schedules, rank, i), what });
                };
                self.order.push((self.end(other, signal), self.end(rank, i)));
            }
        }
        Ok(())
    }

    /// The step of a rank that waits for the chunk's lane.
    pub(super) fn wait_free(&self, rank: usize, chunk: u32) -> Option<usize> {
        self.waits_free.get(&(rank, chunk)).copied()
    }

    /// The step of a rank that says that it has consumed the chunk's lane.
    pub(super) fn consumed(&self, rank: usize, chunk: u32) -> Option<usize> {
        self.signals.get(&(rank, chunk, CONSUMED)).copied()
    }

    /// Every local rank says, in every chunk that uses a lane, that it is consumed: the next operation waits for it.
    fn all_consume(&self, schedules: &[Schedule]) -> Result<(), Flaw> {
        for (rank, schedule) in schedules.iter().enumerate() {
            if let Some(chunk) =
                (0..schedule.lane_chunks()).find(|&chunk| self.consumed(rank, chunk).is_none())
            {
                return Err(Flaw::NotConsumed { rank: Rank(rank as u32), chunk });
            }
        }
        Ok(())
    }

    /// Sorts all points; a cycle is a deadlock.
    pub(super) fn sort(&self, schedules: &[Schedule]) -> Result<Vec<usize>, Flaw> {
        let mut next = vec![Vec::new(); self.points];
        let mut before = vec![Vec::new(); self.points];
        for &(a, b) in self.order.iter().chain(&self.waits) {
            next[a].push(b);
            before[b].push(a);
        }
        let mut left: Vec<usize> = before.iter().map(Vec::len).collect();
        let mut order: Vec<usize> = (0..self.points).filter(|&p| left[p] == 0).collect();
        let mut done = 0;
        while let Some(&point) = order.get(done) {
            done += 1;
            for &b in &next[point] {
                left[b] -= 1;
                if left[b] == 0 {
                    order.push(b);
                }
            }
        }
        let Some(mut point) = (0..self.points).find(|&p| left[p] > 0) else { return Ok(order) };
        // Every point that is left has a predecessor that is left: walking back must come around.
        let mut seen = vec![false; self.points];
        while !seen[point] {
            seen[point] = true;
            point = before[point].iter().copied().find(|&p| left[p] > 0).unwrap_or(point);
        }
        let (head, mut cycle) = (point, Vec::<StepLocation>::new());
        loop {
            let (rank, step, _) = self.point(point);
            let here = at(schedules, rank, step);
            if cycle.last() != Some(&here) {
                cycle.push(here);
            }
            point = before[point].iter().copied().find(|&p| left[p] > 0).unwrap_or(head);
            if point == head {
                return Err(Flaw::Deadlock { cycle });
            }
        }
    }

    /// Everything that certainly comes after each point.
    pub(super) fn reach(&self, order: &[usize]) -> Reach {
        let words = self.points.div_ceil(64);
        let mut next = vec![Vec::new(); self.points];
        for &(a, b) in &self.order {
            next[a].push(b);
        }
        let mut bits = vec![0u64; words * self.points];
        let mut row = vec![0u64; words];
        for &point in order.iter().rev() {
            row.fill(0);
            for &b in &next[point] {
                row[b / 64] |= 1 << (b % 64);
                row.iter_mut().zip(&bits[b * words..(b + 1) * words]).for_each(|(to, from)| *to |= from);
            }
            bits[point * words..(point + 1) * words].copy_from_slice(&row);
        }
        Reach { words, bits }
    }

    /// A flag holds the number of the lane's use, so uses must signal in order, those of the operations before included: within the time
    /// in which this rank may use the lane.
    pub(super) fn check_flags(&self, schedules: &[Schedule], reach: &Reach) -> Result<(), Flaw> {
        for (&(rank, chunk, flag), &i) in &self.signals {
            let free = self.wait_free(rank, chunk);
            if free.is_none_or(|free| !reach.before(self.end(rank, free), self.start(rank, i))) {
                let what = "may set the flag while the lane's previous use goes on";
                return Err(Flaw::LaneFlag { at: boxed(schedules, rank, i), what });
            }
            let Some(chunk) = previous_use(&schedules[rank], chunk) else { continue };
            if let Some(&before) = self.signals.get(&(rank, chunk, flag))
                && !reach.before(self.end(rank, before), self.start(rank, i))
            {
                let what = "may set the flag before the lane's previous use does";
                return Err(Flaw::LaneFlag { at: boxed(schedules, rank, i), what });
            }
        }
        Ok(())
    }

    /// No rank's last step may come before another rank's first.
    pub(super) fn check_barrier(&self, schedules: &[Schedule], reach: &Reach) -> Result<(), Flaw> {
        let steps = |rank: usize| 0..schedules[rank].steps().len();
        for other in 0..schedules.len() {
            // Points after a step of the other rank, one bit each.
            let mut after = vec![0u64; reach.words];
            for start in steps(other).map(|i| self.start(other, i)) {
                let row = &reach.bits[start * reach.words..(start + 1) * reach.words];
                after.iter_mut().zip(row).for_each(|(to, from)| *to |= from);
            }
            let is_after = |end: usize| after[end / 64] >> (end % 64) & 1 == 1;
            for rank in (0..schedules.len()).filter(|&rank| rank != other) {
                if !steps(rank).rev().any(|i| is_after(self.end(rank, i))) {
                    return Err(Flaw::Barrier { rank: Rank(rank as u32), other: Rank(other as u32) });
                }
            }
        }
        Ok(())
    }
}
