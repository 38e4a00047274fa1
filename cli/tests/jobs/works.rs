//! Operations that are started and waited for later, between real processes: every collective, many at once, in any
//! order and from any thread, and the results of their handles when a rank dies, or runs another operation.

#![allow(unsafe_code)]

use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::ranks::{MISMATCH, job, join, parameter, play, tell};
use shouter::{
    BlockCounts, Collective, CollectiveCall, DType, Error, Group, Lending, ReduceOp, TensorSpec, Work,
};

/// Elements of a tensor, or of a rank's block: the small path of calls within a host, one message, several chunks.
const COUNTS: [usize; 4] = [0, 7, 1000, 60_007];

/// A time limit that no wait reaches.
const PATIENCE: Duration = Duration::from_secs(50);

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    let plays: &[(&str, crate::ranks::Play)] = &[
        ("all", all),
        ("persistent", persistent),
        ("lent", lent),
        ("some", some),
        ("thousand", thousand),
        ("events", events),
        ("die", die),
        ("mix", mix),
    ];
    play(plays, join);
}

/// The element of rank `from` at `index`.
fn given(from: u32, index: usize) -> i64 {
    i64::from(from + 1) * 1_000_003 + index as i64
}

/// The memory of one rank's part of an operation, and its expected output.
struct Case {
    collective: Collective,
    count: usize,
    root: u32,
    input: Vec<i64>,
    output: Vec<i64>,
    expected: Vec<i64>,
}

impl Case {
    fn new(group: &Group, collective: Collective, count: usize, root: u32) -> Self {
        use Collective::*;
        let (ranks, rank) = (group.size(), group.rank());
        let (all, is_root) = (count * ranks as usize, rank == root);
        let of =
            |from, start: usize, count| (start..start + count).map(|at| given(from, at)).collect::<Vec<_>>();
        let sums = |start: usize| {
            (start..start + count).map(|at| (0..ranks).map(|from| given(from, at)).sum()).collect::<Vec<_>>()
        };
        let up_to =
            |ranks| (0..count).map(|at| (0..ranks).map(|from| given(from, at)).sum()).collect::<Vec<_>>();
        let each = |start| (0..ranks).flat_map(|from| of(from, start, count)).collect::<Vec<_>>();
        let own = rank as usize * count;
        let only = |here, values: Vec<i64>| if here { values } else { vec![] };
        let (input, expected) = match collective {
            AllReduce => (of(rank, 0, count), sums(0)),
            Reduce => (of(rank, 0, count), only(is_root, sums(0))),
            Broadcast => (vec![], of(root, 0, count)),
            AllGather => (of(rank, 0, count), each(0)),
            Gather => (of(rank, 0, count), only(is_root, each(0))),
            Scatter => (only(is_root, of(rank, 0, all)), of(root, own, count)),
            ReduceScatter => (of(rank, 0, all), sums(own)),
            AllToAll => (of(rank, 0, all), each(own)),
            Scan => (of(rank, 0, count), up_to(rank + 1)),
            ExScan => (of(rank, 0, count), only(rank != 0, up_to(rank))),
            Barrier => (vec![], vec![]),
            AllGatherV | GatherV | ScatterV | ReduceScatterV | AllToAllV => {
                unreachable!("they have counts")
            }
        };
        let output = match collective {
            Broadcast if is_root => expected.clone(),
            _ => vec![-1; expected.len()],
        };
        Self { collective, count, root, input, output, expected }
    }

    fn call(&mut self) -> CollectiveCall {
        CollectiveCall {
            collective: self.collective,
            input: self.input.as_ptr().cast(),
            output: self.output.as_mut_ptr().cast(),
            count: self.count,
            dtype: DType::I64,
            op: ReduceOp::Sum,
            root: self.root,
        }
    }

    fn check(&self) {
        assert!(self.output == self.expected, "{} of {}", self.collective, self.count);
    }
}

/// Every collective of every size, from changing roots.
fn cases(group: &Group) -> Vec<Case> {
    let even = || Collective::ALL.into_iter().filter(|collective| !collective.has_counts());
    let each = COUNTS.into_iter().flat_map(|count| even().map(move |collective| (collective, count)));
    each.zip((0..group.size()).cycle())
        .map(|((collective, count), root)| Case::new(group, collective, count, root))
        .collect()
}

