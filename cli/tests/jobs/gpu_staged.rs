//! Operations on GPU memory that work on a copy in host memory, between real processes: messages, registered tensors,
//! groups of some ranks; copies that fail or hang, killed ranks, dropped groups. (Collectives with counts are in
//! `uneven`.) They need a CUDA device, or the simulated driver of scripts/lib/cuda-sim in LD_LIBRARY_PATH.
#![cfg(feature = "cuda")]
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::ranks::gpu::{Trainer, broken, device, named, of_some, on_gpu, simulated, wait_value};
use crate::ranks::{
    ACCELERATOR, ARGUMENT, CLOSED, DEADLINE, ERROR, LOST_GROUP, PEER_FAILED, Play, State, job, join,
    parameter, play, tell,
};
use crate::registered::spec;
use crate::uneven::{COLLECTIVES, case};
use shouter::{
    BlockCounts, Collective, CollectiveCall, DType, Error, Exchange, Group, ReduceOp, Source, Staging,
    Status, Tag, TensorSpec, UnevenCall,
};
use shouter_reducer::cuda::Pinned;

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    let plays: [(&str, Play); 10] = [
        ("factors", factors),
        ("messages", messages),
        ("messages-of-some", |group| messages(&of_some(group)?)),
        ("order", order),
        ("registered", registered),
        ("registered-of-some", |group| registered(&of_some(group)?)),
        ("refused", refused),
        ("steps", steps),
        ("beside", beside),
        ("dropped", dropped),
    ];
    play(&plays, || {
        broken();
        join()
    });
}

const GUARD: u8 = 0xa5;

/// The bytes of a message.
fn text(from: u32, tag: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (from as usize * 31 + tag * 7 + at) as u8).collect()
}

/// Memory of a rank, on the host or on a GPU.
enum Place {
    Host(Vec<u8>),
    Gpu(Trainer),
}

impl Place {
    fn new(group: &Group, bytes: usize) -> Self {
        if on_gpu(group) { Self::Gpu(Trainer::new(group, bytes)) } else { Self::Host(vec![GUARD; bytes]) }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        match self {
            Self::Host(all) => all[at..at + bytes.len()].copy_from_slice(bytes),
            Self::Gpu(trainer) => trainer.put(at, bytes),
        }
    }

    fn get(&mut self, at: usize, bytes: usize) -> Vec<u8> {
        match self {
            Self::Host(all) => all[at..at + bytes].to_vec(),
            Self::Gpu(trainer) => trainer.get(at, bytes),
        }
    }

    fn address(&mut self, at: usize) -> *mut u8 {
        match self {
            Self::Host(all) => all[at..].as_mut_ptr(),
            Self::Gpu(trainer) => std::ptr::without_provenance_mut(trainer.address(at) as usize),
        }
    }

    fn staging(&self) -> Staging {
        match self {
            Self::Host(_) => Staging::default(),
            Self::Gpu(trainer) => Staging::on_cuda(trainer.stream.as_raw()),
        }
    }

    /// The message with this memory's stream, if it is on a GPU.
    fn placed(&self, exchange: Exchange<'static>) -> Exchange<'static> {
        match self {
            Self::Host(_) => exchange,
            // SAFETY: the stream lives as long as this.
            Self::Gpu(trainer) => unsafe { exchange.on_cuda(trainer.stream.as_raw()) },
        }
    }

    fn send(&mut self, at: usize, bytes: usize, to: u32, tag: usize) -> Exchange<'static> {
        // SAFETY: memory of this, which waits for the message before it is touched.
        let send = unsafe { Exchange::send_raw(self.address(at), bytes, DType::U8, to, tag as u32) };
        self.placed(send.unwrap())
    }

    fn receive(&mut self, at: usize, room: usize, from: Source, tag: Tag) -> Exchange<'static> {
        // SAFETY: as in `send`.
        let receive = unsafe { Exchange::receive_raw(self.address(at), room, DType::U8, from, tag) };
        self.placed(receive.unwrap())
    }
}

