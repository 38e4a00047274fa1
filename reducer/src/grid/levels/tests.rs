use super::*;
use crate::grid::tests::levels;

fn grid(nodes: u32, sizes: &[u32]) -> Grid {
    Grid::new(nodes, 1).unwrap().with_levels(levels(sizes))
}

#[test]
fn groups_are_units_of_the_next_level_and_the_last_may_be_smaller() {
    let grid = grid(11, &[2, 3]);
    assert_eq!((grid.unit_size(0), grid.unit_size(1), grid.unit_size(2)), (1, 2, 6));
    assert_eq!((grid.groups(0), grid.groups(1), grid.groups(2)), (6, 2, 1));
    assert_eq!((grid.group(0, 0), grid.group(0, 5)), (0..2, 10..11), "of nodes");
    assert_eq!((grid.group(1, 0), grid.group(1, 1)), (0..3, 3..6), "of groups");
    assert_eq!(grid.group(2, 0), 0..2, "of all");
    assert_eq!((grid.group_of(0, 10), grid.group_of(1, 10), grid.group_of(2, 10)), (5, 1, 0));
    assert_eq!(grid.top(), 2);
}

#[test]
fn a_unit_has_one_root_for_each_path() {
    let grid = grid(11, &[2, 3]);
    assert_eq!([0, 1].map(|q| grid.root(1, &[q])), [2, 3]);
    assert_eq!([0, 1].map(|q| grid.root(5, &[q])), [10, 10], "a unit of one node");
    // Of the second group of groups: nodes 6 to 10 in units of 2, 2 and 1.
    let roots: Vec<_> = (0..3).flat_map(|r| [0, 1].map(|q| grid.root(1, &[q, r]))).collect();
    assert_eq!(roots, [6, 7, 8, 9, 10, 10]);
}

#[test]
fn levels_that_do_not_matter_are_left_out() {
    for (nodes, given, left) in [
        (16, &[8, 4][..], &[8, 2][..]),
        (16, &[1, 4, 1], &[4]),
        (8, &[8, 4], &[8]),
        (5, &[8, 4], &[5]),
        (1, &[8, 4], &[]),
        (9, &[8], &[8]),
        (64, &[], &[]),
    ] {
        let grid = grid(nodes, given);
        assert_eq!(grid.levels(), left, "{given:?} of {nodes}");
        assert_eq!(grid, grid.with_levels(levels(left)));
    }
    assert_eq!((grid(8, &[8, 4]).top(), grid(9, &[8]).top(), grid(1, &[8]).top()), (0, 1, 0));
    // The most that there can be.
    let largest = Grid::new(u32::MAX, 1).unwrap().with_levels(levels(&[u32::MAX - 1; Levels::MOST]));
    assert_eq!(largest.levels(), [u32::MAX - 1, 2]);
    assert_eq!((largest.groups(1), largest.group(1, 0), largest.unit_size(2)), (1, 0..2, u32::MAX));
}

#[test]
fn lists_are_read_and_written() {
    for (text, sizes) in [
        ("8", &[8][..]),
        (" 8, 4 ", &[8, 4]),
        ("2,2,2,2", &[2; 4]),
        ("1", &[]),
        ("1,4,1", &[4]),
        ("1,1,1,1,1,2", &[2]),
    ] {
        let read: Levels = text.parse().unwrap();
        assert_eq!(read.sizes(), sizes, "{text}");
        assert_eq!(read.to_string().parse(), Ok(read));
    }
    assert_eq!(Levels::default().sizes(), [8]);
}

#[test]
fn lists_that_are_no_levels_say_why() {
    for (text, why) in [
        ("8,0", "level 1"),
        ("2,2,2,2,2", "5 levels are too many; give 4 at most"),
        ("8,,4", "\"\" is no size"),
        ("8,x", "\"x\" is no size"),
        ("", "\"\" is no size"),
        ("-1", "\"-1\" is no size"),
        ("4294967296", "is no size"),
    ] {
        let refused = text.parse::<Levels>().unwrap_err().to_string();
        assert!(refused.contains(why), "{text}: {refused}");
    }
}
