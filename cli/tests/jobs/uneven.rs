//! Collectives with a count for each rank, between real processes, against their definition: zero and large counts, in
//! place and apart, from every root, over every transport; and counts on which ranks disagree.

#![allow(unsafe_code)]

use crate::ranks::values::{fill, reduced, value};
use crate::ranks::{MISMATCH, Play, job, join, parameter, play, tell};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use shouter::{Collective, CollectiveCall, DType, Error, Group, Layout, ReduceOp, Staging, UnevenCall, Work};

pub(crate) const COLLECTIVES: [Collective; 5] = [
    Collective::AllGatherV,
    Collective::GatherV,
    Collective::ScatterV,
    Collective::ReduceScatterV,
    Collective::AllToAllV,
];

/// The bytes beside an output.
pub(crate) const GUARD: u8 = 0xa5;

/// The largest counts of a block.
pub(crate) const MOST: [usize; 4] = [0, 3, 300, 30_011];

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    let plays: &[(&str, Play)] = &[
        ("all", all),
        ("started", started),
        ("safe", safe),
        ("mismatch", mismatch),
        ("other", other),
        ("die", die),
        #[cfg(feature = "cuda")]
        ("gpus", gpus),
        #[cfg(feature = "cuda")]
        ("gpus-of-some", |group| gpus(&crate::ranks::gpu::of_some(group)?)),
    ];
    play(plays, join);
}

/// One rank's part, and its expected output.
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) given: Vec<usize>,
    pub(crate) taken: Vec<usize>,
    pub(crate) dtype: DType,
    pub(crate) op: ReduceOp,
    pub(crate) root: u32,
    pub(crate) input: Vec<u8>,
    pub(crate) output: Vec<u8>,
    /// The offsets of both in one buffer, if they can be in place.
    pub(crate) at: Option<(usize, usize)>,
}

/// `counts` are those of each rank, or of each pair of ranks; the input of a rank is `value` at each index, from 0.
pub(crate) fn case(
    group: &Group,
    collective: Collective,
    counts: &[usize],
    dtype: DType,
    op: ReduceOp,
    root: u32,
) -> Case {
    use Collective::*;
    let (ranks, rank) = (group.size(), group.rank());
    let (n, me, is_root) = (ranks as usize, rank as usize, rank == root);
    let start = |row: &[usize], block: usize| row[..block].iter().sum::<usize>();
    let of = |from: usize, start: usize, count: usize| {
        fill(dtype, count, |index| value(op, dtype, ranks, from as u32, start + index))
    };
    let (own_start, own, all) = (start(counts, me.min(counts.len())), counts[me], counts.iter().sum());
    let one = vec![own];
    let (given, taken, input, output, at) = match collective {
        AllGatherV | GatherV => {
            let takes = collective == AllGatherV || is_root;
            let output = (0..n).flat_map(|from| of(from, 0, counts[from])).collect();
            let (taken, output) = if takes { (counts.to_vec(), output) } else { (vec![], vec![]) };
            let at = if takes { own_start } else { 0 };
            (one, taken, of(me, 0, own), output, Some((at, 0)))
        }
        ScatterV => {
            let given = if is_root { counts.to_vec() } else { vec![] };
            let input = if is_root { of(me, 0, all) } else { vec![] };
            let at = if is_root { own_start } else { 0 };
            (given, one, input, of(root as usize, own_start, own), Some((0, at)))
        }
        ReduceScatterV => {
            let sums = fill(dtype, own, |index| reduced(op, dtype, ranks, own_start + index));
            (counts.to_vec(), one, of(me, 0, all), sums, Some((0, own_start)))
        }
        _ => {
            let row = |from: usize| &counts[from * n..(from + 1) * n];
            let given = row(me).to_vec();
            let taken: Vec<_> = (0..n).map(|from| row(from)[me]).collect();
            let output = (0..n).flat_map(|from| of(from, start(row(from), me), row(from)[me])).collect();
            let at = (given == taken).then_some((0, 0));
            (given.clone(), taken, of(me, 0, given.iter().sum()), output, at)
        }
    };
    let at = at.map(|(from, into)| (from * dtype.size(), into * dtype.size()));
    Case { collective, given, taken, dtype, op, root, input, output, at }
}