/// Messages around a ring and to oneself, of all sizes, in one call and started, some shorter than their receives.
fn messages(group: &Group) -> Result<(), Error> {
    const SIZES: [usize; 6] = [0, 5, 5_000, 16 << 10, 70_000, 1_300_000];
    const MOST: usize = SIZES[5] + 64;
    let (rank, size) = (group.rank(), group.size());
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    let mut place = Place::new(group, 4 * MOST);
    for (tag, bytes) in SIZES.into_iter().enumerate() {
        for (to, from) in [(right, left), (rank, rank)] {
            for started in [false, true] {
                place.put(0, &text(rank, tag, bytes));
                place.put(MOST, &vec![GUARD; bytes + 64]);
                let receive = place.receive(MOST, bytes + 16, from.into(), (tag as u32).into());
                let send = place.send(0, bytes, to, tag);
                let status = if started {
                    // SAFETY: waited for at once.
                    let works = unsafe { [group.start_message(receive)?, group.start_message(send)?] };
                    works.iter().try_for_each(|work| work.wait(None))?;
                    works[0].statuses()[0]
                } else {
                    let mut ended = group.batch(&mut [receive, send]).into_iter();
                    let received = ended.next().unwrap()?;
                    ended.next().unwrap()?;
                    received
                };
                let Status { rank: source, count, .. } = status;
                assert_eq!((source, count), (from, bytes as u64));
                let found = place.get(MOST, bytes + 64);
                assert!(found[..bytes] == text(from, tag, bytes), "{bytes} bytes from {from}");
                assert!(found[bytes..].iter().all(|byte| *byte == GUARD), "{bytes} bytes: beyond them");
                assert!(place.get(0, bytes) == text(rank, tag, bytes));
            }
        }
    }
    // Many at once, received in another order.
    let many = 40;
    for tag in 0..many {
        place.put(tag * 1000, &text(rank, tag, 1000));
        place.put(MOST + tag * 1000, &[GUARD; 1000]);
    }
    let mut works = vec![];
    for tag in 0..many {
        let sent = place.send(tag * 1000, 1000, right, tag);
        // SAFETY: waited for below.
        works.push(unsafe { group.start_message(if tag % 2 == 0 { sent } else { sent.synchronous() }) }?);
    }
    for tag in (0..many).rev() {
        let receive = place.receive(MOST + tag * 1000, 1000, Source::Any, Tag::Is(tag as u32));
        // SAFETY: waited for below.
        works.push(unsafe { group.start_message(receive) }?);
    }
    works.iter().try_for_each(|work| work.wait(None))?;
    for tag in 0..many {
        assert!(place.get(MOST + tag * 1000, 1000) == text(left, tag, 1000), "message {tag}");
    }
    Ok(())
}

/// Work in a stream ends before a send reads its elements. Later messages to the same rank do not overtake it; messages
/// to others do.
fn order(group: &Group) -> Result<(), Error> {
    const BYTES: usize = 3_000;
    let (rank, tag) = (group.rank(), 4);
    if rank > 0 {
        let receive = |bytes| {
            let mut into = vec![GUARD; bytes];
            group.receive(&mut into, 0, tag as u32).map(|_| into)
        };
        if rank == 1 {
            assert!(receive(BYTES)? == text(0, 1, BYTES), "the message that waited is the first");
        }
        assert!(receive(BYTES)? == text(0, 2, BYTES));
        return group.barrier();
    }
    let mut trainer = Trainer::new(group, 1 << 20);
    let word = Pinned::new(trainer.stream.context(), 64).unwrap();
    trainer.put(0, &[GUARD; BYTES]);
    trainer.wait();
    // SAFETY: a word of memory that outlives the wait, which ends with the write below.
    unsafe { wait_value(&trainer.stream, word.device_address()) };
    let (first, second) = (text(0, 1, BYTES), text(0, 2, BYTES));
    let host = trainer.host.device_address();
    // SAFETY: the host's copy is written here, and not read before the stream was waited for.
    unsafe {
        trainer.host.as_ptr().as_ptr().copy_from(first.as_ptr(), BYTES);
        trainer.stream.copy(trainer.address(0), host, BYTES).unwrap();
    }
    let at = std::ptr::without_provenance(trainer.address(0) as usize);
    // SAFETY: on the GPU, and waited for below.
    let held = unsafe {
        let send = Exchange::send_raw(at, BYTES, DType::U8, 1, tag as u32)?.on_cuda(trainer.stream.as_raw());
        group.start_message(send)?
    };
    // SAFETY: waited for below.
    let behind = unsafe { group.start_message(Exchange::send(&second, 1, tag as u32)) }?;
    for to in 2..group.size() {
        group.send(&second, to, tag as u32)?;
    }
    assert!(held.wait(Some(Duration::from_millis(200))).is_err(), "it is held by the stream");
    assert!(behind.test().is_none(), "it is behind one that waits");
    // SAFETY: the allocation is aligned to a page, and alive; only the stream reads the word.
    unsafe { AtomicU32::from_ptr(word.as_ptr().as_ptr().cast()) }.store(1, Ordering::SeqCst);
    held.wait(None)?;
    behind.wait(None)?;
    group.barrier()
}

