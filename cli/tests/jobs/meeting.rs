//! Ranks that die while the ranks of a job meet, each of them in turn: all others end in time with an error that names it.

use std::time::Duration;

use crate::ranks::{
    Gates, JOIN, Job, LIMIT, LOST_GROUP, Play, State, await_gate, job, names_only, parameter, play, tell,
};
use shouter::{Error, Group};

/// How long ranks wait for each other at the start.
const DEADLINE: Duration = Duration::from_secs(6);
/// A rank that has arrived and is gone may come back for 5 s; a busy machine may be late.
const IN_TIME: Duration = Duration::from_secs(4);

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    let plays: [(&str, Play); 1] = [("meet", meet)];
    play(&plays, || {
        let own = std::env::var("SHOUTER_RANK").ok();
        let is_held = parameter("HELD").is_some() && parameter("HELD") == own;
        tell(if is_held { "held" } else { "joins" });
        if is_held {
            await_gate("join");
        }
        crate::ranks::join()
    });
}

/// Meets again and again, until a rank is lost.
fn meet(group: &Group) -> Result<(), Error> {
    loop {
        group.barrier()?;
    }
}

/// Every rank of a job on one host and of one on two.
fn each_rank() -> impl Iterator<Item = (u32, u32, u32)> {
    let of = |ranks, hosts| (0..ranks).map(move |victim| (ranks, hosts, victim));
    of(3, 1).chain(of(4, 2))
}

/// Starts a job whose rank `held`, if there is one, waits at a gate before it joins.
fn begun(ranks: u32, hosts: u32, held: Option<u32>, gates: &Gates) -> Job {
    let plan = job!(ranks, hosts, "meet").args(&["--transport", "kernel"]).with("GATES", gates);
    let plan = plan.env("SHOUTER_RENDEZVOUS_DEADLINE", format!("{}s", DEADLINE.as_secs()));
    match held {
        Some(rank) => plan.with("HELD", rank),
        None => plan,
    }
    .start()
}

/// Waits until all ranks join, but for the held ones.
fn all_join(job: &Job) {
    job.until("all join", LIMIT, |state| {
        state.ranks.iter().all(|rank| rank.told.iter().any(|line| line == "joins" || line == "held"))
    });
}

/// Checks that all others have named the rank that was killed then.
fn assert_named(state: &State, victim: u32, killed: Duration) {
    assert_eq!(state.ranks[victim as usize].signal, Some(9), "{state}");
    for (rank, found) in (0u32..).zip(&state.ranks).filter(|(rank, _)| *rank != victim) {
        let of_a_loss = found.code.is_some_and(|code| code == JOIN || LOST_GROUP.contains(&code));
        // It may name itself, as the one that has not reached rank 0.
        let named = found.error().replace(&format!("rank {rank} "), "this one ");
        assert!(of_a_loss && names_only(&named, victim), "rank {rank}, not {victim}\n{state}");
        let after = state.known(rank).saturating_sub(killed);
        assert!(after < DEADLINE + IN_TIME + state.slack(), "rank {rank} after {after:?}\n{state}");
    }
}

/// Kills rank `victim` of each job after a moment of its own, opens its gate, and checks what the others say.
fn named_by_all(jobs: Vec<(Job, u32)>, gates: &Gates) {
    let jobs: Vec<_> = (0..)
        .zip(jobs)
        .map(|(index, (job, victim))| {
            all_join(&job);
            // The moment within the join.
            std::thread::sleep(Duration::from_millis(index * 5 % 60));
            job.signal(victim, "KILL");
            let killed = job.elapsed();
            (job, victim, killed)
        })
        .collect();
    gates.open("join");
    for (job, victim, killed) in jobs {
        assert_named(&job.finish(), victim, killed);
    }
}

#[test]
fn a_rank_that_dies_before_it_joins_is_named_at_the_deadline() {
    let gates = Gates::new();
    let jobs = each_rank().map(|(ranks, hosts, victim)| (begun(ranks, hosts, Some(victim), &gates), victim));
    named_by_all(jobs.collect(), &gates);
}

/// Another rank comes later, so the one that dies has arrived or is about to.
#[test]
fn a_rank_that_dies_while_it_waits_for_another_is_named_by_both() {
    let gates = Gates::new();
    let jobs = each_rank().map(|(ranks, hosts, victim)| {
        let late = (victim + 1) % ranks;
        (begun(ranks, hosts, Some(late), &gates), victim)
    });
    named_by_all(jobs.collect(), &gates);
}

#[test]
fn a_rank_that_dies_while_all_join_is_named_by_all() {
    let gates = Gates::new();
    let jobs = each_rank().map(|(ranks, hosts, victim)| (begun(ranks, hosts, None, &gates), victim));
    named_by_all(jobs.collect(), &gates);
}
