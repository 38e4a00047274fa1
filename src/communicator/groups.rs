//! Groups of some ranks: made of a group by its members, each with its own numbers, order of operations, deadlines and end.

use std::sync::Arc;
use std::time::Duration;

use shouter_reducer::grid::{Grid, Rank};

use super::Group;
use super::annotations::Annotations;
use super::notify::{Notifier, StopNotifier};
use super::outcomes::Outcomes;
use super::start_queue::StartQueue;
use super::stats::Tally;
use super::table::Tables;
use super::transport::named;
use crate::channel::shm::NodeSegment;
use crate::config::LONGEST_WAIT;
use crate::engine::groups::{Lineage, MakeError, grid_of};
use crate::engine::members::{Members, MembersError};
use crate::error::{Call, Error, Operation};

/// In the place of the color of a rank that is in no new group.
const NO_COLOR: u64 = u64::MAX;

/// Handles of a group that are kept for its next operations.
const SPARE: usize = 32;

/// The members of a group of some ranks.
pub(super) struct Subset {
    members: Arc<Members>,
    pub(super) places: Places,
    lineage: Lineage,
}

/// The place of a rank among the members of its group, by hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) local_rank: u32,
    pub(super) local_size: u32,
    pub(super) node: u32,
    pub(super) nodes: u32,
}

impl Places {
    /// The places of a member; `grid` has the hosts of the job's ranks.
    fn of(members: &Members, grid: &Grid) -> Self {
        let host = |rank: &Rank| grid.node_of(*rank);
        let mut hosts: Vec<u32> = members.ranks().iter().map(host).collect();
        let own = members.own().0 as usize;
        let here = hosts[own];
        let among = |hosts: &[u32]| hosts.iter().filter(|host| **host == here).count() as u32;
        let (local_rank, local_size) = (among(&hosts[..own]), among(&hosts));
        hosts.sort_unstable();
        hosts.dedup();
        let node = hosts.partition_point(|host| *host < here) as u32;
        Self { local_rank, local_size, node, nodes: hosts.len() as u32 }
    }
}

/// Refuses a deadline that no operation can have.
fn check_deadline(deadline: Duration) -> Result<(), Error> {
    if deadline.is_zero() || deadline > LONGEST_WAIT {
        return Err(Error::Argument(format!(
            "a deadline of {deadline:?} for a new group; give one above zero, and a year at most"
        )));
    }
    Ok(())
}

impl Group {
    /// Makes groups of the ranks with the same `color`; `None` for a rank that is in none of them. Every rank of this group calls it, as it
    /// would a collective. In a new group ranks are numbered by `key`, and by their number here where keys are the same.
    ///
    /// A new group has its own order of operations, deadlines and end: an error in it leaves this one as it was, and operations of both go
    /// on beside each other, in whichever order ranks start them. The end of the job's group of all, as by the death of a rank, ends all
    /// groups. Errors name ranks by their numbers in the group that was called, and say which ranks of the job those are. A group costs no
    /// thread or connection, and no shared memory, but that of lanes where it has all ranks of a job on one host, of four such groups at a
    /// time. Its tensors are registered with it alone.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// let group = shouter::init(config)?;
    /// // Those with even numbers, and those with odd ones.
    /// let half = group.split(Some(group.rank() % 2), 0)?.expect("every rank has a color");
    /// let mut loss = [0.5f32];
    /// half.all_reduce(&mut loss, shouter::ReduceOp::Avg)?;
    /// assert_eq!(loss, [0.5]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), and as [`group`](Self::group).
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Group>, Error> {
        self.split_within(color, key, self.deadline)
    }

    /// The same with a deadline of its own for each of the new groups' operations, in place of this group's; its making may take the longer of
    /// both. Ranks may have different ones.
    ///
    /// # Errors
    /// As [`split`](Self::split).
    pub fn split_within(
        &self,
        color: Option<u32>,
        key: i64,
        deadline: Duration,
    ) -> Result<Option<Group>, Error> {
        check_deadline(deadline)?;
        let mut all = vec![[0u64; 2]; self.size() as usize];
        let own = [color.map_or(NO_COLOR, u64::from), key as u64];
        let split = |error: Error| error.part_of(Operation::Group, &"split");
        self.all_gather(&own, all.as_flattened_mut()).map_err(split)?;
        if color.is_none() {
            return Ok(None);
        }
        let mut members: Vec<(i64, u32)> = (0..)
            .zip(&all)
            .filter(|(_, theirs)| theirs[0] == own[0])
            .map(|(rank, theirs)| (theirs[1] as i64, rank))
            .collect();
        members.sort_unstable();
        // All members have come, so the new group need not wait for them.
        let members = members.into_iter().map(|(_, rank)| self.rank_in_job(rank)).collect();
        let mut group = self.make(members, deadline, None)?;
        group.deadline = deadline.max(self.deadline);
        let mut group = group.with_lanes().map_err(split)?;
        group.deadline = deadline;
        Ok(Some(group))
    }