/// Every collective of a registered tensor, pushed on some GPUs and some hosts.
fn registered(group: &Group) -> Result<(), Error> {
    use Collective::*;
    const COUNTS: [usize; 3] = [3, 1_000, 50_000];
    let kinds = [AllReduce, Reduce, Broadcast, AllGather, Gather, Scatter, ReduceScatter, AllToAll, Scan];
    let (ranks, rank) = (group.size() as usize, group.rank());
    let root = group.size() - 1;
    let cases: Vec<_> = COUNTS.iter().flat_map(|count| kinds.map(|kind| (kind, *count))).collect();
    let spec = |(at, &(collective, count)): (usize, &(Collective, usize))| TensorSpec {
        name: format!("{collective}.{at}"),
        collective,
        dtype: DType::F32,
        count: count as u64,
        op: ReduceOp::Sum,
        root,
        counts: BlockCounts::None,
    };
    let specs: Vec<_> = cases.iter().enumerate().map(spec).collect();
    let ids = group.register(&specs)?;
    let most = ranks * COUNTS[2] * 4 + 64;
    let mut place = Place::new(group, 2 * most);
    for step in 0..3 {
        for (id, &(collective, count)) in ids.iter().zip(&cases) {
            let (block, is_root) = (count * 4, rank == root);
            let (input, output) = match collective {
                AllReduce | Scan => (block, block),
                Reduce => (block, if is_root { block } else { 0 }),
                Broadcast => (0, block),
                AllGather => (block, block * ranks),
                Gather => (block, if is_root { block * ranks } else { 0 }),
                Scatter => (if is_root { block * ranks } else { 0 }, block),
                ReduceScatter => (block * ranks, block),
                _ => (block * ranks, block * ranks),
            };
            let given: Vec<u8> = (0..input.max(output) / 4)
                .flat_map(|at| ((rank as usize * 3 + at + step) as f32).to_le_bytes())
                .collect();
            let begun = if collective == Broadcast && is_root { &given[..output] } else { &[] };
            let mut expected = vec![GUARD; output];
            expected[..begun.len()].copy_from_slice(begun);
            let call = CollectiveCall {
                collective,
                input: given.as_ptr(),
                output: expected.as_mut_ptr(),
                count,
                dtype: DType::F32,
                op: ReduceOp::Sum,
                root,
            };
            // SAFETY: as long as the collective says, and this call's alone.
            unsafe { group.run_collective(&call) }?;
            place.put(0, &given[..input]);
            place.put(most, &vec![GUARD; output + 9]);
            place.put(most, begun);
            let staging = place.staging();
            let (from, into) = (place.address(0), place.address(most));
            // SAFETY: memory of `place`, which is touched again only after the wait.
            unsafe { group.push_staged(*id, from, into, &staging) }?.wait(None)?;
            let found = place.get(most, output + 9);
            assert!(found[..output] == expected, "{collective} of {count} in step {step}");
            assert!(found[output..].iter().all(|byte| *byte == GUARD), "{collective}: beyond its output");
        }
    }
    registered_with_counts(group, &mut place, most)
}

