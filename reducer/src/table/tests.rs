use super::*;
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

proptest! {
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