/// Waits in another order than that of the starts, half of the handles on another thread, and each one twice.
fn wait_all(group: &Group, works: &[Work]) -> Result<(), Error> {
    let others = works.to_vec();
    let rank = group.rank() as usize;
    let other = std::thread::spawn(move || {
        others
            .iter()
            .enumerate()
            .filter(|(at, _)| at % 2 == rank % 2)
            .try_for_each(|(_, work)| work.wait(None))
    });
    works.iter().rev().try_for_each(|work| work.wait(Some(PATIENCE)))?;
    other.join().unwrap()?;
    works.iter().try_for_each(|work| work.test().expect("it has ended"))
}

/// All operations are in progress at once, with a call in the middle.
fn all(group: &Group) -> Result<(), Error> {
    for _ in 0..3 {
        let mut cases = cases(group);
        let half = cases.len() / 2;
        // SAFETY: memory as the calls say, which is left alone until the waits.
        let start = |case: &mut Case| unsafe { group.start(&case.call()) };
        let mut works = cases[..half].iter_mut().map(start).collect::<Result<Vec<_>, _>>()?;
        let mut one = [1i64];
        group.all_reduce(&mut one, ReduceOp::Sum)?;
        assert_eq!(one, [i64::from(group.size())]);
        works.extend(cases[half..].iter_mut().map(start).collect::<Result<Vec<_>, _>>()?);
        wait_all(group, &works)?;
        cases.iter().for_each(Case::check);
    }
    Ok(())
}

/// The same operations, registered once and started in each step.
fn persistent(group: &Group) -> Result<(), Error> {
    let specs: Vec<_> = cases(group)
        .iter()
        .map(|case| TensorSpec {
            name: format!("{} of {}", case.collective, case.count),
            collective: case.collective,
            dtype: DType::I64,
            count: case.count as u64,
            op: ReduceOp::Sum,
            root: case.root,
            counts: BlockCounts::None,
        })
        .collect();
    let ids = group.register(&specs)?;
    for _ in 0..3 {
        let mut cases = cases(group);
        let start = |(case, id): (&mut Case, _)| {
            let call = case.call();
            // SAFETY: memory as was registered, which is left alone until the waits.
            unsafe { group.push_into(id, call.input, call.output) }
        };
        let works = cases.iter_mut().zip(ids.iter().copied()).map(start).collect::<Result<Vec<_>, _>>()?;
        wait_all(group, &works)?;
        cases.iter().for_each(Case::check);
    }
    // A root of one rank is not that of another.
    let spec =
        |root| TensorSpec { root, collective: Collective::Broadcast, name: "odd".into(), ..specs[0].clone() };
    if group.size() > 1 {
        let odd = group.register(&[spec(u32::from(group.rank() == 0))]).unwrap_err();
        assert!(["root 0", "root 1"].iter().all(|root| odd.to_string().contains(root)), "{odd}");
    }
    let error = group.register(&[spec(group.size())]).unwrap_err();
    assert!(
        matches!(&error, Error::Argument(why) if why.contains("\"odd\"") && why.contains("no rank")),
        "{error}"
    );
    group.barrier()
}

/// The same operations with lent memory, apart and in place.
fn lent(group: &Group) -> Result<(), Error> {
    let lending = |case: &Case| Lending::from(case.collective).root(case.root);
    let mut under_way = vec![];
    for case in cases(group) {
        let lending = lending(&case);
        let Case { collective, input, output, expected, .. } = case;
        if collective != Collective::Broadcast {
            let lent = group.lend(lending, (input, output.into_boxed_slice())).map_err(Error::from)?;
            under_way.push((collective, lent, expected));
        }
    }
    for (collective, lent, expected) in under_way.into_iter().rev() {
        let (_, output) = lent.wait().map_err(Error::from)?;
        assert!(*output == *expected, "{collective}");
    }
    let mut under_way = vec![];
    for case in cases(group) {
        let lending = lending(&case);
        let own = group.rank() as usize * case.count;
        let data = match case.collective {
            Collective::Broadcast => case.output,
            Collective::AllGather => {
                let mut all = vec![-1; case.expected.len()];
                all[own..own + case.count].copy_from_slice(&case.input);
                all
            }
            Collective::Gather if case.root == group.rank() => {
                let mut all = vec![-1; case.expected.len()];
                all[own..own + case.count].copy_from_slice(&case.input);
                all
            }
            Collective::Scatter if case.root != group.rank() => vec![-1; case.count],
            _ => case.input,
        };
        let at = match case.collective {
            Collective::ReduceScatter => own,
            Collective::Scatter if case.root == group.rank() => own,
            _ => 0,
        };
        under_way.push((case.collective, group.lend(lending, data).map_err(Error::from)?, at, case.expected));
    }
    for (collective, lent, at, expected) in under_way.into_iter().rev() {
        let data = lent.wait().map_err(Error::from)?;
        assert!(data[at..at + expected.len()] == *expected, "{collective} in place");
    }
    if group.size() > 1 {
        let why = group.lend(Collective::AllGather, (vec![1i64], vec![0i64; 1])).unwrap_err();
        assert!(why.error.to_string().contains("do not fit") && why.data.is_some(), "{why}");
    }
    group.barrier()
}