/// Those whose blocks differ, in place where they can be and apart; `most` bytes are enough for an input, and for an output behind them.
fn registered_with_counts(group: &Group, place: &mut Place, most: usize) -> Result<(), Error> {
    let (ranks, root) = (group.size() as usize, group.size() - 1);
    let (mut cases, mut specs) = (vec![], vec![]);
    for (longest, collective) in [3, 50_000].into_iter().flat_map(|one| COLLECTIVES.map(|each| (one, each))) {
        let blocks = if collective == Collective::AllToAllV { ranks * ranks } else { ranks };
        let counts: Vec<_> = (0..blocks).map(|at| at * 7 % 5 * longest / 4).collect();
        let case = case(group, collective, &counts, DType::F32, ReduceOp::Sum, root);
        specs.push(spec(&case, format!("{collective}.{}", specs.len()), &counts));
        cases.push(case);
    }
    let ids = group.register(&specs)?;
    for (step, (id, case)) in (0..3).flat_map(|step| ids.iter().zip(&cases).map(move |one| (step, one))) {
        let in_place = case.at.filter(|_| (step + group.rank()).is_multiple_of(2));
        let (from, into) = in_place.unwrap_or((0, most));
        place.put(into, &vec![GUARD; case.output.len() + 9]);
        place.put(from, &case.input);
        let (input, output) = (place.address(from), place.address(into));
        // SAFETY: memory of `place`, which is touched again only after the wait.
        unsafe { group.push_staged(*id, input, output, &place.staging()) }?.wait(None)?;
        let found = place.get(into, case.output.len());
        assert!(found == case.output, "{} in step {step}, in place: {}", case.collective, in_place.is_some());
    }
    Ok(())
}

/// Sums of products, of all ranks and of some, through the cells and not, compared with the host's.
fn factors(group: &Group) -> Result<(), Error> {
    let some = of_some(group)?;
    let ranks = group.size() as usize;
    let mut place = Place::new(group, (ranks + 1) * 40_000 + 64);
    for (count, group) in [3, 500, 10_000].into_iter().flat_map(|count| [(count, group), (count, &some)]) {
        for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::Scan] {
            let blocks = if collective == Collective::ReduceScatter { ranks } else { 1 };
            let given: Vec<u8> =
                (0..count * blocks).flat_map(|at| ((at % 97) as f32 / 7.0).to_le_bytes()).collect();
            let mut expected = vec![GUARD; count * 4];
            let call = CollectiveCall {
                collective,
                input: given.as_ptr(),
                output: expected.as_mut_ptr(),
                count,
                dtype: DType::F32,
                op: ReduceOp::Sum,
                root: 0,
            };
            let factor = Some(1.0 / f64::from(group.rank() + 3));
            // SAFETY: as long as the collective says, and this call's alone.
            unsafe { group.run_staged(&call, &Staging { factor, ..Staging::default() }) }?;
            for started in [false, true] {
                place.put(0, &given);
                place.put(given.len(), &vec![GUARD; count * 4]);
                let staging = Staging { factor, ..place.staging() };
                let (input, output) = (place.address(0), place.address(given.len()));
                let call = CollectiveCall { input, output, ..call };
                match started {
                    // SAFETY: memory of `place`; waited for at once.
                    true => unsafe { group.start_staged(&call, &staging) }?.wait(None)?,
                    // SAFETY: memory of `place`.
                    false => unsafe { group.run_staged(&call, &staging) }?,
                }
                assert!(place.get(given.len(), count * 4) == expected, "{collective} of {count}");
                assert!(place.get(0, given.len()) == given, "{collective} of {count} wrote to its input");
            }
        }
    }
    Ok(())
}

