use super::*;

#[test]
fn every_row_has_one_owner_and_one_place() {
    for sharding in [Sharding::Contiguous, Sharding::Hashed] {
        for (rows, servers) in [(0, 1), (1, 3), (7, 1), (7, 3), (1000, 4)] {
            let shards: Vec<_> = (0..servers).map(|server| sharding.shard(rows, server, servers)).collect();
            assert_eq!(shards.iter().map(Shard::len).sum::<usize>(), rows as usize);
            for row in 0..rows {
                let owners = shards.iter().filter(|shard| shard.place(row).is_some()).count();
                assert_eq!(owners, 1, "{sharding:?}: row {row} of {rows} on {servers}");
            }
            assert!(shards.iter().all(|shard| shard.place(rows).is_none()));
        }
    }
}

#[test]
fn rows_go_out_and_come_back() {
    let whole: Vec<u8> = (0..60).collect();
    for sharding in [Sharding::Contiguous, Sharding::Hashed] {
        let mut back = vec![0; 60];
        for server in 0..3 {
            let shard = sharding.shard(20, server, 3);
            let mut own = vec![0; shard.len() * 3];
            shard.gather(&whole, 3, &mut own);
            let row = (0..20).find(|row| shard.place(*row) == Some(1)).unwrap();
            assert_eq!(own[3..6], whole[row as usize * 3..][..3]);
            shard.scatter(&own, 3, &mut back);
        }
        assert_eq!(back, whole);
    }
}

#[test]
fn hashed_rows_spread_neighbours() {
    let shards: Vec<_> = (0..4).map(|server| Sharding::Hashed.shard(4000, server, 4)).collect();
    // 1,000 each, with a standard deviation of 27.
    assert!(
        shards.iter().all(|shard| (850..1150).contains(&shard.len())),
        "{:?}",
        shards.iter().map(Shard::len).collect::<Vec<_>>()
    );
    let first = |shard: &Shard| (0..40).filter(|row| shard.place(*row).is_some()).count();
    assert!(shards.iter().all(|shard| first(shard) > 1));
}
