//! The places of things in the segment; pure arithmetic, the same in every process.

/// Bytes of a cache line; two are fetched together on many machines, hence flags stand 128 apart.
pub(super) const LINE: usize = 64;
/// Distance between words that different ranks write.
const APART: usize = 128;
pub(super) const PAGE: usize = 4096;
/// A huge page: large pieces begin on one.
pub(super) const HUGE: usize = 2 << 20;
/// Payload bytes of a small-message cell.
pub(crate) const CELL_PAYLOAD: usize = 4096;
/// Cells of a rank: operation n uses cell n mod `CELLS`.
pub(crate) const CELLS: u64 = 16;
/// Bytes of a rank's cells: their sequence lines, then their payloads.
const CELLS_BYTES: usize = CELLS as usize * (APART + CELL_PAYLOAD);
/// Announcements that a rank keeps: twice as many as operations can be under way, so that none is overwritten which
/// another rank has yet to compare.
pub(crate) const ANNOUNCEMENTS: usize = 512;
/// Bytes of an announcement: words, and how others open a tensor in an accelerator's memory.
pub(super) const ANNOUNCEMENT: usize = 3 * LINE;
/// Bytes of a ring between two ranks: a few of the largest messages, and little enough to stay in a core's cache.
pub(crate) const RING: usize = 128 << 10;
/// Pieces of its arena that a rank exposes at once.
pub(super) const EXPOSURES: usize = 256;
/// Bytes before a rank's announcements.
const LINES: usize = 4 * APART + EXPOSURES * 8;
/// Flags of a lane, per rank.
const FLAGS: usize = 4;

/// The parameters of a segment's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentShape {
    /// Ranks of the node.
    pub ranks: u32,
    /// Lanes.
    pub lanes: u32,
    /// Bytes of each area of a lane, a multiple of 64.
    pub lane_bytes: usize,
    /// Most bytes of each rank's tensors in shared memory. Pages that are not used cost nothing.
    pub arena_bytes: usize,
    /// Parts: each is a segment of this shape without arena and parts, for a duplicate of the group of all or a
    /// further shard. Pages that are not used cost nothing.
    pub parts: u32,
}

impl SegmentShape {
    /// The shape of its parts.
    pub(super) fn of_part(self) -> Self {
        Self { arena_bytes: 0, parts: 0, ..self }
    }

    /// The same with arenas for which a process that may still map `room` bytes has the address space: they take half of
    /// the room beside the rest of the segment, for a program needs some besides.
    pub(super) fn within(self, room: u64) -> Self {
        let Some(bare) = SegmentLayout::new(Self { arena_bytes: 0, ..self }) else { return self };
        let half = usize::try_from(room).unwrap_or(usize::MAX).saturating_sub(bare.total()) / 2;
        let arena = half / (self.ranks.max(1) as usize) / HUGE * HUGE;
        Self { arena_bytes: self.arena_bytes.min(arena), ..self }
    }
}

/// Offsets, in bytes from the segment's start.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentLayout {
    shape: SegmentShape,
    rank_bytes: usize,
    flags: usize,
    area: usize,
    lanes: usize,
    heads: usize,
    rings: usize,
    arena: usize,
    arenas: usize,
    part: usize,
    parts: usize,
    total: usize,
}

pub(super) const MAGIC_AT: usize = 0;
pub(super) const RANKS_AT: usize = 8;
pub(super) const LANES_AT: usize = 16;
pub(super) const LANE_BYTES_AT: usize = 24;
pub(super) const ABORT_AT: usize = APART;
/// Payload bytes of a message that the leader relays, plus one; 0 before it has said.
pub(super) const RELAY_AT: usize = 40;
/// The operation that ranks disagree about, and the result of their votes.
pub(super) const DISPUTE_AT: usize = 2 * APART;
pub(super) const VERDICT_AT: usize = 3 * APART;
/// The rounds of the first two ranks in the measurement at the join.
pub(super) const ROUNDS_AT: [usize; 2] = [4 * APART, 5 * APART];
/// Why a rank has given up: which one and a state, the length, the text.
pub(super) const ABORT_TEXT_AT: usize = 8 * APART;
/// Bytes of that text at most.
pub(super) const ABORT_TEXT_BYTES: usize = 1024;
const _: () = assert!(ABORT_TEXT_AT + 16 + ABORT_TEXT_BYTES <= PAGE && ABORT_TEXT_BYTES.is_multiple_of(8));