/// Invalid calls are refused before anything is started, and the group goes on.
fn refused(group: &Group) -> Result<(), Error> {
    let mut trainer = Trainer::new(group, 4096);
    trainer.put(0, &[0; 4096]);
    let stream = trainer.stream.as_raw();
    let mut host = vec![0u8; 64];
    let argument = |result: Result<(), Error>, word: &str| {
        let error = result.expect_err("it is refused");
        assert!(ERROR + error.code() == ARGUMENT && error.to_string().contains(word), "{error}");
    };
    let some = of_some(group)?;
    for group in [group, &some] {
        let send = |at: *const u8, count: usize| {
            // SAFETY: whatever the address is, it is refused before it is accessed.
            unsafe { group.start_message(Exchange::send_raw(at, count, DType::U8, 0, 1)?.on_cuda(stream)) }
                .map(drop)
        };
        argument(send(host.as_mut_ptr(), 64), "not CUDA memory");
        argument(send(std::ptr::without_provenance(trainer.address(0) as usize), 5000), "do not lie within");
        argument(send(trainer.host.as_ptr().as_ptr(), 64), "page-locked");
        let taken = vec![16; group.size() as usize];
        let call = UnevenCall {
            collective: Collective::AllGatherV,
            input: host.as_ptr(),
            output: host.as_mut_ptr().wrapping_add(1 << 30),
            given: &[16],
            taken: &taken,
            dtype: DType::U8,
            op: ReduceOp::Sum,
            root: 0,
        };
        // SAFETY: as above.
        argument(
            unsafe { group.start_uneven_staged(&call, &Staging::on_cuda(stream)) }.map(drop),
            "not CUDA memory",
        );
        let mut sum = [1f32; 4];
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        assert_eq!(sum, [group.size() as f32; 4]);
    }
    // A sum on the GPU, in a group of some ranks.
    let address = std::ptr::without_provenance_mut(trainer.address(0) as usize);
    // SAFETY: memory of the trainer, which waits.
    unsafe { some.all_reduce_cuda(trainer.address(0), 1024, DType::F32, ReduceOp::Sum, stream) }?;
    let column = shouter::Layout { count: 4, block: 1, stride: 2 };
    let call = CollectiveCall {
        collective: Collective::Broadcast,
        input: address,
        output: address,
        count: 4,
        dtype: DType::F32,
        op: ReduceOp::Sum,
        root: 0,
    };
    let staging = Staging { output: Some(column), ..Staging::on_cuda(stream) };
    // SAFETY: it is refused.
    argument(unsafe { group.run_staged(&call, &staging) }, "no layouts");
    Ok(())
}

/// A series of operations of the test's kind, until the group ends.
fn steps(group: &Group) -> Result<(), Error> {
    let some = of_some(group)?;
    let kind = parameter("KIND").unwrap();
    let (ranks, rank) = (group.size() as usize, group.rank());
    let count: usize = parameter("COUNT").map_or(1 << 18, |count| count.parse().unwrap());
    // After an error a copy may be in progress, and freeing would wait for it.
    let mut place = ManuallyDrop::new(Place::new(group, (ranks + 1) * count * 4));
    let (right, left) = ((rank + 1) % group.size(), (rank + group.size() - 1) % group.size());
    for step in 0.. {
        group.set_step(step);
        let (from, into, staging) = (place.address(0), place.address(count * 4), place.staging());
        match kind.as_str() {
            "counts" => {
                let taken = vec![count; ranks];
                let call = UnevenCall {
                    collective: Collective::AllGatherV,
                    input: from,
                    output: into,
                    given: &[count],
                    taken: &taken,
                    dtype: DType::F32,
                    op: ReduceOp::Sum,
                    root: 0,
                };
                // SAFETY: memory of `place`.
                unsafe { group.start_uneven_staged(&call, &staging) }?.wait(None)?;
            }
            "messages" => {
                let receive = place.receive(count * 4, count * 4, left.into(), 0.into());
                let send = place.send(0, count * 4, right, 0);
                // SAFETY: memory of `place`.
                unsafe { group.start_messages(&[receive, send]) }?.wait(None)?;
            }
            _ => {
                let call = CollectiveCall {
                    collective: Collective::AllReduce,
                    input: from,
                    output: from,
                    count,
                    dtype: DType::F32,
                    op: ReduceOp::Sum,
                    root: 0,
                };
                // SAFETY: memory of `place`.
                unsafe { some.start_staged(&call, &staging) }?.wait(None)?;
            }
        }
        if step == 3 {
            tell("steps");
        }
    }
    Ok(())
}

/// A copy that hangs in a group of some ranks ends that group; the group of all goes on.
fn beside(group: &Group) -> Result<(), Error> {
    let some = of_some(group)?;
    let mut trainer = ManuallyDrop::new(Trainer::new(group, 4096));
    trainer.put(0, &[0; 4096]);
    trainer.wait();
    let error = loop {
        // SAFETY: memory that is never freed.
        let ended = unsafe {
            some.all_reduce_cuda(trainer.address(0), 1024, DType::F32, ReduceOp::Sum, trainer.stream.as_raw())
        };
        if let Err(error) = ended {
            break error;
        }
    };
    let own = group.rank() == 0;
    let in_use = error.in_use_by();
    assert_eq!(in_use, own.then_some(some.rank()), "{error}");
    assert_eq!(ERROR + error.code() == ACCELERATOR, own, "{error}");
    let begin = Instant::now();
    drop(some);
    assert!(begin.elapsed() < Duration::from_secs(4));
    let mut sum = [1u32];
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    assert_eq!(sum, [group.size()]);
    Ok(())
}