/// The same operations in groups of some ranks, beside operations of the group of all.
fn some(group: &Group) -> Result<(), Error> {
    let turned = group.group(&(0..group.size()).rev().collect::<Vec<_>>())?;
    for scenario in [all, persistent, lent, events] {
        scenario(&turned)?;
    }
    let odd = group.split(Some(group.rank() % 2), 0)?.expect("every rank has a color");
    let groups = if group.rank() == 0 { [group, &turned, &odd] } else { [&odd, &turned, group] };
    let mut cases = groups.map(cases);
    let mut works = vec![];
    for (group, cases) in groups.iter().zip(&mut cases) {
        // SAFETY: memory as the calls say, which is left alone until the waits.
        let start = |case: &mut Case| unsafe { group.start(&case.call()) };
        works.extend(cases.iter_mut().map(start).collect::<Result<Vec<_>, _>>()?);
    }
    wait_all(group, &works)?;
    cases.iter().flatten().for_each(Case::check);
    // Ended operations report their results even after the group; the others end with it.
    drop(turned);
    works.iter().try_for_each(|work| work.wait(None))?;
    let last = group.duplicate()?;
    // All ranks have completed the new group's own barrier.
    group.barrier()?;
    let mut alone = [1i64];
    let call = CollectiveCall {
        collective: Collective::AllReduce,
        input: alone.as_ptr().cast(),
        output: alone.as_mut_ptr().cast(),
        count: 1,
        dtype: DType::I64,
        op: ReduceOp::Sum,
        root: 0,
    };
    if group.rank() == 0 {
        // SAFETY: the data is left alone until the group is dropped.
        let work = unsafe { last.start(&call) }?;
        drop(last);
        assert!(work.test().is_some_and(|ended| ended.is_err() || group.size() == 1));
    }
    // SAFETY: refused before anything is touched.
    let counted = unsafe { group.start(&CollectiveCall { collective: Collective::AllGatherV, ..call }) };
    assert!(matches!(&counted, Err(Error::Argument(why)) if why.contains("start_uneven")), "{counted:?}");
    group.barrier()
}

/// A thousand operations in progress at once; the first one to end is waited for first.
fn thousand(group: &Group) -> Result<(), Error> {
    const WORKS: usize = 1000;
    let begun = Instant::now();
    let mut data: Vec<_> =
        (0..WORKS).map(|at| vec![i64::from(group.rank()) + at as i64; 1 + at % 40]).collect();
    if group.rank() == 0 {
        // The others have started all of theirs by then, and none can end.
        std::thread::sleep(Duration::from_millis(300));
    }
    let mut works = vec![];
    for data in &mut data {
        let call = CollectiveCall {
            collective: Collective::AllReduce,
            input: data.as_ptr().cast(),
            output: data.as_mut_ptr().cast(),
            count: data.len(),
            dtype: DType::I64,
            op: ReduceOp::Sum,
            root: 0,
        };
        // SAFETY: the data is left alone until the waits.
        works.push(unsafe { group.start(&call) }?);
    }
    let mut left: Vec<_> = works.to_vec();
    while !left.is_empty() {
        let ended = Work::wait_any(&left, Some(PATIENCE))?;
        left.swap_remove(ended).wait(None)?;
    }
    let ranks = i64::from(group.size());
    for (at, data) in data.iter().enumerate() {
        assert!(data.iter().all(|sum| *sum == ranks * (ranks - 1) / 2 + ranks * at as i64), "{at}");
    }
    tell(format_args!("{WORKS} operations took {:?}", begun.elapsed()));
    Ok(())
}

