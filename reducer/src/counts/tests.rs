use super::*;

impl Counts {
    /// What the ranks of a node have of them in a job.
    pub(crate) fn on_node(&self, grid: &Grid, node: u32) -> Self {
        if !self.are_of_pairs() {
            return self.clone();
        }
        let rows = |of: fn(&Self, Rank) -> &[u64]| {
            grid.ranks_on(node).flat_map(|rank| of(self, rank).to_vec()).collect()
        };
        Self::of_node(grid, node, [rows(Self::given), rows(Self::taken)], self.shares().to_vec()).unwrap()
    }
}

fn grid(ranks: u32) -> Grid {
    Grid::new(ranks, 1).unwrap()
}

#[test]
fn rows_and_columns_are_those_of_the_matrix() {
    let counts = Counts::of_matrix(&grid(3), vec![1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
    assert_eq!(counts.given_by(Rank(1)).collect::<Vec<_>>(), [4, 5, 6]);
    assert_eq!(counts.taken_by(Rank(1)).collect::<Vec<_>>(), [2, 5, 8]);
    assert_eq!(counts.largest(), 24);
    let blocks = Counts::of_blocks(vec![4, 0, 9]).unwrap();
    assert_eq!((blocks.of(Rank(2)), blocks.most(), blocks.largest()), (9, 9, 13));
    assert_eq!(blocks.taken_by(Rank(1)).collect::<Vec<_>>(), [4, 0, 9]);
}

#[test]
fn what_cannot_be_is_refused() {
    assert_eq!(Counts::of_blocks(vec![u64::MAX, 1]), Err(CountsError::TooLarge));
    assert_eq!(Counts::of_blocks(vec![MAX_COUNT, 1]), Err(CountsError::TooLarge));
    assert!(Counts::of_blocks(vec![MAX_COUNT, 0]).is_ok());
    assert_eq!(Counts::of_matrix(&grid(2), vec![MAX_COUNT, 0, 1, 0]), Err(CountsError::TooLarge));
    let found = Counts::of_matrix(&grid(2), vec![1; 3]);
    assert_eq!(found, Err(CountsError::Number { found: 3, needed: 4 }));
}

#[test]
fn other_counts_have_another_digest() {
    let digest = |counts: &[u64]| Counts::of_blocks(counts.to_vec()).unwrap().digest();
    assert_eq!(digest(&[3, 4]), digest(&[3, 4]));
    assert_ne!(digest(&[3, 4]), digest(&[4, 3]));
    assert_ne!(digest(&[0, 7]), digest(&[7, 0]));
}

/// A node's part of a matrix, from what each rank would tell of its own counts.
fn of_node(grid: &Grid, node: u32, given: &[Vec<u64>], taken: &[Vec<u64>]) -> Result<Counts, CountsError> {
    let own =
        |rows: &[Vec<u64>]| grid.ranks_on(node).flat_map(|rank| rows[rank.0 as usize].clone()).collect();
    let words =
        |rank: u32| Share::of(grid, Rank(rank), &given[rank as usize], &taken[rank as usize]).to_words();
    let shares = (0..grid.ranks()).map(|rank| Share::from_words(words(rank))).collect();
    Counts::of_node(grid, node, [own(given), own(taken)], shares)
}

#[test]
fn the_part_of_a_node_says_the_same_as_the_matrix() {
    let grid = Grid::of_hosts(&[2, 1, 3]).unwrap();
    let matrix: Vec<u64> = (0..36).map(|pair| pair * 7 % 5).collect();
    let whole = Counts::of_matrix(&grid, matrix.clone()).unwrap();
    let given: Vec<Vec<u64>> = matrix.chunks(6).map(<[u64]>::to_vec).collect();
    let taken: Vec<Vec<u64>> = (0..6).map(|to| given.iter().map(|row| row[to]).collect()).collect();
    for node in 0..3 {
        let part = of_node(&grid, node, &given, &taken).unwrap();
        assert_eq!(part.shares(), whole.shares());
        assert_eq!((part.largest(), part.digest()), (whole.largest(), whole.digest()));
        assert!(whole.are_for(&grid, node) && part.are_for(&grid, node));
        assert!(!part.are_for(&grid, (node + 1) % 3), "it has no other node's");
        for rank in grid.ranks_on(node) {
            assert!(
                part.given_by(rank).eq(whole.given_by(rank)) && part.taken_by(rank).eq(whole.taken_by(rank))
            );
        }
    }
}

#[test]
fn all_ranks_find_the_same_error() {
    let grid = Grid::of_hosts(&[2, 1]).unwrap();
    let right = |count| (vec![vec![count; 3]; 3], vec![vec![count; 3]; 3]);
    let (given, taken) = right(4);
    for (from, to) in (0..3).flat_map(|from| (0..3).map(move |to| (from, to))) {
        let mut wrong = taken.clone();
        wrong[to][from] += 1;
        let mut swapped = given.clone();
        swapped[from][to] = 5;
        swapped[from][(to + 1) % 3] = 3;
        for node in 0..2 {
            assert_eq!(of_node(&grid, node, &given, &wrong), Err(CountsError::Differ));
            assert_eq!(
                of_node(&grid, node, &swapped, &taken),
                Err(CountsError::Differ),
                "the sums are right"
            );
        }
    }
    let (given, taken) = right(MAX_COUNT / 2);
    let (mut more, mut differ) = (given.clone(), given.clone());
    (more[2][0], differ[2][0]) = (u64::MAX, u64::MAX);
    let mut taken_more = taken.clone();
    taken_more[0][2] = u64::MAX;
    for node in 0..2 {
        assert_eq!(of_node(&grid, node, &given, &taken), Err(CountsError::TooLarge));
        assert_eq!(of_node(&grid, node, &more, &taken_more), Err(CountsError::TooLarge));
        assert_eq!(of_node(&grid, node, &differ, &taken), Err(CountsError::Differ));
    }
}
