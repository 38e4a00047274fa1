use super::*;
use crate::counts::CountsError;
use crate::dtype::{DType, ReduceOp};
use crate::header::MAX_COUNT;
use proptest::prelude::*;

fn spec(name: &str, count: u64) -> TensorSpec {
    TensorSpec::all_reduce(name, DType::F32, count, ReduceOp::Sum)
}

/// The bytes that a peer with this tensor sends.
fn sent(spec: &TensorSpec) -> Vec<u8> {
    postcard::to_stdvec(&Some(spec)).unwrap()
}

#[test]
fn generations_are_appended_and_compared_by_digest() {
    let (mut a, mut b) = (TensorTable::new(), TensorTable::new());
    assert_eq!(a.append(vec![spec("w", 10), spec("b", 2)]), Ok(0));
    assert_eq!(b.append(vec![spec("w", 10), spec("b", 2)]), Ok(0));
    assert_eq!(a.append(vec![spec("all", 12)]), Ok(1));
    assert_eq!(b.append(vec![spec("all", 13)]), Ok(1));
    assert_eq!(a.digest(0), b.digest(0));
    assert_ne!(a.digest(1), b.digest(1));
    assert_eq!(a.get(1, 0).map(|s| s.count), Some(12));
    assert_eq!(a.digest(2), Err(TableError::NoGeneration(2)));
}

#[test]
fn a_difference_names_the_tensor_and_both_views() {
    let mut ours = TensorTable::new();
    ours.append(vec![spec("w", 10), spec("b", 2)]).unwrap();
    let mut theirs = TensorTable::new();
    theirs.append(vec![spec("w", 10), TensorSpec { dtype: DType::F16, ..spec("b", 2) }]).unwrap();
    let view = |table: &TensorTable, index| from_bytes(&table.to_bytes(0, index).unwrap()).unwrap();
    assert!(ours.compare(0, 1, Rank(3), view(&ours, 1)).is_ok());
    assert!(ours.compare(0, 0, Rank(3), view(&theirs, 0)).is_ok());
    assert!(ours.compare(0, 2, Rank(3), view(&theirs, 2)).is_ok());
    let error = ours.compare(0, 1, Rank(3), view(&theirs, 1)).unwrap_err();
    assert_eq!((error.tensor.as_str(), error.index, error.rank), ("b", 1, Rank(3)));
    let text = error.to_string();
    assert!(text.contains("rank 3 has \"b\" (2 x f16, sum), this rank has \"b\" (2 x f32, sum)"), "{text}");
    let error = ours.compare(0, 1, Rank(1), None).unwrap_err();
    assert_eq!((error.expected.is_some(), error.found), (true, None));
}

#[test]
fn a_name_stands_for_one_tensor() {
    let mut table = TensorTable::new();
    assert!(matches!(
        table.append(vec![spec("w", 1), spec("b", 1), spec("w", 2)]),
        Err(TableError::Duplicate { first: 0, second: 2, .. })
    ));
    assert_eq!(
        table.append(vec![spec(&"x".repeat(MAX_NAME + 1), 1)]),
        Err(TableError::TooLarge { index: 0 })
    );
}

#[test]
fn a_reduction_that_a_type_lacks_is_refused_here_and_from_a_peer() {
    for &dtype in DType::ALL {
        for &op in ReduceOp::ALL {
            let spec = TensorSpec { dtype, op, ..spec("w", 1) };
            let received = from_bytes(&sent(&spec));
            let appended = TensorTable::new().append(vec![spec.clone()]);
            match op.check(dtype) {
                Ok(()) => assert_eq!((appended, received), (Ok(0), Ok(Some(spec)))),
                Err(why) => {
                    assert_eq!(appended, Err(TableError::NoReduction { index: 0, why }));
                    assert_eq!(received, Err(TableError::NoReduction { index: 0, why }));
                }
            }
        }
    }
}

