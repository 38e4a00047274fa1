//! How much CPU this process may use: its affinity mask, and the quota of its cgroup.
//!
//! A container limited to 1.5 CPUs may still see 64 cores. A process that spins on two of them spends the quota of a
//! period early and is then stopped for the rest of it, so the quota counts as much as the mask.

use std::path::{Path, PathBuf};

/// A cgroup's CPU bandwidth limit, in thousandths of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuQuota {
    /// Thousandths of a CPU: 1500 is one and a half.
    pub millicores: u64,
}

impl CpuQuota {
    /// From a quota and a period, both in microseconds; `None` if there is no limit or the values make no sense.
    fn from_ratio(quota: i64, period: i64) -> Option<Self> {
        let (quota, period) = (u64::try_from(quota).ok()?, u64::try_from(period).ok()?);
        Some(Self { millicores: quota.checked_mul(1000)?.checked_div(period)? })
    }

    /// Parses cgroup v2's `cpu.max`: `"max 100000"` or `"150000 100000"`.
    fn parse_v2(text: &str) -> Option<Self> {
        let mut fields = text.split_ascii_whitespace();
        let quota = fields.next()?.parse().ok()?;
        let period = fields.next().map_or(Some(100_000), |p| p.parse().ok())?;
        Self::from_ratio(quota, period)
    }
}

/// The CPUs that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreAllowance {
    /// The cores of the calling thread's affinity mask, ascending.
    pub cores: Vec<usize>,
    /// The tightest CPU limit of the process's cgroup and those above it.
    pub quota: Option<CpuQuota>,
}

impl CoreAllowance {
    /// Asks the kernel. The mask is the calling thread's, so ask before pinning.
    pub fn detect() -> Self {
        let mut cores: Vec<usize> =
            core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect();
        cores.sort_unstable();
        Self { cores, quota: quota_below(Path::new("/")) }
    }

    /// Cores that can be kept busy all the time: the mask, limited by the quota rounded down. Zero when the quota
    /// is less than one CPU: then nobody should spin.
    pub fn whole_cores(&self) -> usize {
        let quota =
            self.quota.map_or(usize::MAX, |q| usize::try_from(q.millicores / 1000).unwrap_or(usize::MAX));
        self.cores.len().min(quota)
    }
}

/// The tightest quota for this process, with files looked up below `root` (a real root, or a test's).
fn quota_below(root: &Path) -> Option<CpuQuota> {
    let membership = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    membership.lines().filter_map(|line| quota_of_hierarchy(root, line)).min()
}

/// `line` is of /proc/self/cgroup: `hierarchy:controllers:path`; v2 is hierarchy 0 without controllers.
fn quota_of_hierarchy(root: &Path, line: &str) -> Option<CpuQuota> {
    let mut fields = line.splitn(3, ':');
    let (hierarchy, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    if hierarchy == "0" && controllers.is_empty() {
        tightest(&root.join("sys/fs/cgroup"), path, |dir| {
            CpuQuota::parse_v2(&std::fs::read_to_string(dir.join("cpu.max")).ok()?)
        })
    } else if controllers.split(',').any(|c| c == "cpu") {
        let mount = ["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/cpuacct,cpu"]
            .iter()
            .map(|m| root.join(m))
            .find(|m| m.is_dir())?;
        tightest(&mount, path, |dir| {
            let read = |name: &str| std::fs::read_to_string(dir.join(name)).ok()?.trim().parse::<i64>().ok();
            CpuQuota::from_ratio(read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?)
        })
    } else {
        None
    }
}

/// The smallest limit on the way from the process's group up to the mount. Inside a container the path in /proc may
/// not exist below the mount; then the mount itself is the container's group.
fn tightest(mount: &Path, path: &str, read: impl Fn(&Path) -> Option<CpuQuota>) -> Option<CpuQuota> {
    let mut dir: PathBuf = mount.join(path.trim_start_matches('/'));
    let mut found = None;
    loop {
        found = match (found, read(&dir)) {
            (Some(a), Some(b)) => Some(std::cmp::min::<CpuQuota>(a, b)),
            (a, b) => a.or(b),
        };
        if dir == mount || !dir.pop() || !dir.starts_with(mount) {
            return found;
        }
    }
}

#[cfg(test)]
mod tests;
