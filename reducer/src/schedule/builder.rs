//! The tools of every algorithm: chunks and slices, steps and edges, slots that are used again.

use super::blocks::{self, Cuts};
use super::messages::MessageTable;
use super::{Action, Buffer, BufferOffset, Params, Problem, Schedule, ScheduleError, Step, StepId};
use crate::counts::Counts;
use crate::dtype::ReduceOp;

/// Boundaries of chunks and slices are multiples of this many elements.
pub(super) const UNIT: u64 = 64;

/// The most chunks of an operation.
pub(super) const MAX_CHUNKS: u64 = 1 << 24;

/// A range of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Slice {
    pub(super) fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Part `index` of `parts` nearly equal ones, cut at multiples of [`UNIT`] elements from the start.
    pub(super) fn part(self, index: u32, parts: u32) -> Slice {
        let units = (self.end - self.start).div_ceil(UNIT);
        let cut = |i: u32| {
            let unit = u128::from(units) * u128::from(i) / u128::from(parts);
            (self.start + unit as u64 * UNIT).min(self.end)
        };
        Slice { start: cut(index), end: cut(index + 1) }
    }

    /// An upper bound for the elements of any of `parts` parts, for slices that are no longer than this one.
    pub(super) fn largest_part(self, parts: u32) -> u64 {
        (self.end - self.start).div_ceil(UNIT).div_ceil(u64::from(parts)) * UNIT
    }
}

/// A chunk of the tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    pub(super) index: u32,
    pub(super) slice: Slice,
}

/// Where an up-grid algorithm works: the tensor itself, or the node's result area of the chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub(super) buffer: Buffer,
    /// The element that lies at the buffer's start.
    pub(super) base: u64,
}

/// The last steps of an up-grid algorithm for a chunk.
#[derive(Debug, Default)]
pub(super) struct ChunkResult {
    /// The area holds the result after these.
    pub(super) result: Vec<StepId>,
    /// Sends that read the area.
    pub(super) sends: Vec<StepId>,
}

#[derive(Debug, Default)]
struct SlotUse {
    offset: usize,
    /// 0 until the slot is used.
    bytes: usize,
    /// The slot may be written again after these.
    last: Vec<StepId>,
}

/// A schedule in the making.
#[derive(Debug)]
pub(super) struct Builder {
    pub(super) problem: Problem,
    pub(super) params: Params,
    steps: Vec<Step>,
    places: Vec<BufferOffset>,
    edges: Vec<(u32, u32)>,
    slots: Vec<Vec<SlotUse>>,
    slot_bytes: usize,
    lane_chunks: u32,
    chunk_elems: u64,
    /// Set where blocks differ.
    cuts: Option<Cuts>,
}

impl Builder {
    pub(super) fn new(problem: Problem, params: Params) -> Result<Self, ScheduleError> {
        let pieces = blocks::pieces(&problem);
        Self::with_pieces(problem, params, pieces)
    }

    /// With room in an area of a lane for so many pieces, each as long as a chunk.
    pub(super) fn with_pieces(problem: Problem, params: Params, pieces: u64) -> Result<Self, ScheduleError> {
        let room = params.chunk_bytes_on(&problem.grid);
        let elems = (room / pieces as usize / problem.elem()) as u64;
        let cuts = match &problem.counts {
            Some(counts) => Some(Cuts::new(&problem, counts, (room / problem.elem()) as u64)?),
            None => None,
        };
        let chunk_elems = match problem.shape.collective.is_blocked() || pieces > 1 {
            true if elems == 0 && cuts.is_none() => {
                let what = "the ranks for a lane: raise lane_bytes; the blocks";
                return Err(ScheduleError::TooLarge { what, count: problem.shape.count });
            }
            true if elems < UNIT => elems.max(1),
            _ => (elems / UNIT * UNIT).max(UNIT),
        };
        if cuts.is_none() && problem.shape.count.div_ceil(chunk_elems) > MAX_CHUNKS {
            return Err(ScheduleError::TooLarge { what: "the chunks", count: problem.shape.count });
        }
        let slots = (0..params.depth).map(|_| Vec::new()).collect();
        Ok(Self {
            problem,
            params,
            steps: Vec::new(),
            places: Vec::new(),
            edges: Vec::new(),
            slots,
            slot_bytes: 0,
            lane_chunks: 0,
            chunk_elems,
            cuts,
        })
    }