impl Case {
    fn run(&self, group: &Group, in_place: bool) -> Result<(), Error> {
        let Self { collective, dtype, op, root, input, output, .. } = self;
        let what = format!("{collective} {op} of {:?}, {:?} x {dtype}, root {root}", self.given, self.taken);
        if let Some((from, into)) = self.at.filter(|_| in_place) {
            let len = (from + input.len()).max(into + output.len());
            let mut data = vec![GUARD; len];
            data[from..from + input.len()].copy_from_slice(input);
            let base = data.as_mut_ptr();
            self.call(group, base.wrapping_add(from), base.wrapping_add(into), &Staging::default())?;
            assert!(data[into..into + output.len()] == *output, "{what}, in place");
            return Ok(());
        }
        let (mut given, mut result) = (input.clone(), vec![GUARD; output.len() + 8]);
        self.call(group, given.as_mut_ptr(), result.as_mut_ptr(), &Staging::default())?;
        assert!(result[..output.len()] == *output, "{what}");
        assert!(result[output.len()..].iter().all(|&byte| byte == GUARD), "{what} wrote behind its output");
        assert!(given == *input, "{what} wrote to its input");
        Ok(())
    }

    /// Runs it with buffers in the memory that the host shares, where ranks read each other's inputs.
    fn run_shared(&self, group: &Group, in_place: bool) -> Result<(), Error> {
        let Self { collective, input, output, dtype, .. } = self;
        let what = format!("{collective} of {:?}, {:?} x {dtype}, in shared memory", self.given, self.taken);
        let apart = (0, input.len().next_multiple_of(64));
        let (from, into) = self.at.filter(|_| in_place).unwrap_or(apart);
        let mut data = group.alloc::<u8>((from + input.len()).max(into + output.len() + 8))?;
        data.fill(GUARD);
        data[from..from + input.len()].copy_from_slice(input);
        let base = data.as_mut_ptr();
        self.call(group, base.wrapping_add(from), base.wrapping_add(into), &Staging::default())?;
        assert!(data[into..into + output.len()] == *output, "{what}");
        let end = (from + input.len()).max(into + output.len());
        assert!(data[end..].iter().all(|&byte| byte == GUARD), "{what} wrote behind its output");
        assert!(
            from == into || data[from..from + input.len()] == *input || in_place,
            "{what} wrote to its input"
        );
        Ok(())
    }

    /// Runs it with every other element of both buffers.
    fn run_in_layouts(&self, group: &Group) -> Result<(), Error> {
        let Self { collective, dtype, input, output, .. } = self;
        let (size, what) =
            (dtype.size(), format!("{collective} of {:?}, {:?} x {dtype}", self.given, self.taken));
        let every_other = |bytes: &[u8]| Layout { count: bytes.len() / size, block: 1, stride: 2 };
        let mut given = vec![GUARD; 2 * input.len()];
        given
            .chunks_mut(2 * size)
            .zip(input.chunks(size))
            .for_each(|(to, from)| to[..size].copy_from_slice(from));
        let mut result = vec![GUARD; 2 * output.len()];
        let (kept, layouts) = (given.clone(), [every_other(input), every_other(output)].map(Some));
        let staging = Staging { input: layouts[0], output: layouts[1], ..Staging::default() };
        self.call(group, given.as_mut_ptr(), result.as_mut_ptr(), &staging)?;
        for (found, right) in result.chunks(2 * size).zip(output.chunks(size)) {
            assert!(found[..size] == *right, "{what}, in layouts");
            assert!(found[size..].iter().all(|&byte| byte == GUARD), "{what} wrote between its blocks");
        }
        assert!(given == kept, "{what} wrote to its input");
        Ok(())
    }

