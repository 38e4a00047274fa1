//! Collectives with a count for each rank that are registered once and pushed in each step, between real processes: in place and apart, in
//! layouts, from every root, with zero and large counts; and counts on which ranks disagree.

#![allow(unsafe_code)]

use crate::ranks::{Play, job, join, play, tell};
use crate::uneven::{COLLECTIVES, Case, GUARD, MOST, case, counts};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use shouter::{
    BlockCounts, Collective, DType, Error, Group, Layout, Lend, LendError, Lent, ReduceOp, Staging, TensorId,
    TensorSpec, Work,
};

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    let plays: &[(&str, Play)] = &[
        ("steps", |group| of_all_and_some(group, steps)),
        ("lent", |group| of_all_and_some(group, lent)),
        ("wrong", |group| of_all_and_some(group, wrong)),
        ("mismatch", |group| of_all_and_some(group, mismatch)),
        ("many", many),
    ];
    play(plays, join);
}

/// Plays it in the group of all, in one with other numbers, and in one of some ranks.
fn of_all_and_some(group: &Group, play: Play) -> Result<(), Error> {
    play(group)?;
    play(&group.group(&(0..group.size()).rev().collect::<Vec<_>>())?)?;
    let halves = group.split(Some(u32::from(group.rank() == 0)), 0)?.expect("every rank has a color");
    play(&halves)?;
    group.barrier()
}

/// The specification of a case; `counts` are those of each rank, or of each pair of ranks.
pub(crate) fn spec(case: &Case, name: String, counts: &[usize]) -> TensorSpec {
    let words = |counts: &[usize]| counts.iter().map(|&count| count as u64).collect::<Vec<_>>();
    let &Case { collective, dtype, op, root, ref given, ref taken, .. } = case;
    let counts = match collective {
        Collective::AllToAllV => BlockCounts::OfPairs { given: words(given), taken: words(taken) },
        _ => BlockCounts::OfRanks(words(counts)),
    };
    TensorSpec { name, collective, dtype, count: 0, op, root, counts }
}

/// The memory of a push.
struct Pushed {
    given: Vec<u8>,
    result: Vec<u8>,
    /// Where the output is in the result, and the bytes from one element to the next.
    at: usize,
    stride: usize,
}

impl Pushed {
    /// Starts the operation: in place, in layouts, or apart.
    fn start(group: &Group, case: &Case, id: TensorId, how: u32) -> Result<(Self, Work), Error> {
        let (size, Case { input, output, .. }) = (case.dtype.size(), case);
        if let (1, Some((from, into))) = (how, case.at) {
            let mut data = vec![GUARD; (from + input.len()).max(into + output.len())];
            data[from..from + input.len()].copy_from_slice(input);
            let mut pushed = Self { given: vec![], result: data, at: into, stride: size };
            // SAFETY: as long as the counts say, and left alone until the wait.
            let work = unsafe { group.push(id, pushed.result.as_mut_ptr()) }?;
            return Ok((pushed, work));
        }
        let stride = if how == 2 { 2 * size } else { size };
        let spread = |bytes: &[u8]| -> Vec<u8> {
            bytes.chunks(size).flat_map(|one| [one, &vec![GUARD; stride - size][..]].concat()).collect()
        };
        let layout =
            |bytes: &[u8]| (how == 2).then_some(Layout { count: bytes.len() / size, block: 1, stride: 2 });
        let staging = Staging { input: layout(input), output: layout(output), ..Staging::default() };
        let result = vec![GUARD; output.len() / size * stride + 8];
        let mut pushed = Self { given: spread(input), result, at: 0, stride };
        let (input, output) = (pushed.given.as_ptr(), pushed.result.as_mut_ptr());
        // SAFETY: as above.
        let work = unsafe { group.push_staged(id, input, output, &staging) }?;
        Ok((pushed, work))
    }

