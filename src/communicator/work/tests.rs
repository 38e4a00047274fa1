//! Tests with ranks that are threads of this process.
#![allow(unsafe_code)]

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};

use shouter_reducer::header::Collective;

use super::super::tests::{each, free_port, in_place, ranks, ranks_keyed, ranks_with};
use super::*;
use crate::allocations;
use crate::config::{Builder, Environment};
use crate::runtime::in_forked_child;
use crate::{BlockCounts, CollectiveCall, DType, Group, ReduceOp, TensorSpec};

const PATIENCE: Duration = Duration::from_secs(20);

/// Rounds in which allocations are counted.
const ROUNDS: usize = 12;

/// Starts that have been tried and waited for allocate nothing, with a driver of its own and without; a start outside the table does.
#[test]
fn the_second_start_of_a_registered_tensor_allocates_nothing() {
    for mode in ["", "dedicated"] {
        let group = ranks_with(1, 2, mode);
        let kinds = [Collective::AllReduce, Collective::AllGather, Collective::Broadcast];
        let spec = |collective: Collective| TensorSpec {
            collective,
            ..TensorSpec::all_reduce(collective.name(), DType::F32, 3000, ReduceOp::Sum)
        };
        let ids = each(&group, |rank| rank.register(&kinds.map(spec)).unwrap()).swap_remove(0);
        let mut counted = vec![];
        let mut data = vec![vec![vec![1f32; 6000]; 3]; 2];
        for _ in 0..ROUNDS {
            let mut works = Vec::with_capacity(6);
            let before = allocations::count();
            for (rank, data) in group.iter().zip(&mut data) {
                for (id, data) in ids.iter().zip(data) {
                    // SAFETY: room for two blocks, which is left alone until the waits.
                    works.push(unsafe { rank.push(*id, data.as_mut_ptr().cast()) }.unwrap());
                }
            }
            counted.push(allocations::count() - before);
            works.iter().for_each(|work| work.wait(None).unwrap());
        }
        assert!(allocations::settle(&counted), "{mode}: {counted:?}");
        assert!(counted[0] > 0, "the counter counts");
    }
}

/// The same of every collective by itself: those whose blocks differ exchange no counts.
#[test]
fn the_second_start_of_each_collective_allocates_nothing() {
    let group = ranks(2);
    let kinds = || Collective::ALL.into_iter();
    let spec = |collective: Collective, rank: usize| TensorSpec {
        collective,
        counts: match collective {
            Collective::AllToAllV => {
                let swapped = vec![[1000, 2000][rank], [2000, 1000][rank]];
                BlockCounts::OfPairs { given: swapped.clone(), taken: swapped }
            }
            collective if collective.has_counts() => BlockCounts::OfRanks(vec![1000, 2000]),
            _ => BlockCounts::None,
        },
        ..TensorSpec::all_reduce(
            collective.name(),
            DType::F32,
            if collective == Collective::Barrier || collective.has_counts() { 0 } else { 3000 },
            ReduceOp::Sum,
        )
    };
    let specs = |rank: &Group| kinds().map(|kind| spec(kind, rank.rank() as usize)).collect::<Vec<_>>();
    let ids = each(&group, |rank| rank.register(&specs(rank)).unwrap()).swap_remove(0);
    let mut data = [[1f32; 6000]; 2];
    for (kind, id) in kinds().zip(ids) {
        let mut counted = vec![];
        for _ in 0..ROUNDS {
            let mut works = Vec::with_capacity(2);
            let before = allocations::count();
            for (rank, data) in group.iter().zip(&mut data) {
                // SAFETY: room for two blocks, which is left alone until the waits.
                works.push(unsafe { rank.push(id, data.as_mut_ptr().cast()) }.unwrap());
            }
            counted.push(allocations::count() - before);
            works.iter().for_each(|work| work.wait(Some(PATIENCE)).unwrap());
        }
        assert!(allocations::settle(&counted), "{kind}: {counted:?}");
    }
}

