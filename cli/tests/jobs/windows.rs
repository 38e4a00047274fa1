//! Windows between real processes: on one host, on several, over every transport.

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use crate::ranks::{
    Gates, LIMIT, RankState, await_gate, is_open, job, join, names_only, open_gate, parameter, play, run_all,
    tell,
};
use shouter::{
    AccessCall, DType, Element, Error, Group, ReduceOp, Tensor, Update, WindowAction, WindowMemory,
};

/// Where the ranks' parts lie.
trait Memory {
    type Of<T: Element + Sync>: WindowMemory<Element = T> + std::ops::Deref<Target = [T]> + Sync;

    fn of<T: Element + Sync>(group: &Group, elements: Vec<T>) -> Result<Self::Of<T>, Error>;
}

/// In the process's own memory: all accesses are messages.
struct Private;

impl Memory for Private {
    type Of<T: Element + Sync> = Vec<T>;

    fn of<T: Element + Sync>(_: &Group, elements: Vec<T>) -> Result<Vec<T>, Error> {
        Ok(elements)
    }
}

/// In memory that the host's ranks share: those make their accesses themselves, and others send messages.
struct Shared;

impl Memory for Shared {
    type Of<T: Element + Sync> = Tensor<T>;

    fn of<T: Element + Sync>(group: &Group, elements: Vec<T>) -> Result<Tensor<T>, Error> {
        let mut memory = group.alloc(elements.len())?;
        assert_eq!(memory.is_shared(), group.local_size() > 1);
        memory.copy_from_slice(&elements);
        Ok(memory)
    }
}

/// A scenario with the memory that the parameter says.
macro_rules! in_memory {
    ($play:ident) => {
        (stringify!($play), |group: &Group| match parameter("MEMORY").as_deref() {
            Some("shared") => $play::<Shared>(group),
            _ => $play::<Private>(group),
        })
    };
}

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    let plays: &[(&str, crate::ranks::Play)] = &[
        in_memory!(exchange),
        in_memory!(tickets),
        in_memory!(updates),
        in_memory!(started),
        in_memory!(computing),
        in_memory!(wrong),
        ("differ", differ),
        in_memory!(dropped),
        ("late", late),
        in_memory!(die),
        in_memory!(beside),
        ("orders", orders),
        ("widths", widths),
        ("withdrawn", withdrawn),
        ("interrupted", interrupted),
    ];
    if crate::ranks::scenario().as_deref() == Some("leave") {
        let memory = parameter("MEMORY");
        crate::ranks::end(join().and_then(|group| match memory.as_deref() {
            Some("shared") => leave::<Shared>(&group),
            _ => leave::<Private>(&group),
        }));
    }
    play(plays, join);
}

/// The elements that rank `from` writes to rank `to`.
fn element(from: u32, to: u32, index: usize) -> u64 {
    u64::from(from.wrapping_mul(0x9e37_79b9) ^ to << 8) << 20 ^ index as u64
}

/// Elements of each rank's part that belong to one origin.
const OWN: usize = 40_000;

/// Every rank writes to every rank, itself included, and reads it back from there; parts have different lengths.
fn exchange<M: Memory>(group: &Group) -> Result<(), Error> {
    let (rank, size) = (group.rank(), group.size());
    let len = OWN * size as usize + 10 * rank as usize;
    let window = group.window(M::of(group, vec![7u64; len])?)?;
    for (round, count) in [1, 5, 1000, OWN].into_iter().enumerate() {
        let at = u64::from(rank) * OWN as u64;
        let row = |to: u32| (0..count).map(|i| element(rank, to, i + round)).collect::<Vec<_>>();
        for to in 0..size {
            window.put(&row(to), to, at)?;
        }
        for to in (0..size).rev() {
            let mut into = vec![0u64; count];
            window.get(&mut into, to, at)?;
            assert!(into == row(to), "a rank reads what it has written, round {round}");
        }
        window.put(&[], 0, at)?;
        window.fence()?;
        let mut own = vec![0u64; len];
        window.get(&mut own, rank, 0)?;
        for (from, part) in (0..size).zip(own.chunks(OWN)) {
            assert!(
                (0..count).all(|i| part[i] == element(from, rank, i + round)),
                "round {round} from {from}"
            );
        }
        window.fence()?;
    }
    // The last elements of the longest part.
    let last = size - 1;
    let end = (OWN * size as usize + 10 * last as usize) as u64;
    let mut into = [0u64; 2];
    window.get(&mut into, last, end - 2)?;
    assert_eq!(into, if size == 1 { [element(0, 0, OWN + 1), element(0, 0, OWN + 2)] } else { [7, 7] });
    let memory = window.free()?;
    assert_eq!((memory.len(), memory[0]), (len, element(0, rank, 3)));
    Ok(())
}

