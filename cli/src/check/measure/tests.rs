use std::collections::BTreeSet;

use super::*;

#[test]
fn every_two_ranks_meet_once_and_nobody_meets_two_at_a_time() {
    for size in 0..40 {
        let mut met = BTreeSet::new();
        for round in 0..rounds(size) {
            for rank in 0..size {
                let Some(other) = partner(rank, round, size) else {
                    assert!(size % 2 == 1, "{size} ranks, round {round}: rank {rank} waits");
                    continue;
                };
                assert!(
                    other != rank && partner(other, round, size) == Some(rank),
                    "{size}, {round}, {rank}"
                );
                assert!(rank > other || met.insert((rank, other)), "{size}: {rank} and {other} meet twice");
            }
        }
        assert_eq!(met.len() as u32, size * size.saturating_sub(1) / 2);
        assert_eq!(rounds(size), if size < 2 { 0 } else { (size - 1) | 1 });
    }
}

#[test]
fn an_offset_is_positive_where_the_other_clock_is_ahead() {
    // 300 ns ahead, 100 there, 50 at the peer, 100 back.
    assert_eq!(trip([1000, 1400, 1450, 1250]), (200, 600));
    // 300 ns behind, with half a microsecond more on the way back: wrong by half of that.
    assert_eq!(trip([1000, 800, 850, 1750]), (700, -1100));
}