    /// Makes a group of these ranks, which are numbered in this order there. Only they call it, each with the same list; it returns when
    /// all have. Groups of the same members are made in the same order by all of them. See [`split`](Self::split).
    ///
    /// # Errors
    /// [`Error::Argument`] for a list that is empty, has a rank twice, lacks this rank or has one that is none; [`Error::Deadline`] names
    /// those that did not come; else as [`all_reduce`](Self::all_reduce).
    pub fn group(&self, ranks: &[u32]) -> Result<Group, Error> {
        self.group_within(ranks, self.deadline)
    }

    /// The same with a deadline of its own for each of its operations, in place of this group's; its making may take the longer of both.
    /// Members may have different ones.
    ///
    /// # Errors
    /// As [`group`](Self::group).
    pub fn group_within(&self, ranks: &[u32], deadline: Duration) -> Result<Group, Error> {
        if let Some(rank) = ranks.iter().find(|rank| **rank >= self.size()) {
            return Err(Error::Argument(format!(
                "rank {rank} is no rank of this group; they are 0 to {}",
                self.size() - 1
            )));
        }
        check_deadline(deadline)?;
        let members = ranks.iter().map(|rank| self.rank_in_job(*rank)).collect();
        let mut group = self.make(members, deadline, None)?;
        group.deadline = deadline.max(self.deadline);
        let made = |error: Error| {
            let name = format!(
                "the making of a group of {}",
                named(&ranks.iter().copied().map(Rank).collect::<Vec<_>>())
            );
            match error.part_of(Operation::Group, &name) {
                late @ Error::Deadline { .. } => late
                    .with_more("; each of these ranks has to make it, with the same list in the same order"),
                other => other,
            }
        };
        // Only the members take part.
        group.barrier().map_err(made)?;
        let mut group = group.with_lanes().map_err(made)?;
        group.deadline = deadline;
        Ok(group)
    }

    /// Makes a group of the same ranks with the same numbers, for operations with an order of their own: a library's, say. Every rank
    /// calls it. See [`split`](Self::split).
    ///
    /// # Errors
    /// As [`group`](Self::group).
    pub fn duplicate(&self) -> Result<Group, Error> {
        self.group(&(0..self.size()).collect::<Vec<_>>())
    }

    /// The number in the job of a rank of this group; `None` if it is none.
    pub fn job_rank(&self, rank: u32) -> Option<u32> {
        match &self.subset {
            Some(subset) => subset.members.rank(Rank(rank)).map(|rank| rank.0),
            None => (rank < self.size()).then_some(rank),
        }
    }

    fn rank_in_job(&self, rank: u32) -> Rank {
        Rank(self.job_rank(rank).unwrap_or(u32::MAX))
    }

    /// In the place of this new group, in which all members are: where it has all ranks of the job, and these are on one host, the same with lanes,
    /// if there is a part of the host's segment which no rank uses for another group.
    fn with_lanes(self) -> Result<Group, Error> {
        let Some(whole) = self.job.node.clone().filter(|_| self.job.grid.nodes() == 1) else {
            return Ok(self);
        };
        if self.size() != self.job.grid.ranks() {
            return Ok(self);
        }
        // What moves elements alone needs no memory of its own.
        let offer = whole.offer();
        let mut offered = vec![0; self.size() as usize];
        self.all_gather(&[offer.bits()], &mut offered)?;
        let by_all = offered.into_iter().fold(u64::MAX, |by_all, bits| by_all & bits);
        let Some(part) = offer.first_of(by_all) else { return Ok(self) };
        // No rank begins before it is empty.
        let mut is_empty = [u8::from(self.rank() == 0 && whole.empty_part(&part))];
        self.broadcast(&mut is_empty, 0)?;
        let Some(part) = whole.part(part, self.rank()).filter(|_| is_empty[0] == 1) else { return Ok(self) };
        let ranks = (0..self.size()).map(|rank| self.rank_in_job(rank)).collect();
        let mut group = self.make(ranks, self.outcomes.deadline, Some(Arc::new(part)))?;
        group.deadline = self.deadline;
        Ok(group)
    }