    fn check(&self, case: &Case, what: &str) {
        let (size, output) = (case.dtype.size(), &case.output);
        let found = self.result[self.at..].chunks(self.stride);
        for (found, right) in found.zip(output.chunks(size)) {
            assert!(found[..size] == *right, "{what}");
            assert!(found[size..].iter().all(|&byte| byte == GUARD), "{what} wrote between its blocks");
        }
        if !self.given.is_empty() {
            let end = output.len() / size * self.stride;
            assert!(self.result[end..].iter().all(|&byte| byte == GUARD), "{what} wrote behind its output");
        }
    }
}

/// Every collective from every root, under way at once, in several steps between other operations.
fn steps(group: &Group) -> Result<(), Error> {
    let ranks = group.size() as usize;
    // The counts are the same on all ranks; the places of inputs and their layouts are each rank's own choice.
    let (mut shared, mut own) = (SmallRng::seed_from_u64(5), SmallRng::seed_from_u64(group.rank().into()));
    let (mut cases, mut specs) = (vec![], vec![]);
    for (most, collective) in MOST.into_iter().flat_map(|most| COLLECTIVES.map(|each| (most, each))) {
        let roots = if collective.has_root() { group.size() } else { 1 };
        for root in 0..roots {
            let dtype = [DType::F32, DType::I8, DType::U64][cases.len() % 3];
            let op = if collective.reduces() {
                [ReduceOp::Sum, ReduceOp::Max][cases.len() % 2]
            } else {
                ReduceOp::Sum
            };
            let counts = counts(&mut shared, ranks, collective == Collective::AllToAllV, most);
            let case = case(group, collective, &counts, dtype, op, root);
            specs.push(spec(&case, format!("{collective}.{}", cases.len()), &counts));
            cases.push(case);
        }
    }
    // An all-reduce among them.
    specs.push(TensorSpec::all_reduce("even", DType::U32, 1, ReduceOp::Sum));
    let ids = group.register(&specs)?;
    for step in 0..4 {
        group.set_step(step);
        let mut pushed = vec![];
        for (case, id) in cases.iter().zip(&ids) {
            pushed.push(Pushed::start(group, case, *id, own.random_range(0..3))?);
        }
        let even = group.lend(*ids.last().unwrap(), vec![1u32]).map_err(Error::from)?;
        for (at, (_, work)) in pushed.iter().enumerate().rev() {
            assert!(work.wait(Some(crate::ranks::LIMIT)).is_ok(), "{}", specs[at]);
        }
        for (case, ((pushed, _), spec)) in cases.iter().zip(pushed.iter().zip(&specs)) {
            pushed.check(case, &format!("{spec} in step {step}"));
        }
        assert_eq!(even.wait().map_err(Error::from)?, [group.size()]);
    }
    Ok(())
}

/// The buffers after the operation.
fn back<B: Lend>(lent: Result<Lent<&Group, B>, LendError<B>>) -> Result<B, Error> {
    lent.map_err(Error::from)?.wait().map_err(Error::from)
}