/// Ends are reported by callbacks, to a future, and by the descriptor.
fn events(group: &Group) -> Result<(), Error> {
    let fd = group.completion_fd()?;
    let mut cases = cases(group);
    // SAFETY: memory as the calls say, which is left alone until the callbacks.
    let start = |case: &mut Case| unsafe { group.start(&case.call()) };
    let works = cases.iter_mut().map(start).collect::<Result<Vec<_>, _>>()?;
    let (say, said) = channel();
    let caller = std::thread::current().id();
    for (at, work) in works.iter().enumerate() {
        let say = say.clone();
        work.on_done(move |result| say.send((at, result, std::thread::current().id())).unwrap())?;
    }
    let mut ended = vec![false; works.len()];
    for _ in &works {
        let (at, result, thread) = said.recv_timeout(PATIENCE).expect("every callback is called");
        result?;
        assert!(
            thread != caller && !std::mem::replace(&mut ended[at], true),
            "{at}: once, by another thread"
        );
    }
    cases.iter().for_each(Case::check);
    // A thread that waits only for the descriptor finds all ended.
    let mut cases = self::cases(group);
    let works = cases.iter_mut().map(start).collect::<Result<Vec<_>, _>>()?;
    while works.iter().any(|work| work.test().is_none()) {
        let mut poll = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec { tv_sec: 50, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut poll, Some(&timeout)).unwrap(), 1, "no news");
        rustix::io::read(fd, &mut [0; 8]).unwrap();
    }
    cases.iter().for_each(Case::check);
    // A future, on a thread that polls it only when it was woken.
    let mut cases = self::cases(group);
    for work in cases.iter_mut().map(start).collect::<Result<Vec<_>, _>>()? {
        block_on(work)?;
    }
    cases.iter().for_each(Case::check);
    // A callback for an operation that has ended, after one that panics.
    let (say, said) = channel();
    works[0].on_done(|_| panic!("on purpose"))?;
    works[0].on_done(move |result| say.send(result.is_ok()).unwrap())?;
    assert_eq!(said.recv_timeout(PATIENCE), Ok(true));
    group.barrier()
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on(mut future: Work) -> Result<(), Error> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let begun = Instant::now();
    loop {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park_timeout(PATIENCE);
        assert!(begun.elapsed() < PATIENCE, "nobody wakes the task");
    }
}

/// One rank dies while all have operations in progress; every operation ends and names it, each time.
fn die(group: &Group) -> Result<(), Error> {
    let culprit: u32 = parameter("CULPRIT").unwrap().parse().unwrap();
    let root = (culprit + 1) % group.size();
    let spec = TensorSpec::all_reduce("trunk", DType::I64, 3000, ReduceOp::Sum);
    let id = group.register(&[spec])?[0];
    group.barrier()?;
    if group.rank() == culprit {
        std::process::abort();
    }
    group.set_step(5);
    let even = Collective::ALL.into_iter().filter(|collective| !collective.has_counts());
    let mut cases: Vec<_> = even.map(|which| Case::new(group, which, 3000, root)).collect();
    let mut works = vec![];
    let mut tensor = vec![1i64; 3000];
    // SAFETY: memory as the calls say, which is left alone until the group has gone.
    match unsafe { group.push(id, tensor.as_mut_ptr().cast()) } {
        Ok(work) => works.push(work),
        Err(error) => assert_eq!(error.rank(), Some(culprit), "{error}"),
    }
    for case in &mut cases {
        // SAFETY: as above.
        match unsafe { group.start(&case.call()) } {
            Ok(work) => works.push(work),
            // The rank already knows of the death.
            Err(error) => assert_eq!(error.rank(), Some(culprit), "{error}"),
        }
    }
    let (say, said) = channel();
    for work in &works {
        let say = say.clone();
        work.on_done(move |result| say.send(result).unwrap())?;
    }
    let mut failed = None;
    for work in works.iter().rev() {
        let first = work.wait(Some(PATIENCE));
        if let Err(error) = &first {
            assert_eq!(error.rank(), Some(culprit), "{error}");
            failed = Some(error.clone());
        }
        let again = [work.wait(None), work.test().unwrap(), said.recv_timeout(PATIENCE).unwrap()];
        for (at, again) in again.into_iter().enumerate() {
            match again {
                Err(error) => assert_eq!(error.rank(), Some(culprit), "{error}"),
                // A rank that needs nothing of the dead one may already have returned.
                Ok(()) => assert!(first.is_ok() || at == 2),
            }
        }
    }
    let first = works.first().map(|work| work.wait(None).unwrap_err());
    if let Some(error) = &first {
        let named = error.tensor().map(|tensor| &*tensor.name) == Some("trunk") && error.step() == Some(5);
        assert!(named || matches!(error, Error::Closed { .. }), "{error:?}");
    }
    // SAFETY: as above.
    let late = unsafe { group.push(id, tensor.as_mut_ptr().cast()) };
    let late = late.and_then(|work| work.wait(Some(PATIENCE))).unwrap_err();
    assert_eq!(late.rank(), Some(culprit), "{late}");
    Err(failed.or(first).unwrap_or(late))
}