/// A rank drops its group while a stream or a copy hangs: soon, and none of its memory is written then.
fn dropped(group: &Group) -> Result<(), Error> {
    let some = of_some(group)?;
    let mut trainer = ManuallyDrop::new(Trainer::new(group, 1 << 16));
    trainer.put(0, &[GUARD; 1 << 16]);
    trainer.wait();
    let word = ManuallyDrop::new(Pinned::new(trainer.stream.context(), 64).unwrap());
    let culprit = group.rank() == 0;
    if culprit && parameter("BROKEN").is_none() {
        // SAFETY: a word that is never freed.
        unsafe { wait_value(&trainer.stream, word.device_address()) };
    }
    let (at, stream) = (trainer.address(0), trainer.stream.as_raw());
    // SAFETY: memory that is never freed.
    let work = unsafe { some.start_cuda(at, 4096, DType::F32, ReduceOp::Sum, stream) }?;
    if culprit {
        let begin = Instant::now();
        assert!(work.wait(Some(Duration::from_millis(300))).is_err());
        drop(some);
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        let error = work.wait(None).expect_err("it was dropped");
        assert_eq!(error.in_use_by().is_some(), parameter("BROKEN").is_some(), "{error}");
        // SAFETY: the allocation is aligned to a page, and alive; only the stream reads the word.
        unsafe { AtomicU32::from_ptr(word.as_ptr().as_ptr().cast()) }.store(1, Ordering::SeqCst);
        if parameter("BROKEN").is_none() {
            std::thread::sleep(Duration::from_millis(100));
            assert!(trainer.get(0, 1 << 14).iter().all(|byte| *byte == GUARD));
        }
    } else {
        // The operation had ended if the hanging copy is that of its result.
        let ended = work.wait(None);
        assert_eq!(ended.is_ok(), parameter("OUT").is_some(), "{ended:?}");
        assert!(ended.err().is_none_or(|error| error.in_use_by().is_none()));
        drop(some);
    }
    group.barrier()
}

#[test]
fn messages_go_from_gpu_to_gpu() {
    if !device() {
        return;
    }
    for (ranks, hosts, on) in [(1, 1, 1), (2, 1, 0b11), (3, 1, 0b101), (4, 2, 0b1111), (4, 2, 0b0110)] {
        for play in ["messages", "messages-of-some"] {
            let job = job!(ranks, hosts, play).with("ON", on);
            job.env("CUDA_SIM", "delay_us=300,seed=9").run().assert_success();
        }
    }
    job!(4, 2, "messages").env("SHOUTER_MODE", "dedicated").run().assert_success();
}

#[test]
fn a_send_waits_for_its_stream_and_is_not_overtaken() {
    if device() {
        job!(3, 1, "order").run().assert_success();
        job!(4, 2, "order").run().assert_success();
    }
}

#[test]
fn registered_tensors_of_every_collective_are_on_gpus() {
    if !device() {
        return;
    }
    for (ranks, hosts, on) in [(2, 1, 0b11), (3, 1, 0b101), (4, 2, 0b1011)] {
        for play in ["registered", "registered-of-some"] {
            job!(ranks, hosts, play).with("ON", on).run().assert_success();
        }
    }
}

#[test]
fn sums_with_factors_are_exact_on_gpus() {
    if device() {
        for (ranks, hosts, on) in [(2, 1, 0b11), (3, 1, 0b101), (4, 2, 0b1011)] {
            job!(ranks, hosts, "factors").with("ON", on).run().assert_success();
        }
    }
}

#[test]
fn what_cannot_be_is_refused_by_name_and_the_group_goes_on() {
    if device() {
        job!(2, 1, "refused").run().assert_success();
        job!(2, 2, "refused").run().assert_success();
    }
}