/// The same of tensors that are fused, with their copies, and of waits that flush.
#[test]
fn the_second_start_of_a_bucket_allocates_nothing() {
    for mode in ["caller", "dedicated"] {
        let group = ranks_keyed(1, 2, &[("mode", mode), ("fuse_below", "8192")]);
        let specs = ["a", "b", "c"].map(|name| TensorSpec::all_reduce(name, DType::F32, 300, ReduceOp::Sum));
        let ids = each(&group, |rank| rank.register(&specs).unwrap()).swap_remove(0);
        for pushes in [3, 2] {
            let mut counted = vec![];
            let mut data = vec![vec![vec![1f32; 300]; 3]; 2];
            for step in 1..=ROUNDS {
                let mut works = Vec::with_capacity(6);
                let before = allocations::count();
                for (rank, data) in group.iter().zip(&mut data) {
                    for (id, data) in ids.iter().zip(data).take(pushes) {
                        // SAFETY: left alone until the waits.
                        works.push(unsafe { rank.push(*id, data.as_mut_ptr().cast()) }.unwrap());
                    }
                }
                counted.push(allocations::count() - before);
                thread::scope(|scope| {
                    let (first, second) = works.split_at(pushes);
                    scope.spawn(|| first.iter().for_each(|work| work.wait(Some(PATIENCE)).unwrap()));
                    second.iter().for_each(|work| work.wait(Some(PATIENCE)).unwrap());
                });
                let sum = (1 << step) as f32;
                let pushed = data.iter().flat_map(|data| &data[..pushes]).flatten();
                assert!(pushed.into_iter().all(|found| *found == sum), "{mode}, {pushes}, step {step}");
            }
            assert!(allocations::settle(&counted), "{mode}, {pushes}: {counted:?}");
        }
    }
}

#[test]
fn ranks_that_fuse_differently_are_told_the_key() {
    let port = free_port().to_string();
    let member = |rank: &str| {
        let keys = [
            ("size", "2"),
            ("rank", rank),
            ("local_size", "2"),
            ("local_rank", rank),
            ("addr", "127.0.0.1"),
            ("port", &port),
            ("key", "a secret of this test"),
            ("fuse_below", if rank == "0" { "0" } else { "4096" }),
        ];
        let builder = Builder::from_environment(Environment::default());
        keys.into_iter().fold(builder, |builder, (key, value)| builder?.set(key, value)).unwrap().build()
    };
    let errors = thread::scope(|scope| {
        let member = &member;
        let joining = ["0", "1"].map(|rank| scope.spawn(move || crate::init(member(rank).unwrap())));
        joining.map(|rank| rank.join().unwrap().expect_err("they cannot work together").to_string())
    });
    assert!(errors.iter().any(|error| error.contains("fuse_below")), "{errors:?}");
}

/// Wakes a thread.
struct Unpark(Thread, AtomicBool);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::Release);
        self.0.unpark();
    }
}

/// Runs a future on this thread, which polls it only when it was woken.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let wake = Arc::new(Unpark(thread::current(), AtomicBool::new(true)));
    let waker = Waker::from(wake.clone());
    let mut future = pin!(future);
    loop {
        if wake.1.swap(false, Ordering::AcqRel)
            && let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker))
        {
            return output;
        }
        thread::park_timeout(PATIENCE);
    }
}

#[test]
fn a_future_is_woken_and_ready_again_and_again() {
    for mode in ["", "dedicated"] {
        let group = ranks_with(1, 2, mode);
        thread::scope(|scope| {
            for (number, rank) in group.iter().enumerate() {
                scope.spawn(move || {
                    for step in 0..20 {
                        if number == step % 2 {
                            thread::sleep(Duration::from_millis(2));
                        }
                        let mut data = [1f32; 8];
                        // SAFETY: left alone until the future is ready.
                        let work = unsafe { rank.start(&in_place(&mut data)) }.unwrap();
                        block_on(work.clone()).unwrap();
                        block_on(work).unwrap();
                        assert_eq!(data, [2.0; 8]);
                    }
                });
            }
        });
    }
}