/// The last rank calls the operations that the others start, with another operation behind it or a wait for it.
fn mix(group: &Group) -> Result<(), Error> {
    let odd = group.rank() + 1 == group.size();
    let (calls, waits) = (odd != parameter("TURNED").is_some(), parameter("WAITS").is_some());
    let (mut first, mut second) = ([1i64; 4], [2i64; 4]);
    let result = if calls {
        group.all_reduce(&mut first, ReduceOp::Sum)
    } else {
        let call = CollectiveCall {
            collective: Collective::AllReduce,
            input: first.as_ptr().cast(),
            output: first.as_mut_ptr().cast(),
            count: 4,
            dtype: DType::I64,
            op: ReduceOp::Sum,
            root: 0,
        };
        // SAFETY: the data is left alone until the group has gone.
        let work = unsafe { group.start(&call) }?;
        if waits { work.wait(None) } else { group.all_reduce(&mut second, ReduceOp::Sum) }
    };
    result.and_then(|()| group.barrier())
}

const TOPOLOGIES: [(u32, u32); 5] = [(1, 1), (3, 1), (4, 2), (2, 2), (3, 3)];

#[test]
fn every_collective_is_started_and_waited_for_in_any_order_by_any_thread() {
    for (ranks, hosts) in TOPOLOGIES {
        for scenario in ["all", "persistent", "lent", "some"] {
            job!(ranks, hosts, scenario).run().assert_success();
        }
    }
}

#[test]
fn other_transports_are_as_good() {
    for scenario in ["all", "persistent"] {
        job!(4, 2, scenario).env("SHOUTER_TRANSPORT", "tcp").run().assert_success();
        job!(2, 2, scenario).args(&["--transport", "kernel"]).run().assert_success();
        job!(3, 1, scenario).env("SHOUTER_MODE", "dedicated").run().assert_success();
    }
}

#[test]
fn a_thousand_are_under_way_at_once() {
    for (ranks, hosts) in [(2, 1), (3, 3)] {
        job!(ranks, hosts, "thousand").run().assert_success();
        job!(ranks, hosts, "thousand").env("SHOUTER_MODE", "dedicated").run().assert_success();
    }
}

#[test]
fn ends_are_told_by_callback_future_and_descriptor() {
    for (ranks, hosts) in [(1, 1), (3, 1), (2, 2)] {
        job!(ranks, hosts, "events").run().assert_success();
        job!(ranks, hosts, "events").env("SHOUTER_MODE", "dedicated").run().assert_success();
    }
}

#[test]
fn a_rank_that_dies_ends_all_works_of_the_others_with_its_name() {
    for (ranks, hosts) in [(3, 1), (3, 3)] {
        for culprit in 0..ranks as usize {
            let state = job!(ranks, hosts, "die").with("CULPRIT", culprit).run();
            for (rank, survivor) in state.ranks.iter().enumerate().filter(|(rank, _)| *rank != culprit) {
                let named = survivor.error().contains(&format!("rank {culprit}"));
                assert!(named, "rank {rank} of {ranks} on {hosts} hosts\n{state}");
            }
        }
    }
}

#[test]
fn ranks_that_start_and_ranks_that_call_a_small_operation_are_told_so() {
    for waits in [false, true] {
        for turned in [false, true] {
            let mut job = job!(3, 1, "mix").env("SHOUTER_DEADLINE", "20s");
            for (name, _) in [("WAITS", waits), ("TURNED", turned)].into_iter().filter(|(_, is)| *is) {
                job = job.with(name, 1);
            }
            let state = job.run();
            for rank in &state.ranks {
                assert_eq!(
                    rank.code,
                    Some(MISMATCH),
                    "waits: {waits}, turned: {turned}: {}\n{state}",
                    rank.error()
                );
                assert!(rank.error().contains("started without waiting"), "{}", rank.error());
            }
        }
    }
}