/// All ranks take tickets of one counter: each ticket is given once, and a rank's tickets grow.
fn tickets<M: Memory>(group: &Group) -> Result<(), Error> {
    const EACH: usize = 200;
    let window = group.window(M::of(group, vec![0u64; 2])?)?;
    let home = group.size() / 2;
    let mut mine = vec![];
    for _ in 0..EACH {
        let mut ticket = [0u64];
        window.fetch_and_op(&[1], &mut ticket, home, 0, ReduceOp::Sum)?;
        mine.push(ticket[0]);
        // The other element grows by compare-and-swap.
        let mut expected = 0;
        loop {
            let before = window.compare_and_swap(expected, expected + 1, home, 1)?;
            if before == expected {
                break;
            }
            expected = before;
        }
    }
    assert!(mine.is_sorted(), "accesses take effect in the rank's order");
    let mut all = vec![0u64; EACH * group.size() as usize];
    group.all_gather(&mine, &mut all)?;
    all.sort_unstable();
    assert!(all == (0..all.len() as u64).collect::<Vec<_>>(), "each ticket is given once");
    let memory = window.free()?;
    let sum = if group.rank() == home { all.len() as u64 } else { 0 };
    assert_eq!(memory[..], [sum, sum]);
    Ok(())
}

/// Accumulates of all ranks to all, and each kind of update.
fn updates<M: Memory>(group: &Group) -> Result<(), Error> {
    let (rank, size) = (group.rank(), group.size());
    let (right, count) = ((rank + 1) % size, 20_000);
    let window = group.window(M::of(group, vec![1f32; count])?)?;
    for _ in 0..3 {
        for to in 0..size {
            window.accumulate(&vec![2f32; count], to, 0, ReduceOp::Sum)?;
        }
    }
    window.fence()?;
    let mut sum = vec![0f32; count];
    window.get(&mut sum, right, 0)?;
    assert!(sum.iter().all(|element| *element == 1.0 + 6.0 * size as f32));
    window.fence()?;
    let mut before = [0f32; 3];
    window.accumulate(&[5.0, -5.0, 9.0], right, 7, Update::Replace)?;
    for (update, given, expected) in [
        (Update::Keep, [0.0; 3], [5.0, -5.0, 9.0]),
        (ReduceOp::Prod.into(), [2.0; 3], [5.0, -5.0, 9.0]),
        (ReduceOp::Min.into(), [0.0; 3], [10.0, -10.0, 18.0]),
        (ReduceOp::Max.into(), [-1.0, -1.0, 4.0], [0.0, -10.0, 0.0]),
        (Update::Replace, [1.0; 3], [0.0, -1.0, 4.0]),
        (Update::Keep, [9.0; 3], [1.0; 3]),
    ] {
        window.fetch_and_op(&given, &mut before, right, 7, update)?;
        assert_eq!(before, expected, "{update:?}");
    }
    window.fence()?;
    let bits = group.window(M::of(group, vec![0b1100u8])?)?;
    let mut old = [0u8];
    for (op, given, now) in
        [(ReduceOp::Bor, 0b0011, 0b1111), (ReduceOp::Band, 0b0110, 0b0110), (ReduceOp::Bxor, 0b0101, 0b0011)]
    {
        bits.accumulate(&[given], right, 0, op)?;
        bits.fetch_and_op(&[], &mut [], right, 0, op)?;
        bits.get(&mut old, right, 0)?;
        assert_eq!(old, [now], "{op}");
    }
    bits.free()?;
    window.free().map(drop)
}

