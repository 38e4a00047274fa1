use super::*;
use crate::config::{Builder, Config, StorePlacement};

const KEY: (&str, &str) = ("SHOUTER_KEY", "0123456789012345678901234567890123456789");

fn build(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
    Builder::from_environment(pairs.iter().copied().collect())?.build()
}

fn numbers(config: &Config) -> [u32; 4] {
    [config.rank, config.size, config.local_rank, config.local_size]
}

const OPEN_MPI: [(&str, &str); 6] = [
    ("OMPI_COMM_WORLD_RANK", "2"),
    ("OMPI_COMM_WORLD_SIZE", "4"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("PMIX_NAMESPACE", "1759313921"),
    ("PMIX_RANK", "2"),
];

const HYDRA: [(&str, &str); 5] = [
    ("PMI_RANK", "3"),
    ("PMI_SIZE", "4"),
    ("PMI_FD", "6"),
    ("MPI_LOCALRANKID", "1"),
    ("MPI_LOCALNRANKS", "2"),
];

const SLURM: [(&str, &str); 8] = [
    ("SLURM_PROCID", "5"),
    ("SLURM_STEP_NUM_TASKS", "6"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NODEID", "2"),
    ("SLURM_STEP_TASKS_PER_NODE", "2(x3)"),
    ("SLURM_STEP_NODELIST", "n[07-09]"),
    ("SLURM_JOB_ID", "12"),
    ("SLURM_STEP_ID", "0"),
];

#[test]
fn launchers_with_pmi_need_nothing_else() {
    let mpirun = build(&OPEN_MPI).unwrap();
    assert_eq!((mpirun.rank, mpirun.size, mpirun.key.is_none()), (2, 4, true));
    assert_eq!(
        (mpirun.store, mpirun.launcher_store),
        (Some(StorePlacement::Found), Some(LauncherStore::Pmix))
    );

    // Hydra may have been started by srun, once for each host: its own variables count.
    let hydra = build(&[&HYDRA[..], &SLURM[..]].concat()).unwrap();
    assert_eq!((hydra.rank, hydra.size), (3, 4));
    assert_eq!(hydra.launcher_store, Some(LauncherStore::Pmi1(6)));

    let pmix = [("PMIX_NAMESPACE", "slurm.pmix.12.0"), ("PMIX_RANK", "5")];
    let srun = build(&[&SLURM[..], &pmix[..]].concat()).unwrap();
    assert_eq!((srun.rank, srun.launcher_store), (5, Some(LauncherStore::Pmix)));
}

#[test]
fn keys_come_before_a_launcher() {
    let told = [KEY, ("SHOUTER_PORT", "7000"), ("SHOUTER_ADDR", "head")];
    let mpirun = build(&[&OPEN_MPI[..], &told[..]].concat()).unwrap();
    assert_eq!((mpirun.launcher_store, mpirun.store), (None, None));
    assert_eq!((numbers(&mpirun), &*mpirun.rendezvous.host), ([2, 4, 0, 2], "head"));

    // A job of several within one of its ranks.
    let inner = [
        ("SHOUTER_RANK", "1"),
        ("SHOUTER_SIZE", "2"),
        ("SHOUTER_LOCAL_SIZE", "2"),
        ("SHOUTER_LOCAL_RANK", "1"),
    ];
    let inner = build(&[&HYDRA[..], &inner, &told].concat()).unwrap();
    assert_eq!((numbers(&inner), inner.launcher_store), ([1, 2, 1, 2], None));

    let here = [("SHOUTER_LOCAL_SIZE", "2")];
    let told = build(&[&HYDRA[..], &here[..]].concat()).unwrap();
    assert_eq!((numbers(&told), told.store), ([3, 4, 1, 2], Some(StorePlacement::Given)));
}

#[test]
fn slurm_without_pmi_has_hosts_and_port_but_no_key() {
    let why = build(&SLURM).unwrap_err().to_string();
    assert!(why.contains("`key` is missing") && why.contains("srun --mpi=pmi2"), "{why}");
    let config = build(&[&SLURM[..], &[KEY]].concat()).unwrap();
    assert_eq!(numbers(&config), [5, 6, 1, 2]);
    assert_eq!((&*config.rendezvous.host, config.rendezvous.port), ("n07", 10_372));
    assert_eq!(config.job, "slurm-12.0");
}

#[test]
fn pods_are_hosts_of_one_rank() {
    let pod = ("KUBERNETES_SERVICE_HOST", "10.0.0.1");
    let job =
        [pod, ("JOB_COMPLETION_INDEX", "2"), ("SHOUTER_SIZE", "3"), ("SHOUTER_ADDR", "train-0.train"), KEY];
    let config = build(&job).unwrap();
    assert_eq!((numbers(&config), config.rendezvous.port), ([2, 3, 0, 1], 29_511));
    let why = build(&job[..3]).unwrap_err().to_string();
    assert!(why.contains("`addr` and `key` are missing") && why.contains("headless service"), "{why}");

    let pytorch =
        [pod, ("RANK", "1"), ("WORLD_SIZE", "3"), ("MASTER_ADDR", "train-0"), ("MASTER_PORT", "23456"), KEY];
    let config = build(&pytorch).unwrap();
    assert_eq!((numbers(&config), config.rendezvous.port), ([1, 3, 0, 1], 23_457));
}

#[test]
fn an_attempt_of_torchruns_has_a_name_of_its_own() {
    let variables = |count| {
        let all = [
            ("RANK", "0"),
            ("WORLD_SIZE", "1"),
            ("TORCHELASTIC_RUN_ID", "job"),
            ("TORCHELASTIC_RESTART_COUNT", count),
        ];
        build(&all).unwrap().job
    };
    assert_eq!([variables("0"), variables("2")], ["job", "job.2"]);
}

/// The six settings of a place by hand, in the order in which errors name them.
const BY_HAND: [(&str, &str, &str); 6] = [
    ("size", "SHOUTER_SIZE", "2"),
    ("rank", "SHOUTER_RANK", "1"),
    ("local_size", "SHOUTER_LOCAL_SIZE", "1"),
    ("addr", "SHOUTER_ADDR", "head"),
    ("port", "SHOUTER_PORT", "7000"),
    ("key", KEY.0, KEY.1),
];

/// Whichever of them are given, and whatever a launcher around gives.
fn some_by_hand(which: u32) -> impl Iterator<Item = (bool, (&'static str, &'static str, &'static str))> {
    BY_HAND.into_iter().enumerate().map(move |(at, setting)| (which & (1 << at) != 0, setting))
}

fn variables_of(which: u32) -> Vec<(&'static str, &'static str)> {
    let given = some_by_hand(which).filter(|(is_given, _)| *is_given);
    given.map(|(_, (_, name, value))| (name, value)).collect()
}

#[test]
fn whatever_is_not_given_by_hand_is_named() {
    for which in 0..1 << BY_HAND.len() {
        let missing: Vec<_> = some_by_hand(which).filter(|(is_given, _)| !is_given).collect();
        let built = build(&variables_of(which));
        if missing.is_empty() {
            assert_eq!(numbers(&built.unwrap()), [1, 2, 0, 1]);
            continue;
        }
        let Err(ConfigError::Missing { keys, remedy }) = built else { panic!("{which:06b}: {built:?}") };
        assert_eq!(keys, missing.iter().map(|(_, (key, ..))| *key).collect::<Vec<_>>());
        for (_, (_, name, _)) in missing {
            assert!(remedy.contains(name), "{name}: {remedy}");
        }
    }
}

#[test]
fn whatever_is_not_given_by_hand_comes_from_torchrun() {
    let torchrun = [
        ("RANK", "0"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "master"),
        ("MASTER_PORT", "29500"),
    ];
    for which in 0..1 << BY_HAND.len() {
        let given = |at: u32| which & (1 << at) != 0;
        let built = build(&[&torchrun[..], &variables_of(which)].concat());
        let or = |at, ours: u32, theirs| if given(at) { ours } else { theirs };
        let (size, rank, local_size) = (or(0, 2, 4), or(1, 1, 0), or(2, 1, 2));
        // torchrun's number on the host, 0, is not that of the second rank of a host.
        if [size, rank, local_size] == [2, 1, 2] {
            let why = built.unwrap_err().to_string();
            assert!(why.contains("variable LOCAL_RANK") && why.contains("variable SHOUTER_RANK"), "{why}");
            continue;
        }
        if !given(5) {
            let why = built.unwrap_err();
            assert!(
                matches!(&why, ConfigError::Missing { keys, .. } if *keys == ["key"]),
                "{which:06b}: {why}"
            );
            continue;
        }
        let config = built.unwrap();
        assert_eq!([config.rank, config.size, config.local_size], [rank, size, local_size], "{which:06b}");
        let (host, port) = (&*config.rendezvous.host, config.rendezvous.port);
        assert_eq!(host, if given(3) { "head" } else { "master" });
        assert_eq!(port, if given(4) { 7000 } else { 29_501 });
    }
}

#[test]
fn launchers_are_looked_for_in_the_documented_order() {
    let torchrun = [
        ("RANK", "1"),
        ("LOCAL_RANK", "1"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "a"),
        ("MASTER_PORT", "5"),
        KEY,
    ];
    let kubernetes = [("JOB_COMPLETION_INDEX", "0"), ("SHOUTER_SIZE", "6"), ("SHOUTER_ADDR", "a")];
    let all: [(&[_], u32); 5] =
        [(&torchrun, 1), (&OPEN_MPI[..4], 2), (&HYDRA, 3), (&SLURM, 5), (&kubernetes, 0)];
    for first in 0..all.len() {
        let variables = all[first..].iter().flat_map(|(variables, _)| variables.iter().copied());
        let rank = all[first].1;
        let environment: Environment = variables.collect();
        let launcher = Launcher::of(&environment);
        assert_eq!(environment.get(launcher.names()[0]), Some(&*rank.to_string()), "{launcher:?}");
    }
}

/// What `shouter run` sets, and what launchers set that one of its ranks has started.
const RUN: [(&str, &str); 15] = [
    (OF_RUN, "1"),
    ("SHOUTER_RANK", "0"),
    ("SHOUTER_SIZE", "1"),
    ("SHOUTER_LOCAL_RANK", "0"),
    ("SHOUTER_LOCAL_SIZE", "1"),
    ("SHOUTER_NODE", "0"),
    ("SHOUTER_ADDR", "127.0.0.1"),
    ("SHOUTER_PORT", "7000"),
    ("SHOUTER_JOB", "outer"),
    ("RANK", "0"),
    ("WORLD_SIZE", "1"),
    ("LOCAL_RANK", "0"),
    ("LOCAL_WORLD_SIZE", "1"),
    ("MASTER_ADDR", "127.0.0.1"),
    ("MASTER_PORT", "7001"),
];

#[test]
fn the_innermost_of_nested_launchers_counts() {
    assert_eq!(numbers(&build(&RUN).unwrap()), [0, 1, 0, 1]);

    let torchrun = [
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "inner"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_RUN_ID", "inner"),
        KEY,
    ];
    let config = build(&[&RUN[..], &torchrun].concat()).unwrap();
    assert_eq!((numbers(&config), config.node, &*config.job), ([1, 2, 1, 2], None, "inner"));
    assert_eq!((&*config.rendezvous.host, config.rendezvous.port), ("inner", 29_501));

    for (launcher, rank, size) in [(&OPEN_MPI[..], 2, 4), (&HYDRA, 3, 4), (&SLURM, 5, 6)] {
        let config = build(&[&RUN[..], launcher, &[KEY]].concat()).unwrap();
        assert_eq!((config.rank, config.size, config.node), (rank, size, None));
    }

    // By hand, without `shouter run`, keys come first there, too.
    let config = build(&[&torchrun[..], &RUN[1..]].concat()).unwrap();
    assert_eq!(numbers(&config), [0, 1, 0, 1]);
}

/// A group of some of a job's ranks, or of all in another order, has its own places; one of the job's ranks as they are has the job's.
#[test]
fn a_group_of_other_ranks_has_other_places() {
    let started = [
        KEY,
        ("SHOUTER_RANK", "2"),
        ("SHOUTER_SIZE", "4"),
        ("SHOUTER_LOCAL_RANK", "0"),
        ("SHOUTER_LOCAL_SIZE", "2"),
        ("SHOUTER_NODE", "1"),
        ("SHOUTER_ADDR", "head"),
        ("SHOUTER_PORT", "7000"),
        ("SHOUTER_LEVELS", "2"),
    ];
    let through = |environment: &[(&str, &str)], called: &[(&str, &str)]| {
        let builder = Builder::from_environment(environment.iter().copied().collect()).unwrap();
        let builder = called.iter().try_fold(builder, |builder, (key, value)| builder.set(key, value));
        builder.unwrap().through_store().build().unwrap()
    };
    let place = |config: &Config| (numbers(config), config.node, config.store, config.rendezvous.port);
    let whole = through(&started, &[("rank", "2"), ("size", "4")]);
    assert_eq!(place(&whole), ([2, 4, 0, 2], Some(1), Some(StorePlacement::Given), 7000));
    for (rank, size, numbers) in
        [("1", "2", [1, 2, 0, 1]), ("0", "1", [0, 1, 0, 1]), ("3", "4", [3, 4, 0, 1])]
    {
        let part = through(&started, &[("rank", rank), ("size", size)]);
        assert_eq!(place(&part), (numbers, None, Some(StorePlacement::Found), 0));
        assert_eq!((&*part.rendezvous.host, part.levels == Default::default()), ("", true));
    }
    // What the call gives holds, as does what people have set beside torchrun, for its own ranks.
    let called = through(&started, &[("rank", "1"), ("size", "2"), ("local_size", "2"), ("port", "7001")]);
    assert_eq!(place(&called), ([1, 2, 1, 2], None, Some(StorePlacement::Given), 7001));
    let torchrun = [("RANK", "2"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "4"), ("SHOUTER_LOCAL_SIZE", "2")];
    assert_eq!(numbers(&through(&torchrun, &[("rank", "2"), ("size", "4")])), [2, 4, 0, 2]);
    assert_eq!(numbers(&through(&torchrun, &[("rank", "1"), ("size", "3")])), [1, 3, 0, 1]);
    assert_eq!(numbers(&through(&[started[4]], &[("rank", "1"), ("size", "2")])), [1, 2, 1, 2]);
}