#[test]
fn digests_of_prefixes_lead_to_the_first_difference() {
    let specs =
        |odd: usize| (0..100).map(|i| spec(&format!("t{i}"), u64::from(i == odd))).collect::<Vec<_>>();
    let (mut a, mut b) = (TensorTable::new(), TensorTable::new());
    a.append(specs(100)).unwrap();
    b.append(specs(41)).unwrap();
    b.append(specs(100)[..60].to_vec()).unwrap();
    for len in 0..101 {
        let prefix = |table: &TensorTable, generation| table.prefix_digest(generation, len).unwrap();
        assert_eq!(prefix(&a, 0) == prefix(&b, 0), len <= 41, "{len}");
        assert_eq!(prefix(&a, 0) == prefix(&b, 1), len <= 60, "{len}");
    }
    assert_eq!(a.prefix_digest(0, 100), a.digest(0));
}

#[test]
fn names_and_counts_beyond_the_bounds_are_refused_from_a_peer_too() {
    for spec in [spec(&"x".repeat(MAX_NAME + 1), 1), spec("w", MAX_COUNT + 1)] {
        assert_eq!(from_bytes(&sent(&spec)), Err(TableError::TooLarge { index: 0 }));
    }
}

#[test]
fn counts_of_blocks_are_compared_and_a_difference_shows_the_first() {
    let table = |counts: &[u64]| {
        let mut table = TensorTable::new();
        let specs = vec![spec("w", 10), TensorSpec::gather_v("shards", DType::F32, counts.to_vec(), 2)];
        table.append(specs).map(|_| table)
    };
    let (ours, same) = (table(&[3; 40]).unwrap(), table(&[3; 40]).unwrap());
    let mut counts = vec![3; 40];
    (counts[1], counts[39]) = (4, 0);
    let some = table(&counts).unwrap();
    let all = table(&[1; 40]).unwrap();
    assert_eq!(ours.digest(0), same.digest(0));
    assert_ne!(ours.digest(0), some.digest(0));
    let view = |table: &TensorTable| from_bytes(&table.to_bytes(0, 1).unwrap()).unwrap();
    assert!(ours.compare(0, 1, Rank(1), view(&same)).is_ok());
    let error = ours.compare(0, 1, Rank(1), view(&some)).unwrap_err();
    let has = "rank 1 has \"shards\" (gather-v of 118 x f32 in 40 blocks, root 2) with 4 of rank 1, 0 of rank 39, this rank has";
    assert!(error.to_string().contains(has), "{error}");
    let [ours_view, theirs] = error.views().map(Option::unwrap);
    assert!(
        ours_view.ends_with("with 3 of rank 1, 3 of rank 39") && theirs.ends_with("0 of rank 39"),
        "{error}"
    );
    let error = ours.compare(0, 1, Rank(1), view(&all)).unwrap_err().to_string();
    assert!(error.contains("1 of rank 0, 1 of rank 1, 1 of rank 2, 37 more that differ"), "{error}");
    assert!(error.len() < 400, "{error}");
    // Another difference than of counts.
    let other = Some(spec("shards", 3));
    let error = ours.compare(0, 1, Rank(1), other).unwrap_err().to_string();
    assert!(
        error.contains("this rank has \"shards\" (gather-v of 120 x f32 in 40 blocks, root 2);"),
        "{error}"
    );
}

#[test]
fn counts_of_pairs_are_not_compared() {
    let table = |given, taken| {
        let mut table = TensorTable::new();
        table.append(vec![TensorSpec::all_to_all_v("tokens", DType::F32, given, taken)]).unwrap();
        table
    };
    let (a, b) = (table(vec![1, 2], vec![3, 4]), table(vec![5, 6], vec![7, 8]));
    assert_eq!(a.digest(0), b.digest(0));
    let view = from_bytes(&b.to_bytes(0, 0).unwrap()).unwrap();
    assert!(a.compare(0, 0, Rank(1), view).is_ok());
    let longer = TensorSpec::all_to_all_v("tokens", DType::F64, vec![1], vec![]);
    let error = a.compare(0, 0, Rank(1), Some(longer)).unwrap_err().to_string();
    assert!(
        error.contains("(all-to-all-v of f64), this rank has \"tokens\" (all-to-all-v of f32);"),
        "{error}"
    );
}

