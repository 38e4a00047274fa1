//! No two accesses to the same bytes without an order, if one of them writes.

use super::graph::{Graph, Reach};
use super::{Flaw, boxed, steps, successors};
use crate::grid::Rank;
use crate::schedule::{Access, Action, Buffer, BufferOffset, Placement, Schedule};
use std::collections::BTreeMap;

/// One piece of memory of the whole group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Memory {
    /// A rank's tensor.
    Data(usize),
    /// A rank's input, where it is apart from that.
    Input(usize),
    /// A rank's slots.
    Slot(usize),
    /// (node, local rank, lane).
    Stage(u32, u32, u32),
    /// (node, lane).
    Node(u32, u32),
}

/// Which memory a place of a rank's step lies in, and where in it.
pub(super) fn memory(
    schedules: &[Schedule],
    rank: usize,
    place: BufferOffset,
    chunk: u32,
) -> (Memory, usize) {
    let schedule = &schedules[rank];
    let problem = schedule.problem();
    let node = problem.grid.node_of(Rank(rank as u32));
    let lane = || chunk % schedule.params().lanes.max(1);
    let memory = match place.buffer {
        Buffer::Data => Memory::Data(rank),
        Buffer::Input => Memory::Input(rank),
        Buffer::Peer(local) => {
            let other = problem.grid.rank_at(node, local).0 as usize;
            let given = schedules[other].problem().given_in();
            return memory(schedules, other, BufferOffset { buffer: given, ..place }, chunk);
        }
        Buffer::Slot => Memory::Slot(rank),
        Buffer::Stage(local) => Memory::Stage(node, local, lane()),
        Buffer::Node => Memory::Node(node, lane()),
    };
    // In place, both are in one tensor.
    let (input, output) = match problem.placement {
        Placement::InPlace if problem.has_input() => problem.in_place(),
        _ => (0, 0),
    };
    match memory {
        Memory::Input(rank) if problem.placement == Placement::InPlace => {
            (Memory::Data(rank), input as usize + place.offset)
        }
        Memory::Data(_) => (memory, output as usize + place.offset),
        _ => (memory, place.offset),
    }
}

/// The places that a step touches: (place, length, whether it writes).
fn accesses(schedule: &Schedule, action: &Action) -> Vec<(BufferOffset, usize, bool)> {
    match *action {
        Action::Send { from, len, .. } => vec![(from, len, false)],
        Action::Receive { into, len, .. } | Action::ReceiveReduce { into, len, .. } => {
            vec![(into, len, true)]
        }
        Action::Copy { from, into, len } => vec![(from, len, false), (into, len, true)],
        Action::Finish { at, len } => vec![(at, len, true)],
        Action::Fold { first, destinations, sources, len, .. } => {
            let (into, sources) = schedule.fold_places(first, destinations, sources);
            let reads = sources.iter().map(|&place| (place, len, false));
            reads.chain(into.iter().map(|&place| (place, len, true))).collect()
        }
        Action::Signal { .. } | Action::Wait { .. } | Action::WaitAll { .. } | Action::WaitFree => Vec::new(),
    }
}

/// Whether a step does to the rank's tensor what it may not.
pub(super) fn is_out_of_reach(schedule: &Schedule, action: &Action) -> bool {
    let touched = accesses(schedule, action);
    let tensors =
        |place: &BufferOffset| matches!(place.buffer, Buffer::Data | Buffer::Input | Buffer::Peer(_));
    let touches = || touched.iter().any(|(place, _, _)| tensors(place));
    match (schedule.problem().access, action) {
        (Access::Host, _) | (_, Action::Copy { .. }) => false,
        (Access::Direct, _) if schedule.problem().works_on_device() => false,
        // All of it must be in the accelerator's reach.
        (Access::Accelerator, Action::Fold { .. }) => {
            touches() && touched.iter().any(|(place, _, _)| !tensors(place) && place.buffer != Buffer::Node)
        }
        (Access::Copies | Access::Accelerator | Access::Direct, _) => touches(),
    }
}

/// Whether a step is one for the CPU: it reduces fragments as they arrive, or works on memory of the node.
pub(super) fn needs_host(schedule: &Schedule, action: &Action) -> bool {
    matches!(action, Action::ReceiveReduce { .. })
        || accesses(schedule, action)
            .iter()
            .any(|(place, _, _)| !matches!(place.buffer, Buffer::Data | Buffer::Slot))
}

struct Touch {
    start: usize,
    end: usize,
    write: bool,
    rank: usize,
    step: usize,
}

