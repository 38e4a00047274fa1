//! Slurm's variables of a step, as srun(1) describes them.

use super::Environment;

/// The first port that is used.
const FIRST_PORT: u64 = 10_000;
/// The number of ports: they end below those that Linux gives to connections.
const PORTS: u64 = 20_000;

/// The tasks on this host, from a list such as `2(x3),1`: two on each of three hosts, one on the next.
pub(super) fn tasks_here(environment: &Environment) -> Option<u32> {
    let mut node: usize = environment.get("SLURM_NODEID").unwrap_or("0").parse().ok()?;
    for part in environment.get("SLURM_STEP_TASKS_PER_NODE")?.split(',') {
        let (tasks, hosts) = match part.split_once("(x") {
            Some((tasks, hosts)) => (tasks, hosts.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        if node < hosts {
            return tasks.trim().parse().ok();
        }
        node -= hosts;
    }
    None
}

/// The first host of the step, where rank 0 runs, and the variable that says it.
pub(super) fn first_host(environment: &Environment) -> Option<(&'static str, String)> {
    let lists = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"];
    let (variable, list) = lists.into_iter().find_map(|name| Some((name, environment.get(name)?)))?;
    Some((variable, first_of(list)?))
}

/// The first name of a list such as `n[01-04,9]-ib,login`.
fn first_of(list: &str) -> Option<String> {
    let mut name = String::new();
    let mut rest = list;
    loop {
        let end = rest.find([',', '[']).unwrap_or(rest.len());
        name += &rest[..end];
        match rest[end..].strip_prefix('[') {
            Some(inside) => {
                let (inside, after) = inside.split_once(']')?;
                name += inside.split([',', '-']).next()?;
                rest = after;
            }
            None => return Some(name).filter(|name| !name.is_empty()),
        }
    }
}

/// A port of the step's own, the same on every rank.
pub(super) fn port(environment: &Environment) -> Option<u16> {
    let number = |name| environment.get(name)?.parse::<u32>().ok();
    let (job, step) = (number("SLURM_JOB_ID")?, number("SLURM_STEP_ID")?);
    let port = FIRST_PORT + (u64::from(job) * 31 + u64::from(step)) % PORTS;
    u16::try_from(port).ok()
}

/// The step as the job's name.
pub(super) fn job(environment: &Environment) -> Option<String> {
    Some(format!("slurm-{}.{}", environment.get("SLURM_JOB_ID")?, environment.get("SLURM_STEP_ID")?))
}

#[cfg(test)]
mod tests {
    use super::first_of;

    #[test]
    fn a_list_of_hosts_begins_with_the_first_of_its_first_range() {
        let all = [
            ("one", "one"),
            ("n[01-04,9],login", "n01"),
            ("n[7,9]", "n7"),
            ("rack[2-3]-n[10-11],x", "rack2-n10"),
            ("a-b,c[1-2]", "a-b"),
            ("n[3-4]-ib", "n3-ib"),
        ];
        for (list, first) in all {
            assert_eq!(first_of(list).as_deref(), Some(first), "{list}");
        }
        assert_eq!(first_of("n[1-2"), None);
        assert_eq!(first_of(""), None);
    }
}
