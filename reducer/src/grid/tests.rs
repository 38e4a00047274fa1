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
