use super::numbers::{Inputs, Number};
use super::*;

fn usage(result: Result<(), CommandError>) -> String {
    match result {
        Err(CommandError::Usage(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn args(dtype: &str, against: Vec<Peer>) -> CollectiveArgs {
    let job = JobArgs {
        ranks: 2,
        hosts: 1,
        threads: false,
        transport: "auto".into(),
        rdma_device: None,
        shards: None,
        device: "virtio".into(),
        mtu: 9000,
        seconds: 0.1,
        rounds: None,
        against,
        json: true,
    };
    let data = DataArgs { bytes: Some(Sizes(vec![8])), dtype: dtype.into(), memory: vec!["shared".into()] };
    CollectiveArgs { job, data }
}

#[test]
fn sizes_are_whole_numbers_of_elements() {
    let sizes = |text: &str| text.parse::<Sizes>().unwrap();
    assert!(whole(&sizes("1..4Mi"), "u8", 1).is_ok());
    assert!(whole(&sizes("4..4Mi"), "f32", 1).is_ok());
    assert!(usage(whole(&sizes("1..4Mi"), "f32", 1)).contains("--dtype u8"));
    assert!(usage(whole(&sizes("4,12"), "f64", 1)).contains("--bytes 4 "));
    assert!(whole(&sizes("12,24"), "f32", 3).is_ok());
    assert!(usage(whole(&sizes("12,16"), "f32", 3)).contains("multiples of 12"));
}

/// The peers sum float32: every default size is one that all of them take.
#[test]
fn usual_sizes_go_with_any_number_of_ranks() {
    for collective in workload::MEASURED.into_iter().filter(|one| *one != Collective::Barrier) {
        for ranks in 1..=9 {
            let mut args = args("f32", vec![]);
            args.job.ranks = ranks;
            args.data.bytes = None;
            let sizes = check(collective, &args).unwrap().0;
            assert!(sizes.len() > 10 && sizes.iter().all(|bytes| *bytes <= 64 << 20), "{sizes:?}");
            assert_eq!(
                sizes[0],
                if collective.base() == Collective::ReduceScatter { 4 * u64::from(ranks) } else { 4 }
            );
        }
    }
    assert_eq!(args("f32", vec![]).data.sizes(Collective::AllReduce, 2).0, [8]);
}

#[test]
fn sums_of_inputs_are_what_the_library_is_to_return() {
    fn exactly<T: Number + std::ops::Add<Output = T> + std::fmt::Debug>(ranks: u32) {
        let inputs = Inputs { summands: ranks, round: 5 };
        for index in 0..3000 {
            // In any order, and by parts: no partial sum is rounded.
            let sum = |ranks_of: std::ops::Range<u32>| {
                ranks_of.map(|rank| inputs.of::<T>(rank, index)).fold(T::default(), |sum, one| sum + one)
            };
            assert_eq!(sum(0..ranks), inputs.sum::<T>(ranks, index));
            assert_eq!(sum(0..ranks / 2), inputs.sum::<T>(ranks / 2, index));
            assert_eq!(sum(ranks / 2..ranks) + sum(0..ranks / 2), inputs.sum::<T>(ranks, index));
        }
        assert!((0..3000).any(|index| inputs.of::<T>(1, index) != T::default()));
    }
    exactly::<shouter::f16>(2);
    exactly::<shouter::f16>(1024);
    exactly::<shouter::bf16>(2);
    exactly::<shouter::bf16>(128);
    exactly::<f32>(4096);
    let inputs = Inputs { summands: 40, round: 5 };
    for index in 0..3000 {
        let bytes = (0..40).fold(0u8, |sum, rank| sum.wrapping_add(inputs.of(rank, index)));
        assert_eq!(bytes, inputs.sum::<u8>(40, index));
    }
    assert!(exact(128, "bf16").is_ok() && exact(4096, "f32").is_ok() && exact(4096, "u8").is_ok());
    assert!(usage(exact(129, "bf16")).contains("128"));
}

#[test]
fn peers_are_measured_with_their_own_type_only() {
    let check = |args: &CollectiveArgs| check(Collective::AllReduce, args).map(|_| ());
    assert!(check(&args("u8", vec![])).is_ok());
    assert!(check(&args("f32", vec![Peer::Gloo])).is_ok());
    assert!(usage(check(&args("u8", vec![Peer::Gloo]))).contains("--dtype"));
    let mut threads = args("u8", vec![]);
    threads.job.threads = true;
    assert!(check(&threads).is_ok());
    threads.job.hosts = 2;
    assert!(usage(check(&threads)).contains("--threads"));
    threads.job.hosts = 3;
    assert!(usage(check(&threads)).contains("2 ranks cannot fill 3 hosts"));
}

#[test]
fn what_only_some_collectives_take_is_refused_of_others() {
    let mut gpu = args("f32", vec![]);
    gpu.data.memory = vec!["private".into(), "gpu".into()];
    assert!(check(Collective::AllReduce, &gpu).is_ok());
    assert!(usage(check(Collective::Gather, &gpu).map(|_| ())).contains("allreduce only"));
    // Sums of bfloat16 are exact over few ranks only; collectives without a sum have no such limit.
    let mut many = args("bf16", vec![]);
    many.job.ranks = 129;
    many.data.bytes = Some(Sizes(vec![258]));
    assert!(usage(check(Collective::ReduceScatter, &many).map(|_| ())).contains("128"));
    assert!(check(Collective::AllGather, &many).is_ok());
}

#[test]
fn every_type_is_measured_and_sums_that_there_are_not_are_refused() {
    assert_eq!(DTYPES.len(), shouter::DType::ALL.len());
    for dtype in shouter::DType::ALL {
        assert!(DTYPES.contains(&dtype.name()), "{dtype}");
        let mut args = args(dtype.name(), vec![]);
        args.data.bytes = Some(Sizes(vec![32]));
        for collective in Collective::ALL.into_iter().filter(|one| *one != Collective::Barrier) {
            match check(collective, &args) {
                Ok(_) => assert!(*dtype != shouter::DType::Bool || !collective.reduces(), "{collective}"),
                Err(CommandError::Usage(why)) => {
                    assert!(
                        *dtype == shouter::DType::Bool && why.contains("there is no sum of bool"),
                        "{why}"
                    );
                }
                Err(why) => panic!("{dtype}: {why}"),
            }
        }
    }
}