    /// Runs it with memory on a GPU.
    #[cfg(feature = "cuda")]
    fn run_on_gpu(
        &self,
        group: &Group,
        in_place: bool,
        trainer: &mut crate::ranks::gpu::Trainer,
    ) -> Result<(), Error> {
        let Self { collective, root, input, output, dtype, .. } = self;
        let what = format!("{collective} of {:?}, {:?} x {dtype}, root {root}", self.given, self.taken);
        let at = self.at.filter(|_| in_place);
        let (from, into) = at.unwrap_or((0, input.len().next_multiple_of(64)));
        let end = (from + input.len()).max(into + output.len());
        trainer.put(0, &vec![GUARD; end + 9]);
        trainer.put(from, input);
        let address = |at: usize| std::ptr::without_provenance_mut(trainer.address(at) as usize);
        let staging = Staging::on_cuda(trainer.stream.as_raw());
        self.call(group, address(from), address(into), &staging)?;
        let found = trainer.get(0, end + 9);
        assert!(found[into..into + output.len()] == *output, "{what}, in place: {}", at.is_some());
        assert!(found[end..].iter().all(|byte| *byte == GUARD), "{what} wrote beside its output");
        assert!(at.is_some() || found[..input.len()] == *input, "{what} wrote to its input");
        Ok(())
    }

    fn call(&self, group: &Group, input: *mut u8, output: *mut u8, staging: &Staging) -> Result<(), Error> {
        let &Self { collective, ref given, ref taken, dtype, op, root, .. } = self;
        let call = UnevenCall { collective, input, output, given, taken, dtype, op, root };
        // SAFETY: the buffers are as long as the counts say, and this call's alone.
        unsafe {
            match parameter("STARTED").as_deref() {
                Some("1") => group.start_uneven_staged(&call, staging)?.wait(Some(crate::ranks::LIMIT)),
                _ => group.run_uneven(&call, staging),
            }
        }
    }

    /// Starts it with separate buffers.
    fn start(&self, group: &Group, result: &mut [u8]) -> Result<Work, Error> {
        let &Self { collective, ref given, ref taken, dtype, op, root, .. } = self;
        let (input, output) = (self.input.as_ptr(), result.as_mut_ptr());
        let call = UnevenCall { collective, input, output, given, taken, dtype, op, root };
        // SAFETY: the buffers are as long as the counts say; they are left alone until the waits.
        unsafe { group.start_uneven(&call) }
    }
}

/// Counts up to `most`, many of them zero; of pairs, sometimes the same in both directions.
pub(crate) fn counts(rng: &mut SmallRng, ranks: usize, pairs: bool, most: usize) -> Vec<usize> {
    let mut one = || if rng.random_bool(0.3) { 0 } else { rng.random_range(0..=most) };
    let mut counts: Vec<_> = (0..if pairs { ranks * ranks } else { ranks }).map(|_| one()).collect();
    if pairs && rng.random() {
        for from in 0..ranks {
            (0..from).for_each(|to| counts[from * ranks + to] = counts[to * ranks + from]);
        }
    }
    counts
}