#[test]
fn more_than_can_be_queued_would_block_and_nothing_was_started() {
    let mut group = ranks(2);
    let spec = TensorSpec::all_reduce("t", DType::F32, 1, ReduceOp::Sum);
    let ids = each(&group, |rank| rank.register(std::slice::from_ref(&spec)).unwrap()[0]);
    let other = group.pop().unwrap();
    let rank = group.pop().unwrap();
    let mut data = vec![1f32; 3000];
    let mut works = vec![];
    let refused = loop {
        let data = &mut data[works.len()];
        // SAFETY: left alone until the waits.
        match unsafe { rank.push(ids[0], (&raw mut *data).cast()) } {
            Ok(work) => works.push(work),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::WouldBlock { .. }) && refused.code() == 12, "{refused}");
    assert!(works.len() > 1000, "{}", works.len());
    let mut theirs = vec![2f32; works.len() + 1];
    thread::scope(|scope| {
        let count = works.len();
        let (other, theirs, id) = (&other, &mut theirs, ids[1]);
        scope.spawn(move || {
            for theirs in theirs {
                // SAFETY: left alone until the wait.
                unsafe { other.push(id, (&raw mut *theirs).cast()) }.unwrap().wait(None).unwrap();
            }
        });
        works.iter().for_each(|work| work.wait(None).unwrap());
        // SAFETY: as above.
        let again = unsafe { rank.push(ids[0], (&raw mut data[count]).cast()) };
        again.unwrap().wait(None).unwrap();
    });
    assert!(theirs.iter().chain(&data[..theirs.len()]).all(|sum| *sum == 3.0));
}

#[test]
fn a_barrier_waits_for_a_slot_as_long_as_it_takes() {
    for below in ["0", "8"] {
        let mut group = ranks_keyed(1, 2, &[("fuse_below", below)]);
        let spec = |name, count| TensorSpec::all_reduce(name, DType::F32, count, ReduceOp::Sum);
        let specs = [spec("a", 1), spec("b", 1), spec("large", 2)];
        let id = each(&group, |rank| rank.register(&specs).unwrap()[2]).swap_remove(0);
        let (other, rank) = (group.pop().unwrap(), group.pop().unwrap());
        let (mut data, mut works) = (vec![[1f32; 2]; 3000], vec![]);
        for data in &mut data {
            // SAFETY: left alone until the waits.
            match unsafe { rank.push(id, data.as_mut_ptr().cast()) } {
                Ok(work) => works.push(work),
                Err(error) => {
                    assert!(matches!(error, Error::WouldBlock { .. }), "{error}");
                    break;
                }
            }
        }
        let count = works.len();
        assert!(count > 1000, "{count}");
        thread::scope(|scope| {
            let barrier = scope.spawn(|| rank.barrier());
            // Longer than a start waits for a slot.
            thread::sleep(Duration::from_millis(1300));
            assert!(!barrier.is_finished());
            let mut theirs = [2f32; 2];
            for _ in 0..count {
                // SAFETY: left alone until the wait.
                unsafe { other.push(id, theirs.as_mut_ptr().cast()) }.unwrap().wait(None).unwrap();
            }
            other.barrier().unwrap();
            barrier.join().unwrap().unwrap();
        });
        works.iter().for_each(|work| work.wait(Some(PATIENCE)).unwrap());
    }
}

#[test]
fn what_is_held_when_its_group_is_dropped_is_never_started() {
    let keys = [("fuse_below", "4096")];
    let specs = ["a", "b"].map(|name| TensorSpec::all_reduce(name, DType::F32, 4, ReduceOp::Sum));
    let mut group = ranks_keyed(1, 2, &keys);
    let mut halves = each(&group, |rank| rank.duplicate().unwrap());
    let all = each(&group, |rank| rank.register(&specs).unwrap()[0]).swap_remove(0);
    let half = each(&halves, |rank| rank.register(&specs).unwrap()[0]).swap_remove(0);
    let mut data = [[1f32; 4]; 2];
    let push = |group: &crate::Group, id, data: &mut [f32]| {
        // SAFETY: left alone until the groups are gone.
        unsafe { group.push(id, data.as_mut_ptr().cast()) }.unwrap()
    };
    let held = push(&group[0], all, &mut data[0]);
    assert!(held.test().is_none());
    let gone = |work: &Work| {
        let ended = work.test().expect("before the group has gone").unwrap_err();
        assert!(matches!(ended, Error::Closed { .. }), "{ended:?}");
        assert_eq!(work.wait(Some(PATIENCE)).unwrap_err().to_string(), ended.to_string());
    };
    // The engine goes on for the other group.
    drop(group.remove(0));
    gone(&held);
    each(&halves, |rank| rank.barrier().unwrap());
    let in_half = push(&halves[0], half, &mut data[1]);
    assert!(in_half.test().is_none());
    drop(halves.remove(0));
    gone(&in_half);
}

