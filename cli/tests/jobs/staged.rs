//! Sums with a factor, and elements in blocks, between real processes over every transport; and tensors beyond 2^32 bytes.

#![allow(unsafe_code)]

use crate::ranks::values::TOPOLOGIES;
use crate::ranks::{ARGUMENT, job, join, parameter, play, tell};
use shouter::{
    Collective, CollectiveCall, DType, Error, Exchange, Group, Layout, ReduceOp, Staging, Strided, StridedMut,
};

/// Elements of a tensor.
const COUNTS: [usize; 4] = [1, 7, 1000, 100_003];

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    let plays: &[(&str, crate::ranks::Play)] =
        &[("premul", premul), ("blocks", blocks), ("wrong", wrong), ("die", die), ("large", large)];
    play(plays, join);
}

/// Rank `from`'s element at `index`, small enough that sums of halves are exact.
fn given(from: u32, index: usize) -> f32 {
    ((index * 7 + from as usize * 13) % 19) as f32
}

/// The factor of a rank; the last one has none.
fn factor(group: &Group, rank: u32) -> Option<f64> {
    (rank + 1 < group.size()).then(|| f64::from(rank) + 0.5)
}

/// The sum over some of the ranks.
fn sum(group: &Group, ranks: u32, index: usize) -> f32 {
    (0..ranks).map(|rank| given(rank, index) * factor(group, rank).unwrap_or(1.0) as f32).sum()
}

/// Ranks with a factor and one without, started and called.
fn premul(group: &Group) -> Result<(), Error> {
    use Collective::{AllReduce, ExScan, Reduce, ReduceScatter, Scan};
    let (me, n) = (group.rank(), group.size());
    for (count, started) in COUNTS.into_iter().zip([false, true].into_iter().cycle()) {
        for collective in [AllReduce, Reduce, ReduceScatter, Scan, ExScan] {
            let root = count as u32 % n;
            let blocks = if collective == ReduceScatter { n as usize } else { 1 };
            let input: Vec<f32> = (0..count * blocks).map(|index| given(me, index)).collect();
            let mut output = vec![-1f32; count];
            let call = CollectiveCall {
                collective,
                input: input.as_ptr().cast(),
                output: output.as_mut_ptr().cast(),
                count,
                dtype: DType::F32,
                op: ReduceOp::Sum,
                root,
            };
            let staging = Staging { factor: factor(group, me), ..Staging::default() };
            // SAFETY: as long as the call says, and left alone until it has ended.
            unsafe {
                match started {
                    true => group.start_staged(&call, &staging)?.wait(None)?,
                    false => group.run_staged(&call, &staging)?,
                }
            }
            let due = |index| match collective {
                Reduce if me != root => -1.0,
                ExScan if me == 0 => -1.0,
                ReduceScatter => sum(group, n, me as usize * count + index),
                Scan => sum(group, me + 1, index),
                ExScan => sum(group, me, index),
                _ => sum(group, n, index),
            };
            let wrong = (0..count).find(|&index| output[index] != due(index));
            assert_eq!(wrong, None, "{collective} of {count}");
            assert!((0..input.len()).all(|index| input[index] == given(me, index)), "the input is only read");
        }
    }
    Ok(())
}

/// A column of a matrix on one side, rows on the other.
fn blocks(group: &Group) -> Result<(), Error> {
    const ELSE: f32 = -1.0;
    let (me, n) = (group.rank(), group.size());
    for count in COUNTS {
        let column = Layout { count, block: 1, stride: 3 };
        let all = Layout { count: count * n as usize, block: 1, stride: 2 };
        let own: Vec<f32> =
            (0..3 * count).map(|at| if at.is_multiple_of(3) { given(me, at / 3) } else { ELSE }).collect();
        let mut into = vec![ELSE; 2 * count * n as usize];
        group.all_gather_strided(Strided::new(&own, column)?, StridedMut::new(&mut into, all)?)?;
        let due = |at: usize| match at % 2 {
            0 => given((at / 2 / count) as u32, at / 2 % count),
            _ => ELSE,
        };
        assert!((0..into.len()).all(|at| into[at] == due(at)), "all-gather of {count}");

        // One rank has rows, the others columns.
        let root = count as u32 % n;
        let mut data: Vec<f32> = vec![ELSE; 3 * count];
        if me == root {
            (0..count).for_each(|at| data[at] = given(root, at));
            group.broadcast_strided(&mut data[..count], root)?;
        } else {
            group.broadcast_strided(StridedMut::new(&mut data, column)?, root)?;
            let due = |at: usize| if at.is_multiple_of(3) { given(root, at / 3) } else { ELSE };
            assert!((0..data.len()).all(|at| data[at] == due(at)), "broadcast of {count}");
        }

        let (left, right) = ((me + n - 1) % n, (me + 1) % n);
        let mut plain = vec![ELSE; count];
        let mut exchanges = [
            Exchange::send_strided(Strided::new(&own, column)?, right, 1),
            Exchange::receive(&mut plain, left, 1),
        ];
        group.batch(&mut exchanges).into_iter().try_for_each(|ended| ended.map(drop))?;
        assert!((0..count).all(|at| plain[at] == given(left, at)), "a message of {count}");
    }
    Ok(())
}

