//! The collectives that are measured: their names, the counting of their bytes, and each rank's result.
//!
//! `bytes` counts as in the OSU micro-benchmarks: those of the tensor for all-reduce, reduce and broadcast, of one rank's block for
//! all-gather, gather, scatter and all-to-all, and of a rank's whole input for reduce-scatter (`osu_reduce_scatter.c` divides its size
//! among the ranks).
//!
//! `algbw` and `busbw` are those of nccl-tests (`doc/PERFORMANCE.md`, and `GetBw` in `src/gather.cu` and `src/scatter.cu`): `algbw` is the
//! whole of the data over the time, all blocks included, and `busbw` is that times 2(n-1)/n for all-reduce, 1 for broadcast and reduce, and
//! (n-1)/n for the others.

use std::ops::Range;

use shouter::Collective;

/// The collectives that are measured.
pub(crate) const MEASURED: [Collective; 9] = [
    Collective::AllReduce,
    Collective::Broadcast,
    Collective::Barrier,
    Collective::Reduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Gather,
    Collective::Scatter,
    Collective::AllToAll,
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
        other => other.name(),
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
    match collective {
        Collective::AllReduce => (bytes, 2.0 * (ranks - 1.0) / ranks),
        Collective::Broadcast | Collective::Reduce | Collective::Barrier => (bytes, 1.0),
        Collective::ReduceScatter => (bytes, (ranks - 1.0) / ranks),
        _ => (bytes * ranks, (ranks - 1.0) / ranks),
    }
}

/// The number of blocks that `bytes` covers.
pub(crate) fn blocks_counted(collective: Collective, ranks: u32) -> u32 {
    if collective == Collective::ReduceScatter { ranks } else { 1 }
}

/// The source of an element of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The same element of this rank's input.
    Rank(u32),
    /// The sum of the element over all ranks.
    Sum,
}

/// One collective as seen by one rank, in blocks of equal length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) collective: Collective,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
}

impl Part {
    /// Blocks of the input, for any root; none where the output is also the input.
    pub(crate) fn input_blocks(self) -> u32 {
        match self.collective {
            Collective::AllReduce | Collective::Reduce | Collective::Broadcast | Collective::Barrier => 0,
            Collective::AllGather | Collective::Gather => 1,
            _ => self.ranks,
        }
    }

    /// Blocks of the output, for any root.
    pub(crate) fn output_blocks(self) -> u32 {
        match self.collective {
            Collective::Barrier => 0,
            Collective::AllGather | Collective::Gather | Collective::AllToAll => self.ranks,
            _ => 1,
        }
    }

    /// The blocks of its output that this rank checks.
    pub(crate) fn due(self, root: u32) -> Range<u32> {
        if self.collective == Collective::Gather && self.rank != root {
            return 0..0;
        }
        0..self.output_blocks()
    }

    /// The source of block `block` of this rank's output: the rank or the sum, and the block of its input.
    pub(crate) fn origin(self, root: u32, block: u32) -> (Origin, u32) {
        match self.collective {
            Collective::AllReduce => (Origin::Sum, 0),
            Collective::Reduce if self.rank == root => (Origin::Sum, 0),
            Collective::Broadcast => (Origin::Rank(root), 0),
            Collective::AllGather | Collective::Gather => (Origin::Rank(block), 0),
            Collective::Scatter => (Origin::Rank(root), self.rank),
            Collective::ReduceScatter => (Origin::Sum, self.rank),
            Collective::AllToAll => (Origin::Rank(block), self.rank),
            // In a reduce the other ranks keep their input.
            _ => (Origin::Rank(self.rank), 0),
        }
    }
}

#[cfg(test)]
mod tests;