/// Started accesses, flushed to one target and to all.
fn started<M: Memory>(group: &Group) -> Result<(), Error> {
    let size = group.size();
    let memory = M::of(group, vec![0u32; 1000 * size as usize])?;
    let data: Vec<u32> = (0..1000).map(|i| i + group.rank()).collect();
    let mut into = vec![vec![0u32; 1000]; size as usize];
    // SAFETY: nothing else touches the memory before the window is closed, nor the buffers before the flush.
    unsafe {
        let window = group.open_window(memory.as_ptr().cast_mut().cast(), memory.len(), DType::U32)?;
        let call = |action, target: u32, data: *const u32, into: *mut u32| AccessCall {
            window,
            action,
            target,
            offset: u64::from(group.rank()) * 1000,
            count: 1000,
            dtype: DType::U32,
            data: data.cast(),
            into: into.cast(),
        };
        let nowhere = std::ptr::null_mut();
        for (to, into) in (0..size).zip(&mut into) {
            group.start_window_access(&call(WindowAction::Put, to, data.as_ptr(), nowhere))?;
            group.start_window_access(&call(
                WindowAction::Accumulate(ReduceOp::Sum),
                to,
                data.as_ptr(),
                nowhere,
            ))?;
            group.start_window_access(&call(WindowAction::Get, to, nowhere, into.as_mut_ptr()))?;
        }
        group.flush_window(window, Some(0))?;
        assert!(into[0].iter().zip(&data).all(|(got, given)| *got == 2 * given));
        group.flush_window(window, None)?;
        assert!(into.iter().flatten().zip(data.iter().cycle()).all(|(got, given)| *got == 2 * given));
        group.close_window(window)?;
        for closed in [
            group.close_window(window),
            group.flush_window(window, None),
            group.fence_window(window),
            group.window_access(&call(WindowAction::Put, 0, data.as_ptr(), nowhere)),
        ] {
            let error = closed.unwrap_err().to_string();
            assert!(error.contains(&format!("window {window} does not exist, or has been freed")), "{error}");
        }
    }
    Ok(())
}

/// The last rank computes; the others' accesses to its part end meanwhile.
fn computing<M: Memory>(group: &Group) -> Result<(), Error> {
    let last = group.size() - 1;
    let window = group.window(M::of(group, vec![0u64; 4])?)?;
    group.barrier()?;
    let begin = Instant::now();
    if group.rank() == last {
        while (0..last).any(|rank| !is_open(&rank.to_string())) {
            assert!(begin.elapsed() < LIMIT / 3, "nobody was served");
        }
    } else {
        for i in 0..10u64 {
            window.fetch_and_op(&[1], &mut [0], last, 0, ReduceOp::Sum)?;
            window.put(&[i], last, 1 + u64::from(group.rank() % 2))?;
        }
        window.flush(Some(last))?;
        open_gate(&group.rank().to_string());
    }
    let memory = window.free()?;
    assert!(group.rank() != last || memory[0] == 10 * u64::from(last), "{}", memory[0]);
    Ok(())
}