impl SegmentLayout {
    /// The layout of a shape; `None` if it exceeds the address space.
    pub(super) fn new(shape: SegmentShape) -> Option<Self> {
        let (ranks, lanes) = (shape.ranks as usize, shape.lanes as usize);
        let flags = LINES + ANNOUNCEMENTS * ANNOUNCEMENT + CELLS_BYTES;
        let rank_bytes =
            flags.checked_add(lanes.checked_mul(FLAGS * APART)?)?.checked_next_multiple_of(PAGE)?;
        let area = shape.lane_bytes.checked_next_multiple_of(PAGE)?;
        let first = PAGE.checked_add(rank_bytes.checked_mul(ranks)?)?.checked_next_multiple_of(HUGE)?;
        let lane = area.checked_mul(ranks.checked_add(1)?)?;
        let arena = shape.arena_bytes.checked_next_multiple_of(HUGE)?;
        let heads = first.checked_add(lane.checked_mul(lanes)?)?;
        let count = ranks.checked_mul(ranks.checked_add(1)?)?;
        let rings = heads.checked_add(count.checked_mul(APART)?)?.checked_next_multiple_of(PAGE)?;
        let arenas = rings.checked_add(count.checked_mul(RING)?)?.checked_next_multiple_of(HUGE)?;
        let parts = arenas.checked_add(arena.checked_mul(ranks)?)?;
        let part = match shape.parts {
            0 => 0,
            _ => Self::new(shape.of_part())?.total.checked_next_multiple_of(HUGE)?,
        };
        let total = parts.checked_add(part.checked_mul(shape.parts as usize)?)?;
        isize::try_from(total).ok()?;
        let lanes = first;
        Some(Self { shape, rank_bytes, flags, area, lanes, heads, rings, arena, arenas, part, parts, total })
    }

    pub(super) fn shape(&self) -> SegmentShape {
        self.shape
    }

    /// Bytes of the whole segment.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// The place of a part, and its bytes.
    pub(super) fn part(&self, index: u32) -> Option<(usize, usize)> {
        (index < self.shape.parts).then(|| (self.parts + self.part * index as usize, self.part))
    }

    fn rank(&self, local: u32) -> Option<usize> {
        (local < self.shape.ranks).then(|| PAGE + self.rank_bytes * local as usize)
    }

    /// Heartbeat; the process id follows.
    pub(super) fn life(&self, local: u32) -> Option<usize> {
        self.rank(local)
    }

    /// The bits of the rank's rings that may hold something new.
    pub(super) fn doorbell(&self, local: u32) -> Option<usize> {
        Some(self.rank(local)? + APART)
    }

    /// The bits of the rank's rings that are watched without the doorbell.
    pub(super) fn watched(&self, local: u32) -> Option<usize> {
        Some(self.rank(local)? + 2 * APART)
    }

    /// The count of the rank's accesses to exposed pieces.
    pub(super) fn accesses(&self, local: u32) -> Option<usize> {
        Some(self.rank(local)? + 3 * APART)
    }

    /// The version of a piece that the rank exposes.
    pub(super) fn exposure(&self, local: u32, slot: u32) -> Option<usize> {
        let at = self.rank(local)? + 4 * APART + slot as usize * 8;
        ((slot as usize) < EXPOSURES).then_some(at)
    }

    /// A ring's memory.
    pub(super) fn ring(&self, ring: u32) -> Option<usize> {
        (ring < self.ring_count()).then(|| self.rings + ring as usize * RING)
    }

    /// The counter of the bytes read from a ring.
    pub(super) fn ring_head(&self, ring: u32) -> Option<usize> {
        (ring < self.ring_count()).then(|| self.heads + ring as usize * APART)
    }

    /// One for each ordered pair of ranks, and two for each rank's exchange with other nodes by the leader.
    fn ring_count(&self) -> u32 {
        self.shape.ranks * (self.shape.ranks + 1)
    }

    /// Announcement number `n`.
    pub(super) fn announcement(&self, local: u32, n: u64) -> Option<usize> {
        Some(self.rank(local)? + LINES + n as usize % ANNOUNCEMENTS * ANNOUNCEMENT)
    }

    /// The sequence line of the cell for operation `n`. The lines of a rank lie together, in a page or two.
    #[inline]
    pub(super) fn cell(&self, local: u32, n: u64) -> Option<usize> {
        Some(self.rank(local)? + LINES + ANNOUNCEMENTS * ANNOUNCEMENT + (n % CELLS) as usize * APART)
    }

    /// The payload of that cell.
    #[inline]
    pub(super) fn cell_payload(&self, local: u32, n: u64) -> Option<usize> {
        let payloads = LINES + ANNOUNCEMENTS * ANNOUNCEMENT + CELLS as usize * APART;
        Some(self.rank(local)? + payloads + (n % CELLS) as usize * CELL_PAYLOAD)
    }

    /// A flag of a lane.
    pub(super) fn flag(&self, local: u32, lane: u32, flag: u8) -> Option<usize> {
        if lane >= self.shape.lanes || flag as usize >= FLAGS {
            return None;
        }
        Some(self.rank(local)? + self.flags + (lane as usize * FLAGS + flag as usize) * APART)
    }

    /// Bytes of each rank's arena.
    pub(super) fn arena_bytes(&self) -> usize {
        self.arena
    }

    /// A rank's arena: the memory of its shared tensors.
    pub(super) fn arena(&self, local: u32) -> Option<usize> {
        (local < self.shape.ranks).then(|| self.arenas + self.arena * local as usize)
    }

    /// The place of all areas of all lanes, and their length in bytes.
    #[cfg(feature = "cuda")]
    pub(super) fn lanes(&self) -> (usize, usize) {
        (self.lanes, self.shape.lanes as usize * (self.shape.ranks as usize + 1) * self.area)
    }

    /// A rank's staging area in a lane; the node's result is behind the last rank's.
    pub(super) fn area(&self, local: u32, lane: u32) -> Option<usize> {
        let ranks = self.shape.ranks;
        if lane >= self.shape.lanes || local > ranks {
            return None;
        }
        Some(self.lanes + (lane as usize * (ranks as usize + 1) + local as usize) * self.area)
    }
}
