use super::*;
use std::fs;

/// A made-up root directory, removed at the end.
struct Root(PathBuf);

impl Root {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let root = std::env::temp_dir().join(format!("shouter-cores-{}-{name}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(root)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn v2_takes_the_tightest_limit_on_the_way_up() {
    let root = Root::new(
        "v2",
        &[
            ("proc/self/cgroup", "0::/jobs/train\n"),
            ("sys/fs/cgroup/jobs/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/jobs/train/cpu.max", "max 100000\n"),
        ],
    );
    assert_eq!(quota_below(&root.0), Some(CpuQuota { millicores: 1500 }));
}

#[test]
fn v1_reads_quota_and_period() {
    let root = Root::new(
        "v1",
        &[
            ("proc/self/cgroup", "5:memory:/\n2:cpu,cpuacct:/docker/0123\n0::/\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
        ],
    );
    assert_eq!(quota_below(&root.0), Some(CpuQuota { millicores: 500 }));
}

#[test]
fn no_limit_and_nonsense_are_no_quota() {
    let free =
        Root::new("free", &[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/cpu.max", "max 100000\n")]);
    assert_eq!(quota_below(&free.0), None);
    let bad =
        Root::new("bad", &[("proc/self/cgroup", "0::/../..\n::\n\nx"), ("sys/fs/cgroup/cpu.max", "1 0")]);
    assert_eq!(quota_below(&bad.0), None);
    assert_eq!(CpuQuota::from_ratio(-1, 100_000), None);
    assert_eq!(CpuQuota::from_ratio(i64::MAX, 1), None);
}

#[test]
fn whole_cores_round_the_quota_down() {
    let allowance = |cores: usize, quota: Option<u64>| CoreAllowance {
        cores: (0..cores).collect(),
        quota: quota.map(|millicores| CpuQuota { millicores }),
    };
    assert_eq!(allowance(4, None).whole_cores(), 4);
    assert_eq!(allowance(64, Some(1500)).whole_cores(), 1);
    assert_eq!(allowance(64, Some(900)).whole_cores(), 0);
    assert_eq!(allowance(2, Some(64_000)).whole_cores(), 2);
}

#[test]
fn this_process_may_use_at_least_one_core() {
    assert!(!CoreAllowance::detect().cores.is_empty());
}