pub(super) fn check(schedules: &[Schedule], graph: &Graph, reach: &Reach) -> Result<(), Flaw> {
    let mut memories: BTreeMap<Memory, Vec<Touch>> = BTreeMap::new();
    for (rank, step, plan) in steps(schedules) {
        let schedule = &schedules[rank];
        let limit = |buffer| match buffer {
            Buffer::Data => schedule.problem().output_bytes() as usize,
            Buffer::Input => schedule.problem().input_bytes() as usize,
            Buffer::Peer(local) => {
                let problem = schedule.problem();
                let other = problem.grid.rank_at(problem.node(), local);
                schedules[other.0 as usize].problem().input_bytes() as usize
            }
            Buffer::Slot => schedule.slot_bytes(),
            Buffer::Stage(_) | Buffer::Node => schedule.params().chunk_bytes_on(&schedule.problem().grid),
        };
        let touched = accesses(schedule, &plan.action);
        for &(place, len, write) in &touched {
            let Some(end) = place.offset.checked_add(len).filter(|&end| end <= limit(place.buffer)) else {
                return Err(Flaw::Bounds {
                    at: boxed(schedules, rank, step),
                    what: "reaches beyond its buffer",
                });
            };
            if len > 0 {
                let (memory, start) = memory(schedules, rank, place, plan.chunk);
                let access = Touch { start, end: start + end - place.offset, write, rank, step };
                if matches!(memory, Memory::Stage(..) | Memory::Node(..)) {
                    within_use(schedules, graph, reach, (rank, step, plan.chunk))?;
                }
                memories.entry(memory).or_default().push(access);
            }
        }
        // A fold may have a destination as a source, but must not overlap one, nor write a place twice.
        let at = |place: BufferOffset| memory(schedules, rank, place, plan.chunk);
        for (i, &(into, len, _)) in touched.iter().enumerate().filter(|(_, touch)| touch.2) {
            let (memory, into) = at(into);
            let bad = |&&(place, _, write): &&(BufferOffset, usize, bool)| {
                let (other, place) = at(place);
                other == memory && (write || place != into) && place < into + len && into < place + len
            };
            if len > 0 && touched[..i].iter().any(|other| bad(&other)) {
                let what = "its destination overlaps a source or another destination";
                return Err(Flaw::Bounds { at: boxed(schedules, rank, step), what });
            }
        }
    }
    for (memory, accesses) in &mut memories {
        if let &Memory::Data(owner) = memory {
            let ends = |touch: &Touch| graph.end(touch.rank, touch.step);
            let steps = schedules[owner].steps().len();
            let heard = |touch: &Touch| (0..steps).any(|i| reach.before(ends(touch), graph.end(owner, i)));
            if let Some(late) = accesses.iter().find(|touch| touch.rank != owner && !heard(touch)) {
                let at = boxed(schedules, late.rank, late.step);
                return Err(Flaw::Late { at, owner: Rank(owner as u32) });
            }
        }
        accesses.sort_by_key(|access| access.start);
        for (i, a) in accesses.iter().enumerate() {
            for b in accesses[i + 1..].iter().take_while(|b| b.start < a.end) {
                if !(a.write || b.write) || (a.rank, a.step) == (b.rank, b.step) {
                    continue;
                }
                let (from_a, to_a) = (graph.start(a.rank, a.step), graph.end(a.rank, a.step));
                let (from_b, to_b) = (graph.start(b.rank, b.step), graph.end(b.rank, b.step));
                if !reach.before(to_a, from_b) && !reach.before(to_b, from_a) {
                    return Err(Flaw::Race {
                        first: boxed(schedules, a.rank, a.step),
                        second: boxed(schedules, b.rank, b.step),
                    });
                }
            }
        }
    }
    Ok(())
}

/// Credit is granted early for a message that overwrites a range that was sent from. Its sender must be ordered after all
/// receivers that used what was sent from there.
pub(super) fn check_early(schedules: &[Schedule], graph: &Graph, reach: &Reach) -> Result<(), Flaw> {
    let receives: BTreeMap<_, _> = graph.messages.iter().copied().collect();
    for &((sender, sent), (rank, step)) in &graph.messages {
        let schedule = &schedules[rank];
        if !schedule.behind_sends[step] {
            continue;
        }
        let overwritten = |&i: &usize| successors(schedule, i).contains(&(step as u32));
        for send in (0..schedule.steps().len()).filter(overwritten) {
            let used = receives.get(&(rank, send)).map(|&(other, receive)| graph.end(other, receive));
            if used.is_none_or(|used| !reach.before(used, graph.start(sender, sent))) {
                return Err(Flaw::Early {
                    receive: boxed(schedules, rank, step),
                    send: boxed(schedules, rank, send),
                });
            }
        }
    }
    Ok(())
}

/// A lane serves other chunks and other operations too. Every access must come after a wait for the lane, and before
/// a local rank says that it is consumed.
fn within_use(
    schedules: &[Schedule],
    graph: &Graph,
    reach: &Reach,
    (rank, step, chunk): (usize, usize, u32),
) -> Result<(), Flaw> {
    let grid = schedules[rank].problem().grid;
    let node = grid.node_of(Rank(rank as u32));
    let locals = || grid.ranks_on(node).map(|rank| rank.0 as usize);
    let (start, end) = (graph.start(rank, step), graph.end(rank, step));
    let flaw = |what| Err(Flaw::LaneFlag { at: boxed(schedules, rank, step), what });
    if !locals().any(|local| {
        graph.wait_free(local, chunk).is_some_and(|wait| reach.before(graph.end(local, wait), start))
    }) {
        return flaw("may touch the lane while its previous use goes on");
    }
    if !locals().any(|local| {
        graph.consumed(local, chunk).is_some_and(|signal| reach.before(end, graph.start(local, signal)))
    }) {
        return flaw("may touch the lane after all ranks have said that it is consumed");
    }
    Ok(())
}
