use super::*;
use proptest::prelude::*;

fn spec(name: &str, count: u64) -> TensorSpec {
    TensorSpec { name: name.to_owned(), dtype: DType::F32, count, op: ReduceOp::Sum }
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
    let theirs = from_bytes(&theirs.to_bytes(0).unwrap()).unwrap();
    assert!(ours.compare(0, Rank(3), &from_bytes(&ours.to_bytes(0).unwrap()).unwrap()).is_ok());
    let error = ours.compare(0, Rank(3), &theirs).unwrap_err();
    assert_eq!((error.tensor.as_str(), error.index, error.rank), ("b", 1, Rank(3)));
    let text = error.to_string();
    assert!(text.contains("rank 3 has \"b\" (2 x f16, sum), this rank has \"b\" (2 x f32, sum)"), "{text}");
    let error = ours.compare(0, Rank(1), &[spec("w", 10)]).unwrap_err();
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

proptest! {
    #[test]
    fn bytes_from_a_peer_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), small in 0u8..4) {
        let mut bytes = bytes;
        if bytes.len() > 4 {
            bytes[..4].copy_from_slice(&[small, 0, 0, 0]);
        }
        if let Ok(specs) = from_bytes(&bytes) {
            prop_assert_eq!(encode(&specs), bytes);
        }
    }

    #[test]
    fn every_truncation_is_refused(counts in proptest::collection::vec(0u64..1000, 1..5), cut in any::<usize>()) {
        let specs: Vec<_> = counts.iter().enumerate().map(|(i, &c)| spec(&format!("t{i}"), c)).collect();
        let bytes = encode(&specs);
        prop_assert_eq!(from_bytes(&bytes).unwrap(), specs);
        prop_assert!(from_bytes(&bytes[..cut % bytes.len()]).is_err());
    }
}