/// Lent buffers, two and one, and those that do not fit.
fn lent(group: &Group) -> Result<(), Error> {
    let (ranks, me) = (group.size() as usize, group.rank() as usize);
    let counts: Vec<u64> = (0..ranks as u64).collect();
    let shards: Vec<u32> = (0..ranks as u32).flat_map(|rank| vec![rank; rank as usize]).collect();
    // What a rank gives to each is not what it takes, unless all have one number.
    let (given, taken) = (vec![me as u64; ranks], counts.clone());
    let swap: Vec<u64> = (0..ranks).map(|other| (me + other) as u64).collect();
    let ids = group.register(&[
        TensorSpec::all_gather_v("shards", DType::U32, counts.clone()),
        TensorSpec::reduce_scatter_v("sums", DType::U32, counts, ReduceOp::Sum),
        TensorSpec::all_to_all_v("tokens", DType::U32, given.clone(), taken),
        TensorSpec::all_to_all_v("swap", DType::U32, swap.clone(), swap.clone()),
    ])?;
    let start = shards.iter().position(|rank| *rank as usize == me).unwrap_or(0);
    for _ in 0..3 {
        let gathered = group.lend(ids[0], (vec![me as u32; me], vec![9; shards.len()]));
        let mut own = vec![9; shards.len()];
        own[start..start + me].fill(me as u32);
        let in_place = group.lend(ids[0], own);
        let sums = group.lend(ids[1], (shards.clone(), vec![9; me]));
        let tokens = group.lend(ids[2], (vec![me as u32; me * ranks], vec![9; shards.len()]));
        let swapped = group.lend(ids[3], vec![me as u32; swap.iter().sum::<u64>() as usize]);
        assert_eq!(back(gathered)?.1, shards);
        assert_eq!(back(in_place)?, shards);
        let sums = back(sums)?.1;
        assert_eq!(sums, vec![(me * ranks) as u32; me]);
        assert_eq!(back(tokens)?.1, shards);
        let each = (0..ranks as u32).flat_map(|from| vec![from; from as usize + me]);
        assert_eq!(back(swapped)?, each.collect::<Vec<_>>());
    }
    if me > 0 {
        let why = group.lend(ids[0], (vec![0u32; me + 1], vec![0u32; shards.len()])).unwrap_err();
        assert!(why.data.is_some() && why.to_string().contains("to give and"), "{why}");
    }
    let gives: u64 = given.iter().sum();
    if gives > 0 && !shards.is_empty() && given != (0..ranks as u64).collect::<Vec<_>>() {
        let room = (gives as usize).max(shards.len());
        let why = group.lend(ids[2], vec![0u32; room]).unwrap_err();
        assert!(why.data.is_some() && why.to_string().contains("other counts than it takes"), "{why}");
    }
    group.barrier()
}

/// Specifications that cannot be are refused by this rank alone, and nothing is registered.
fn wrong(group: &Group) -> Result<(), Error> {
    let ranks = group.size() as usize;
    let counts = || vec![1u64; ranks];
    let good = TensorSpec::all_gather_v("t", DType::F32, counts());
    let pairs = TensorSpec::all_to_all_v("t", DType::F32, counts(), counts());
    let with = |counts| TensorSpec { counts, ..good.clone() };
    let refused = [
        (with(BlockCounts::None), "BlockCounts::OfRanks"),
        (with(pairs.counts.clone()), "BlockCounts::OfRanks"),
        (TensorSpec { counts: good.counts.clone(), ..pairs.clone() }, "BlockCounts::OfPairs"),
        (TensorSpec { counts: BlockCounts::None, ..pairs.clone() }, "BlockCounts::OfPairs"),
        (TensorSpec { collective: Collective::AllGather, ..good.clone() }, "BlockCounts::None"),
        (TensorSpec { count: 3, ..good.clone() }, "give 0"),
        (with(BlockCounts::OfRanks(vec![1; ranks + 1])), "one for each"),
        (with(BlockCounts::OfRanks(vec![u64::MAX; ranks])), "split it"),
        (TensorSpec::gather_v("t", DType::F32, counts(), group.size()), "no rank"),
        (TensorSpec::reduce_scatter_v("t", DType::F32, counts(), ReduceOp::Band), "there is no"),
        (TensorSpec::all_to_all_v("t", DType::F32, vec![], counts()), "of given elements"),
        (TensorSpec::all_to_all_v("t", DType::F32, counts(), vec![1 << 48; ranks]), "split it"),
    ];
    for (spec, with) in refused {
        let error = group.register(std::slice::from_ref(&spec)).unwrap_err();
        let is_right = matches!(&error, Error::Argument(why) if why.contains(with) && why.contains("\"t\""));
        assert!(is_right, "{spec:?}: {error}");
    }
    assert_eq!(group.register(&[good, TensorSpec { name: "p".into(), ..pairs }])?[0].0, 0);
    Ok(())
}

