//! Tests with ranks that are threads of this process.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;

use super::super::tests::{each, ranks};
use super::*;
use crate::error::{Operation, Reason};
use crate::runtime::in_forked_child;
use crate::{DType, ReduceOp, TensorSpec};

/// So large that it is staged, not exchanged in cells.
const COUNT: usize = 50_000;

/// Numbers of tensors that all ranks have registered.
fn registered(group: &[Group], tensors: usize) -> Vec<TensorId> {
    let spec =
        |index| TensorSpec::all_reduce(format!("layer.{index}"), DType::F32, COUNT as u64, ReduceOp::Sum);
    let specs: Vec<_> = (0..tensors).map(spec).collect();
    each(group, |rank| rank.register(&specs).unwrap()).swap_remove(0)
}

#[test]
fn several_lent_buffers_of_every_kind_come_back_with_their_sums() {
    let group = ranks(2);
    let ids = registered(&group, 3);
    each(&group, |rank| {
        for step in 1..=3 {
            let number = (rank.rank() + step) as f32;
            let mut shared = rank.alloc::<f32>(COUNT).unwrap();
            shared.fill(number);
            let first = rank.lend(ids[0], vec![number; COUNT]).unwrap();
            let second = rank.lend(ids[1], vec![2.0 * number; COUNT].into_boxed_slice()).unwrap();
            let mut third = rank.lend(ids[2], shared).unwrap();
            let sum = (2 * step + 1) as f32;
            assert!(third.wait_for(Duration::from_secs(20)) && third.wait_for(Duration::ZERO));
            assert!(third.wait().unwrap().iter().all(|x| *x == sum));
            assert!(first.wait().unwrap().iter().all(|x| *x == sum));
            assert!(second.wait().unwrap().iter().all(|x| *x == 2.0 * sum));
        }
    });
}

#[test]
fn a_dropped_buffer_is_waited_for_and_the_other_ranks_get_its_elements() {
    let group = ranks(2);
    let ids = registered(&group, 1);
    let mut lent = group[0].lend(ids[0], vec![1f32; COUNT]).unwrap();
    assert!(!lent.wait_for(Duration::from_millis(1)), "nobody else has come");
    let (say, said) = channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            drop(lent);
            say.send(()).unwrap();
        });
        let early = said.recv_timeout(Duration::from_millis(200));
        assert_eq!(early, Err(RecvTimeoutError::Timeout), "the operation is under way");
        let theirs = group[1].lend(ids[0], vec![2f32; COUNT]).unwrap().wait().unwrap();
        assert!(theirs.iter().all(|x| *x == 3.0));
        said.recv_timeout(Duration::from_secs(20)).unwrap();
    });
}

#[test]
fn a_buffer_comes_back_from_an_operation_that_failed_in_its_midst() {
    let mut group = ranks(2);
    let ids = registered(&group, 2);
    group[0].set_step(9);
    let other = group.pop().unwrap();
    let first = group[0].lend(ids[0], vec![1f32; COUNT]).unwrap();
    let second = group[0].lend(ids[1], vec![1f32; COUNT]).unwrap();
    drop(other);
    let LendError { error, data } = first.wait().unwrap_err();
    assert_eq!(data.map(|data| data.len()), Some(COUNT), "{error}");
    assert!(
        matches!(
            &error,
            Error::PeerFailed {
                rank: 1,
                reason: Reason::Aborted,
                operation: Operation::AllReduce,
                step: 9,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(error.tensor().map(|tensor| (tensor.id, &*tensor.name)), Some((ids[0], "layer.0")));
    drop(second);
    let LendError { error, data } = group[0].lend(ids[1], vec![4f32; COUNT]).unwrap_err();
    assert!(matches!(error, Error::Closed { rank: Some(1), reason: Some(Reason::Aborted), .. }), "{error:?}");
    assert_eq!(data, Some(vec![4.0; COUNT]), "nothing was started");
}

#[test]
fn a_forgotten_buffer_outlives_its_group() {
    let mut group = ranks(2);
    let ids = registered(&group, 1);
    let mut data = vec![1f32; COUNT];
    let address = data.as_mut_ptr();
    let other = group.pop().unwrap();
    let member = group.pop().unwrap();
    std::mem::forget(member.lend(ids[0], data).unwrap());
    drop(member);
    let why = other.lend(ids[0], vec![2f32; COUNT]).and_then(Lent::wait).unwrap_err();
    assert!(why.error.rank() == Some(0) && why.data.is_some(), "{why:?}");
    // SAFETY: the elements were leaked, and the engine that used them is gone.
    let leaked = unsafe { std::slice::from_raw_parts_mut(address, COUNT) };
    leaked.fill(0.0);
}

#[test]
fn a_lent_buffer_keeps_a_shared_group() {
    let group = ranks(2);
    let id = registered(&group, 1)[0];
    let group: Vec<_> = group.into_iter().map(Arc::new).collect();
    let lend = |rank: &Arc<Group>| Lent::new(rank.clone(), id, vec![1f32; COUNT]).unwrap();
    let lent: Vec<_> = group.iter().map(lend).collect();
    let kept: Vec<_> = group.iter().map(Arc::downgrade).collect();
    drop(group);
    assert!(kept.iter().all(|kept| kept.upgrade().is_some()));
    // The last use of each group drops it, while the other rank may still work on the operation.
    thread::scope(|scope| {
        for lent in lent {
            scope.spawn(move || assert!(lent.wait().unwrap().iter().all(|x| *x == 2.0)));
        }
    });
    assert!(kept.iter().all(|kept| kept.upgrade().is_none()));
}

#[test]
fn what_was_not_registered_so_is_given_back() {
    let group = ranks(1);
    let id = registered(&group, 1)[0];
    let refused = |error: Error| assert!(matches!(error, Error::Argument(_)), "{error}");
    let LendError { error, data } = group[0].lend(id, vec![1f32; COUNT - 1]).unwrap_err();
    assert_eq!(data, Some(vec![1f32; COUNT - 1]));
    assert!(error.to_string().contains("\"layer.0\" was registered with 50000 x f32"), "{error}");
    refused(error);
    refused(group[0].lend(id, vec![1i32; COUNT]).unwrap_err().error);
    refused(group[0].lend(TensorId(7), vec![1f32; COUNT]).unwrap_err().error);
}

#[test]
fn a_forked_child_neither_waits_for_a_lent_buffer_nor_frees_it() {
    let group = ranks(2);
    let ids = registered(&group, 1);
    let mut lent = Some(group[0].lend(ids[0], vec![1f32; COUNT]).unwrap());
    let status = in_forked_child(|| {
        let why = lent.take().map(Lent::wait);
        u8::from(matches!(why, Some(Err(LendError { error: Error::Closed { .. }, data: None }))))
    });
    assert_eq!(status, 1);
    let theirs = group[1].lend(ids[0], vec![2f32; COUNT]).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| theirs.wait().unwrap());
        assert!(lent.take().unwrap().wait().unwrap().iter().all(|x| *x == 3.0));
        assert!(waiting.join().unwrap().iter().all(|x| *x == 3.0));
    });
}
