use super::*;

#[test]
fn rows_and_columns_are_those_of_the_matrix() {
    let counts = Counts::of_pairs(3, vec![1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
    assert_eq!(counts.given_by(Rank(1)).collect::<Vec<_>>(), [4, 5, 6]);
    assert_eq!(counts.taken_by(Rank(1)).collect::<Vec<_>>(), [2, 5, 8]);
    assert_eq!((counts.between(Rank(2), Rank(0)), counts.largest()), (7, 24));
    let blocks = Counts::of_blocks(vec![4, 0, 9]).unwrap();
    assert_eq!((blocks.of(Rank(2)), blocks.most(), blocks.largest()), (9, 9, 13));
    assert_eq!(blocks.taken_by(Rank(1)).collect::<Vec<_>>(), [4, 0, 9]);
}

#[test]
fn what_cannot_be_is_refused() {
    assert_eq!(Counts::of_blocks(vec![u64::MAX, 1]), Err(CountsError::TooLarge));
    assert_eq!(Counts::of_blocks(vec![MAX_COUNT, 1]), Err(CountsError::TooLarge));
    assert!(Counts::of_blocks(vec![MAX_COUNT, 0]).is_ok());
    assert_eq!(Counts::of_pairs(2, vec![MAX_COUNT, 0, 1, 0]), Err(CountsError::TooLarge));
    assert_eq!(Counts::of_pairs(2, vec![1; 3]), Err(CountsError::Number { found: 3, needed: 4 }));
}

#[test]
fn other_counts_have_another_digest() {
    let digest = |counts: &[u64]| Counts::of_blocks(counts.to_vec()).unwrap().digest();
    assert_eq!(digest(&[3, 4]), digest(&[3, 4]));
    assert_ne!(digest(&[3, 4]), digest(&[4, 3]));
    assert_ne!(digest(&[0, 7]), digest(&[7, 0]));
}