/// Every collective with some types and all reductions; each rank chooses at random whether it runs in place.
fn all(group: &Group) -> Result<(), Error> {
    let mut root = 0;
    // The counts are the same on all ranks; the places of inputs and their layouts are each rank's own choice.
    let (mut shared, mut own) = (SmallRng::seed_from_u64(1), SmallRng::seed_from_u64(group.rank().into()));
    for most in MOST {
        for collective in COLLECTIVES {
            for dtype in [DType::F32, DType::I8, DType::Bf16, DType::U64] {
                let ops = if collective.reduces() { ReduceOp::ALL } else { &ReduceOp::ALL[..1] };
                for &op in ops.iter().filter(|op| !collective.reduces() || op.is_of(dtype)) {
                    let pairs = collective == Collective::AllToAllV;
                    let counts = counts(&mut shared, group.size() as usize, pairs, most);
                    let case = case(group, collective, &counts, dtype, op, root);
                    match own.random_range(0..3) {
                        how if shared.random_bool(0.5) => case.run_shared(group, how == 1)?,
                        0 => case.run_in_layouts(group)?,
                        how => case.run(group, how == 1)?,
                    }
                    root = (root + 1) % group.size();
                }
            }
        }
    }
    let alone = group.size() == 1 || group.nodes() > 1;
    assert!(
        alone || group.stats().in_place > 5,
        "inputs were read in place {} times",
        group.stats().in_place
    );
    Ok(())
}

/// Every collective with tensors on GPUs on some ranks; each chooses whether it runs in place.
#[cfg(feature = "cuda")]
fn gpus(group: &Group) -> Result<(), Error> {
    let ranks = group.size() as usize;
    let mut trainer = crate::ranks::gpu::on_gpu(group)
        .then(|| crate::ranks::gpu::Trainer::new(group, 2 * ranks * MOST[3] * 4 + 256));
    let (mut shared, mut own) = (SmallRng::seed_from_u64(3), SmallRng::seed_from_u64(group.rank().into()));
    let mut root = 0;
    for most in MOST {
        for collective in COLLECTIVES {
            for dtype in [DType::F32, DType::I8] {
                let counts = counts(&mut shared, ranks, collective == Collective::AllToAllV, most);
                let case = case(group, collective, &counts, dtype, ReduceOp::Sum, root);
                match &mut trainer {
                    Some(trainer) => case.run_on_gpu(group, own.random(), trainer)?,
                    None => case.run(group, own.random())?,
                }
                root = (root + 1) % group.size();
            }
        }
    }
    Ok(())
}

#[cfg(feature = "cuda")]
#[test]
fn on_gpus_blocks_are_moved_as_on_hosts() {
    if !crate::ranks::gpu::device() {
        return;
    }
    for (ranks, hosts, on) in [(2, 1, 0b11), (3, 1, 0b101), (4, 2, 0b1111), (4, 2, 0b0110)] {
        for (play, started) in [("gpus", 0), ("gpus", 1), ("gpus-of-some", started_of(ranks))] {
            let job = job!(ranks, hosts, play).with("ON", on).with("STARTED", started);
            job.env("CUDA_SIM", "delay_us=200,seed=7").run().assert_success();
        }
    }
}

/// The parameter `STARTED`, by the number of ranks, so that groups of some ranks run both ways.
#[cfg(feature = "cuda")]
fn started_of(ranks: u32) -> u32 {
    ranks % 2
}

