//! The problem that a schedule solves: one rank's part of an operation, and where the rank's memory lies.

use super::Buffer;
use crate::counts::Counts;
use crate::grid::{Grid, Rank};
use crate::header::{COUNTS_OF, Collective, Identity, Shape};
use std::sync::Arc;

/// The problem that a schedule solves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The ranks and nodes.
    pub grid: Grid,
    /// The rank that the schedule is for.
    pub rank: Rank,
    /// The operation.
    pub shape: Shape,
    /// The root, of collectives that have one; else rank 0.
    pub root: Rank,
    /// How this rank's tensor is accessed. The other ranks' tensors may be in any memory.
    pub access: Access,
    /// Where this rank's input lies. The other ranks may have theirs otherwise.
    pub placement: Placement,
    /// Elements of each block, of collectives whose blocks may differ.
    pub counts: Option<Arc<Counts>>,
    /// The collective for whose blocks the elements are counts, of the all-gather or broadcast that is done before it.
    pub counts_of: Option<Collective>,
}

/// Where a rank's input lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// In the output, which has the rank's block at its place where there is one for each rank. Of a reduce-scatter or a scatter the
    /// output is the rank's block in the input.
    InPlace,
    /// Apart from the output.
    Separate,
}

/// How a rank's tensor is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// The CPU, and NICs.
    Host,
    /// Copies of an accelerator, in whose memory it lies.
    Copies,
    /// Copies and folds of an accelerator, in whose memory it lies.
    Accelerator,
    /// The same, and NICs, which read and write it there: an all-reduce of a rank that is alone on its node goes from and into the
    /// tensor itself, and the accelerator does all the folding. Its slots lie there too.
    Direct,
}

impl Access {
    /// Whether the tensor lies in an accelerator's memory, which the CPU does not touch.
    pub fn is_device(self) -> bool {
        self != Self::Host
    }
}

impl Problem {
    /// Puts the parts together, for one tensor that holds input and output; a root is kept where the collective has one.
    pub fn new(grid: Grid, rank: Rank, shape: &Shape, root: Rank) -> Self {
        let root = if shape.collective.has_root() { root } else { Rank(0) };
        Self {
            grid,
            rank,
            shape: *shape,
            root,
            access: Access::Host,
            placement: Placement::InPlace,
            counts: None,
            counts_of: None,
        }
    }

    /// The same for blocks that differ: the shape's count becomes [what it is for these](Counts::largest).
    pub fn with_counts(self, counts: Arc<Counts>) -> Self {
        let shape = Shape { count: counts.largest(), ..self.shape };
        Self { shape, counts: Some(counts), ..self }
    }

    /// The problem with an input apart from the output.
    pub fn separate(self) -> Self {
        Self { placement: Placement::Separate, ..self }
    }

    /// The problem with a tensor in an accelerator's memory, which is staged.
    pub fn on_device(self) -> Self {
        Self { access: Access::Copies, ..self }
    }

    /// The same for a tensor in an accelerator's memory that NICs read and write.
    pub fn direct(self) -> Self {
        Self { access: Access::Direct, ..self }
    }

    /// Whether the steps work on an accelerator's memory itself: direct access, and a rank that is alone on its node.
    pub fn works_on_device(&self) -> bool {
        let alone = self.locals() == 1 && self.placement == Placement::InPlace;
        self.access == Access::Direct && alone && self.shape.collective == Collective::AllReduce
    }

    /// The identity that tells the operation from another one outside the table.
    pub fn identity(&self) -> Identity {
        Identity::AdHoc { root: self.tag() }
    }

    /// The value in the place of the root in the [identity](Self::identity).
    pub fn tag(&self) -> Rank {
        match (&self.counts, self.counts_of) {
            (_, Some(collective)) if !self.shape.collective.has_root() => Rank(COUNTS_OF + collective as u32),
            (Some(counts), _) if !self.shape.collective.has_root() => Rank(counts.digest()),
            _ => self.root,
        }
    }

    /// Bytes of the whole: of the tensor, or of a block for each rank (saturating).
    pub fn bytes(&self) -> u64 {
        let one = self.counts.is_some() || !self.shape.collective.is_blocked();
        self.block_bytes().saturating_mul(if one { 1 } else { self.grid.ranks().into() })
    }

    /// Bytes of one rank's block, or of the tensor where there are no blocks (saturating). Where blocks may differ, of the most that a
    /// rank gives or takes.
    pub fn block_bytes(&self) -> u64 {
        self.shape.count.saturating_mul(self.elem() as u64)
    }