    /// The tensor's chunks; where there are blocks, a chunk is the same piece of all of them, and has no slice if they differ. A barrier
    /// has one, without elements.
    pub(super) fn chunks(&self) -> impl Iterator<Item = Chunk> + use<> {
        let (count, size) = match self.cuts {
            Some(_) => (0, 0),
            None => (self.problem.shape.count, self.chunk_elems),
        };
        (0..self.chunk_count()).map(move |index| {
            let start = u64::from(index) * size;
            Chunk { index, slice: Slice { start, end: count.min(start + size) } }
        })
    }

    /// Elements of a chunk.
    pub(super) fn chunk_elements(&self) -> u64 {
        self.chunk_elems
    }

    /// Number of chunks; one of an empty tensor, so that a rank that runs something else is found there, too.
    pub(super) fn chunk_count(&self) -> u32 {
        match self.cuts {
            Some(cuts) => cuts.chunks,
            None => (self.problem.shape.count.div_ceil(self.chunk_elems) as u32).max(1),
        }
    }

    /// The blocks and how they are cut, where they differ.
    pub(super) fn uneven(&self) -> Option<(&Counts, Cuts)> {
        Some((self.problem.counts.as_deref()?, self.cuts?))
    }

    /// Elements to reserve for slots: those of a full chunk.
    pub(super) fn full_chunk(&self) -> Slice {
        Slice { start: 0, end: self.chunk_elems.min(self.problem.shape.count) }
    }

    /// Notes that every chunk uses a lane.
    pub(super) fn use_lanes(&mut self) {
        self.lane_chunks = self.chunk_count();
    }

    /// Notes that the whole operation uses one lane once, for its flags alone.
    pub(super) fn use_one_lane(&mut self) {
        self.lane_chunks = 1;
    }

    pub(super) fn bytes(&self, slice: Slice) -> usize {
        (slice.end - slice.start) as usize * self.problem.elem()
    }

    pub(super) fn data(&self, slice: Slice) -> BufferOffset {
        BufferOffset { buffer: Buffer::Data, offset: slice.start as usize * self.problem.elem() }
    }

    /// This rank's contribution to a slice of the tensor.
    pub(super) fn input(&self, slice: Slice) -> BufferOffset {
        BufferOffset { buffer: self.problem.given_in(), ..self.data(slice) }
    }

    /// Whether the operation goes through the memory of the node: it has several ranks, or what it gets is laid out there, or the CPU
    /// cannot touch the tensor.
    pub(super) fn shares(&self) -> bool {
        let device = self.problem.access.is_device() && !self.problem.works_on_device();
        // Blocks of a host with several ranks are one message, also for one that is alone on its host.
        let collective = self.problem.shape.collective;
        let in_areas = self.problem.meets() && (collective.is_blocked() || collective.is_scan());
        self.problem.locals() > 1 || in_areas || device
    }

    pub(super) fn at(&self, area: Area, slice: Slice) -> BufferOffset {
        BufferOffset { buffer: area.buffer, offset: (slice.start - area.base) as usize * self.problem.elem() }
    }

    /// Adds a step that runs after others.
    pub(super) fn step(&mut self, chunk: Chunk, action: Action, after: &[StepId]) -> StepId {
        let id = self.steps.len() as u32;
        self.steps.push(Step { action, chunk: chunk.index });
        self.edges.extend(after.iter().map(|before| (before.0, id)));
        StepId(id)
    }

    /// Adds a copy, or nothing for no bytes; returns what to wait for.
    pub(super) fn copy(
        &mut self,
        chunk: Chunk,
        from: BufferOffset,
        into: BufferOffset,
        len: usize,
        after: &[StepId],
    ) -> Vec<StepId> {
        if len == 0 {
            return after.to_vec();
        }
        vec![self.step(chunk, Action::Copy { from, into, len }, after)]
    }

    /// Adds a fold, or nothing for no bytes.
    pub(super) fn fold(
        &mut self,
        chunk: Chunk,
        into: BufferOffset,
        sources: &[BufferOffset],
        len: usize,
        after: &[StepId],
    ) -> Vec<StepId> {
        self.fold_all(chunk, (&[into], false), sources, len, after)
    }

