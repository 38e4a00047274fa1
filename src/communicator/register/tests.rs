#![allow(unsafe_code)]

use shouter_reducer::dtype::{DType, ReduceOp};

use super::super::tests::{each, ranks_keyed};
use super::*;

/// Elements of an operation that goes by the engine, and of one that goes by cells where there are some.
const COUNTS: [usize; 2] = [50_000, 4];

fn spec(name: &str) -> TensorSpec {
    TensorSpec::all_reduce(name, DType::F32, 50_000, ReduceOp::Sum)
}

/// Pushes may go on beside a register, so nothing is wrong before the deadline. Then each side names the other one, and what it is in.
#[test]
fn a_rank_that_registers_beside_operations_of_the_others_learns_which_they_are_in() {
    for (hosts, size) in [(1, 2), (2, 2), (1, 4), (2, 4), (4, 4)] {
        // Both for each of two ranks; of four, every other one has the one or the other.
        let both = |culprit: u32| COUNTS.map(|count| (culprit, count));
        let of_all = (0..size).flat_map(both).enumerate();
        let cases = of_all.filter(|(at, (culprit, _))| size == 2 || at % 2 == (culprit % 2) as usize);
        for (_, (culprit, count)) in cases {
            let group = ranks_keyed(hosts, size, &[("deadline", "1s")]);
            let ids = each(&group, |rank| rank.register(&[spec("before")]).unwrap()[0]);
            let errors = each(&group, |rank| {
                if rank.rank() == culprit {
                    return rank.register(&[spec("first"), spec("second")]).map(drop).unwrap_err();
                }
                let mut data = vec![1f32; count];
                match count {
                    50_000 => {
                        // SAFETY: the data is touched by nobody else, and leaked where its use has not ended.
                        let work = unsafe { rank.push(ids[rank.rank() as usize], data.as_mut_ptr().cast()) };
                        let error = work.and_then(|work| work.wait(None)).unwrap_err();
                        std::mem::forget(data);
                        error
                    }
                    _ => rank.all_reduce(&mut data, ReduceOp::Sum).unwrap_err(),
                }
            });
            let case = format!("rank {culprit} of {size} on {hosts}, {count}: {errors:#?}");
            for (number, error) in (0u32..).zip(&errors) {
                let text = error.to_string();
                if number != culprit {
                    // On several hosts ranks may wait for others that wait for the culprit themselves, and name the first of them.
                    let mut named = error.missing().iter().copied().chain(error.rank());
                    let is_named = named.any(|rank| rank == culprit);
                    assert!(is_named || hosts > 1 && size > 2, "{number}, {case}");
                    let own = error.missing().contains(&number) || error.rank() == Some(number);
                    assert!(!own || hosts > 1 && size > 2, "{number}, {case}");
                    assert_eq!(error.operation(), Some(Operation::AllReduce), "{case}");
                    continue;
                }
                assert!(matches!(error, Error::Deadline { .. } | Error::PeerFailed { .. }), "{case}");
                assert_eq!(error.operation(), Some(Operation::Register), "{case}");
                assert!(
                    text.contains("register of \"first\" and 1 more (generation 1 of the table"),
                    "{case}"
                );
                let what = if count == 4 { "4 x f32" } else { "of \"before\"" };
                let begun =
                    text.split("; ").any(|part| part.contains("has begun all-reduce") && part.contains(what));
                assert!(begun, "{case}");
            }
        }
    }
}

#[test]
fn a_rank_that_registers_alone_names_those_that_it_waited_for() {
    for culprit in 0..3 {
        let group = ranks_keyed(1, 3, &[("deadline", "1s")]);
        let errors = each(&group, |rank| {
            (rank.rank() != culprit).then(|| rank.register(&[spec("late")]).unwrap_err())
        });
        for error in errors.into_iter().flatten() {
            assert!(matches!(&error, Error::Deadline { missing, .. } if *missing == [culprit]), "{error:?}");
            assert!(error.to_string().contains("register of \"late\" (generation 0"), "{error}");
            assert!(!error.to_string().contains("has begun"), "{error}");
        }
        // It is not told that it waits for itself. Rank 0 has what the others have sent.
        if culprit == 0 {
            continue;
        }
        let late = group[culprit as usize].register(&[spec("late")]).unwrap_err();
        let is_late =
            matches!(late, Error::PeerFailed { rank, reason: crate::Reason::Late, .. } if rank == culprit);
        assert!(is_late && late.to_string().contains("deadline"), "{late:?}");
    }
}

/// There it is one of the group's operations, so ranks that order them differently hear of it at once.
#[test]
fn in_a_group_of_some_ranks_a_register_beside_operations_is_a_divergence_that_names_it() {
    for hosts in [1, 2] {
        for culprit in 0..2 {
            let all = ranks_keyed(hosts, 2, &[]);
            let group = each(&all, |rank| rank.duplicate().unwrap());
            let errors = each(&group, |rank| match rank.rank() == culprit {
                true => rank.register(&[spec("only")]).map(drop).unwrap_err(),
                false => rank.all_reduce(&mut [1f32; 4], ReduceOp::Sum).unwrap_err(),
            });
            for (number, error) in (0u32..).zip(&errors) {
                assert!(matches!(error, Error::Mismatch { .. }), "{error:?}");
                let is_culprit = number == culprit;
                assert_eq!(error.operation() == Some(Operation::Register), is_culprit, "{error:?}");
                assert_eq!(error.to_string().contains("register of \"only\""), is_culprit, "{error}");
            }
        }
    }
}
