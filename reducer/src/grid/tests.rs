use super::*;

#[test]
fn ranks_fill_nodes_in_blocks() {
    let grid = Grid::new(12, 2, 4).unwrap();
    assert_eq!((grid.nodes(), grid.leaf_groups()), (6, 2));
    assert_eq!((grid.node_of(Rank(5)), grid.local_of(Rank(5))), (2, 1));
    assert_eq!(grid.rank_at(2, 1), Rank(5));
    assert!(grid.is_leader(Rank(4)) && !grid.is_leader(Rank(5)));
    assert_eq!((grid.leaf_group(0), grid.leaf_group(1)), (0..4, 4..6));
    assert_eq!((0..4).map(|q| grid.slice_root(1, q)).collect::<Vec<_>>(), [4, 5, 4, 5]);
}

#[test]
fn numbers_that_make_no_grid_say_why() {
    assert_eq!(Grid::new(5, 2, 1).unwrap_err(), GridError::Uneven { ranks: 5, per_node: 2, rest: 1 });
    assert!(matches!(Grid::new(0, 1, 1), Err(GridError::Empty { .. })));
    assert!(matches!(Grid::new(2, 1, 0), Err(GridError::NoLeaf)));
    assert_eq!(Grid::new(4, 2, 8).unwrap().leaf_size(), 2);
}

#[test]
fn nodes_may_have_different_numbers_of_ranks() {
    let grid = Grid::of_hosts(&[3, 1, 2], 2).unwrap();
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
    assert_eq!((grid.leaf_groups(), grid.leaf_group(1)), (2, 2..3));
}

#[test]
fn equal_lists_make_equal_grids() {
    let [one, other, third] =
        [[2, 1], [2, 1], [1, 2]].map(|list| Grid::of_hosts(&list, 2).unwrap().with_leaf_size(1).unwrap());
    assert_eq!(one, other);
    assert!(one.has_nodes_of(&Grid::of_hosts(&[2, 1], 8).unwrap()), "whatever the leaf groups");
    assert!(one != third && !one.has_nodes_of(&third));
    // As many on each node are a division, however they were given.
    assert_eq!(Grid::of_hosts(&[2, 2, 2], 4).unwrap(), Grid::new(6, 2, 4).unwrap());
    assert!(!one.has_nodes_of(&Grid::new(3, 1, 1).unwrap()));
}

#[test]
fn lists_that_make_no_grid_say_why() {
    assert!(matches!(Grid::of_hosts(&[], 1), Err(GridError::Empty { .. })));
    assert_eq!(Grid::of_hosts(&[2, 0, 1], 1).unwrap_err(), GridError::EmptyNode { node: 1 });
    assert!(matches!(Grid::of_hosts(&[0, 0], 1), Err(GridError::Empty { .. })));
    assert_eq!(Grid::of_hosts(&[1, u32::MAX], 1).unwrap_err(), GridError::TooMany { nodes: 2 });
    assert_eq!(Grid::of_hosts(&[u32::MAX; 2], 1).unwrap_err(), GridError::TooMany { nodes: 2 });
    assert_eq!(Grid::of_hosts(&[2, 1], 0).unwrap_err(), GridError::NoLeaf);
}
