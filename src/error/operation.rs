//! The calls that errors name.

use shouter_reducer::header::Collective;

/// A call that an error is about. The numbers are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// An all-reduce, pushed or in one call.
    AllReduce = 1,
    /// A broadcast.
    Broadcast = 2,
    /// [`Group::barrier`](crate::Group::barrier).
    Barrier = 3,
    /// [`Group::register`](crate::Group::register).
    Register = 4,
    /// [`Group::finalize`](crate::Group::finalize).
    Finalize = 5,
    /// A reduce.
    Reduce = 6,
    /// An all-gather.
    AllGather = 7,
    /// A reduce-scatter.
    ReduceScatter = 8,
    /// A gather.
    Gather = 9,
    /// A scatter.
    Scatter = 10,
    /// An all-to-all.
    AllToAll = 11,
    /// An all-gather with a count for each rank.
    AllGatherV = 12,
    /// A gather with a count for each rank.
    GatherV = 13,
    /// A scatter with a count for each rank.
    ScatterV = 14,
    /// A reduce-scatter with a count for each rank.
    ReduceScatterV = 15,
    /// An all-to-all with counts for each pair of ranks.
    AllToAllV = 16,
    /// A scan.
    Scan = 17,
    /// An exclusive scan.
    ExScan = 18,
    /// A send.
    Send = 30,
    /// A receive.
    Receive = 31,
    /// A put to a window.
    Put = 40,
    /// A get from a window.
    Get = 41,
    /// An accumulate to a window.
    Accumulate = 42,
    /// A fetch-and-op on a window.
    FetchAndOp = 43,
    /// A compare-and-swap on a window.
    CompareAndSwap = 44,
    /// The making of a window.
    Window = 45,
    /// The making of a group ([`Group::split`](crate::Group::split) and the like).
    Group = 46,
}

impl From<Collective> for Operation {
    fn from(collective: Collective) -> Self {
        match collective {
            Collective::AllReduce => Self::AllReduce,
            Collective::Broadcast => Self::Broadcast,
            Collective::Barrier => Self::Barrier,
            Collective::Reduce => Self::Reduce,
            Collective::AllGather => Self::AllGather,
            Collective::ReduceScatter => Self::ReduceScatter,
            Collective::Gather => Self::Gather,
            Collective::Scatter => Self::Scatter,
            Collective::AllToAll => Self::AllToAll,
            Collective::AllGatherV => Self::AllGatherV,
            Collective::GatherV => Self::GatherV,
            Collective::ScatterV => Self::ScatterV,
            Collective::ReduceScatterV => Self::ReduceScatterV,
            Collective::AllToAllV => Self::AllToAllV,
            Collective::Scan => Self::Scan,
            Collective::ExScan => Self::ExScan,
        }
    }
}
