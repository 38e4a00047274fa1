//! What a schedule is for: which rank's part of which operation, and where its memory lies.

use crate::grid::{Grid, Rank};
use crate::header::{Collective, Shape};

/// What a schedule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        Self { grid, rank, shape: *shape, root, access: Access::Host, placement: Placement::InPlace }
    }

    /// The same for an input apart from the output.
    pub fn separate(self) -> Self {
        Self { placement: Placement::Separate, ..self }
    }

    /// The same for a tensor in an accelerator's memory, which is staged.
    pub fn on_device(self) -> Self {
        Self { access: Access::Copies, ..self }
    }

    /// The same for a tensor in an accelerator's memory that NICs read and write.
    pub fn direct(self) -> Self {
        Self { access: Access::Direct, ..self }
    }

    /// Whether the steps work on an accelerator's memory itself: direct access, and a rank that is alone on its node.
    pub fn works_on_device(&self) -> bool {
        let alone = self.grid.per_node() == 1 && self.placement == Placement::InPlace;
        self.access == Access::Direct && alone && self.shape.collective == Collective::AllReduce
    }

    /// Bytes of the whole: of the tensor, or of a block for each rank (saturating).
    pub fn bytes(&self) -> u64 {
        let blocks = if self.shape.collective.is_blocked() { self.grid.ranks() } else { 1 };
        self.block_bytes().saturating_mul(blocks.into())
    }

    /// Bytes of one rank's block, or of the tensor where there are no blocks (saturating).
    pub fn block_bytes(&self) -> u64 {
        self.shape.count.saturating_mul(self.elem() as u64)
    }

    /// The most that any rank gives: the same on all ranks.
    pub fn published_bytes(&self) -> u64 {
        match self.shape.collective {
            Collective::Scatter | Collective::ReduceScatter | Collective::AllToAll => self.bytes(),
            _ => self.block_bytes(),
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

    /// Where input and output begin in the one tensor that holds both, in bytes, if they are in place.
    pub fn in_place(&self) -> (u64, u64) {
        let own_block = u64::from(self.rank.0) * self.block_bytes();
        let is_root = self.rank == self.root;
        match self.shape.collective {
            Collective::AllGather => (own_block, 0),
            Collective::Gather if is_root => (own_block, 0),
            Collective::ReduceScatter => (0, own_block),
            Collective::Scatter if is_root => (0, own_block),
            _ => (0, 0),
        }
    }

    /// Bytes that this rank gives, as if its input were apart from its output.
    pub fn input_bytes(&self) -> u64 {
        use Collective::*;
        let is_root = self.rank == self.root;
        match self.shape.collective {
            Barrier => 0,
            Broadcast | Scatter if !is_root => 0,
            AllReduce | Reduce | Broadcast | AllGather | Gather => self.block_bytes(),
            ReduceScatter | Scatter | AllToAll => self.bytes(),
        }
    }

    /// Bytes that this rank ends with.
    pub fn output_bytes(&self) -> u64 {
        use Collective::*;
        let is_root = self.rank == self.root;
        match self.shape.collective {
            Barrier => 0,
            Reduce | Gather if !is_root => 0,
            AllReduce | Reduce | Broadcast | ReduceScatter | Scatter => self.block_bytes(),
            AllGather | Gather | AllToAll => self.bytes(),
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

    /// This rank's number within its node.
    pub fn local(&self) -> u32 {
        self.grid.local_of(self.rank)
    }
}