/// Many operations in progress at once, between others that are started and called, in the group of all and in one with
/// other numbers; completed on another thread and through notifications.
fn started(group: &Group) -> Result<(), Error> {
    let turned = group.group(&(0..group.size()).rev().collect::<Vec<_>>())?;
    for group in [group, &turned] {
        let mut shared = SmallRng::seed_from_u64(2);
        let mut cases = vec![];
        for (most, collective) in MOST.into_iter().flat_map(|most| COLLECTIVES.map(|each| (most, each))) {
            let pairs = collective == Collective::AllToAllV;
            let counts = counts(&mut shared, group.size() as usize, pairs, most);
            let root = cases.len() as u32 % group.size();
            cases.push(case(group, collective, &counts, DType::F32, ReduceOp::Sum, root));
        }
        let mut results: Vec<_> = cases.iter().map(|case| vec![0u8; case.output.len()]).collect();
        let (mut works, mut evens) = (vec![], vec![[1u32]; cases.len()]);
        let (say, said) = std::sync::mpsc::channel();
        for (at, (case, result)) in cases.iter().zip(&mut results).enumerate() {
            let work = case.start(group, result)?;
            let say = say.clone();
            work.on_done(move |result| say.send(result).unwrap())?;
            works.push(work);
            let (even, dtype, op) = (&mut evens[at], DType::U32, ReduceOp::Sum);
            let (input, output) = (even.as_ptr().cast(), even.as_mut_ptr().cast());
            let call = CollectiveCall {
                collective: Collective::AllReduce,
                input,
                output,
                count: 1,
                dtype,
                op,
                root: 0,
            };
            // SAFETY: left alone until the waits.
            works.push(unsafe { group.start(&call) }?);
            if at % 7 == 3 {
                let mut one = [1u32];
                group.all_reduce(&mut one, ReduceOp::Sum)?;
                assert_eq!(one, [group.size()]);
            }
        }
        let waiting = std::thread::spawn(move || {
            works.iter().rev().try_for_each(|work| work.wait(Some(crate::ranks::LIMIT)))
        });
        waiting.join().unwrap()?;
        for _ in &cases {
            said.recv_timeout(crate::ranks::LIMIT).expect("each is told of")?;
        }
        assert!(evens.iter().all(|even| *even == [group.size()]));
        for (case, result) in cases.iter().zip(&results) {
            assert!(case.output == *result, "{} {:?} {:?}", case.collective, case.given, case.taken);
        }
    }
    group.barrier()
}

/// The safe functions, and the calls that they refuse before anything is sent.
fn safe(group: &Group) -> Result<(), Error> {
    let (ranks, me) = (group.size() as usize, group.rank() as usize);
    // Rank r has r elements.
    let counts: Vec<usize> = (0..ranks).collect();
    let total: usize = counts.iter().sum();
    let staircase: Vec<u32> = (0..ranks as u32).flat_map(|rank| vec![rank; rank as usize]).collect();
    let mine = vec![me as u32; me];
    let mut all = vec![0; total];
    group.all_gather_v(&mine, &mut all, &counts)?;
    assert_eq!(all, staircase);
    for root in 0..group.size() {
        let here = root == group.rank();
        let (mut all, mut own) = (vec![0; if here { total } else { 0 }], vec![9; me]);
        group.gather_v(&mine, &mut all, if here { &counts } else { &[] }, root)?;
        assert!(all.is_empty() || all == staircase);
        let (input, given) = if here { (&staircase[..], &counts[..]) } else { (&[][..], &[][..]) };
        group.scatter_v(input, given, &mut own, root)?;
        assert_eq!(own, mine);
    }
    let mut own = vec![0; me];
    group.reduce_scatter_v(&staircase, &mut own, &counts, ReduceOp::Sum)?;
    assert!(own.iter().all(|&sum| sum == (me * ranks) as u32));
    // Each rank gets its own number plus one from every rank.
    let (given, taken): (Vec<_>, Vec<_>) = ((1..=ranks).collect(), vec![me + 1; ranks]);
    let mut output = vec![0; ranks * (me + 1)];
    group.all_to_all_v(&vec![me as i64; given.iter().sum()], &given, &mut output, &taken)?;
    assert!(output.chunks(me + 1).enumerate().all(|(from, block)| block.iter().all(|&x| x == from as i64)));

    let refused = |result: Result<(), Error>, with: &str| {
        let error = result.unwrap_err();
        assert!(matches!(&error, Error::Argument(text) if text.contains(with)), "{error}");
    };
    refused(group.all_gather_v(&mine, &mut all, &vec![0; ranks + 1]), "counts for the output");
    refused(group.all_gather_v(&mine, &mut vec![0; total + 1], &counts), "the counts add up to");
    refused(group.gather_v(&mine, &mut [0; 0], &[], group.size()), "root");
    refused(group.all_to_all_v(&[1u8], &vec![usize::MAX; ranks], &mut [0u8; 0], &vec![0; ranks]), "counts");
    let longer: Vec<usize> = counts.iter().map(|count| count + 1).collect();
    refused(group.all_gather_v(&mine, &mut vec![0; total + ranks], &longer), "its count is");
    group.barrier()
}

