//! Executes with symbols: which contributions, folded in which order, lie where.

use super::graph::Graph;
use super::races::{Memory, memory};
use super::{Flaw, boxed};
use crate::dtype::ReduceOp;
use crate::grid::{Grid, Rank};
use crate::header::Collective;
use crate::schedule::{Action, Buffer, BufferOffset, Problem, Schedule};
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
    /// Those that were looked into: whether they are what a reduction ends with.
    whole: HashMap<usize, bool>,
    /// The same: whether they are folded in order.
    ordered: HashMap<usize, bool>,
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

    /// The same expression with ranks counted from this one of `ranks`.
    fn counted_from(&mut self, number: usize, first: usize, ranks: usize) -> usize {
        let expr = match self.exprs[number].clone() {
            Expr::Leaf(rank) => Expr::Leaf((rank + ranks - first) % ranks),
            Expr::Finish(of) => Expr::Finish(self.counted_from(of, first, ranks)),
            Expr::Fold(of) => {
                Expr::Fold(of.into_iter().map(|of| self.counted_from(of, first, ranks)).collect())
            }
        };
        self.intern(expr)
    }

    /// Whether every rank's element is in it once, and it is divided for an average once at the end, or never.
    fn is_whole(&mut self, number: usize, ranks: usize, averages: bool) -> bool {
        if let Some(&known) = self.whole.get(&number) {
            return known;
        }
        let sum = match self.exprs[number] {
            Expr::Finish(of) if averages => Some(of),
            _ if averages => None,
            _ => Some(number),
        };
        let mut found = vec![false; ranks];
        let mut left: Vec<usize> = sum.into_iter().collect();
        let mut once = true;
        while let Some(expr) = left.pop().filter(|_| once) {
            match &self.exprs[expr] {
                Expr::Leaf(rank) => once = !std::mem::replace(&mut found[*rank], true),
                Expr::Finish(_) => once = false,
                Expr::Fold(of) => left.extend(of),
            }
        }
        let whole = once && found.into_iter().all(|found| found);
        self.whole.insert(number, whole);
        whole
    }
}

impl Exprs {
    /// Whether the expression has the bits of one fold of these ranks in this order: it is such a fold, or only its first operand is again
    /// one, unless that would be `rounded_once`.
    fn is_fold_of(&self, number: usize, ranks: &[usize], rounded_once: bool) -> bool {
        match &self.exprs[number] {
            Expr::Leaf(rank) => ranks == [*rank],
            Expr::Finish(_) => false,
            Expr::Fold(of) => {
                let Some((first, rest)) = of.split_first() else { return false };
                let Some(split) = ranks.len().checked_sub(rest.len()) else { return false };
                let leaves = rest.iter().zip(&ranks[split..]);
                leaves.into_iter().all(|(&e, &rank)| self.exprs[e] == Expr::Leaf(rank))
                    && !(rounded_once && split > 1)
                    && self.is_fold_of(*first, &ranks[..split], rounded_once)
            }
        }
    }
}

impl Exprs {
    /// Whether the expression is the fold of all ranks over hosts, then over the groups of each level, each in rank order.
    fn is_in_order(&mut self, number: usize, grid: &Grid, averages: bool) -> bool {
        if let Some(&known) = self.ordered.get(&number) {
            return known;
        }
        let levels = grid.levels().len();
        let sum = self.fold_of_group(grid, levels, 0);
        let expected = if averages { self.intern(Expr::Finish(sum)) } else { sum };
        let ordered = self.without_order_of_two(number) == expected;
        self.ordered.insert(number, ordered);
        ordered
    }

    fn fold_of_group(&mut self, grid: &Grid, level: usize, group: u32) -> usize {
        let units = grid.group(level, group).map(|unit| match level.checked_sub(1) {
            Some(below) => self.fold_of_group(grid, below, unit),
            None => {
                let ranks =
                    grid.ranks_on(unit).map(|rank| self.intern(Expr::Leaf(rank.0 as usize))).collect();
                self.fold_of(ranks)
            }
        });
        let units = units.collect();
        self.fold_of(units)
    }

