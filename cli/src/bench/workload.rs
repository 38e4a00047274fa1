//! The collectives that are measured: their names, the counting of their bytes, and each rank's result.
//!
//! `bytes` counts as in the OSU micro-benchmarks: those of the tensor for all-reduce, reduce and broadcast, of one rank's block for
//! all-gather, gather, scatter and all-to-all, and of a rank's whole input for reduce-scatter (`osu_reduce_scatter.c` divides its size
//! among the ranks); for scan and exscan those of the tensor.
//!
//! Where blocks may differ (`allgather_v` and the like), rank r's has a share of r + 1, and `bytes` are those of the average block: there are
//! as many in all as with blocks of equal length.
//!
//! `algbw` and `busbw` are those of nccl-tests (`doc/PERFORMANCE.md`, and `GetBw` in `src/gather.cu` and `src/scatter.cu`): `algbw` is the
//! whole of the data over the time, all blocks included, and `busbw` is that times 2(n-1)/n for all-reduce, 1 for broadcast and reduce, and
//! (n-1)/n for the others. They lack scan and exscan, for which it is 1: a rank has to take one tensor at most, and to give one.

use shouter::Collective;

/// The collectives that are measured.
pub(crate) const MEASURED: [Collective; 16] = [
    Collective::AllReduce,
    Collective::Broadcast,
    Collective::Barrier,
    Collective::Reduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Gather,
    Collective::Scatter,
    Collective::AllToAll,
    Collective::AllGatherV,
    Collective::GatherV,
    Collective::ScatterV,
    Collective::ReduceScatterV,
    Collective::AllToAllV,
    Collective::Scan,
    Collective::ExScan,
];

/// The name on the command line and in the output.
pub(crate) fn name(collective: Collective) -> &'static str {
    match collective {
        Collective::AllReduce => "allreduce",
        Collective::Broadcast => "broadcast",
        Collective::Barrier => "barrier",
        Collective::Reduce => "reduce",
        Collective::AllGather => "allgather",
        Collective::ReduceScatter => "reduce_scatter",
        Collective::Gather => "gather",
        Collective::Scatter => "scatter",
        Collective::AllToAll => "alltoall",
        Collective::AllGatherV => "allgather_v",
        Collective::GatherV => "gather_v",
        Collective::ScatterV => "scatter_v",
        Collective::ReduceScatterV => "reduce_scatter_v",
        Collective::AllToAllV => "alltoall_v",
        Collective::Scan => "scan",
        Collective::ExScan => "exscan",
    }
}

/// The collective of this name.
pub(crate) fn parse(text: &str) -> Result<Collective, String> {
    let known = MEASURED.into_iter().find(|collective| name(*collective) == text);
    known.ok_or_else(|| format!("'{text}' is no collective; there are {}", MEASURED.map(name).join(", ")))
}

/// Bytes of all the data, and the share of them that every link has to carry (`busbw` over `algbw`).
pub(crate) fn traffic(collective: Collective, bytes: u64, ranks: u32) -> (f64, f64) {
    let (bytes, ranks) = (bytes as f64, f64::from(ranks));
    match collective.base() {
        Collective::AllReduce => (bytes, 2.0 * (ranks - 1.0) / ranks),
        Collective::Broadcast
        | Collective::Reduce
        | Collective::Barrier
        | Collective::Scan
        | Collective::ExScan => (bytes, 1.0),
        Collective::ReduceScatter => (bytes, (ranks - 1.0) / ranks),
        _ => (bytes * ranks, (ranks - 1.0) / ranks),
    }
}

/// The number of blocks that `bytes` covers.
pub(crate) fn blocks_counted(collective: Collective, ranks: u32) -> u32 {
    if collective.base() == Collective::ReduceScatter { ranks } else { 1 }
}

/// The source of an element of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// An element of this rank's input.
    Rank(u32),
    /// The sum of an element over so many ranks, from rank 0 on.
    Sum(u32),
}

/// One collective as seen by one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) collective: Collective,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// Elements of a block; of the average one, where they differ.
    pub(crate) count: usize,
}

impl Part {
    /// Elements of the blocks of the ranks before `rank`.
    fn begin(self, rank: u32) -> usize {
        let (rank, ranks) = (rank as usize, self.ranks as usize);
        if self.collective.has_counts() {
            self.count * rank * (rank + 1) / (ranks + 1)
        } else {
            self.count * rank
        }
    }

    fn length(self, rank: u32) -> usize {
        self.begin(rank + 1) - self.begin(rank)
    }

    fn lengths(self) -> Vec<usize> {
        (0..self.ranks).map(|rank| self.length(rank)).collect()
    }

    /// Elements of each block of the input, for any root; no block where the output is also the input.
    pub(crate) fn given(self) -> Vec<usize> {
        match self.collective.base() {
            Collective::AllReduce | Collective::Reduce | Collective::Broadcast | Collective::Barrier => {
                vec![]
            }
            Collective::Scatter | Collective::ReduceScatter => self.lengths(),
            Collective::AllToAll => vec![self.length(self.rank); self.ranks as usize],
            _ => vec![self.length(self.rank)],
        }
    }

    /// Elements of each block of the output, for any root.
    pub(crate) fn taken(self) -> Vec<usize> {
        match self.collective.base() {
            Collective::Barrier => vec![],
            Collective::AllGather | Collective::Gather | Collective::AllToAll => self.lengths(),
            _ => vec![self.length(self.rank)],
        }
    }

    /// Whether this rank has a result to check.
    pub(crate) fn has_result(self, root: u32) -> bool {
        match self.collective.base() {
            Collective::Gather => self.rank == root,
            Collective::ExScan => self.rank > 0,
            _ => true,
        }
    }

    /// The source of block `block` of this rank's output: the rank or the sum, and the element of its input with which the block begins.
    pub(crate) fn origin(self, root: u32, block: u32) -> (Origin, usize) {
        match self.collective.base() {
            Collective::AllReduce => (Origin::Sum(self.ranks), 0),
            Collective::Reduce if self.rank == root => (Origin::Sum(self.ranks), 0),
            Collective::Scan => (Origin::Sum(self.rank + 1), 0),
            Collective::ExScan => (Origin::Sum(self.rank), 0),
            Collective::Broadcast => (Origin::Rank(root), 0),
            Collective::AllGather | Collective::Gather => (Origin::Rank(block), 0),
            Collective::Scatter => (Origin::Rank(root), self.begin(self.rank)),
            Collective::ReduceScatter => (Origin::Sum(self.ranks), self.begin(self.rank)),
            Collective::AllToAll => (Origin::Rank(block), self.length(block) * self.rank as usize),
            // In a reduce the other ranks keep their input.
            _ => (Origin::Rank(self.rank), 0),
        }
    }
}

#[cfg(test)]
mod tests;
