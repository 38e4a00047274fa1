use super::*;

#[test]
fn a_transport_is_its_channels_and_then_why() {
    let of = |ranks, per_node, rank, reasons: &[&str]| {
        let grid = Grid::new(ranks, per_node).unwrap();
        let reasons = reasons.iter().map(|reason| reason.to_string()).collect();
        Transport::new(&grid, Rank(rank), "rud", reasons).to_string()
    };
    assert_eq!(of(1, 1, 0, &[]), "local\nlocal: the group has one rank");
    assert_eq!(of(4, 4, 1, &[]), "shm\nshm: the 4 ranks of this host share memory");
    assert_eq!(of(2, 1, 0, &["rud to rank 1: why"]), "rud\nrud to rank 1: why");
    let leads = of(4, 2, 2, &["rud to rank 0: why"]);
    assert_eq!(leads, "shm+rud\nshm: the 2 ranks of this host share memory\nrud to rank 0: why");
    let follows = of(4, 2, 3, &[]);
    assert!(follows.starts_with("shm+rud\n") && follows.contains("chosen by rank 2"), "{follows}");
}

#[test]
fn many_ranks_are_counted() {
    let ranks = |range: std::ops::Range<u32>| named(&range.map(Rank).collect::<Vec<_>>());
    assert_eq!(ranks(4..5), "rank 4");
    assert_eq!(ranks(4..6), "ranks 4, 5");
    assert_eq!(ranks(0..11), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 3 more");
}