    /// As [`fold`](Self::fold), to many places in one pass, and (`finish`) divided for an average.
    pub(super) fn fold_all(
        &mut self,
        chunk: Chunk,
        (into, finish): (&[BufferOffset], bool),
        sources: &[BufferOffset],
        len: usize,
        after: &[StepId],
    ) -> Vec<StepId> {
        if len == 0 {
            return after.to_vec();
        }
        let first = self.places.len() as u32;
        self.places.extend(into.iter().chain(sources));
        let (destinations, sources) = (into.len() as u32, sources.len() as u32);
        vec![self.step(chunk, Action::Fold { first, destinations, sources, len, finish }, after)]
    }

    /// Whether sums are to be divided.
    pub(super) fn averages(&self) -> bool {
        let Problem { grid, shape, .. } = &self.problem;
        shape.op == ReduceOp::Avg && shape.collective.reduces() && grid.ranks() > 1
    }

    /// Divides sums for an average; nothing for other reductions.
    pub(super) fn finish_sum(
        &mut self,
        chunk: Chunk,
        at: BufferOffset,
        len: usize,
        after: Vec<StepId>,
    ) -> Vec<StepId> {
        if len == 0 || !self.averages() {
            return after;
        }
        vec![self.step(chunk, Action::Finish { at, len }, &after)]
    }

    /// Slot `number` of the chunk, with room for `elems` elements, and the steps after which it may be written.
    pub(super) fn slot(&mut self, chunk: Chunk, number: usize, elems: u64) -> (BufferOffset, Vec<StepId>) {
        let bytes = (elems as usize * self.problem.elem()).next_multiple_of(UNIT as usize);
        let set = &mut self.slots[(chunk.index % self.params.depth) as usize];
        if set.len() <= number {
            set.resize_with(number + 1, SlotUse::default);
        }
        let slot = &mut set[number];
        if slot.bytes == 0 {
            (slot.offset, slot.bytes) = (self.slot_bytes, bytes);
            self.slot_bytes += bytes;
        }
        debug_assert!(slot.bytes >= bytes, "a slot is as large on its first use as on any other");
        (BufferOffset { buffer: Buffer::Slot, offset: slot.offset }, slot.last.clone())
    }

    /// Notes the steps that must be done before the slot is written again.
    pub(super) fn slot_used(&mut self, chunk: Chunk, number: usize, last: &[StepId]) {
        let set = &mut self.slots[(chunk.index % self.params.depth) as usize];
        set[number].last = last.to_vec();
    }

    /// Lays out edges and message tables.
    pub(super) fn finish(self) -> Result<Schedule, ScheduleError> {
        let count = self.problem.shape.count;
        let too_large = |what| ScheduleError::TooLarge { what, count };
        let n = u32::try_from(self.steps.len()).map_err(|_| too_large("the steps"))?;
        let total = u32::try_from(self.edges.len()).map_err(|_| too_large("the edges"))?;
        let mut edge_start = vec![0u32; n as usize + 1];
        let mut indegree = vec![0u32; n as usize];
        let mut behind_sends = vec![true; n as usize];
        for &(from, to) in &self.edges {
            behind_sends[to as usize] &= matches!(self.steps[from as usize].action, Action::Send { .. });
            edge_start[from as usize + 1] += 1;
            indegree[to as usize] += 1;
        }
        for (i, behind) in behind_sends.iter_mut().enumerate() {
            *behind &= indegree[i] > 0;
        }
        for i in 0..n as usize {
            edge_start[i + 1] += edge_start[i];
        }
        let mut next = edge_start.clone();
        let mut edges = vec![0u32; total as usize];
        for &(from, to) in &self.edges {
            edges[next[from as usize] as usize] = to;
            next[from as usize] += 1;
        }
        let steps = || (0..).map(StepId).zip(&self.steps);
        let received = steps().filter_map(|(id, step)| match step.action {
            Action::Receive { from, round, .. } | Action::ReceiveReduce { from, round, .. } => {
                Some((id, from, round))
            }
            _ => None,
        });
        let sent = steps().filter_map(|(id, step)| match step.action {
            Action::Send { to, round, .. } => Some((id, to, round)),
            _ => None,
        });
        let (grid, too_many) = (&self.problem.grid, || too_large("the messages"));
        let receives = MessageTable::new(grid, received, too_many)?;
        let sends = MessageTable::new(grid, sent, too_many)?;
        Ok(Schedule {
            problem: self.problem,
            params: self.params,
            steps: self.steps,
            places: self.places,
            edges,
            edge_start,
            indegree,
            behind_sends,
            slot_bytes: self.slot_bytes,
            lane_chunks: self.lane_chunks,
            cost: 0,
            receives,
            sends,
            in_place: None,
        })
    }
}