/// Invalid calls are refused at once, and the group goes on.
fn wrong<M: Memory>(group: &Group) -> Result<(), Error> {
    let window = group.window(M::of(group, vec![0f32; 10 + group.rank() as usize])?)?;
    let mut into = [0f32; 11];
    let errors = [
        (window.put(&[1.0], group.size(), 0), "does not exist"),
        (window.get(&mut into, 0, 0), "rank 0: that rank's part has 10 elements"),
        (window.put(&[1.0], 0, 10), "of 1 x f32 from element 10 of window 0 of rank 0"),
        (window.put(&[1.0], 0, u64::MAX), "that rank's part has 10 elements"),
        (window.accumulate(&[1.0], 0, 0, ReduceOp::Band), "there is no band of f32"),
        (window.accumulate(&[1.0], 0, 0, ReduceOp::Avg), "use sum, and divide"),
        (window.fetch_and_op(&[1.0], &mut into, 0, 0, ReduceOp::Sum), "are no memory of the host"),
        (window.compare_and_swap(0.0, 1.0, 0, 0).map(drop), "only integers and truth values"),
        (window.flush(Some(group.size())), "does not exist"),
    ];
    for (result, part) in errors {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Argument(_)) && error.to_string().contains(part), "{error}");
    }
    let call = AccessCall {
        window: 0,
        action: WindowAction::Get,
        target: 0,
        offset: 0,
        count: 1,
        dtype: DType::I32,
        data: std::ptr::null(),
        into: into.as_mut_ptr().cast(),
    };
    // SAFETY: both are refused before the memory is used.
    let refused = unsafe {
        [
            group.window_access(&call),
            group.window_access(&AccessCall { into: std::ptr::null_mut(), ..call }),
            group.open_window(into.as_mut_ptr().cast::<u8>().wrapping_add(1), 1, DType::F32).map(drop),
        ]
    };
    for (error, part) in
        refused.into_iter().zip(["the window has elements of f32", "NULL", "no multiple of 4"])
    {
        let error = error.unwrap_err();
        assert!(matches!(error, Error::Argument(_)) && error.to_string().contains(part), "{error}");
    }
    window.get(&mut into, group.size() - 1, u64::from(group.size()) - 2)?;
    window.free().map(drop)
}

/// A rank makes a window of another type.
fn differ(group: &Group) -> Result<(), Error> {
    let made = match group.rank() {
        1 => group.window(vec![0u32; 4]).map(drop),
        _ => group.window(vec![0f64; 2]).map(drop),
    };
    let error = made.unwrap_err();
    let other = u32::from(group.rank() != 1);
    assert!(matches!(&error, Error::Mismatch { rank: Some(rank), .. } if *rank == other), "{error}");
    let text = error.to_string();
    assert!(text.contains("elements of f64") && text.contains("elements of u32"), "{text}");
    // The group goes on, with the same numbers of windows.
    let window = group.window(vec![0u8; 1])?;
    window.put(&[1], 0, 0)?;
    window.free().map(drop)
}

/// Rank 0 drops its part while others use it.
fn dropped<M: Memory>(group: &Group) -> Result<(), Error> {
    let window = group.window(M::of(group, vec![0u64; 100_000])?)?;
    group.barrier()?;
    if group.rank() == 0 {
        drop(window);
        return group.barrier();
    }
    let data = vec![1u64; 100_000];
    let error = (0..10_000).find_map(|_| window.put(&data, 0, 0).err()).expect("the part is gone");
    let text = error.to_string();
    assert!(matches!(error, Error::Mismatch { rank: Some(0), .. }), "{text}");
    assert!(text.contains("of window 0 of rank 0: rank 0 says that it has freed the window"), "{text}");
    // The parts of others still exist.
    window.put(&data, group.rank(), 0)?;
    window.flush(None)?;
    group.barrier()
}

/// The last rank is stopped for longer than the deadline of an access to it.
fn late(group: &Group) -> Result<(), Error> {
    let last = group.size() - 1;
    let window = group.window(vec![0u64; 4])?;
    group.barrier()?;
    tell("ready");
    if group.rank() != last {
        await_gate("stopped");
        let mut into = [0u64];
        let error = window.get(&mut into, last, 0).unwrap_err();
        let text = error.to_string();
        assert!(matches!(&error, Error::Deadline { missing, .. } if *missing == [last]), "{text}");
        assert!(text.contains(&format!("get by rank {} of 1 x u64", group.rank())), "{text}");
        tell("in vain");
    }
    // The group goes on.
    await_gate("goes on");
    let mut into = [0u64];
    window.get(&mut into, last, 0)?;
    window.free().map(drop)
}

/// The last rank dies while all others access its part.
fn die<M: Memory>(group: &Group) -> Result<(), Error> {
    let last = group.size() - 1;
    let window = group.window(M::of(group, vec![0u64; 100_000])?)?;
    group.barrier()?;
    if group.rank() == last {
        tell("dying");
        std::thread::sleep(Duration::from_millis(200));
        std::process::abort();
    }
    let data = vec![1u64; 100_000];
    loop {
        match parameter("CALL").as_deref() {
            Some("get") => window.get(&mut vec![0; 1000], last, 0)?,
            Some("fetch") => window.fetch_and_op(&[1], &mut [0], last, 0, ReduceOp::Sum)?,
            _ => window.put(&data, last, 0)?,
        }
    }
}