#[test]
fn a_part_of_a_bucket_that_nobody_waits_for_fails_by_itself_and_names_the_rest() {
    let group = ranks_keyed(1, 2, &[("fuse_below", "4096"), ("deadline", "1s")]);
    let names = ["left", "pushed", "missing"];
    let specs = names.map(|name| TensorSpec::all_reduce(name, DType::F32, 4, ReduceOp::Sum));
    each(&group, |rank| {
        let id = rank.register(&specs).unwrap()[1];
        let mut data = [1f32; 4];
        // SAFETY: left alone until it has ended.
        let work = unsafe { rank.push(id, data.as_mut_ptr().cast()) }.unwrap();
        let begin = Clock.now();
        let error = loop {
            match work.test() {
                Some(ended) => break ended.unwrap_err(),
                None => assert!(Clock.now() - begin < PATIENCE, "it is held for ever"),
            }
            thread::sleep(Duration::from_millis(1));
        };
        assert!(matches!(&error, Error::Deadline { missing, .. } if missing.is_empty()), "{error:?}");
        assert_eq!(error.tensor().map(|tensor| &*tensor.name), Some("pushed"));
        assert!(error.to_string().contains("left + missing"), "{error}");
        // The group goes on, and so does the bucket.
        rank.barrier().unwrap();
        // SAFETY: as above.
        let again = unsafe { rank.push(id, data.as_mut_ptr().cast()) }.unwrap();
        again.wait(Some(PATIENCE)).unwrap();
        assert_eq!(data, [2.0; 4]);
    });
}

#[test]
fn a_dropped_group_ends_what_is_under_way_and_runs_its_callbacks() {
    let mut group = ranks(2);
    let mut data = [1f32; 4];
    // SAFETY: left alone until the group is gone.
    let work = unsafe { group[0].start(&in_place(&mut data)) }.unwrap();
    let (say, said) = channel();
    let late = say.clone();
    let awaited = group[0].outcomes.awaited_ends.clone();
    work.on_done(move |result| say.send(result).unwrap()).unwrap();
    work.on_done(|_| {}).unwrap();
    assert!(awaited.is_any());
    drop(group.remove(0));
    assert!(!awaited.is_any());
    let told = said.try_recv().expect("before the group has gone").unwrap_err();
    let again = [
        work.wait(None).unwrap_err(),
        work.test().unwrap().unwrap_err(),
        block_on(work.clone()).unwrap_err(),
    ];
    for error in again.into_iter().chain([told]) {
        assert_eq!(error.rank(), Some(0), "{error}");
        assert!(matches!(error, Error::PeerFailed { .. }), "{error:?}");
    }
    work.on_done(move |result| late.send(result).unwrap()).unwrap();
    assert!(said.try_recv().expect("at once").is_err());
    assert!(!awaited.is_any());
}

/// Of the same job, with an operation under way, and of another job.
#[test]
fn a_callback_may_close_another_group() {
    for (hosts, mode) in [(1, ""), (1, "dedicated"), (2, "")] {
        let (all, others) = (ranks_with(hosts, 2, mode), ranks_with(1, 2, mode));
        let [asked, closed] = [(); 2].map(|()| each(&all, |rank| rank.duplicate().unwrap()));
        let mut data = [[1f32; 4]; 3];
        let [first, second, under_way] = &mut data;
        // SAFETY: left alone until all have ended.
        let [own, gone] = unsafe {
            [asked[0].start(&in_place(first)).unwrap(), closed[0].start(&in_place(under_way)).unwrap()]
        };
        let (say, said) = channel();
        let late = say.clone();
        gone.on_done(move |result| late.send(("closed", result.is_ok())).unwrap()).unwrap();
        let [mut closed, mut others] = [closed, others].map(Vec::into_iter);
        let (closes, leaves) = (closed.next().unwrap(), others.next().unwrap());
        own.on_done(move |result| {
            drop((closes, leaves));
            say.send(("asked", result.is_ok())).unwrap();
        })
        .unwrap();
        // SAFETY: as above.
        let peer = unsafe { asked[1].start(&in_place(second)) }.unwrap();
        peer.wait(Some(PATIENCE)).unwrap();
        let mut told = [(); 2].map(|()| said.recv_timeout(PATIENCE).unwrap());
        told.sort_unstable();
        assert_eq!(told, [("asked", true), ("closed", false)]);
        assert!(gone.wait(Some(PATIENCE)).is_err());
        // The others are told so, and the groups that were not closed go on.
        let error = closed.next().unwrap().all_reduce(&mut [1f32; 4], ReduceOp::Sum).unwrap_err();
        assert_eq!(error.rank(), Some(0), "{error}");
        let error = others.next().unwrap().all_reduce(&mut [1f32; 4], ReduceOp::Sum).unwrap_err();
        assert_eq!(error.rank(), Some(0), "{error}");
        for group in [&asked, &all] {
            let sums = each(group, |rank| {
                let mut one = [1f32];
                rank.all_reduce(&mut one, ReduceOp::Sum).unwrap();
                one
            });
            assert_eq!(sums, [[2.0]; 2]);
        }
        assert_eq!(data[..2], [[2.0; 4]; 2]);
    }
}

