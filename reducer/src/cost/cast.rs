//! The ranks whose schedules are evaluated, and the sender of each message.
//!
//! All ranks' schedules are evaluated while that is quick, and for trees, where each rank has few steps. Else some hosts stand for the
//! others: the root's, and the busiest of a few. A message to such a host from one that is not evaluated arrives when the host sends the
//! like itself: messages with the same number and length are paired in the order of the steps. That is exact where all hosts do the same
//! at the same time, which is so in collectives without a root, but for the last few elements.
//!
//! Of many ranks on one host a few stand for the others, too: each rank waits for flags of all, so that steps grow with the square of the
//! ranks. A flag of a rank that is not evaluated is raised when a stand-in raises the like.

use crate::grid::Rank;
use crate::schedule::{self, Action, Algorithm, Params, Problem, Schedule, ScheduleError, StepId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Steps that are evaluated at most, where some ranks can stand for others.
const STEPS: usize = 1 << 12;

/// More hosts than these are not all evaluated, where one can stand for the others: to build so many schedules takes long, even where
/// they have few steps.
const HOSTS: u32 = 64;

/// More ranks than these on one host are not all evaluated.
const LOCALS: u32 = 64;

/// Elements of a host's slice at least: slices are cut at multiples of them.
const SLICE: u64 = 64;

/// A step of one of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepRef {
    pub(super) member: usize,
    pub(super) step: u32,
}

/// A message: its sender's step and its receiver's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) send: StepRef,
    pub(super) receive: StepRef,
}

/// The ranks that are evaluated.
#[derive(Debug)]
pub(super) struct Cast {
    pub(super) schedules: Vec<Schedule>,
    pub(super) links: Vec<Link>,
    /// Of one host: those that stand for ranks which are not here, each for all but itself. Where there are no such ranks, none.
    pub(super) stand_ins: Option<[Rank; 2]>,
    /// The tensor's elements, and those of the tensor that the schedules are for.
    pub(super) counts: (u64, u64),
}

impl Cast {
    pub(super) fn of(
        algorithm: Algorithm,
        problem: &Problem,
        params: &Params,
    ) -> Result<Self, ScheduleError> {
        Self::within(algorithm, problem, params, STEPS)
    }

    /// With a budget of steps; without a limit, all ranks are evaluated.
    pub(super) fn within(
        algorithm: Algorithm,
        problem: &Problem,
        params: &Params,
        budget: usize,
    ) -> Result<Self, ScheduleError> {
        let grid = problem.grid;
        let build = |rank| schedule::build(algorithm, &Problem { rank, ..problem.clone() }, params);
        let collective = problem.shape.collective;
        if grid.nodes() == 1 && grid.ranks() > LOCALS && budget < usize::MAX {
            // The first ranks have a slice where not all do.
            let mut others = (0..grid.ranks()).map(Rank).filter(|rank| *rank != problem.root);
            let stand_ins = [(); 2].map(|()| others.next().unwrap_or(problem.root));
            let ranks = [problem.root, Rank(grid.ranks() / 2), Rank(grid.ranks() - 1)];
            let ranks = BTreeSet::from_iter(stand_ins.into_iter().chain(ranks));
            let schedules: Vec<_> = ranks.into_iter().map(build).collect::<Result<_, _>>()?;
            let links = links(&schedules, None);
            return Ok(Self { schedules, links, stand_ins: Some(stand_ins), counts: (1, 1) });
        }
        let alike = algorithm.is_uniform(collective, grid.nodes()) && grid.nodes() > 2;
        let many = alike && !collective.has_root() && grid.nodes() > HOSTS;
        let mut schedules = Vec::new();
        let mut steps = 0;
        for rank in (0..grid.ranks()).map(Rank).filter(|_| !many) {
            let schedule = build(rank)?;
            steps += schedule.steps().len();
            schedules.push(schedule);
            if steps > budget && alike {
                break;
            }
        }
        if schedules.len() == grid.ranks() as usize {
            let links = links(&schedules, None);
            return Ok(Self { schedules, links, stand_ins: None, counts: (1, 1) });
        }
        // Hosts that share too few elements do not do the same: it is as if each had a slice, of fewer bytes.
        let mut problem = problem.clone();
        let counts = (problem.shape.count.max(1), problem.shape.count.max(SLICE * u64::from(grid.nodes())));
        if !collective.is_blocked() && problem.shape.count > 0 {
            problem.shape.count = counts.1;
        }
        let counts = (counts.0, problem.shape.count.max(1));
        let build = |rank| schedule::build(algorithm, &Problem { rank, ..problem.clone() }, params);
        let home = grid.node_of(problem.root);
        let last = grid.nodes() - 1;
        let mut busiest = None;
        let fullest = (0..=last).find(|&node| grid.locals(node) == grid.most_locals()).unwrap_or(last);
        for node in [last, last / 2, 1, fullest] {
            let len = build(grid.leader_of(node))?.steps().len();
            if node != home && busiest.is_none_or(|(most, _)| len > most) {
                busiest = Some((len, node));
            }
        }
        let like = busiest.map_or(last, |(_, node)| node);
        let mut nodes = vec![like];
        if collective.has_root() {
            nodes.push(home);
        }
        let schedules: Vec<_> =
            nodes.into_iter().flat_map(|node| grid.ranks_on(node)).map(build).collect::<Result<_, _>>()?;
        let links = links(&schedules, Some(grid.leader_of(like)));
        Ok(Self { schedules, links, stand_ins: None, counts })
    }
}