/// The culprit has other counts than the others: every rank gets an error with both views.
fn mismatch(group: &Group) -> Result<(), Error> {
    let number = |name| parameter(name).unwrap().parse::<usize>().unwrap();
    let (collective, culprit) = (COLLECTIVES[number("COLLECTIVE")], number("CULPRIT"));
    let (ranks, me, most) = (group.size() as usize, group.rank() as usize, number("MOST"));
    let other = (culprit + 1) % ranks;
    let pairs = collective == Collective::AllToAllV;
    let mut counts = vec![most; if pairs { ranks * ranks } else { ranks }];
    if me == culprit {
        match parameter("HOW").as_deref() {
            // The culprit's own view of its receive; or of its send, or of another rank.
            Some("takes") => counts[other * ranks + me] += 2,
            // All that it gives to the others.
            Some("gives all") => {
                (0..ranks).filter(|to| *to != me).for_each(|to| counts[me * ranks + to] += 2)
            }
            _ if pairs => counts[me * ranks + other] += 2,
            Some("shifted") => (counts[other], counts[(other + 1) % ranks]) = (most + 1, most - 1),
            _ => counts[number("OF")] += 2,
        }
    }
    let case = case(group, collective, &counts, DType::F32, ReduceOp::Sum, 0);
    let result = case.run(group, false);
    if collective.has_root() || pairs {
        // Nothing was written: the group goes on.
        tell(format_args!("went on {}", group.barrier().is_ok()));
        return result;
    }
    // A rank that has its part may already have returned.
    result.and_then(|()| group.barrier())
}

/// The culprit has another type or another root than the others, and the same counts.
fn other(group: &Group) -> Result<(), Error> {
    let number = |name| parameter(name).unwrap().parse::<usize>().unwrap();
    let (collective, culprit, most) =
        (COLLECTIVES[number("COLLECTIVE")], number("CULPRIT") as u32, number("MOST"));
    let pairs = if collective == Collective::AllToAllV { group.size() } else { 1 };
    let counts = vec![most; (group.size() * pairs) as usize];
    let (mut dtype, mut root) = (DType::F32, 0);
    if group.rank() == culprit {
        match parameter("HOW").as_deref() {
            Some("root") => root = 1,
            _ => dtype = DType::I32,
        }
    }
    let result = case(group, collective, &counts, dtype, ReduceOp::Sum, root).run(group, false);
    // A rank that has its part may already have returned.
    result.and_then(|()| group.barrier())
}

/// One rank ends before its part of a collective.
fn die(group: &Group) -> Result<(), Error> {
    let number = |name| parameter(name).unwrap().parse::<usize>().unwrap();
    let (collective, culprit, ranks) = (COLLECTIVES[number("COLLECTIVE")], number("CULPRIT"), group.size());
    let pairs = if collective == Collective::AllToAllV { ranks } else { 1 };
    let counts: Vec<_> = (0..ranks * pairs).map(|index| number("MOST") * (1 + index as usize % 3)).collect();
    let case = case(group, collective, &counts, DType::F32, ReduceOp::Sum, (culprit as u32 + 1) % ranks);
    group.barrier()?;
    // A barrier that has ended here may not have ended elsewhere: the rank is killed after all have reported.
    tell("begun");
    if group.rank() as usize == culprit {
        std::thread::sleep(crate::ranks::LIMIT);
    }
    case.run(group, false).and_then(|()| group.barrier())
}

const TOPOLOGIES: [(u32, u32); 5] = [(1, 1), (3, 1), (4, 2), (2, 2), (3, 3)];

#[test]
fn blocks_that_differ_are_exact_on_every_topology() {
    for (ranks, hosts) in TOPOLOGIES {
        job!(ranks, hosts, "all").run().assert_success();
    }
}