    /// Makes a group of these ranks of the job here, with the lanes of `node`, if there is one.
    fn make(
        &self,
        ranks: Vec<Rank>,
        deadline: Duration,
        node: Option<Arc<NodeSegment>>,
    ) -> Result<Group, Error> {
        self.drive.check_process()?;
        let own = self.rank_in_job(self.rank.0);
        let members = Members::new(ranks, own).map_err(|why| {
            let number =
                |rank| (0..self.size()).find(|number| self.rank_in_job(*number) == rank).unwrap_or(0);
            Error::Argument(match why {
                MembersError::Twice(rank) => {
                    format!("rank {} comes twice among the ranks of a new group; name it once", number(rank))
                }
                MembersError::NotOne => format!(
                    "this rank, {}, is not among the ranks of the new group; only those that are make it",
                    self.rank.0
                ),
            })
        })?;
        let job = self.job.grid;
        let members = Arc::new(members);
        let parent = self.subset.as_ref().map_or(Lineage::ALL, |subset| subset.lineage);
        let grid = grid_of(members.size(), node.is_some()).map_err(|why| Error::Internal(why.to_string()))?;
        let asked = members.clone();
        let made = self.drive.with(move |engine| engine.make_group(&parent, asked, node))?;
        let (id, lineage) = made.map_err(|why| match why {
            MakeError::TooMany => Error::Argument(why.to_string()),
            MakeError::Executor(_) => Error::Internal(why.to_string()),
            MakeError::Ended(cause) => {
                let text = format!("a group was not made: the group of all ranks has ended: {cause}");
                let call = Call { operation: Operation::Group, tensor: None, step: self.annotations.step() };
                Error::closed_by(&cause, text).of(call, &"a group")
            }
        })?;
        let (plan, known) = (*self.tables.plan(), self.tables.known().clone());
        let tables = Arc::new(Tables::new(members.own(), grid, plan, known));
        let outcomes = Arc::new(Outcomes {
            rank: members.own(),
            group: Some(id),
            members: Some(members.clone()),
            deadline,
            tables: tables.clone(),
            tally: Tally::default(),
            timeline: self.outcomes.timeline.clone(),
            flight: self.outcomes.flight.clone(),
            node: None,
            driver: self.drive.weak(),
            notifier: Notifier::new(),
            awaited_ends: self.drive.awaited_ends(),
            forks: self.outcomes.forks,
        });
        Ok(Group {
            rank: members.own(),
            grid,
            job: self.job.clone(),
            drive: self.drive.of(id),
            cells: None,
            node: None,
            direct: self.direct.of_group(),
            _stop_notifier: StopNotifier(outcomes.clone()),
            outcomes,
            start_queue: StartQueue::new(None, SPARE),
            tables,
            subset: Some(Subset { places: Places::of(&members, &job), members, lineage }),
            deadline,
            annotations: Annotations::at(self.annotations.step()),
            channels: self.channels.clone(),
            #[cfg(feature = "cuda")]
            gpu: super::gpu::Bound::of_some(),
            costs: self.costs.clone(),
        })
    }

    /// Gives every rank the bytes of each, by operations of this group.
    pub(super) fn gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let ranks = self.size() as usize;
        let mut lengths = vec![0u64; ranks];
        self.all_gather(&[bytes.len() as u64], &mut lengths)?;
        let longest = lengths.iter().copied().max().unwrap_or(0) as usize;
        if longest == 0 {
            return Ok(vec![vec![]; ranks]);
        }
        let mut block = bytes.to_vec();
        block.resize(longest, 0);
        let mut all = vec![0u8; longest * ranks];
        self.all_gather(&block, &mut all)?;
        let blocks = all.chunks(longest).zip(lengths);
        Ok(blocks.map(|(block, len)| block[..(len as usize).min(longest)].to_vec()).collect())
    }
}

impl Outcomes {
    /// An error of this group, whose ranks have its numbers, with their numbers in the job where these differ.
    pub(super) fn with_job_ranks(&self, error: Error) -> Error {
        let Some(members) = &self.members else { return error };
        let named = error.rank().into_iter().chain(error.missing().iter().copied()).chain(error.in_use_by());
        let texts: Vec<String> = named
            .filter_map(|number| match members.named(Rank(number)) {
                (Rank(rank), true) if rank == number => None,
                (Rank(rank), true) => Some(format!("rank {number} of this group is rank {rank} of the job")),
                (Rank(rank), false) => {
                    Some(format!("rank {number} is no rank of this group, but rank {rank} of the job"))
                }
            })
            .collect();
        if texts.is_empty() { error } else { error.with_more(&format!("; {}", texts.join(", "))) }
    }
}