/// A rank with invalid arguments gets an error at once, and the others name it after its end.
fn wrong(group: &Group) -> Result<(), Error> {
    let mut data = vec![0i32; 100];
    if group.rank() == 0 {
        group.premul(0.5).all_reduce(&mut data)?;
    }
    Ok(())
}

/// A rank dies before it takes part: the blocks of the others do not change.
fn die(group: &Group) -> Result<(), Error> {
    group.barrier()?;
    // What a rank sent last may be lost with it: it dies when all are past the barrier.
    if group.rank() == 1 {
        for other in (0..group.size()).filter(|rank| *rank != 1) {
            group.receive(&mut [0u8], other, 0)?;
        }
        std::process::abort();
    }
    // It may be dead before it has acknowledged this.
    drop(group.send(&[0u8], 1, 0));
    let mut data = vec![7u64; 100_000];
    let layout = Layout { count: 50_000, block: 1, stride: 2 };
    let result = group.broadcast_strided(StridedMut::new(&mut data, layout)?, 1);
    assert!(data.iter().all(|x| *x == 7));
    tell("unchanged");
    result
}

/// A range of addresses of more than 2^32 bytes over little memory: a piece that is mapped again and again, and a
/// separate end.
struct Sparse {
    base: *mut u8,
    bytes: usize,
}

impl Sparse {
    /// Bytes of the repeated piece.
    const PIECE: usize = 64 << 20;
    /// Pieces: one more than 2^32 bytes.
    const PIECES: usize = (1 << 32) / Self::PIECE + 1;
    /// Bytes of the end.
    const END: usize = 1 << 20;

