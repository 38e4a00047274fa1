//! Executes with symbols: which contributions, folded in which order, lie where.

use super::graph::Graph;
use super::races::{Memory, memory};
use super::{Flaw, boxed};
use crate::dtype::ReduceOp;
use crate::grid::Rank;
use crate::header::Collective;
use crate::schedule::{Action, BufferOffset, Schedule};
use std::collections::HashMap;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Expr {
    /// A rank's own element.
    Leaf(usize),
    /// Reduced, in this order.
    Fold(Vec<usize>),
    /// Divided by the number of ranks.
    Finish(usize),
}

/// Every expression once, so that equal ones have equal numbers.
#[derive(Default)]
struct Exprs {
    numbers: HashMap<Expr, usize>,
    exprs: Vec<Expr>,
}

impl Exprs {
    fn intern(&mut self, expr: Expr) -> usize {
        *self.numbers.entry(expr).or_insert_with_key(|expr| {
            self.exprs.push(expr.clone());
            self.exprs.len() - 1
        })
    }

    fn show(&self, number: usize) -> String {
        match &self.exprs[number] {
            Expr::Leaf(rank) => format!("r{rank}"),
            Expr::Finish(of) => format!("avg {}", self.show(*of)),
            Expr::Fold(of) => {
                format!("({})", of.iter().map(|&e| self.show(e)).collect::<Vec<_>>().join(" + "))
            }
        }
    }

    /// The ranks whose elements are in it, each as often as it is; `None` if a division is inside a sum.
    fn ranks(&self, number: usize) -> Option<Vec<usize>> {
        match &self.exprs[number] {
            Expr::Leaf(rank) => Some(vec![*rank]),
            Expr::Finish(_) => None,
            Expr::Fold(of) => {
                let mut all = Vec::new();
                for &e in of {
                    all.extend(self.ranks(e)?);
                }
                all.sort_unstable();
                Some(all)
            }
        }
    }
}

/// Bytes `start..end` hold expression `expr` of the tensor's elements from byte `origin` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    start: usize,
    end: usize,
    expr: usize,
    origin: usize,
}

impl Segment {
    fn cut(self, start: usize, end: usize) -> Option<Self> {
        let (from, to) = (self.start.max(start), self.end.min(end));
        (from < to).then(|| Self {
            start: from,
            end: to,
            expr: self.expr,
            origin: self.origin + from - self.start,
        })
    }
}

#[derive(Default)]
struct MemoryState {
    memories: HashMap<Memory, Vec<Segment>>,
}

impl MemoryState {
    /// The segments of a range, shifted to start at zero; `None` if some of it was never written.
    fn read(&self, memory: Memory, offset: usize, len: usize) -> Option<Vec<Segment>> {
        let segments = self.memories.get(&memory).map_or(&[][..], Vec::as_slice);
        let cut = segments.iter().filter_map(|segment| segment.cut(offset, offset + len));
        let shifted: Vec<_> =
            cut.map(|s| Segment { start: s.start - offset, end: s.end - offset, ..s }).collect();
        let covered: usize = shifted.iter().map(|s| s.end - s.start).sum();
        (covered == len).then_some(shifted)
    }

    fn write(&mut self, memory: Memory, offset: usize, len: usize, new: Vec<Segment>) {
        let segments = self.memories.entry(memory).or_default();
        let mut kept: Vec<_> = Vec::with_capacity(segments.len() + new.len());
        for &segment in segments.iter() {
            kept.extend(segment.cut(0, offset));
            kept.extend(segment.cut(offset + len, usize::MAX));
        }
        kept.extend(new.into_iter().map(|s| Segment { start: s.start + offset, end: s.end + offset, ..s }));
        kept.sort_by_key(|segment| segment.start);
        *segments = kept;
    }
}