#[test]
fn started_ones_are_as_exact_alone_and_many_at_once() {
    for (ranks, hosts) in TOPOLOGIES {
        job!(ranks, hosts, "started").run().assert_success();
    }
    for (ranks, hosts) in [(3, 1), (4, 2)] {
        job!(ranks, hosts, "all").with("STARTED", 1).run().assert_success();
    }
}

#[test]
fn the_safe_functions_are_right_and_refuse_what_cannot_be() {
    for (ranks, hosts) in TOPOLOGIES {
        job!(ranks, hosts, "safe").run().assert_success();
    }
}

#[test]
fn other_transports_are_as_good() {
    for (ranks, hosts) in [(2, 2), (4, 2)] {
        job!(ranks, hosts, "all").env("SHOUTER_TRANSPORT", "tcp").run().assert_success();
        job!(ranks, hosts, "all").args(&["--transport", "kernel"]).run().assert_success();
    }
}

#[test]
fn loss_and_bit_flips_do_not_show() {
    for (ranks, hosts) in [(3, 3), (4, 2)] {
        let faults = ["--loss", "2%", "--corrupt", "1%", "--seed", "11"];
        job!(ranks, hosts, "all").args(&faults).run().assert_success();
    }
}

#[test]
fn who_has_another_type_or_root_is_named_on_every_rank() {
    for (ranks, hosts) in [(3, 1), (4, 2)] {
        for (index, collective) in COLLECTIVES.into_iter().enumerate() {
            for how in if collective.has_root() { &["dtype", "root"][..] } else { &["dtype"] } {
                for culprit in 0..ranks {
                    let most = [7, 3000][(culprit as usize + index) % 2];
                    let job = job!(ranks, hosts, "other").with("COLLECTIVE", index).with("CULPRIT", culprit);
                    let state = job.with("MOST", most).with("HOW", how).run();
                    // Between hosts, ranks with different roots differ in the exchange of the counts.
                    let what = if hosts == 1 { collective.to_string() } else { String::new() };
                    let runs = format!("rank {culprit}: it runs {what}");
                    for rank in &state.ranks {
                        let error = rank.error();
                        let is_named = error.contains(&runs) && error.contains(&collective.to_string());
                        assert!(is_named, "{collective}, {how}, {culprit}: {error}\n{state}");
                        assert_eq!(rank.code, Some(MISMATCH), "{state}");
                    }
                }
            }
        }
    }
}

