use super::*;

#[test]
fn peers_are_found_and_others_are_not() {
    let all: ByRank = [(Rank(4), 0), (Rank(1), 1)].into_iter().collect();
    assert_eq!([0, 1, 2, 4, 5].map(|rank| all.get(Rank(rank))), [None, Some(1), None, Some(0), None]);
    assert_eq!(ByRank::from_iter([]).get(Rank(0)), None);
}
