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
