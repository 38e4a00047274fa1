use super::*;
use rand::Rng;

pub(crate) fn levels(sizes: &[u32]) -> Levels {
    Levels::new(sizes).unwrap()
}

/// Levels for small grids: none to three.
pub(crate) fn any_levels(rng: &mut impl Rng) -> Levels {
    let lists: [&[u32]; 9] = [&[], &[2], &[3], &[4], &[8], &[2, 2], &[3, 2], &[2, 3], &[2, 2, 2]];
    levels(lists[rng.random_range(0..lists.len())])
}

#[test]
fn ranks_fill_nodes_in_blocks() {
    let grid = Grid::new(12, 2).unwrap();
    assert_eq!(grid.nodes(), 6);
    assert_eq!((grid.node_of(Rank(5)), grid.local_of(Rank(5))), (2, 1));
    assert_eq!(grid.rank_at(2, 1), Rank(5));
    assert!(grid.is_leader(Rank(4)) && !grid.is_leader(Rank(5)));
}

#[test]
fn numbers_that_make_no_grid_say_why() {
    assert_eq!(Grid::new(5, 2).unwrap_err(), GridError::Uneven { ranks: 5, per_node: 2, rest: 1 });
    assert!(matches!(Grid::new(0, 1), Err(GridError::Empty { .. })));
}

#[test]
fn nodes_may_have_different_numbers_of_ranks() {
    let grid = Grid::of_hosts(&[3, 1, 2]).unwrap().with_levels(levels(&[2]));
    assert_eq!((grid.ranks(), grid.nodes(), grid.most_locals(), grid.is_even()), (6, 3, 3, false));
    let places: Vec<_> = (0..6).map(Rank).map(|rank| (grid.node_of(rank), grid.local_of(rank))).collect();
    assert_eq!(places, [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1)]);
    for (rank, (node, local)) in (0..).map(Rank).zip(places) {
        assert_eq!((grid.rank_at(node, local), grid.is_leader(rank)), (rank, local == 0));
    }
    assert_eq!((0..3).map(|node| grid.locals(node)).collect::<Vec<_>>(), [3, 1, 2]);
    assert_eq!((0..4).map(|node| grid.leader_of(node).0).collect::<Vec<_>>(), [0, 3, 4, 6]);
    assert_eq!(grid.ranks_on(2).collect::<Vec<_>>(), [Rank(4), Rank(5)]);
    assert_eq!(grid.numbers_of_locals().collect::<Vec<_>>(), [1, 2, 3]);
    // A rank of no node, as a message may name it.
    assert_eq!((grid.node_of(Rank(6)), grid.node_of(Rank(u32::MAX)), grid.contains(Rank(6))), (3, 3, false));
    assert_eq!((grid.groups(0), grid.group(0, 1)), (2, 2..3));
}

#[test]
fn equal_lists_make_equal_grids() {
    let [one, other, third] = [[2, 1], [2, 1], [1, 2]].map(|list| Grid::of_hosts(&list).unwrap());
    assert_eq!(one, other);
    assert!(one.has_nodes_of(&one.with_levels(levels(&[2]))), "whatever the levels");
    assert!(one != third && !one.has_nodes_of(&third));
    // As many on each node are a division, however they were given.
    assert_eq!(Grid::of_hosts(&[2, 2, 2]).unwrap(), Grid::new(6, 2).unwrap());
    assert!(!one.has_nodes_of(&Grid::new(3, 1).unwrap()));
}

#[test]
fn lists_that_make_no_grid_say_why() {
    assert!(matches!(Grid::of_hosts(&[]), Err(GridError::Empty { .. })));
    assert_eq!(Grid::of_hosts(&[2, 0, 1]).unwrap_err(), GridError::EmptyNode { node: 1 });
    assert!(matches!(Grid::of_hosts(&[0, 0]), Err(GridError::Empty { .. })));
    assert_eq!(Grid::of_hosts(&[1, u32::MAX]).unwrap_err(), GridError::TooMany { nodes: 2 });
    assert_eq!(Grid::of_hosts(&[u32::MAX; 2]).unwrap_err(), GridError::TooMany { nodes: 2 });
}