/// Each rank in turn has other counts than the others: all are told which, nothing is registered, and the group goes on.
fn mismatch(group: &Group) -> Result<(), Error> {
    let (ranks, me, most) = (group.size() as usize, group.rank() as usize, 7usize);
    if ranks == 1 {
        return Ok(());
    }
    let mut registered = 0;
    for (culprit, collective) in (0..ranks).flat_map(|culprit| COLLECTIVES.map(|each| (culprit, each))) {
        let to = (culprit + 1) % ranks;
        let pairs = collective == Collective::AllToAllV;
        let agreed = vec![most; if pairs { ranks * ranks } else { ranks }];
        let mut odd = agreed.clone();
        if me == culprit {
            odd[if pairs { me * ranks + to } else { 0 }] += 2;
        }
        let registering = |counts: &[usize]| {
            let case = case(group, collective, counts, DType::F32, ReduceOp::Sum, 0);
            // One that is right comes before it.
            let right = TensorSpec::all_reduce("right", DType::F32, 4, ReduceOp::Sum);
            let ids = group.register(&[right, spec(&case, "odd".into(), counts)]);
            ids.map(|ids| (case, ids))
        };
        let error = registering(&odd).map(|(_, ids)| ids).unwrap_err();
        let (ours, theirs) = (error.rank(), error.tensor().map(|tensor| (tensor.id.0, tensor.name.clone())));
        let is_named = theirs == Some((registered + 1, "odd".to_owned()));
        let text = error.to_string();
        let said = match pairs {
            true => [
                format!("rank {culprit} sends 9 elements to rank {to}"),
                format!("rank {to} expects 7 from rank {culprit}"),
            ],
            false => ["with 9 of rank 0".to_owned(), "with 7 of rank 0".to_owned()],
        };
        // The culprit is shown the first other rank whose table differs.
        let others = if pairs { to } else { usize::from(culprit == 0) };
        let other = Some(if me == culprit { others } else { culprit } as u32);
        let is_mismatch =
            matches!(error, Error::Mismatch { .. }) && said.iter().all(|words| text.contains(words));
        assert!(is_mismatch && is_named && ours == other, "{collective}, culprit {culprit}: {error:?}");
        group.barrier()?;
        // The same names again, with the counts of all.
        let (case, ids) = registering(&agreed)?;
        assert_eq!(ids[1].0, registered + 1, "nothing was registered");
        registered += 2;
        for _ in 0..2 {
            let (pushed, work) = Pushed::start(group, &case, ids[1], 0)?;
            work.wait(None)?;
            pushed.check(&case, collective.name());
        }
    }
    tell("went on");
    Ok(())
}

/// Of many counts that differ a view shows some.
fn many(group: &Group) -> Result<(), Error> {
    let shift = u64::from(group.rank() == 0);
    let spec = TensorSpec::all_gather_v("many", DType::F32, vec![5 + shift; group.size() as usize]);
    let error = group.register(&[spec]).unwrap_err();
    let more = group.size() - 3;
    let said = format!("6 of rank 0, 6 of rank 1, 6 of rank 2, {more} more that differ");
    assert!(error.to_string().contains(&said), "{error}");
    group.barrier()
}

const TOPOLOGIES: [(u32, u32); 4] = [(1, 1), (3, 1), (4, 2), (3, 3)];

#[test]
fn blocks_that_differ_are_registered_once_and_exact_in_each_step() {
    for (ranks, hosts) in TOPOLOGIES {
        job!(ranks, hosts, "steps").run().assert_success();
    }
    job!(4, 2, "steps").env("SHOUTER_TRANSPORT", "tcp").run().assert_success();
    job!(3, 1, "steps").env("SHOUTER_MODE", "dedicated").run().assert_success();
}

#[test]
fn their_buffers_are_lent() {
    for (ranks, hosts) in TOPOLOGIES {
        job!(ranks, hosts, "lent").run().assert_success();
    }
}

#[test]
fn counts_that_cannot_be_are_refused_and_change_nothing() {
    for (ranks, hosts) in [(1, 1), (3, 1), (2, 2)] {
        job!(ranks, hosts, "wrong").run().assert_success();
    }
}

#[test]
fn counts_that_differ_are_named_on_every_rank_and_nothing_is_registered() {
    for (ranks, hosts) in [(3, 1), (4, 2), (3, 3)] {
        let state = job!(ranks, hosts, "mismatch").run();
        state.assert_success();
        assert!(state.all_told("went on"), "{state}");
    }
    job!(5, 1, "many").run().assert_success();
}