/// The sender of each message that the ranks receive. `like` is the leader that stands for all that are not here.
fn links(schedules: &[Schedule], like: Option<Rank>) -> Vec<Link> {
    let members: BTreeMap<u32, usize> =
        schedules.iter().enumerate().map(|(member, schedule)| (schedule.problem().rank.0, member)).collect();
    let mut links = Vec::new();
    for (member, schedule) in schedules.iter().enumerate() {
        let me = schedule.problem().rank;
        let mut unknown = Vec::new();
        for (step, len, from, round) in receives(schedule) {
            let sender = members.get(&from.0).or_else(|| members.get(&like?.0)).copied();
            let receive = StepRef { member, step };
            match sender {
                Some(sender) if sender != member => {
                    if let Some(StepId(step)) = schedules[sender].send(me, round) {
                        links.push(Link { send: StepRef { member: sender, step }, receive });
                    }
                }
                _ => unknown.push((step, (round, len))),
            }
        }
        let sends = schedule.steps().iter().zip(0..).filter_map(|(step, id)| match step.action {
            Action::Send { to, round, len, .. } if !members.contains_key(&to.0) => Some((id, (round, len))),
            _ => None,
        });
        let of_own = |(send, receive)| Link {
            send: StepRef { member, step: send },
            receive: StepRef { member, step: receive },
        };
        links.extend(in_order(sends, unknown).into_iter().map(of_own));
    }
    links
}

fn receives(schedule: &Schedule) -> impl Iterator<Item = (u32, usize, Rank, u32)> + '_ {
    schedule.steps().iter().zip(0..).filter_map(|(step, id)| match step.action {
        Action::Receive { from, round, len, .. } | Action::ReceiveReduce { from, round, len, .. } => {
            Some((id, len, from, round))
        }
        _ => None,
    })
}

/// Pairs sends and receives of the same number and length in their order, then those that are left by number alone. A receive without its
/// like is left out.
fn in_order(
    sends: impl Iterator<Item = (u32, (u32, usize))>,
    receives: Vec<(u32, (u32, usize))>,
) -> Vec<(u32, u32)> {
    let (sends, mut links): (Vec<_>, _) = (sends.collect(), Vec::new());
    let left = pair(&sends, &receives, |kind| kind, &mut links);
    pair(&left.0, &left.1, |(round, _)| (round, 0), &mut links);
    links
}

type Kind = (u32, usize);
type Steps = Vec<(u32, Kind)>;

/// Pairs the sends and receives of one kind; returns those that are left.
fn pair(
    sends: &Steps,
    receives: &Steps,
    kind: impl Fn(Kind) -> Kind,
    links: &mut Vec<(u32, u32)>,
) -> (Steps, Steps) {
    let mut waiting: BTreeMap<Kind, VecDeque<(u32, Kind)>> = BTreeMap::new();
    for &send in sends {
        waiting.entry(kind(send.1)).or_default().push_back(send);
    }
    let mut left = Vec::new();
    for &receive in receives {
        match waiting.get_mut(&kind(receive.1)).and_then(VecDeque::pop_front) {
            Some((send, _)) => links.push((send, receive.0)),
            None => left.push(receive),
        }
    }
    (waiting.into_values().flatten().collect(), left)
}