    /// A fold of one copies it.
    fn fold_of(&mut self, mut of: Vec<usize>) -> usize {
        match *of {
            [only] => only,
            [_, _] => {
                of.sort_unstable();
                self.intern(Expr::Fold(of))
            }
            _ => self.intern(Expr::Fold(of)),
        }
    }

    /// The same expression with the operands of folds of two in one order, in which they have the same bits.
    fn without_order_of_two(&mut self, number: usize) -> usize {
        match self.exprs[number].clone() {
            Expr::Leaf(_) => number,
            Expr::Finish(of) => {
                let of = self.without_order_of_two(of);
                self.intern(Expr::Finish(of))
            }
            Expr::Fold(of) => {
                let of = of.into_iter().map(|of| self.without_order_of_two(of)).collect();
                self.fold_of(of)
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
    fn read(&self, (memory, offset): (Memory, usize), len: usize) -> Option<Vec<Segment>> {
        let segments = self.memories.get(&memory).map_or(&[][..], Vec::as_slice);
        let cut = segments.iter().filter_map(|segment| segment.cut(offset, offset + len));
        let shifted: Vec<_> =
            cut.map(|s| Segment { start: s.start - offset, end: s.end - offset, ..s }).collect();
        let covered: usize = shifted.iter().map(|s| s.end - s.start).sum();
        (covered == len).then_some(shifted)
    }

    fn write(&mut self, (memory, offset): (Memory, usize), len: usize, new: Vec<Segment>) {
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

/// The memory at first: every rank's input holds its own values, byte by byte.
fn inputs(schedules: &[Schedule], exprs: &mut Exprs) -> MemoryState {
    let mut state = MemoryState::default();
    for (rank, schedule) in schedules.iter().enumerate() {
        let (problem, expr) = (schedule.problem(), exprs.intern(Expr::Leaf(rank)));
        let len = problem.input_bytes() as usize;
        let place = BufferOffset { buffer: problem.given_in(), offset: 0 };
        let (memory, start) = memory(schedules, rank, place, 0);
        if len > 0 {
            state.write((memory, start), len, vec![Segment { start: 0, end: len, expr, origin: 0 }]);
        }
    }
    state
}

/// Returns whether reduced elements are folded [in order](super::Proof::in_order).
pub(super) fn check(schedules: &[Schedule], graph: &Graph, order: &[usize]) -> Result<bool, Flaw> {
    let mut exprs = Exprs::default();
    let mut state = inputs(schedules, &mut exprs);
    let senders: HashMap<_, _> = graph.messages.iter().map(|&(send, receive)| (receive, send)).collect();
    let mut flying: HashMap<(usize, usize), Vec<Segment>> = HashMap::new();
    for &point in order {
        let (rank, step, end) = graph.point(point);
        let schedule = &schedules[rank];
        let plan = &schedule.steps()[step];
        let value = |what| Flaw::Value { at: boxed(schedules, rank, step), what };
        let unwritten = || value("reads bytes that no step has written");
        let misplaced = || value("combines elements that do not belong together");
        let mem = |place: BufferOffset| memory(schedules, rank, place, plan.chunk);
        // A send reads when it starts; everything else happens when it ends.
        if let Action::Send { from, len, .. } = plan.action {
            if !end {
                let read = state.read(mem(from), len).ok_or_else(unwritten)?;
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
                state.write(mem(into), len, message.ok_or_else(unwritten)?);
            }
            Action::ReceiveReduce { into, len, .. } => {
                let message = senders.get(&(rank, step)).and_then(|send| flying.remove(send));
                let here = state.read(mem(into), len).ok_or_else(unwritten)?;
                let parts = [here, message.ok_or_else(unwritten)?];
                let sum = combine(&mut exprs, &parts, |of| Err(Expr::Fold(of))).ok_or_else(misplaced)?;
                state.write(mem(into), len, sum);
            }
            Action::Fold { first, destinations, sources, len, finish } => {
                let (into, sources) = schedule.fold_places(first, destinations, sources);
                let read = |&place: &BufferOffset| state.read(mem(place), len).ok_or_else(unwritten);
                let parts = sources.iter().map(read).collect::<Result<Vec<_>, _>>()?;
                // A fold of one copies it.
                let sum = |of: Vec<usize>| if let [only] = *of { Ok(only) } else { Err(Expr::Fold(of)) };
                let mut result = combine(&mut exprs, &parts, sum).ok_or_else(misplaced)?;
                if finish {
                    result =
                        combine(&mut exprs, &[result], |e| Err(Expr::Finish(e[0]))).ok_or_else(misplaced)?;
                }
                for into in into {
                    state.write(mem(*into), len, result.clone());
                }
            }
            Action::Copy { from, into, len } => {
                let read = state.read(mem(from), len).ok_or_else(unwritten)?;
                state.write(mem(into), len, read);
            }
            Action::Finish { at, len } => {
                let read = state.read(mem(at), len).ok_or_else(unwritten)?;
                let divided =
                    combine(&mut exprs, &[read], |e| Err(Expr::Finish(e[0]))).ok_or_else(misplaced)?;
                state.write(mem(at), len, divided);
            }
            Action::Send { .. }
            | Action::Signal { .. }
            | Action::Wait { .. }
            | Action::WaitAll { .. }
            | Action::WaitFree => {}
        }
    }
    results(schedules, exprs, &state)
}

/// The value that an element must have.
enum Expected {
    /// The value of a rank.
    Of(usize),
    /// The reduction over all ranks, in whatever order.
    All,
    /// The fold over so many ranks, in rank order.
    First(usize),
}

/// The value that a byte of a rank's output must have, and the byte of the inputs that it comes from.
fn expected(schedules: &[Schedule], problem: &Problem, byte: usize) -> (Expected, usize) {
    let (rank, root) = (problem.rank.0 as usize, problem.root.0 as usize);
    let own = problem.input_block(problem.rank) as usize;
    // Where ranks have blocks of their own in the output: of which rank it is, and where in the block.
    let of_block = || {
        let from = blocks(problem).partition_point(|&end| end <= byte);
        (from, byte - problem.output_block(Rank(from as u32)) as usize)
    };
    match problem.shape.collective.base() {
        Collective::Scan => (Expected::First(rank + 1), byte),
        Collective::ExScan => (Expected::First(rank), byte),
        Collective::ReduceScatter => (Expected::All, own + byte),
        Collective::Broadcast => (Expected::Of(root), byte),
        Collective::Scatter => {
            let of_root = Problem { rank: problem.root, ..problem.clone() };
            (Expected::Of(root), of_root.input_block(problem.rank) as usize + byte)
        }
        Collective::AllGather | Collective::Gather => {
            let (from, at) = of_block();
            (Expected::Of(from), at)
        }
        Collective::AllToAll => {
            let (from, at) = of_block();
            // The rank itself may not know where the other one's block begins.
            let giver = schedules[from].problem();
            (Expected::Of(from), giver.input_block(problem.rank) as usize + at)
        }
        _ => (Expected::All, byte),
    }
}

/// Where the blocks of a rank's output end, in bytes.
fn blocks(problem: &Problem) -> Vec<usize> {
    let whole = problem.output_bytes() as usize;
    match problem.shape.collective.base() {
        Collective::AllGather | Collective::Gather | Collective::AllToAll => {
            let starts = (1..problem.grid.ranks()).map(|rank| problem.output_block(Rank(rank)) as usize);
            starts.chain([whole]).collect()
        }
        _ => vec![whole],
    }
}

fn results(schedules: &[Schedule], mut exprs: Exprs, state: &MemoryState) -> Result<bool, Flaw> {
    let all: Vec<usize> = (0..schedules.len()).collect();
    let mut in_order = true;
    let (mut reduced, mut of_blocks) = (Reduced::default(), Blocks::default());
    for (rank, schedule) in schedules.iter().enumerate() {
        let problem = schedule.problem();
        let averages =
            problem.shape.op == ReduceOp::Avg && problem.shape.collective.reduces() && schedules.len() > 1;
        let bytes = problem.output_bytes() as usize;
        let output = memory(schedules, rank, BufferOffset { buffer: Buffer::Data, offset: 0 }, 0);
        let nothing = || Flaw::Result {
            rank: Rank(rank as u32),
            byte: 0,
            found: "nothing, in places".into(),
            expected: "a value everywhere",
        };
        let ends = blocks(problem);
        let mine = state.read(output, bytes).ok_or_else(nothing)?;
        for segment in mine.into_iter().flat_map(|segment| at_blocks(segment, &ends)) {
            let flaw = |exprs: &Exprs, expected| Flaw::Result {
                rank: Rank(rank as u32),
                byte: segment.start,
                found: exprs.show(segment.expr),
                expected,
            };
            let (of, origin) = expected(schedules, problem, segment.start);
            if segment.origin != origin {
                return Err(flaw(&exprs, "this element, and not another one"));
            }
            let (right, what) = match of {
                Expected::Of(of) => (exprs.exprs[segment.expr] == Expr::Leaf(of), "the element of one rank"),
                Expected::First(ranks) => {
                    let right = exprs.is_fold_of(segment.expr, &all[..ranks], is_rounded_once(problem));
                    (right, "the fold of the ranks before it, in rank order")
                }
                Expected::All => {
                    let right = exprs.is_whole(segment.expr, schedules.len(), averages);
                    (right, "every contribution exactly once")
                }
            };
            if !right {
                return Err(flaw(&exprs, what));
            }
            if matches!(of, Expected::All) && in_order {
                in_order = exprs.is_in_order(segment.expr, &problem.grid, averages);
            }
            // Of a reduce-scatter each rank has other elements.
            let apart = problem.shape.collective.base() == Collective::ReduceScatter;
            let same = match of {
                Expected::All if apart => of_blocks.is_same(&mut exprs, problem, segment.expr),
                Expected::All => reduced.is_same(segment),
                _ => true,
            };
            if !same {
                return Err(flaw(&exprs, "the same expression as on rank 0"));
            }
        }
    }
    Ok(in_order)
}

/// Whether a fold is done in a wider type than the elements', and rounded at its end.
fn is_rounded_once(problem: &Problem) -> bool {
    problem.shape.dtype.is_folded_wider(problem.shape.op)
}

/// The pieces of a segment in blocks that end at these bytes.
fn at_blocks(segment: Segment, ends: &[usize]) -> impl Iterator<Item = Segment> {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts.zip(ends).filter_map(move |(start, &end)| segment.cut(start, end))
}

/// The expressions of reduced elements so far, on the first rank that has them.
#[derive(Default)]
struct Reduced {
    segments: Vec<Segment>,
}

impl Reduced {
    /// Whether an element has the same expression as on the ranks before.
    fn is_same(&mut self, segment: Segment) -> bool {
        let here = |known: &&Segment| known.cut(segment.start, segment.end).is_some();
        let mut known = self.segments.iter().filter(here).peekable();
        if known.peek().is_none() {
            self.segments.push(segment);
            return true;
        }
        known.all(|known| known.expr == segment.expr)
    }
}

/// The expressions of the blocks of a reduce-scatter: all have the same one; or all have the same one if nodes are counted from the block's,
/// as where a sum goes around a ring and ends there.
#[derive(Default)]
struct Blocks {
    /// By whether nodes are counted so: the first one, and whether all were the same.
    known: [Option<(usize, bool)>; 2],
}

impl Blocks {
    fn is_same(&mut self, exprs: &mut Exprs, problem: &Problem, expr: usize) -> bool {
        let (grid, before) = (problem.grid, problem.grid.leader_of(problem.node()).0 as usize);
        let counted = exprs.counted_from(expr, before, grid.ranks() as usize);
        let found = [expr, counted].into_iter().zip(&mut self.known).map(|(expr, known)| {
            let (first, same) = *known.get_or_insert((expr, true));
            *known = Some((first, same && first == expr));
            same && first == expr
        });
        found.fold(false, |any, same| any | same)
    }
}