/// What a caller has begun is looked after while it computes; with nothing under way the helper may stay away (`Poller::is_at_rest`).
#[test]
fn a_rank_is_at_rest_only_while_nothing_that_was_begun_goes_on() {
    let group = ranks(2);
    let half: Vec<Group> =
        each(&group, |rank| rank.split(Some(0), 0).unwrap().unwrap()).into_iter().collect();
    let at_rest = || group[0].drive.with(|engine| crate::runtime::Poller::is_at_rest(engine)).unwrap();
    let until_at_rest = || {
        let late = std::time::Instant::now() + PATIENCE;
        while !at_rest() {
            assert!(std::time::Instant::now() < late, "nothing is under way any more");
            std::thread::yield_now();
        }
    };
    until_at_rest();
    for group in [&group, &half] {
        let (mut own, mut other) = ([1f32; 4], [1f32; 4]);
        // SAFETY: left alone until both have ended.
        let work = unsafe { group[0].start(&in_place(&mut own)) }.unwrap();
        assert!(!at_rest(), "an all-reduce waits for the other rank");
        // SAFETY: as above.
        let answer = unsafe { group[1].start(&in_place(&mut other)) }.unwrap();
        work.wait(Some(PATIENCE)).unwrap();
        answer.wait(Some(PATIENCE)).unwrap();
        until_at_rest();
        let mut into = [0u8; 4];
        // SAFETY: as above.
        let receive = unsafe { group[0].start_message(crate::Exchange::receive(&mut into, 1, 3)) }.unwrap();
        assert!(!at_rest(), "a receive waits for its message");
        group[1].send(&[7u8; 4], 0, 3).unwrap();
        receive.wait(Some(PATIENCE)).unwrap();
        until_at_rest();
    }
}

/// A receive without a send, counts that no other rank sends, and the operations behind those.
#[test]
fn messages_and_collectives_with_counts_end_with_their_group_too() {
    for mode in ["", "dedicated"] {
        let mut group = ranks_with(1, 2, mode);
        let (mut received, given, mut taken, mut data) = ([0u32; 4], [1u32, 2], [0u32; 2], [1f32; 4]);
        let call = crate::UnevenCall {
            collective: Collective::AllToAllV,
            input: given.as_ptr().cast(),
            output: taken.as_mut_ptr().cast(),
            given: &[1, 1],
            taken: &[1, 1],
            dtype: DType::U32,
            op: ReduceOp::Sum,
            root: 0,
        };
        // SAFETY: left alone until the group is gone.
        let works = unsafe {
            let receive = crate::Exchange::receive(&mut received, 1, 3);
            [
                group[0].start_message(receive).unwrap(),
                group[0].start_uneven(&call).unwrap(),
                group[0].start(&in_place(&mut data)).unwrap(),
            ]
        };
        let (say, said) = channel();
        for work in &works {
            let say = say.clone();
            work.on_done(move |result| say.send(result).unwrap()).unwrap();
            assert!(work.test().is_none());
        }
        drop(group.remove(0));
        for work in &works {
            assert!(said.try_recv().expect("before the group has gone").is_err());
            let error = work.wait(Some(PATIENCE)).unwrap_err();
            assert!(matches!(error, Error::PeerFailed { .. } | Error::Closed { .. }), "{mode}: {error:?}");
            assert_eq!(block_on(work.clone()).unwrap_err().to_string(), error.to_string());
        }
        assert!(works[0].statuses().is_empty() && !works[0].cancel().unwrap());
    }
}