#[test]
fn counts_that_differ_are_named_on_every_rank_whoever_is_the_culprit() {
    for (ranks, hosts) in [(3, 1), (3, 3), (4, 2)] {
        for (index, collective) in COLLECTIVES.into_iter().enumerate() {
            for culprit in 0..ranks {
                let (most, other) = ([7, 3000][(culprit % 2) as usize], (culprit + 1) % ranks);
                // The text of the error, by the culprit's difference.
                let (how, of, said) = match collective {
                    Collective::AllToAllV if culprit == 0 => {
                        let sends = format!("rank {other} sends {most} elements to rank {culprit}");
                        ("takes", 0, [sends, format!("rank {culprit} expects {}", most + 2)])
                    }
                    Collective::AllToAllV => {
                        let sends = format!("rank {culprit} sends {} elements to rank {other}", most + 2);
                        ("gives", 0, [sends, format!("rank {other} expects {most} from rank {culprit}")])
                    }
                    // The root is rank 0: another count of its own would be a wrong argument.
                    Collective::GatherV | Collective::ScatterV if culprit == 0 => {
                        let counts = if collective == Collective::GatherV {
                            [most, most + 2]
                        } else {
                            [most + 2, most]
                        };
                        let [sent, expected] = counts;
                        (
                            "knows",
                            other,
                            [format!("sends {sent} elements"), format!("expects {expected} from")],
                        )
                    }
                    Collective::GatherV => {
                        let sends = format!("rank {culprit} sends {} elements to rank 0", most + 2);
                        ("own", culprit, [sends, format!("rank 0 expects {most} from rank {culprit}")])
                    }
                    Collective::ScatterV => {
                        let sends = format!("rank 0 sends {most} elements to rank {culprit}");
                        ("own", culprit, [sends, format!("rank {culprit} expects {} from", most + 2)])
                    }
                    _ if ranks == 3 && culprit == 1 => {
                        ("shifted", 0, ["counts of digest".into(), format!("rank {culprit}")])
                    }
                    _ => ("knows", other, ["counts of digest".into(), format!("rank {culprit}")]),
                };
                let job = job!(ranks, hosts, "mismatch").with("COLLECTIVE", index).with("CULPRIT", culprit);
                let job = job.with("STARTED", (culprit + index as u32) % 2);
                let state = job.with("MOST", most).with("HOW", how).with("OF", of).run();
                for rank in &state.ranks {
                    let error = rank.error();
                    let right = said.iter().all(|words| error.contains(words));
                    assert!(right, "{collective}, {how}, culprit {culprit}: {error}\n{state}");
                    assert_eq!(rank.code, Some(MISMATCH), "{state}");
                    let goes_on = collective.has_root() || collective == Collective::AllToAllV;
                    assert!(
                        !goes_on || rank.told.iter().any(|told| told == "went on true"),
                        "{collective}\n{state}"
                    );
                }
            }
        }
    }
}

/// A rank whose own counts are wrong sees them first, three pairs are named, and the others are counted.
#[test]
fn of_many_counts_that_differ_some_are_named() {
    for (ranks, hosts) in [(6, 1), (6, 3), (5, 5)] {
        let of_pairs = COLLECTIVES.iter().position(|one| *one == Collective::AllToAllV).unwrap();
        let job = job!(ranks, hosts, "mismatch").with("COLLECTIVE", of_pairs).with("CULPRIT", 1);
        let state = job.with("STARTED", 0).with("MOST", 7).with("HOW", "gives all").with("OF", 0).run();
        let more = format!("and {} more pairs differ", ranks - 1 - 3);
        for (own, rank) in state.ranks.iter().enumerate() {
            let error = rank.error();
            let first = if own == 1 { 0 } else { own };
            let first =
                format!("rank 1 sends 9 elements to rank {first} and rank {first} expects 7 from rank 1");
            assert!(
                error.contains(&format!("was not started: {first}; ")) && error.contains(&more),
                "{error}\n{state}"
            );
            assert!(rank.told.iter().any(|told| told == "went on true"), "{state}");
        }
    }
}

#[test]
fn a_rank_that_dies_is_named_by_all_others() {
    for (ranks, hosts) in [(3, 1), (3, 3)] {
        for (index, collective) in COLLECTIVES.into_iter().enumerate() {
            // Blocks that travel with their counts, on one host, and longer ones.
            for (most, culprit) in
                [1, 1000].into_iter().flat_map(|most| (0..ranks as usize).map(move |c| (most, c)))
            {
                let job = job!(ranks, hosts, "die").with("CULPRIT", culprit).with("MOST", most);
                let started = (index + culprit + hosts as usize) % 2;
                let job = job.with("STARTED", started).with("COLLECTIVE", index).start();
                job.until("all have begun", crate::ranks::LIMIT, |state| state.all_told("begun"));
                job.signal(culprit as u32, "KILL");
                let state = job.finish();
                for (rank, survivor) in state.ranks.iter().enumerate().filter(|(rank, _)| *rank != culprit) {
                    let error = survivor.error();
                    let named =
                        error.contains(&format!("rank {culprit}")) && error.contains(collective.name());
                    assert!(named, "{collective}: rank {rank} of {ranks} on {hosts} hosts\n{state}");
                }
            }
        }
    }
}