    fn new() -> Self {
        let bytes = Self::PIECES * Self::PIECE + Self::END;
        let none = std::ptr::null_mut();
        // SAFETY: a new range of addresses, and parts of it that nobody else has.
        let base = unsafe {
            let (both, fixed) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
            let base = libc::mmap(
                none,
                bytes,
                both,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            );
            assert_ne!(base, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
            let file = libc::memfd_create(c"sparse".as_ptr(), 0);
            assert!(file >= 0 && libc::ftruncate(file, Self::PIECE as i64) == 0);
            for piece in 0..Self::PIECES {
                let at = base.byte_add(piece * Self::PIECE);
                assert_eq!(libc::mmap(at, Self::PIECE, both, fixed, file, 0), at);
            }
            libc::close(file);
            base
        };
        Self { base: base.cast(), bytes }
    }

    fn elements(&self) -> usize {
        self.bytes / size_of::<u32>()
    }

    /// The elements of the piece, and those of the end.
    fn parts(&mut self) -> [&mut [u32]; 2] {
        // SAFETY: the parts are mapped, and apart from each other.
        unsafe {
            let at = |bytes: usize| self.base.add(bytes).cast::<u32>();
            [
                std::slice::from_raw_parts_mut(at(0), Self::PIECE / 4),
                std::slice::from_raw_parts_mut(at(Self::PIECES * Self::PIECE), Self::END / 4),
            ]
        }
    }
}

/// The elements of rank `from` in the piece and in the end.
fn sparse(from: u32, part: usize, index: usize) -> u32 {
    (index as u32).wrapping_mul(2_654_435_761).wrapping_add(from * 77 + part as u32)
}

/// Reduces, moves and sends more than 2^32 bytes.
fn large(group: &Group) -> Result<(), Error> {
    let (me, other) = (group.rank(), 1 - group.rank());
    let (mut given, mut taken) = (Sparse::new(), Sparse::new());
    let count = given.elements();
    for (part, elements) in given.parts().into_iter().enumerate() {
        elements.iter_mut().enumerate().for_each(|(index, x)| *x = sparse(me, part, index));
    }
    let check = |what: &str, taken: &mut Sparse, due: &dyn Fn(usize, usize) -> u32| {
        for (part, elements) in taken.parts().into_iter().enumerate() {
            let wrong = (0..elements.len()).find(|&index| elements[index] != due(part, index));
            assert_eq!(wrong, None, "{what}, part {part}");
            elements.fill(0);
        }
        tell(what);
    };
    let (input, output) = (given.base.cast_const(), taken.base);
    let call = |collective, count| CollectiveCall {
        collective,
        input,
        output,
        count,
        dtype: DType::U32,
        op: ReduceOp::Sum,
        root: 0,
    };
    // SAFETY: as long as the calls say; every piece is given and taken alike, so it does not matter which comes last.
    unsafe {
        group.run_collective(&call(Collective::AllReduce, count))?;
        check("all-reduce", &mut taken, &|part, index| {
            sparse(0, part, index).wrapping_add(sparse(1, part, index))
        });
        group.start(&call(Collective::AllReduce, count))?.wait(None)?;
        check("started", &mut taken, &|part, index| {
            sparse(0, part, index).wrapping_add(sparse(1, part, index))
        });
        if me == 0 {
            std::ptr::copy(input, output, Sparse::PIECE);
            let end = Sparse::PIECES * Sparse::PIECE;
            std::ptr::copy(input.add(end), output.add(end), Sparse::END);
        }
        group.run_collective(&call(Collective::Broadcast, count))?;
        check("broadcast", &mut taken, &|part, index| sparse(0, part, index));
        let exchanges = &mut [
            Exchange::receive_raw(output, count, DType::U32, other, 1)?,
            Exchange::send_raw(input, count, DType::U32, other, 1)?,
        ];
        for ended in group.batch(exchanges) {
            assert_eq!(ended?.count, count as u64);
        }
        check("message", &mut taken, &|part, index| sparse(other, part, index));
    }
    Ok(())
}

#[test]
fn sums_with_a_factor_are_right_on_every_topology() {
    for (ranks, hosts) in TOPOLOGIES {
        job!(ranks, hosts, "premul").run().assert_success();
    }
}

#[test]
fn blocks_come_as_blocks_on_every_topology() {
    for (ranks, hosts) in TOPOLOGIES {
        job!(ranks, hosts, "blocks").run().assert_success();
    }
}

#[test]
fn other_transports_are_as_good() {
    for scenario in ["premul", "blocks"] {
        job!(4, 2, scenario).env("SHOUTER_TRANSPORT", "tcp").run().assert_success();
        job!(4, 2, scenario).args(&["--transport", "kernel"]).run().assert_success();
        let faults = ["--loss", "2%", "--corrupt", "1%", "--seed", "11"];
        job!(3, 3, scenario).args(&faults).run().assert_success();
    }
}

#[test]
fn a_factor_of_integers_is_refused_by_name() {
    let state = job!(2, 1, "wrong").run();
    assert_eq!(state.ranks[0].code, Some(ARGUMENT), "{state}");
    assert!(state.ranks[0].error().contains("no factor for i32"), "{state}");
}

#[test]
fn a_rank_that_dies_leaves_the_blocks_of_the_others_as_they_were() {
    for (ranks, hosts) in [(3, 1), (3, 3)] {
        let state = job!(ranks, hosts, "die").run();
        for survivor in state.others(1) {
            assert!(survivor.told.iter().any(|line| line == "unchanged"), "{state}");
            assert!(survivor.error().contains("rank 1"), "{state}");
        }
    }
}

#[test]
fn tensors_beyond_4_gib_are_reduced_moved_and_sent() {
    if parameter("LONG").is_none() {
        println!(
            "skipped: tensors beyond 2^32 bytes take minutes; `scripts/test large`, or SHOUTER_TEST_LONG=1, moves them"
        );
        return;
    }
    let job = job!(2, 1, "large").start();
    let state = job.until("all is moved", std::time::Duration::from_secs(900), |state| {
        state.ranks.iter().all(|rank| rank.code.is_some() || rank.signal.is_some())
    });
    assert!(state.all_told("message"), "{state}");
    job.finish().assert_success();
}