/// As [`named`]; errors of messages name both ranks of the exchange.
fn blamed(state: &State, kind: &str, culprit: usize, codes: &[i32], words: &[&str]) {
    if kind != "messages" {
        return named(state, culprit, codes, words);
    }
    for (rank, other) in state.ranks.iter().enumerate().filter(|(rank, _)| *rank != culprit) {
        let (code, error) = (other.code, other.error());
        assert!(code.is_some_and(|code| codes.contains(&code)), "rank {rank}: {code:?}\n{state}");
        let names = error.contains(&format!("rank {culprit}: ")) || code == Some(DEADLINE);
        assert!(names && words.iter().any(|word| error.contains(word)), "rank {rank}: {error}\n{state}");
    }
}

#[test]
fn a_device_that_is_lost_under_a_copy_is_named() {
    if !device() || !simulated() {
        return;
    }
    for (ranks, hosts, kind) in [(2, 2, "counts"), (3, 1, "counts"), (2, 1, "messages"), (4, 2, "messages")] {
        for call in [20, 21] {
            let job = job!(ranks, hosts, "steps").with("KIND", kind);
            let state = job.with("BROKEN", format!("fail=cuMemcpyAsync:{call}:lost")).run();
            assert_eq!(state.ranks[0].code, Some(ACCELERATOR), "{state}");
            blamed(&state, kind, 0, &LOST_GROUP, &["accelerator"]);
        }
    }
}

#[test]
fn a_copy_for_a_staging_area_that_hangs_ends_the_group_at_the_deadline() {
    if !device() || !simulated() {
        return;
    }
    for few in [[(2, 1, "counts"), (2, 2, "messages")], [(4, 2, "counts"), (3, 1, "messages")]] {
        let start = |(ranks, hosts, kind): (u32, u32, &str), call: u32| {
            let job = job!(ranks, hosts, "steps").with("KIND", kind).with("CULPRIT", ranks - 1);
            let job = job.env("SHOUTER_DEADLINE", "1s");
            job.with("BROKEN", format!("hang=cuMemcpyAsync:{call}")).start()
        };
        for call in [20, 21] {
            for (job, (_, _, kind)) in few.map(|one| start(one, call)).into_iter().zip(few) {
                let state = job.finish();
                let culprit = state.ranks.len() - 1;
                let error = state.ranks[culprit].error();
                assert_eq!(state.ranks[culprit].code, Some(ACCELERATOR), "{state}");
                assert!(error.contains("leave the tensor's memory as it is"), "{error}");
                blamed(&state, kind, culprit, &[PEER_FAILED, CLOSED, DEADLINE], &["accelerator", "deadline"]);
            }
        }
    }
}

#[test]
fn a_copy_that_hangs_in_a_group_of_some_ranks_ends_that_one() {
    if device() && simulated() {
        for call in [10, 11] {
            // The others wait for the culprit, which waits for its copy.
            let job = job!(3, 1, "beside").env("SHOUTER_DEADLINE", "5s");
            job.with("BROKEN", format!("hang=cuMemcpyAsync:{call}")).run().assert_success();
        }
    }
}

#[test]
fn a_group_is_dropped_beside_a_stream_or_a_copy_that_hangs() {
    if device() && simulated() {
        job!(2, 1, "dropped").run().assert_success();
        job!(3, 1, "dropped").with("BROKEN", "hang=cuMemcpyAsync:2").run().assert_success();
        job!(3, 1, "dropped").with("BROKEN", "hang=cuMemcpyAsync:3").with("OUT", 1).run().assert_success();
    }
}

#[test]
fn a_rank_that_is_killed_in_a_send_from_its_gpu_is_named() {
    if !device() {
        return;
    }
    for (ranks, hosts) in [(2, 2), (3, 1)] {
        let job = job!(ranks, hosts, "steps").with("KIND", "messages").start();
        job.until("all are under way", crate::ranks::LIMIT, |state| state.all_told("steps"));
        job.signal(0, "KILL");
        job.until("the survivors end", Duration::from_secs(15), |state| state.all_over_but(0));
        blamed(&job.finish(), "messages", 0, &LOST_GROUP, &["dead or unreachable"]);
    }
}
