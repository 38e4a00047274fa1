//! Handles and forked children, with ranks that are threads of this process.
#![allow(unsafe_code)]

use std::net::TcpListener;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use super::*;
use crate::config::{Builder, Environment};
use crate::runtime::in_forked_child;

/// The ranks of a job on this host.
pub(super) fn ranks(size: u32) -> Vec<Group> {
    ranks_on(1, size)
}

/// The ranks of a job on so many hosts, which are all this one and speak over sockets of the kernel.
pub(super) fn ranks_on(hosts: u32, size: u32) -> Vec<Group> {
    ranks_with(hosts, size, "")
}

/// The same in a mode of the key `mode`.
pub(super) fn ranks_with(hosts: u32, size: u32, mode: &str) -> Vec<Group> {
    let mode = (!mode.is_empty()).then_some(("mode", mode));
    ranks_keyed(hosts, size, mode.as_slice())
}

/// A port of 127.0.0.1 without a listener, below the range from which the kernel takes ports: other tests' sockets do not get it by chance,
/// and no two groups of this process get the same one.
pub(super) fn free_port() -> u16 {
    static FIRST: OnceLock<u32> = OnceLock::new();
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let by_kernel = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let first = FIRST.get_or_init(|| by_kernel().into());
    let next = || 10_000 + ((first + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000) as u16;
    (0..10_000).map(|_| next()).find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}

/// Where the groups of this process leave their dumps. It is removed when the process ends.
fn dump_folder() -> &'static str {
    static FOLDER: OnceLock<(u32, String)> = OnceLock::new();
    extern "C" fn remove() {
        // Not by the end of a forked child.
        if let Some((_, folder)) = FOLDER.get().filter(|(owner, _)| *owner == std::process::id()) {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
    let (_, folder) = FOLDER.get_or_init(|| {
        let own = std::process::id();
        let path = std::env::temp_dir().join(format!("shouter-dumps-{own}"));
        std::fs::create_dir(&path).unwrap();
        // SAFETY: the handler only reads a static, and removes files.
        assert_eq!(unsafe { libc::atexit(remove) }, 0);
        (own, path.to_str().unwrap().to_owned())
    });
    folder
}

/// The same with more keys.
pub(super) fn ranks_keyed(hosts: u32, size: u32, more: &[(&str, &str)]) -> Vec<Group> {
    let port = free_port();
    let member = |rank: u32| {
        let per_host = size / hosts;
        let numbers = [size, rank, per_host, rank % per_host, port.into()];
        let [size, rank, local_size, local_rank, port] = numbers.map(|number| number.to_string());
        let keys = [
            ("size", &*size),
            ("rank", &rank),
            ("local_size", &local_size),
            ("local_rank", &local_rank),
            ("addr", "127.0.0.1"),
            ("transport", if hosts > 1 { "kernel" } else { "auto" }),
            ("port", &port),
            ("key", "a secret of this test"),
            ("deadline", "20s"),
            ("dump_folder", dump_folder()),
        ];
        let builder = Builder::from_environment(Environment::default());
        keys.into_iter()
            .chain(more.iter().copied())
            .fold(builder, |builder, (key, value)| builder?.set(key, value))
            .unwrap()
            .build()
    };
    thread::scope(|scope| {
        let joining: Vec<_> =
            (0..size).map(|rank| scope.spawn(move || init(member(rank).unwrap()).unwrap())).collect();
        joining.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn spec(count: u64) -> TensorSpec {
    TensorSpec::all_reduce("gradient", DType::F32, count, ReduceOp::Sum)
}

/// An all-reduce in place.
pub(super) fn in_place(data: &mut [f32]) -> CollectiveCall {
    CollectiveCall {
        collective: Collective::AllReduce,
        input: data.as_ptr().cast(),
        output: data.as_mut_ptr().cast(),
        count: data.len(),
        dtype: DType::F32,
        op: ReduceOp::Sum,
        root: 0,
    }
}

/// Runs `body` on every rank at once.
pub(super) fn each<R: Send>(group: &[Group], body: impl Fn(&Group) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = group.iter().map(|rank| scope.spawn(move || body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn operations_of_two_groups_are_not_waited_for_at_once() {
    let groups = [ranks(1), ranks(2), ranks(2)];
    let mut data = [[1f32; 8], [2f32; 8]];
    // SAFETY: the data is touched again only after the groups have gone.
    let works =
        [&groups[1][0], &groups[2][0]].map(|rank| unsafe { rank.start(&in_place(&mut data[0])) }.unwrap());
    let refused = |works: &[Work]| Work::wait_any(works, None).unwrap_err();
    assert!(matches!(refused(&works), Error::Argument(_)));
    assert!(matches!(refused(&[]), Error::Argument(_)));
    // SAFETY: as above.
    let ended = unsafe { groups[0][0].start(&in_place(&mut data[1])) }.unwrap();
    ended.wait(None).unwrap();
    let [first, second] = works;
    assert_eq!(
        Work::wait_any(&[first, second, ended], None).unwrap(),
        2,
        "one has ended, whichever group's it is"
    );
    drop(groups);
}

#[test]
fn an_operation_is_under_way_after_a_wait_that_timed_out() {
    let group = ranks(2);
    let ids = each(&group, |rank| rank.register(&[spec(50_000)]).unwrap()[0]);
    group[0].set_step(7);
    let mut data = vec![vec![1f32; 50_000]; 2];
    // SAFETY: the data is touched again only after the waits.
    let mut push = |rank: usize| unsafe { group[rank].push(ids[rank], data[rank].as_mut_ptr().cast()) };
    let first = push(0).unwrap();
    for _ in 0..3 {
        let error = first.wait(Some(Duration::ZERO)).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert_eq!((error.operation(), error.step()), (Some(Operation::AllReduce), Some(7)));
        let name = &error.tensor().unwrap().name;
        assert!(
            error.to_string().contains(&format!("all-reduce sum of 50000 x f32 of \"{name}\" has not")),
            "{error}"
        );
        assert!(first.test().is_none());
    }
    // Of several, the first is named.
    let all = [first.clone(), first.clone(), first.clone()];
    let error = Work::wait_any(&all, Some(Duration::ZERO)).unwrap_err();
    assert_eq!((error.operation(), error.step()), (Some(Operation::AllReduce), Some(7)));
    assert!(error.to_string().contains("as each of 2 more that were waited for, has not"), "{error}");
    let second = push(1).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| second.wait(None));
        first.wait(None).unwrap();
        waiting.join().unwrap().unwrap();
    });
    assert!(data.iter().flatten().all(|sum| *sum == 2.0));
}

#[test]
fn a_forked_child_is_refused_by_every_call() {
    let mut group = ranks(2);
    let ids = each(&group, |rank| rank.register(&[spec(4)]).unwrap()[0]);
    let mut tensor = group[0].alloc::<f32>(4).unwrap();
    assert!(tensor.is_shared());
    tensor.fill(1.0);
    let data = tensor.as_mut_ptr().cast();
    // SAFETY: the tensor is touched again only after the wait.
    let mut pending = Some(unsafe { group[0].push(ids[0], data) }.unwrap());
    let mut both = [1f32; 2];
    let uneven = UnevenCall {
        collective: Collective::AllGatherV,
        input: both.as_ptr().cast(),
        output: both.as_mut_ptr().cast(),
        given: &[1],
        taken: &[1, 1],
        dtype: DType::F32,
        op: ReduceOp::Sum,
        root: 0,
    };
    let status = in_forked_child(|| {
        let rank = group.remove(0);
        let refused = [
            rank.alloc::<f32>(1000).map(drop),
            rank.register(&[spec(4)]).map(drop),
            // SAFETY: they are refused.
            unsafe { rank.push(ids[0], data) }.map(drop),
            pending.take().unwrap().wait(None),
            // SAFETY: as above.
            unsafe { rank.start(&in_place(&mut [1f32; 4])) }.map(drop),
            rank.completion_fd().map(drop),
            rank.all_reduce(&mut [1f32], ReduceOp::Sum),
            rank.all_reduce(&mut [1f32; 50_000], ReduceOp::Sum),
            rank.barrier(),
            // SAFETY: as above.
            unsafe { rank.pin(data, 16) },
            rank.unpin(data),
            rank.split(Some(0), 0).map(drop),
            rank.group(&[0]).map(drop),
            rank.duplicate().map(drop),
            rank.send(&[1f32], 1, 0),
            rank.receive(&mut [1f32], 1, 0).map(drop),
            rank.probe(1, 0, Duration::ZERO).map(drop),
            // SAFETY: as above.
            unsafe { rank.start_message(Exchange::send(&[1f32], 1, 0)) }.map(drop),
            rank.all_gather_v(&[1f32], &mut [1f32; 2], &[1, 1]),
            // SAFETY: as above.
            unsafe { rank.start_uneven(&uneven) }.map(drop),
            rank.window(vec![1f32]).map(drop),
            rank.lend(Lending::from(Collective::AllReduce), vec![1f32; 4]).map(drop).map_err(|why| why.error),
            rank.dump().map(drop),
            rank.abort("a child"),
            rank.finalize(),
        ];
        let is_refused = |result: &Result<(), Error>| matches!(result, Err(Error::Closed { .. }));
        refused.iter().position(|result| !is_refused(result)).map_or(100, |at| at as u8)
    });
    assert_eq!(status, 100, "a call of this number was not refused");
    let mut theirs = [2f32; 4];
    // SAFETY: the data is touched again only after the waits.
    let second = unsafe { group[1].push(ids[1], theirs.as_mut_ptr().cast()) }.unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| second.wait(None));
        pending.unwrap().wait(None).unwrap();
        waiting.join().unwrap().unwrap();
    });
    assert_eq!((&tensor[..], theirs), (&[3.0; 4][..], [3.0; 4]));
    each(&group, |rank| rank.all_reduce(&mut [1f32], ReduceOp::Sum)).into_iter().for_each(Result::unwrap);
}

/// Jobs of three ranks on one host, and of two and four on two.
const JOBS: [(u32, u32); 3] = [(1, 3), (2, 2), (2, 4)];

/// So large that it is staged, not exchanged in cells.
const COUNT: usize = 50_000;

#[test]
fn what_a_rank_has_done_goes_on_for_the_others_after_it_has_left() {
    for (hosts, size) in JOBS {
        for leaver in [0, size as usize - 1] {
            let mut group = ranks_on(hosts, size);
            let ids = each(&group, |rank| rank.register(&[spec(COUNT as u64)]).unwrap()[0]);
            let mut data = vec![vec![1f32; COUNT]; size as usize];
            let mut pushed: Vec<_> = group
                .iter()
                .zip(&mut data)
                // SAFETY: the data is touched again only after the waits.
                .map(|(rank, data)| unsafe { rank.push(ids[0], data.as_mut_ptr().cast()) }.unwrap())
                .collect();
            let (left, pending) = (group.remove(leaver), pushed.remove(leaver));
            pending.wait(None).unwrap();
            drop(left);
            for pending in pushed {
                let ended = pending.wait(None);
                assert!(ended.is_ok(), "{leaver} of {size} on {hosts}: {:?}", ended);
            }
            assert!(data.iter().flatten().all(|sum| *sum == size as f32));
        }
    }
}

#[test]
fn a_rank_that_has_left_is_named_by_the_next_operation_at_once() {
    for (hosts, size) in JOBS {
        for (leaver, count) in
            [0, size as usize - 1].into_iter().flat_map(|leaver| [(leaver, 1), (leaver, COUNT)])
        {
            let mut group = ranks_on(hosts, size);
            each(&group, |rank| rank.all_reduce(&mut [1f32; 8], ReduceOp::Sum))
                .into_iter()
                .for_each(Result::unwrap);
            drop(group.remove(leaver));
            let begun = std::time::Instant::now();
            for error in
                each(&group, |rank| rank.all_reduce(&mut vec![1f32; count], ReduceOp::Sum).unwrap_err())
            {
                assert_left(&error, leaver);
            }
            assert!(begun.elapsed() < Duration::from_secs(5), "{leaver} of {size} on {hosts}");
        }
    }
}

#[test]
fn a_rank_that_leaves_in_the_midst_of_an_operation_is_named_by_all() {
    for (hosts, size) in JOBS {
        for leaver in [0, size as usize - 1] {
            let mut group = ranks_on(hosts, size);
            let ids = each(&group, |rank| rank.register(&[spec(COUNT as u64)]).unwrap()[0]);
            let mut data = vec![vec![1f32; COUNT]; size as usize];
            // One of the others has not come when it leaves, so that the operation cannot end.
            let late = (leaver + 1) % size as usize;
            // SAFETY: the data is touched again only after the groups have gone.
            let push =
                |rank: &Group, data: &mut Vec<f32>| unsafe { rank.push(ids[0], data.as_mut_ptr().cast()) };
            let mut members: Vec<_> = group.drain(..).zip(&mut data).collect();
            let mut pushed = vec![];
            for (at, (rank, data)) in members.iter_mut().enumerate() {
                pushed.push((at != late).then(|| push(rank, data).unwrap()));
            }
            drop((members.remove(leaver), pushed.remove(leaver)));
            for pending in pushed {
                let Some(pending) = pending else { continue };
                assert_left(&pending.wait(None).unwrap_err(), leaver);
            }
            // The late one too, and nobody can begin another.
            for (rank, data) in &mut members {
                let ended = push(rank, data).and_then(|pending| pending.wait(None));
                assert_left(&ended.unwrap_err(), leaver);
            }
        }
    }
}

#[test]
fn the_words_of_a_rank_that_gives_up_are_in_the_errors_of_all() {
    for (hosts, size) in JOBS {
        for (gives_up, count) in (0..size as usize).zip([COUNT, 1, COUNT, 1]) {
            let group = ranks_on(hosts, size);
            let half = each(&group, |rank| rank.split(Some(rank.rank() % 2), 0).unwrap().unwrap());
            each(&group, |rank| rank.barrier().unwrap());
            let errors = each(&group, |rank| {
                if rank.rank() as usize == gives_up {
                    rank.abort("out of data").unwrap();
                }
                let ended = rank.all_reduce(&mut vec![1f32; count], ReduceOp::Sum);
                ended.unwrap_err()
            });
            for error in &errors {
                assert_eq!(
                    (error.rank(), error.reason()),
                    (Some(gives_up as u32), Some(crate::Reason::Aborted)),
                    "{error}"
                );
                assert!(
                    error.to_string().contains("it has given up: out of data; look at its log"),
                    "{error}"
                );
            }
            let of_half = each(&half, |rank| {
                let (rank, ended) = (rank.rank(), rank.barrier());
                ended.expect_err(&format!("the half's rank {rank}, job {hosts} x {size}")).to_string()
            });
            assert!(of_half.iter().all(|text| text.contains("out of data")), "{of_half:?}");
            // A later abort does not change the text.
            group[(gives_up + 1) % size as usize].abort("something else").unwrap();
            let again = group[gives_up].barrier().unwrap_err().to_string();
            assert!(again.contains("out of data") && !again.contains("something else"), "{again}");
        }
    }
}

/// The error names the rank that has left, and the remedy.
fn assert_left(error: &Error, leaver: usize) {
    let left = Some(crate::Reason::Aborted);
    let (rank, reason) = match error {
        Error::PeerFailed { rank, reason, .. } => (Some(*rank), Some(*reason)),
        Error::Closed { rank, reason, .. } => (*rank, *reason),
        other => panic!("{other}"),
    };
    assert!((rank, reason) == (Some(leaver as u32), left), "{error}");
    assert!(error.to_string().contains("call finalize on every rank"), "{error}");
}

#[test]
fn windows_of_a_group_that_was_dropped_are_closed_though_another_group_goes_on() {
    use shouter_reducer::windows::WindowAction;
    let put = |rank: &Group, window: u32, given: u64| {
        let (action, data, into) = (WindowAction::Put, (&raw const given).cast(), std::ptr::null_mut());
        let call =
            AccessCall { window, action, target: 0, offset: 0, count: 1, dtype: DType::U64, data, into };
        // SAFETY: the data is there during the call.
        unsafe { rank.window_access(&call) }.and_then(|()| rank.flush_window(window, None))
    };
    for hosts in [1, 2] {
        let mut memory = [[0u64; 4]; 2];
        let parts = memory.each_mut().map(|part| part.as_mut_ptr() as usize);
        let mut group = ranks_on(hosts, 2);
        let made = each(&group, |rank| {
            let part = parts[rank.rank() as usize] as *mut u8;
            // SAFETY: the memory goes after the groups, and is looked at where no access is under way.
            let window = unsafe { rank.open_window(part, 4, DType::U64) }.unwrap();
            (window, rank.split(Some(0), 0).unwrap().unwrap())
        });
        let window = made[0].0;
        put(&group[1], window, 7).unwrap();
        drop(group.remove(0));
        let late = put(&group[0], window, 8);
        assert!(matches!(late, Err(Error::Mismatch { .. })), "{late:?}");
        // SAFETY: it was given back.
        assert_eq!(unsafe { *(parts[0] as *const u64) }, 7);
        thread::scope(|scope| {
            let waiting = made.iter().map(|(_, sub)| scope.spawn(|| sub.barrier()));
            waiting.collect::<Vec<_>>().into_iter().for_each(|done| done.join().unwrap().unwrap());
        });
        drop((made, group));
    }
}

#[test]
fn finalize_waits_for_what_was_pushed() {
    for (hosts, size) in JOBS {
        let group = ranks_on(hosts, size);
        let ids = each(&group, |rank| rank.register(&[spec(COUNT as u64)]).unwrap()[0]);
        let mut data = vec![vec![1f32; COUNT]; size as usize];
        thread::scope(|scope| {
            for (rank, data) in group.into_iter().zip(&mut data) {
                let id = ids[0];
                scope.spawn(move || {
                    // SAFETY: the data is touched again only after the group has gone.
                    drop(unsafe { rank.push(id, data.as_mut_ptr().cast()) }.unwrap());
                    rank.finalize().unwrap();
                });
            }
        });
        assert!(data.iter().flatten().all(|sum| *sum == size as f32));
    }
}