    /// The most that any rank gives: the same on all ranks.
    pub fn published_bytes(&self) -> u64 {
        match (self.shape.collective.base(), &self.counts) {
            (Collective::Scatter | Collective::ReduceScatter | Collective::AllToAll, _) => self.bytes(),
            (_, Some(counts)) => counts.most().saturating_mul(self.elem() as u64),
            _ => self.block_bytes(),
        }
    }

    /// Bytes of this rank's block.
    fn own_bytes(&self) -> u64 {
        match &self.counts {
            Some(counts) => counts.of(self.rank) * self.elem() as u64,
            None => self.block_bytes(),
        }
    }

    /// Where the block of a rank begins in this rank's input, in bytes, if that has one for each rank.
    pub fn input_block(&self, rank: Rank) -> u64 {
        match &self.counts {
            Some(counts) => sum(counts.given_by(self.rank).take(rank.0 as usize), self.elem()),
            None => u64::from(rank.0) * self.block_bytes(),
        }
    }

    /// Where the block of a rank begins in this rank's output, in bytes, if that has one for each rank.
    pub fn output_block(&self, rank: Rank) -> u64 {
        match &self.counts {
            Some(counts) => sum(counts.taken_by(self.rank).take(rank.0 as usize), self.elem()),
            None => u64::from(rank.0) * self.block_bytes(),
        }
    }

    /// Whether steps know an input beside the output.
    pub fn has_input(&self) -> bool {
        match self.shape.collective {
            Collective::AllReduce => self.placement == Placement::Separate,
            Collective::Broadcast | Collective::Barrier => false,
            _ => true,
        }
    }

    /// The buffer that holds what this rank gives.
    pub fn given_in(&self) -> Buffer {
        if self.has_input() { Buffer::Input } else { Buffer::Data }
    }

    /// Whether input and output can be in one tensor. Of an all-to-all, each block is replaced by one of the same length.
    pub fn fits_in_place(&self) -> bool {
        let pairs = self.counts.as_ref().filter(|counts| counts.are_of_pairs());
        pairs.is_none_or(|counts| counts.given_by(self.rank).eq(counts.taken_by(self.rank)))
    }

    /// Where input and output begin in the one tensor that holds both, in bytes, if they are in place.
    pub fn in_place(&self) -> (u64, u64) {
        let own_block = || self.input_block(self.rank);
        let is_root = self.rank == self.root;
        match self.shape.collective.base() {
            Collective::AllGather => (own_block(), 0),
            Collective::Gather if is_root => (own_block(), 0),
            Collective::ReduceScatter => (0, own_block()),
            Collective::Scatter if is_root => (0, own_block()),
            _ => (0, 0),
        }
    }

    /// Bytes that this rank gives, as if its input were apart from its output.
    pub fn input_bytes(&self) -> u64 {
        use Collective::*;
        let is_root = self.rank == self.root;
        match self.shape.collective.base() {
            Barrier => 0,
            Broadcast | Scatter if !is_root => 0,
            AllReduce | Reduce | Broadcast | Scan | ExScan => self.block_bytes(),
            AllGather | Gather => self.own_bytes(),
            _ => match &self.counts {
                Some(counts) => sum(counts.given_by(self.rank), self.elem()),
                None => self.bytes(),
            },
        }
    }

    /// Bytes that this rank ends with.
    pub fn output_bytes(&self) -> u64 {
        use Collective::*;
        let is_root = self.rank == self.root;
        match self.shape.collective.base() {
            Barrier => 0,
            Reduce | Gather if !is_root => 0,
            // There is no rank before it.
            ExScan if self.rank.0 == 0 => 0,
            AllReduce | Reduce | Broadcast | Scan | ExScan => self.block_bytes(),
            ReduceScatter | Scatter => self.own_bytes(),
            _ => match &self.counts {
                Some(counts) => sum(counts.taken_by(self.rank), self.elem()),
                None => self.bytes(),
            },
        }
    }

    /// Bytes of an element.
    pub fn elem(&self) -> usize {
        self.shape.dtype.size()
    }

    /// This rank's node.
    pub fn node(&self) -> u32 {
        self.grid.node_of(self.rank)
    }

    /// Ranks of this rank's node.
    pub fn locals(&self) -> u32 {
        self.grid.locals(self.node())
    }

    /// Whether several ranks of a node meet in its memory, on this node or another one.
    pub fn meets(&self) -> bool {
        self.grid.most_locals() > 1
    }

    /// This rank's number within its node.
    pub fn local(&self) -> u32 {
        self.grid.local_of(self.rank)
    }
}

/// Bytes of so many elements.
fn sum(counts: impl Iterator<Item = u64>, elem: usize) -> u64 {
    counts.sum::<u64>() * elem as u64
}
