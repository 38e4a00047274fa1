use super::*;

#[test]
fn names_are_read_back_and_others_refused() {
    for collective in MEASURED {
        assert_eq!(parse(name(collective)), Ok(collective));
    }
    assert!(parse("all-reduce").unwrap_err().contains("reduce_scatter"));
}

/// The factors of nccl-tests, on four ranks: whole of the data in units of `bytes`, and bus over algorithm bandwidth.
#[test]
fn bandwidths_follow_the_convention() {
    for (name, whole, share) in [
        ("allreduce", 1.0, 1.5),
        ("reduce", 1.0, 1.0),
        ("broadcast", 1.0, 1.0),
        ("allgather", 4.0, 0.75),
        ("gather", 4.0, 0.75),
        ("scatter", 4.0, 0.75),
        ("reduce_scatter", 1.0, 0.75),
        ("alltoall", 4.0, 0.75),
        ("scan", 1.0, 1.0),
        ("exscan", 1.0, 1.0),
        ("allgather_v", 4.0, 0.75),
        ("gather_v", 4.0, 0.75),
        ("scatter_v", 4.0, 0.75),
        ("reduce_scatter_v", 1.0, 0.75),
        ("alltoall_v", 4.0, 0.75),
    ] {
        assert_eq!(traffic(parse(name).unwrap(), 1000, 4), (1000.0 * whole, share), "{name}");
    }
}

#[test]
fn every_rank_finds_what_the_definition_says() {
    let origins = |collective, rank, root| {
        let part = Part { collective, rank, ranks: 3, count: 10 };
        let blocks = if part.has_result(root) { part.taken().len() as u32 } else { 0 };
        (0..blocks).map(|block| part.origin(root, block)).collect::<Vec<_>>()
    };
    let each = |begins: [usize; 3]| (0..).map(Origin::Rank).zip(begins).collect::<Vec<_>>();
    assert_eq!(origins(Collective::AllReduce, 1, 0), [(Origin::Sum(3), 0)]);
    assert_eq!(origins(Collective::Reduce, 2, 2), [(Origin::Sum(3), 0)]);
    assert_eq!(origins(Collective::Reduce, 1, 2), [(Origin::Rank(1), 0)]);
    assert_eq!(origins(Collective::Broadcast, 1, 2), [(Origin::Rank(2), 0)]);
    assert_eq!(origins(Collective::AllGather, 1, 0), each([0; 3]));
    assert_eq!(origins(Collective::Gather, 2, 2), each([0; 3]));
    assert_eq!(origins(Collective::Gather, 1, 2), []);
    assert_eq!(origins(Collective::Scatter, 1, 2), [(Origin::Rank(2), 10)]);
    assert_eq!(origins(Collective::ReduceScatter, 1, 0), [(Origin::Sum(3), 10)]);
    assert_eq!(origins(Collective::AllToAll, 1, 0), each([10; 3]));
    assert_eq!(origins(Collective::Barrier, 1, 0), []);
    assert_eq!(origins(Collective::Scan, 1, 0), [(Origin::Sum(2), 0)]);
    assert_eq!(origins(Collective::ExScan, 2, 0), [(Origin::Sum(2), 0)]);
    assert_eq!(origins(Collective::ExScan, 0, 0), []);
    // Blocks of 5, 10 and 15 elements.
    assert_eq!(origins(Collective::AllGatherV, 1, 0), each([0; 3]));
    assert_eq!(origins(Collective::GatherV, 1, 2), []);
    assert_eq!(origins(Collective::ScatterV, 2, 1), [(Origin::Rank(1), 15)]);
    assert_eq!(origins(Collective::ReduceScatterV, 1, 0), [(Origin::Sum(3), 5)]);
    assert_eq!(origins(Collective::AllToAllV, 2, 0), each([10, 20, 30]));
}

#[test]
fn blocks_that_differ_have_as_many_elements_in_all_as_equal_ones() {
    let part = |collective, rank| Part { collective, rank, ranks: 3, count: 10 };
    assert_eq!(part(Collective::AllGatherV, 1).given(), [10]);
    assert_eq!(part(Collective::AllGatherV, 1).taken(), [5, 10, 15]);
    assert_eq!(part(Collective::GatherV, 2).given(), [15]);
    assert_eq!(part(Collective::GatherV, 0).taken(), [5, 10, 15]);
    assert_eq!(part(Collective::ScatterV, 2).given(), [5, 10, 15]);
    assert_eq!(part(Collective::ScatterV, 2).taken(), [15]);
    assert_eq!(part(Collective::ReduceScatterV, 0).given(), [5, 10, 15]);
    assert_eq!(part(Collective::ReduceScatterV, 0).taken(), [5]);
    assert_eq!(part(Collective::AllToAllV, 2).given(), [15; 3]);
    assert_eq!(part(Collective::AllToAllV, 2).taken(), [5, 10, 15]);
    for collective in MEASURED {
        for (ranks, count) in [(1, 1), (2, 1), (3, 7), (5, 1000)] {
            let parts: Vec<_> = (0..ranks).map(|rank| Part { collective, rank, ranks, count }).collect();
            let lengths: usize = parts.iter().map(|part| part.length(part.rank)).sum();
            assert_eq!(lengths, count * ranks as usize, "{collective}");
        }
    }
}
