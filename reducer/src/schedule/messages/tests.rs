use super::*;

#[test]
fn a_table_is_as_large_as_its_messages_whatever_the_number_of_nodes() {
    let grid = Grid::new(65_536, 1).unwrap();
    let messages = [(7, 65_535, 0), (3, 2, 1), (4, 2, 0), (5, 40_000, 3)];
    let given = messages.map(|(step, peer, round)| (StepId(step), Rank(peer), round));
    let table = MessageTable::new(&grid, given.into_iter(), || unreachable!()).unwrap();
    assert_eq!(table.nodes().collect::<Vec<_>>(), [2, 40_000, 65_535]);
    assert_eq!((table.nodes.len(), table.steps.len()), (3, 2 + 4 + 1));
    for (step, peer, round) in given {
        assert_eq!(table.step(&grid, peer, round), Some(step));
    }
    for (peer, round) in [(2, 2), (40_000, 0), (3, 0), (65_534, 0)] {
        assert_eq!(table.step(&grid, Rank(peer), round), None, "{peer} {round}");
    }
}