#[test]
fn counts_that_a_collective_lacks_are_refused_here_and_from_a_peer() {
    let good = TensorSpec::scatter_v("t", DType::F32, vec![1, 2], 0);
    let pairs = TensorSpec::all_to_all_v("t", DType::F32, vec![1, 2], vec![2, 1]);
    let (scatter, all_to_all) = (good.collective, pairs.collective);
    assert_eq!((good.check_counts(2), pairs.check_counts(2)), (Ok(()), Ok(())));
    assert_eq!(spec("t", 3).check_counts(7), Ok(()));
    let wrong = |spec: &TensorSpec, why| {
        assert_eq!(spec.check_counts(2), Err(why));
        let error = Err(TableError::Counts { index: 0, why });
        assert_eq!(from_bytes(&sent(spec)), error.clone().map(|_: u32| None));
        assert_eq!(TensorTable::new().append(vec![spec.clone()]), error);
    };
    wrong(&TensorSpec { counts: BlockCounts::None, ..good.clone() }, WrongCounts::NotOfRanks(scatter));
    wrong(&TensorSpec { counts: pairs.counts.clone(), ..good.clone() }, WrongCounts::NotOfRanks(scatter));
    wrong(&TensorSpec { counts: BlockCounts::None, ..pairs.clone() }, WrongCounts::NotOfPairs(all_to_all));
    wrong(&TensorSpec { counts: good.counts.clone(), ..pairs.clone() }, WrongCounts::NotOfPairs(all_to_all));
    let even = TensorSpec { counts: good.counts.clone(), ..spec("t", 0) };
    wrong(&even, WrongCounts::Unwanted(even.collective));
    wrong(&TensorSpec { count: 5, ..good.clone() }, WrongCounts::Twice(5));
    wrong(&TensorSpec { count: 5, ..pairs.clone() }, WrongCounts::Twice(5));
    for counts in [vec![u64::MAX, 2], vec![MAX_COUNT, 1]] {
        let large = TensorSpec { counts: BlockCounts::OfRanks(counts), ..good.clone() };
        wrong(&large, WrongCounts::Sum(CountsError::TooLarge));
    }
    let number = |of, found| Err(WrongCounts::Number { of, found, ranks: 3 });
    assert_eq!(good.check_counts(3), number("", 2));
    assert_eq!(pairs.check_counts(3), number(" of given elements", 2));
}

proptest! {
    #[test]
    fn changed_bytes_of_counts_never_panic(counts in proptest::collection::vec(any::<u64>(), 0..9), at in any::<usize>(), byte: u8) {
        let mut bytes = sent(&TensorSpec::all_gather_v("w", DType::F32, counts));
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(Some(spec)) = from_bytes(&bytes) {
            prop_assert!(spec.to_string().len() < 2000);
            prop_assert_eq!(from_bytes(&sent(&spec)), Ok(Some(spec)));
        }
    }

    #[test]
    fn changed_bytes_from_a_peer_never_panic(name in ".{0,20}", at in any::<usize>(), byte: u8, more in proptest::collection::vec(any::<u8>(), 0..40)) {
        let mut bytes = [sent(&spec(&name, 1000)), more.clone()].concat();
        let at = at % bytes.len();
        bytes[at] = byte;
        for bytes in [bytes, more] {
            if let Ok(spec) = from_bytes(&bytes) {
                prop_assert_eq!(from_bytes(&postcard::to_stdvec(&spec).unwrap()), Ok(spec));
            }
        }
    }

    #[test]
    fn every_truncation_is_refused(count in 0u64..1000, name in ".{0,20}", cut in any::<usize>()) {
        let spec = spec(&name, count);
        let bytes = sent(&spec);
        prop_assert_eq!(from_bytes(&bytes).unwrap(), Some(spec));
        prop_assert!(from_bytes(&bytes[..cut % bytes.len()]).is_err());
        prop_assert!(from_bytes(&[&bytes[..], &[0]].concat()).is_err());
    }
}