#[cfg(test)]
mod resting;

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use shouter_reducer::dtype::ReduceOp;

    use super::super::tests::{each, ranks_keyed, ranks_on};
    use super::*;

    /// Whether the ranks' operations meet in lanes; the same on all of them.
    fn have_lanes(group: &[Group]) -> bool {
        let lanes: Vec<bool> = group.iter().map(|rank| rank.grid.nodes() == 1).collect();
        assert!(lanes.iter().all(|has| *has == lanes[0]), "{lanes:?}");
        lanes[0]
    }

    /// The bits of an average, in place and apart.
    fn bits(group: &[Group]) -> Vec<Vec<u32>> {
        each(group, |rank| {
            let number = |at: u32| (at * 37 + 11 * rank.rank()) as f32 / 7.3;
            let mut data: Vec<f32> = (0..70_000).map(number).collect();
            rank.all_reduce(&mut data, ReduceOp::Avg).unwrap();
            data.iter().map(|element| element.to_bits()).collect()
        })
    }

    #[test]
    fn duplicates_of_all_ranks_of_a_host_have_lanes_as_far_as_there_are_parts() {
        let all = ranks_on(1, 3);
        let twins: Vec<_> =
            (0..5).map(|_| each(&all, |rank| rank.split(Some(0), 0).unwrap().unwrap())).collect();
        let lanes: Vec<bool> = twins.iter().map(|twin| have_lanes(twin)).collect();
        assert_eq!(lanes, [true, true, true, true, false]);
        assert!(!have_lanes(&each(&all[1..], |rank| rank.group(&[1, 2]).unwrap())));
        let expected = bits(&all);
        for twin in &twins {
            assert!(bits(twin) == expected);
        }
        // In another order, by the last part of a group that has gone. What it has left there is not seen.
        drop(twins);
        let until = Instant::now() + Duration::from_secs(20);
        for _ in 0..6 {
            loop {
                let twin = each(&all, |rank| rank.group(&[2, 0, 1]).unwrap());
                let has_lanes = have_lanes(&twin);
                assert!(bits(&twin).iter().all(|found| *found == bits(&twin)[0]));
                if has_lanes {
                    break;
                }
                assert!(Instant::now() < until, "no part is free");
            }
        }
    }

    #[test]
    fn a_split_is_made_within_the_longer_deadline() {
        let all = ranks_on(1, 3);
        let short = Duration::from_nanos(1);
        let twin = each(&all, |rank| rank.split_within(Some(0), 0, short).unwrap().unwrap());
        assert!(have_lanes(&twin));
        assert!(twin.iter().all(|rank| rank.deadline == short && rank.outcomes.deadline == short));
    }

    #[test]
    fn ranks_with_other_lists_are_told_what_each_has_to_give() {
        // The making may take as long as an operation of the group of all.
        let all = ranks_keyed(1, 2, &[("deadline", "1s")]);
        all.iter().for_each(|rank| rank.set_step(3));
        let lists = [[0, 1], [1, 0]];
        let made = each(&all, |rank| {
            rank.group_within(&lists[rank.rank() as usize], Duration::from_millis(300)).unwrap_err()
        });
        for (error, list) in made.iter().zip(["0, 1", "1, 0"]) {
            let text = error.to_string();
            assert!(text.contains(&format!("the making of a group of ranks {list}")), "{text}");
            assert_eq!((error.operation(), error.step()), (Some(Operation::Group), Some(3)), "{text}");
            // The later one may hear of the other's end first.
            let asks = text.contains("with the same list in the same order");
            assert_eq!(asks, matches!(error, Error::Deadline { .. }), "{text}");
        }
        assert!(made.iter().any(|error| matches!(error, Error::Deadline { .. })), "{made:?}");
    }

    #[test]
    fn a_rank_that_leaves_under_a_split_is_told_of_the_split() {
        let mut all = ranks_on(1, 2);
        drop(all.pop());
        let error = all[0].split(Some(0), 0).unwrap_err();
        assert_eq!((error.rank(), error.operation()), (Some(1), Some(Operation::Group)), "{error}");
        let error = all.remove(0).finalize().unwrap_err();
        assert_eq!((error.rank(), error.operation()), (Some(1), Some(Operation::Finalize)), "{error}");
    }

    #[test]
    fn on_several_hosts_each_rank_of_a_duplicate_is_a_host() {
        let all = ranks_on(2, 4);
        assert!(!have_lanes(&each(&all, |rank| rank.duplicate().unwrap())));
    }

    #[test]
    fn places_count_the_members_of_each_host() {
        // Hosts of two: 0 1 | 2 3 | 4 5 | 6 7.
        let grid = Grid::new(8, 2).unwrap();
        let of = |ranks: &[u32], own| {
            let members = Members::new(ranks.iter().copied().map(Rank).collect(), Rank(own)).unwrap();
            let Places { local_rank, local_size, node, nodes } = Places::of(&members, &grid);
            [local_rank, local_size, node, nodes]
        };
        assert_eq!(of(&[7, 2, 3, 6, 0], 7), [0, 2, 2, 3]);
        assert_eq!(of(&[7, 2, 3, 6, 0], 6), [1, 2, 2, 3]);
        assert_eq!(of(&[7, 2, 3, 6, 0], 3), [1, 2, 1, 3]);
        assert_eq!(of(&[7, 2, 3, 6, 0], 0), [0, 1, 0, 3]);
    }
}
