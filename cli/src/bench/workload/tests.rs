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
    ] {
        assert_eq!(traffic(parse(name).unwrap(), 1000, 4), (1000.0 * whole, share), "{name}");
    }
}

#[test]
fn every_rank_finds_what_the_definition_says() {
    let origins = |collective, rank, root| {
        let part = Part { collective, rank, ranks: 3 };
        part.due(root).map(|block| part.origin(root, block)).collect::<Vec<_>>()
    };
    let each = |block| (0..3).map(|rank| (Origin::Rank(rank), block)).collect::<Vec<_>>();
    assert_eq!(origins(Collective::AllReduce, 1, 0), [(Origin::Sum, 0)]);
    assert_eq!(origins(Collective::Reduce, 2, 2), [(Origin::Sum, 0)]);
    assert_eq!(origins(Collective::Reduce, 1, 2), [(Origin::Rank(1), 0)]);
    assert_eq!(origins(Collective::Broadcast, 1, 2), [(Origin::Rank(2), 0)]);
    assert_eq!(origins(Collective::AllGather, 1, 0), each(0));
    assert_eq!(origins(Collective::Gather, 2, 2), each(0));
    assert_eq!(origins(Collective::Gather, 1, 2), []);
    assert_eq!(origins(Collective::Scatter, 1, 2), [(Origin::Rank(2), 1)]);
    assert_eq!(origins(Collective::ReduceScatter, 1, 0), [(Origin::Sum, 1)]);
    assert_eq!(origins(Collective::AllToAll, 1, 0), each(1));
    assert_eq!(origins(Collective::Barrier, 1, 0), []);
}