/// The last rank leaves in good order; an access to it ends the group.
fn leave<M: Memory>(group: &Group) -> Result<(), Error> {
    let last = group.size() - 1;
    let window = group.window(M::of(group, vec![5u64])?)?;
    group.barrier()?;
    if group.rank() == last {
        std::mem::forget(window);
        return Ok(());
    }
    std::thread::sleep(Duration::from_millis(500));
    loop {
        window.fetch_and_op(&[1], &mut [0], last, 0, ReduceOp::Sum)?;
    }
}

/// Accesses beside collectives and messages, from several threads.
fn beside<M: Memory>(group: &Group) -> Result<(), Error> {
    let (rank, size) = (group.rank(), group.size());
    let window = group.window(M::of(group, vec![0u64; 1 + size as usize])?)?;
    std::thread::scope(|scope| {
        let accesses = |at: u64| {
            let window = &window;
            scope.spawn(move || {
                for i in 0..100u64 {
                    window.accumulate(&[1], i as u32 % size, 0, ReduceOp::Sum)?;
                    window.put(&[i], (rank + 1) % size, at)?;
                }
                window.flush(None)
            })
        };
        let threads = [accesses(1 + u64::from(rank)), accesses(1 + u64::from(rank))];
        for round in 0..100 {
            let mut data = vec![round as f32; 5_000];
            group.all_reduce(&mut data, ReduceOp::Sum)?;
            assert_eq!(data[4_999], (round * size) as f32);
            let mut into = [0u32];
            group.send_receive((&[rank], (rank + 1) % size), (&mut into, (rank + size - 1) % size), 1)?;
        }
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    let memory = window.free()?;
    let mut sum = [memory[0]];
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    assert_eq!(sum[0], 200 * u64::from(size));
    Ok(())
}

/// Ranks of one host and of others order each other by accesses alone: a later write is not seen before an earlier one, and of two ranks
/// that write and then read, one sees the other.
fn orders(group: &Group) -> Result<(), Error> {
    const ROUNDS: u64 = 300;
    let (rank, size) = (group.rank(), u64::from(group.size()));
    let window = group.window(Shared::of(group, vec![0u64; 200 + 2 * size as usize])?)?;
    let home = group.size() - 1;
    group.barrier()?;
    if rank == 0 {
        for round in 1..=20 * ROUNDS {
            window.put(&[round; 99], home, 0)?;
            window.put(&[round], home, 99)?;
        }
    }
    let mut words = [0u64; 99];
    let mut last = [0u64];
    while rank != 0 && last[0] < 20 * ROUNDS {
        window.get(&mut last, home, 99)?;
        window.get(&mut words, home, 0)?;
        assert!(words.iter().all(|word| *word >= last[0]), "{last:?} was seen before {words:?}");
    }
    for round in 1..=ROUNDS {
        group.barrier()?;
        window.put(&[round], home, 100 + u64::from(rank))?;
        let mut seen = vec![0u64; size as usize];
        window.get(&mut seen, home, 100)?;
        let mut all = vec![0u64; (size * size) as usize];
        group.all_gather(&seen, &mut all)?;
        let sees = |one: u64, other: u64| all[(one * size + other) as usize] == round;
        for (one, other) in (0..size).flat_map(|one| (0..one).map(move |other| (one, other))) {
            assert!(sees(one, other) || sees(other, one), "round {round}: {one} and {other} see neither");
        }
    }
    window.free().map(drop)
}

/// All ranks add to neighbours of every width, each to its own and all to one, the owner among them.
fn widths(group: &Group) -> Result<(), Error> {
    fn add<T: Element + Sync + PartialEq + std::fmt::Debug>(
        group: &Group,
        one: T,
        of: fn(u64) -> T,
    ) -> Result<(), Error> {
        const EACH: u64 = 100;
        let (rank, size) = (u64::from(group.rank()), u64::from(group.size()));
        let window = group.window(Shared::of(group, vec![of(0); size as usize + 1])?)?;
        for round in 0..EACH {
            for target in 0..group.size() {
                window.accumulate(&[one], target, rank, ReduceOp::Sum)?;
                match round % 2 {
                    0 => window.accumulate(&[one], target, size, ReduceOp::Sum)?,
                    _ => window.fetch_and_op(&[one], &mut [one], target, size, ReduceOp::Sum)?,
                }
            }
        }
        let memory = window.free()?;
        assert!(memory[..size as usize].iter().all(|own| *own == of(EACH)), "{:?}", &memory[..]);
        assert_eq!(memory[size as usize], of(EACH * size));
        Ok(())
    }
    add(group, 1u8, |sum| sum as u8)?;
    add(group, 1i16, |sum| sum as i16)?;
    add(group, 1u32, |sum| sum as u32)?;
    add(group, 1f32, |sum| sum as f32)?;
    add(group, 1i64, |sum| sum as i64)?;
    add(group, 1f64, |sum| sum as f64)
}

/// Rank 0 makes windows and drops them while all others write there: what it has in the same memory afterwards stays as it is.
fn withdrawn(group: &Group) -> Result<(), Error> {
    const ELEMENTS: usize = 50_000;
    let data = vec![u64::from(group.rank()) + 1; ELEMENTS];
    for round in 0..30 {
        let memory = Shared::of(group, vec![0u64; if group.rank() == 0 { ELEMENTS } else { 0 }])?;
        let place = memory.as_ptr();
        let window = group.window(memory)?;
        group.barrier()?;
        if group.rank() == 0 {
            std::thread::sleep(Duration::from_millis(round % 7));
            drop(window);
            let mut next = group.alloc::<u64>(ELEMENTS)?;
            assert!(std::ptr::eq(next.as_ptr(), place), "the arena gives the first place that is free");
            next.fill(7);
            group.barrier()?;
            assert!(next.iter().all(|element| *element == 7), "round {round}");
        } else {
            let error = (0..1_000_000).find_map(|_| window.put(&data, 0, 0).err()).expect("the part is gone");
            assert!(matches!(error, Error::Mismatch { rank: Some(0), .. }), "{error}");
            group.barrier()?;
        }
    }
    Ok(())
}

/// Rank 1 is stopped, or killed, while it writes to rank 0's part all the time: rank 0 gets its memory back, and nothing changes there any more,
/// not when rank 1 goes on either.
fn interrupted(group: &Group) -> Result<(), Error> {
    const ELEMENTS: usize = 200_000;
    let mut memory = Shared::of(group, vec![0u64; ELEMENTS])?;
    // SAFETY: the memory is touched when the window is closed.
    let window = unsafe { group.open_window(memory.as_mut_ptr().cast(), ELEMENTS, DType::U64) }?;
    group.barrier()?;
    if group.rank() == 1 {
        let signal = parameter("SIGNAL").expect("a signal");
        let script = format!("sleep 0.2; kill -{signal} {0}; sleep 6; kill -CONT {0}", std::process::id());
        let mut shell = std::process::Command::new("sh").args(["-c", &script]).spawn().expect("a shell");
        let data = vec![1u64; ELEMENTS];
        let call = AccessCall {
            window,
            action: WindowAction::Put,
            target: 0,
            offset: 0,
            count: ELEMENTS,
            dtype: DType::U64,
            data: data.as_ptr().cast(),
            into: std::ptr::null_mut(),
        };
        // SAFETY: the data stays where it is.
        let ended = std::iter::repeat_with(|| unsafe { group.window_access(&call) }).find_map(Result::err);
        shell.wait().expect("the shell has ended");
        return Err(ended.expect("an access fails at last"));
    }
    let begin = Instant::now();
    let error = group.close_window(window).expect_err("rank 1 does not close it");
    memory.fill(7);
    // A rank that was stopped goes on meanwhile.
    std::thread::sleep(Duration::from_secs(8).saturating_sub(begin.elapsed()));
    assert!(memory.iter().all(|element| *element == 7));
    Err(error)
}

/// Ranks, hosts and transport.
const PLACES: [(u32, u32, &str); 7] = [
    (1, 1, "auto"),
    (2, 1, "auto"),
    (3, 1, "auto"),
    (2, 2, "kernel"),
    (2, 2, "rud"),
    (4, 2, "tcp"),
    (6, 3, "auto"),
];

/// Without DPDK hosts have only the kernel's sockets.
fn over(plan: crate::ranks::Plan, hosts: u32, transport: &str) -> crate::ranks::Plan {
    let has_ports = cfg!(feature = "dpdk") || hosts == 1;
    plan.env("SHOUTER_TRANSPORT", if has_ports { transport } else { "kernel" })
}

/// A job over the available transport.
fn usual(ranks: u32, hosts: u32, scenario: &str) -> crate::ranks::Plan {
    over(job!(ranks, hosts, scenario), hosts, "auto")
}

/// A job over the available transport, with parts in memory that the ranks of a host share.
fn shared(ranks: u32, hosts: u32, scenario: &str) -> crate::ranks::Plan {
    usual(ranks, hosts, scenario).with("MEMORY", "shared")
}

fn everywhere(scenario: &str) {
    for (ranks, hosts, transport) in PLACES {
        let memories: &[&str] = if ranks == hosts { &["private"] } else { &["private", "shared"] };
        for memory in memories {
            let state = over(job!(ranks, hosts, scenario), hosts, transport).with("MEMORY", memory).run();
            assert!(
                state.status == Some(0),
                "{scenario} of {ranks} ranks on {hosts} hosts over {transport}, {memory} memory\n{state}"
            );
        }
    }
}

#[test]
fn what_is_put_is_there_for_all_after_a_fence() {
    everywhere("exchange");
}

#[test]
fn each_ticket_of_a_counter_is_given_once() {
    everywhere("tickets");
}

#[test]
fn updates_reduce_replace_and_keep() {
    everywhere("updates");
}

#[test]
fn started_accesses_end_with_a_flush_and_a_freed_window_is_gone() {
    run_all([
        usual(1, 1, "started"),
        usual(3, 1, "started"),
        usual(4, 2, "started"),
        shared(3, 1, "started"),
        shared(4, 2, "started"),
    ])
    .iter()
    .for_each(crate::ranks::State::assert_success);
}

#[test]
fn a_target_that_computes_serves_in_every_mode() {
    let plan = |ranks, hosts, mode| usual(ranks, hosts, "computing").env("SHOUTER_MODE", mode);
    let plans =
        [plan(2, 1, "caller"), plan(3, 1, "dedicated"), plan(2, 2, "caller"), plan(2, 2, "dedicated")];
    let direct = |ranks, hosts, mode| plan(ranks, hosts, mode).with("MEMORY", "shared");
    for plan in
        plans.into_iter().chain([direct(3, 1, "caller"), direct(3, 1, "dedicated"), direct(4, 2, "caller")])
    {
        let gates = Gates::new();
        plan.with("GATES", &gates).run().assert_success();
    }
}

#[test]
fn windows_collectives_and_messages_do_not_disturb_each_other() {
    run_all([usual(2, 1, "beside"), usual(4, 2, "beside"), shared(2, 1, "beside"), shared(4, 2, "beside")])
        .iter()
        .for_each(crate::ranks::State::assert_success);
}

#[test]
fn wrong_accesses_are_refused_and_the_group_goes_on() {
    let plans = [("wrong", 2, 1), ("wrong", 4, 2), ("differ", 3, 1), ("dropped", 3, 1), ("dropped", 2, 2)];
    let direct = [("wrong", 2, 1), ("wrong", 4, 2), ("dropped", 3, 1), ("dropped", 4, 2)];
    let plans = plans.map(|(scenario, ranks, hosts)| usual(ranks, hosts, scenario)).into_iter();
    run_all(plans.chain(direct.map(|(scenario, ranks, hosts)| shared(ranks, hosts, scenario))))
        .iter()
        .for_each(crate::ranks::State::assert_success);
}

#[test]
fn a_deadline_names_the_target_and_the_group_goes_on() {
    let jobs = [(2, 1), (2, 2)].map(|(ranks, hosts)| {
        let gates = Gates::new();
        let plan = usual(ranks, hosts, "late").env("SHOUTER_DEADLINE", "2s").with("GATES", &gates);
        (plan.start(), gates, ranks - 1)
    });
    for (job, gates, last) in &jobs {
        job.until("all have the window", LIMIT, |state| state.all_told("ready"));
        job.stop(*last);
        gates.open("stopped");
    }
    for (job, gates, last) in jobs {
        let has_told = |rank: &RankState| rank.told.iter().any(|line| line == "in vain");
        job.until("the deadline has passed", LIMIT, |state| state.others(last).all(has_told));
        job.signal(last, "CONT");
        gates.open("goes on");
        job.finish().assert_success();
    }
}

#[test]
fn a_target_that_dies_is_named_by_every_access() {
    let plan = |ranks, hosts, call| usual(ranks, hosts, "die").with("CALL", call);
    let direct = |ranks, hosts, call| plan(ranks, hosts, call).with("MEMORY", "shared");
    let states = run_all([
        plan(3, 1, "put"),
        plan(3, 1, "get"),
        plan(3, 3, "fetch"),
        plan(4, 2, "put"),
        direct(3, 1, "put"),
        direct(3, 1, "get"),
        direct(3, 1, "fetch").env("SHOUTER_MODE", "dedicated"),
        direct(4, 2, "fetch"),
    ]);
    for state in &states {
        let last = state.ranks.len() as u32 - 1;
        for rank in state.others(last) {
            let failed = rank.lost_its_group();
            assert!(failed && names_dead(rank.error(), last), "{state}");
        }
    }
}

/// Whether an error names an access, and says that this rank is dead.
fn names_dead(text: &str, rank: u32) -> bool {
    let parts = text.split_once(" was given up: ").or_else(|| text.split_once(" was not started: "));
    let (access, cause) = parts.unwrap_or_default();
    let named = ["put", "get", "fetch-and-sum"].iter().any(|name| access.contains(name));
    named && names_only(cause.split(';').next().unwrap_or(""), rank)
}

#[test]
fn a_target_that_has_left_is_not_waited_for() {
    for state in
        run_all([usual(3, 1, "leave"), usual(2, 2, "leave"), shared(3, 1, "leave"), shared(4, 2, "leave")])
    {
        let last = state.ranks.len() as u32 - 1;
        for rank in state.others(last) {
            assert!(rank.lost_its_group(), "{state}");
            assert!(rank.ended < Some(Duration::from_secs(20)), "{state}");
        }
    }
}

#[test]
fn ranks_beside_a_part_and_ranks_of_other_hosts_keep_one_order() {
    run_all([
        shared(3, 1, "orders"),
        shared(4, 2, "orders"),
        shared(3, 1, "orders").env("SHOUTER_MODE", "dedicated"),
    ])
    .iter()
    .for_each(crate::ranks::State::assert_success);
}

#[test]
fn sums_of_every_width_are_exact_when_ranks_beside_and_of_other_hosts_add_at_once() {
    run_all([shared(3, 1, "widths"), shared(4, 2, "widths"), shared(6, 2, "widths")])
        .iter()
        .for_each(crate::ranks::State::assert_success);
}

#[test]
fn memory_of_a_window_that_was_dropped_is_its_owners_at_once() {
    run_all([shared(3, 1, "withdrawn"), shared(4, 2, "withdrawn")])
        .iter()
        .for_each(crate::ranks::State::assert_success);
}

#[test]
fn memory_is_the_owners_again_though_a_rank_is_stopped_or_dies_while_it_writes_there() {
    let plan = |signal| shared(2, 1, "interrupted").with("SIGNAL", signal).silence_is_found();
    for state in run_all([plan("STOP"), plan("KILL")]) {
        let owner = &state.ranks[0];
        assert!(owner.lost_its_group() && owner.error().contains("rank 1"), "{state}");
    }
}