#[test]
fn messages_that_were_started_in_a_group_of_some_ranks_end_with_it() {
    for (mode, hosts) in [("", 1), ("dedicated", 1), ("", 2)] {
        let all = ranks_with(hosts, 2, mode);
        let made = |ranks: [u32; 2]| -> Vec<_> {
            thread::scope(|scope| {
                let made = all.iter().map(|all| scope.spawn(move || all.group(&ranks).unwrap()));
                made.collect::<Vec<_>>().into_iter().map(|group| group.join().unwrap()).collect()
            })
        };
        let mut groups = made([1, 0]);
        let (say, said) = channel();
        let mut start = |group: &crate::Group| {
            let into: &'static mut [u32; 4] = Box::leak(Box::default());
            // SAFETY: it lives for ever.
            let receive = unsafe { group.start_message(crate::Exchange::receive(into, 1 - group.rank(), 3)) };
            let (receive, say) = (receive.unwrap(), say.clone());
            receive.on_done(move |result| say.send(result).unwrap()).unwrap();
            receive
        };
        let receives: Vec<_> = groups.iter().map(&mut start).collect();
        // The end of the group on all ranks ends them, too.
        thread::scope(|scope| {
            for (count, group) in (3..).zip(&groups) {
                scope.spawn(move || {
                    let error = group.all_reduce(&mut vec![1f32; count], ReduceOp::Sum).unwrap_err();
                    assert!(matches!(error, Error::Mismatch { .. }), "{error:?}");
                });
            }
        });
        for receive in &receives {
            let error = receive.wait(Some(PATIENCE)).unwrap_err();
            assert!(matches!(error, Error::Mismatch { .. } | Error::Closed { .. }), "{error:?}");
            assert!(said.recv_timeout(PATIENCE).unwrap().is_err());
        }
        drop(groups);
        // And so does the drop.
        groups = made([0, 1]);
        let receive = start(&groups[0]);
        drop(groups.remove(0));
        assert!(said.try_recv().expect("before the group has gone").is_err());
        let error = receive.wait(Some(PATIENCE)).unwrap_err();
        assert!(matches!(error, Error::PeerFailed { .. } | Error::Closed { .. }), "{error:?}");
        assert!(!receive.cancel().unwrap());
    }
}

#[test]
fn what_was_partly_started_is_no_refusal() {
    for mode in ["", "dedicated"] {
        let group = ranks_with(1, 1, mode).remove(0);
        let messages = [crate::Exchange::send(&[1u8], 0, 4), crate::Exchange::send(&[2u8], 9, 4)];
        // SAFETY: constants.
        let work = unsafe { group.start_messages(&messages) }.unwrap();
        let error = work.wait(Some(PATIENCE)).unwrap_err();
        assert!(matches!(&error, Error::Argument(text) if text.contains('9')), "{error:?}");
        let mut into = [0u8];
        group.receive(&mut into, 0, 4).unwrap();
        assert_eq!(into, [1]);
    }
}

#[test]
fn a_forked_child_is_refused_and_its_parent_goes_on() {
    let group = ranks(2);
    let mut data = [[1f32; 4]; 2];
    // SAFETY: left alone until the waits.
    let works: Vec<_> = group
        .iter()
        .zip(&mut data)
        .map(|(rank, data)| unsafe { rank.start(&in_place(data)) }.unwrap())
        .collect();
    let status = in_forked_child(|| {
        let mut data = [1f32; 4];
        let under_way = CollectiveCall { collective: Collective::AllGather, ..in_place(&mut data) };
        // SAFETY: it is refused.
        let refused = [unsafe { group[0].start(&under_way) }.map(drop), works[0].on_done(|_| {})];
        let all = refused.iter().all(|refused| matches!(refused, Err(Error::Closed { .. })));
        u8::from(all)
    });
    assert_eq!(status, 1);
    works.iter().for_each(|work| work.wait(Some(PATIENCE)).unwrap());
    assert_eq!(data, [[2.0; 4]; 2]);
}