/// Combines aligned ranges piece by piece, to an expression that there is or a new one; `None` if pieces stand for
/// different elements.
fn combine(
    exprs: &mut Exprs,
    parts: &[Vec<Segment>],
    make: impl Fn(Vec<usize>) -> Result<usize, Expr>,
) -> Option<Vec<Segment>> {
    let mut cuts: Vec<usize> = parts.iter().flatten().flat_map(|s| [s.start, s.end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut out = Vec::new();
    for range in cuts.windows(2) {
        let (start, end) = (range[0], range[1]);
        let pieces: Vec<_> =
            parts.iter().map(|part| part.iter().find_map(|s| s.cut(start, end))).collect::<Option<_>>()?;
        let origin = pieces.first()?.origin;
        if pieces.iter().any(|piece| piece.origin != origin) {
            return None;
        }
        let expr = make(pieces.iter().map(|piece| piece.expr).collect());
        let expr = expr.unwrap_or_else(|new| exprs.intern(new));
        out.push(Segment { start, end, expr, origin });
    }
    Some(out)
}

pub(super) fn check(schedules: &[Schedule], graph: &Graph, order: &[usize]) -> Result<(), Flaw> {
    let bytes = schedules[0].problem().bytes() as usize;
    let (mut exprs, mut state) = (Exprs::default(), MemoryState::default());
    for rank in 0..schedules.len() {
        let expr = exprs.intern(Expr::Leaf(rank));
        if bytes > 0 {
            state.write(
                Memory::Data(rank),
                0,
                bytes,
                vec![Segment { start: 0, end: bytes, expr, origin: 0 }],
            );
        }
    }
    let senders: HashMap<_, _> = graph.messages.iter().map(|&(send, receive)| (receive, send)).collect();
    let mut flying: HashMap<(usize, usize), Vec<Segment>> = HashMap::new();
    for &point in order {
        let (rank, step, end) = graph.point(point);
        let schedule = &schedules[rank];
        let plan = &schedule.steps()[step];
        let value = |what| Flaw::Value { at: boxed(schedules, rank, step), what };
        let unwritten = || value("reads bytes that no step has written");
        let misplaced = || value("combines elements that do not belong together");
        let mem = |place: BufferOffset| memory(schedule, rank, place, plan.chunk);
        // A send reads when it starts; everything else happens when it ends.
        if let Action::Send { from, len, .. } = plan.action {
            if !end {
                let read = state.read(mem(from), from.offset, len).ok_or_else(unwritten)?;
                flying.insert((rank, step), read);
            }
            continue;
        }
        if !end {
            continue;
        }
        match plan.action {
            Action::Receive { into, len, .. } => {
                let message = senders.get(&(rank, step)).and_then(|send| flying.remove(send));
                state.write(mem(into), into.offset, len, message.ok_or_else(unwritten)?);
            }
            Action::ReceiveReduce { into, len, .. } => {
                let message = senders.get(&(rank, step)).and_then(|send| flying.remove(send));
                let here = state.read(mem(into), into.offset, len).ok_or_else(unwritten)?;
                let parts = [here, message.ok_or_else(unwritten)?];
                let sum = combine(&mut exprs, &parts, |of| Err(Expr::Fold(of))).ok_or_else(misplaced)?;
                state.write(mem(into), into.offset, len, sum);
            }
            Action::Fold { first, destinations, sources, len, finish } => {
                let (into, sources) = schedule.fold_places(first, destinations, sources);
                let read =
                    |&place: &BufferOffset| state.read(mem(place), place.offset, len).ok_or_else(unwritten);
                let parts = sources.iter().map(read).collect::<Result<Vec<_>, _>>()?;
                // A fold of one copies it.
                let sum = |of: Vec<usize>| if let [only] = *of { Ok(only) } else { Err(Expr::Fold(of)) };
                let mut result = combine(&mut exprs, &parts, sum).ok_or_else(misplaced)?;
                if finish {
                    result =
                        combine(&mut exprs, &[result], |e| Err(Expr::Finish(e[0]))).ok_or_else(misplaced)?;
                }
                for into in into {
                    state.write(mem(*into), into.offset, len, result.clone());
                }
            }
            Action::Copy { from, into, len } => {
                let read = state.read(mem(from), from.offset, len).ok_or_else(unwritten)?;
                state.write(mem(into), into.offset, len, read);
            }
            Action::Finish { at, len } => {
                let read = state.read(mem(at), at.offset, len).ok_or_else(unwritten)?;
                let divided =
                    combine(&mut exprs, &[read], |e| Err(Expr::Finish(e[0]))).ok_or_else(misplaced)?;
                state.write(mem(at), at.offset, len, divided);
            }
            Action::Send { .. }
            | Action::Signal { .. }
            | Action::Wait { .. }
            | Action::WaitAll { .. }
            | Action::WaitFree => {}
        }
    }
    results(schedules, &exprs, &state, bytes)
}

fn results(schedules: &[Schedule], exprs: &Exprs, state: &MemoryState, bytes: usize) -> Result<(), Flaw> {
    let problem = schedules[0].problem();
    let all: Vec<usize> = (0..schedules.len()).collect();
    let averages = problem.shape.op == ReduceOp::Avg && schedules.len() > 1;
    let right = |expr: usize| match (problem.shape.collective, &exprs.exprs[expr]) {
        (Collective::Broadcast, other) => *other == Expr::Leaf(problem.root.0 as usize),
        (_, Expr::Finish(of)) => averages && exprs.ranks(*of).as_ref() == Some(&all),
        _ => !averages && exprs.ranks(expr).as_ref() == Some(&all),
    };
    let nothing = |rank| Flaw::Result {
        rank: Rank(rank as u32),
        byte: 0,
        found: "nothing, in places".into(),
        expected: "a value everywhere",
    };
    let first = state.read(Memory::Data(0), 0, bytes).ok_or_else(|| nothing(0))?;
    for rank in 0..schedules.len() {
        let mine = state.read(Memory::Data(rank), 0, bytes).ok_or_else(|| nothing(rank))?;
        for segment in mine {
            let flaw = |expected| Flaw::Result {
                rank: Rank(rank as u32),
                byte: segment.start,
                found: exprs.show(segment.expr),
                expected,
            };
            if segment.origin != segment.start {
                return Err(flaw("this element, and not another one"));
            }
            if !right(segment.expr) {
                return Err(flaw("every contribution exactly once"));
            }
            let other = first.iter().filter_map(|s| s.cut(segment.start, segment.end));
            if other.into_iter().any(|s| s.expr != segment.expr) {
                return Err(flaw("the same expression as on rank 0"));
            }
        }
    }
    Ok(())
}
