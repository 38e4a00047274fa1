//! The groups of some ranks that this rank is a member of, besides the group of all: many at once, each with an order of its own.
//!
//! ```text
//!   Group --start--> Engine --+--> executor of the group of all, and Pairwise
//!                             '--> Groups --> Subgroup --+--> executor --> Route --+
//!                                    ^                   '--> Pairwise -----^      v
//!                                    '------ by the number in the header ----- UpChannels
//! ```
//!
//! A group costs an [executor](Subgroup) over a flat grid, and no thread, socket or segment; where it has all ranks of a host, which is all
//! of the job, the executor has that grid, and lanes in a [part](NodeSegment::part) of the segment, if there is one. Members agree on it by themselves
//! ([`Lineage`]); messages say which group they belong to by the number that the *receiver* has given it ([`Route`](route::Route)), which
//! leads straight to its executor. A number is used again only after a million others of its place, when nothing of its last group is under way.
//!
//! A member that makes a group early notifies members that have not made it. These messages are kept, so many of each rank and no more;
//! beyond that a message is refused, and comes again. Nothing else can come early, as it needs the receiver's number.

mod lineage;
mod places;
mod route;
mod subgroup;

use std::collections::HashMap;
use std::sync::Arc;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{
    AbortCause, Completed, Disposition, Executor, ExecutorConfig, OpId, Refusal, Request, StartError,
};
use shouter_reducer::grid::{Grid, GridError, Rank};
use shouter_reducer::header::{Header, MatchKey};
use shouter_reducer::recorder::Recorder;
use shouter_reducer::transport::SendToken;

use super::Engine;
use super::pairwise::Pairwise;
use super::submitted::Submissions;
use crate::channel::shm::NodeSegment;
use crate::channel::up::UpChannels;
use crate::engine::members::Members;
use crate::group::watch::Departure;
use crate::observe::flight::Labels;
pub(super) use lineage::Greeting;
pub(crate) use lineage::Lineage;
use places::Places;
use subgroup::Subgroup;

/// Groups alive at once; their places are the owners of tokens from 1 on.
pub(crate) const MAX_GROUPS: usize = 4000;
const _: () = assert!(MAX_GROUPS < SendToken::OWNERS as usize, "each group is an owner of tokens");

/// Operations of a group at once.
const OPERATIONS: usize = 32;

/// Room for early messages of a group, per member, in bytes.
const EAGER_POOL: usize = 256 << 10;

/// Messages of one rank that are kept about groups that are not made here yet.
const EARLY: usize = 256;

/// Low bits of a group's number: its place.
const PLACE_BITS: u32 = 12;

/// A group of some ranks of this process: the number that it has here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupId(u32);

/// Why a group was not made here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MakeError {
    /// There are too many.
    #[error("{MAX_GROUPS} groups are in use; drop some first")]
    TooMany,
    /// The group of all has ended.
    #[error("the group of all ranks has ended: {0}")]
    Ended(Arc<AbortCause>),
    /// It cannot have an executor.
    #[error("{0}")]
    Executor(String),
}

/// The messages of a rank about a group that is not made here.
struct Early {
    src: Rank,
    lineage: Lineage,
    made: Option<Greeting>,
    left: Option<Greeting>,
}

/// The groups of some ranks.
pub(super) struct Groups {
    /// A group's number is this place's index and one, and above that the place's uses.
    places: Places,
    by_lineage: HashMap<Lineage, u32>,
    /// How many groups of a digest were made.
    made: HashMap<u128, u32>,
    early: Vec<Early>,
    /// Ranks that have said that they leave the job.
    departures: Vec<Departure>,
    /// An operation is under way in one that has lanes.
    wait_for_lanes: bool,
    /// Keeps the last events of all of them, and the program's labels for their operations.
    recording: Option<(Recorder, Arc<Labels>)>,
}

impl Groups {
    pub(super) fn new() -> Self {
        Self {
            places: Places::new(),
            by_lineage: HashMap::new(),
            made: HashMap::new(),
            early: vec![],
            departures: vec![],
            wait_for_lanes: false,
            recording: None,
        }
    }

    /// From now on the last events of the groups that are made are kept.
    pub(super) fn record(&mut self, recording: (Recorder, Arc<Labels>)) {
        self.recording = Some(recording);
    }

    /// Whether a rank has said that it leaves the job.
    #[inline]
    pub(super) fn has_departures(&self) -> bool {
        !self.departures.is_empty()
    }

    /// Takes the departures that ranks have reported.
    pub(super) fn take_departures(&mut self) -> Vec<Departure> {
        std::mem::take(&mut self.departures)
    }

    /// A rank of the job has left.
    pub(super) fn departed(&mut self, rank: Rank) {
        self.places.each(|group| group.departed(rank));
    }

    /// Whether there is no group.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.places.are_empty()
    }

    /// Whether the next poll has something to do in a group, as far as is known.
    #[inline]
    pub(super) fn have_work(&self) -> bool {
        self.places.have_work()
    }

    /// Whether an operation is under way whose ranks meet in lanes: nothing comes by a channel then.
    #[inline]
    pub(super) fn wait_for_lanes(&self) -> bool {
        self.wait_for_lanes
    }

    /// Index of the place of a group's number.
    #[inline]
    fn index(id: u32) -> usize {
        (id & ((1 << PLACE_BITS) - 1)).wrapping_sub(1) as usize
    }

    /// The group with this number here, which may be changed.
    #[inline]
    fn group(&mut self, id: u32) -> Option<&mut Subgroup> {
        self.look(GroupId(id))?;
        self.places.at(Self::index(id))
    }

    /// The group with this number here, to look at.
    #[inline]
    fn look(&self, GroupId(id): GroupId) -> Option<&Subgroup> {
        self.places.look(Self::index(id)).filter(|group| group.id() == id)
    }

    /// Makes a group of members of a parent, by what the executor of the group of all was made with.
    fn make(
        &mut self,
        parent: &Lineage,
        members: Arc<Members>,
        node: Option<Arc<NodeSegment>>,
        like: &ExecutorConfig,
    ) -> Result<(GroupId, Lineage), MakeError> {
        let digest = parent.digest_of(members.ranks());
        let number = self.made.get(&digest).copied().unwrap_or(0);
        let lineage = Lineage { digest, number };
        let (index, uses) = self.places.take().ok_or(MakeError::TooMany)?;
        let id = uses << PLACE_BITS | (index + 1);
        let executor = match executor(id, &members, node.as_deref(), like) {
            Ok(executor) => executor,
            Err(why) => {
                self.places.give_back(index);
                return Err(MakeError::Executor(why));
            }
        };
        let mark = self.places.mark(index);
        let mut group = Subgroup::new((id, index + 1), lineage, (members, like.grid), (executor, node), mark);
        if let Some((recorder, labels)) = &self.recording {
            group.record(recorder, labels.clone());
        }
        self.early.retain(|early| {
            let is_of = early.lineage == lineage;
            if is_of {
                let said = early.made.into_iter().chain(early.left);
                said.for_each(|greeting| group.greeted(early.src, greeting));
            }
            !is_of
        });
        self.places.put(index, group);
        self.made.insert(digest, number.wrapping_add(1));
        self.by_lineage.insert(lineage, id);
        Ok((GroupId(id), lineage))
    }

    /// Takes a message to a group of some ranks, or about one.
    #[inline]
    pub(super) fn fragment(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        if header.key.group == MatchKey::MAKING {
            return self.greeted(header);
        }
        match self.group(header.key.group) {
            Some(group) => group.fragment(header, payload),
            // This rank has left it.
            None => Disposition::Refused(Refusal::OtherGroup),
        }
    }

    /// Nothing refers to a posted fragment of a group any more.
    #[inline]
    pub(super) fn released(&mut self, token: SendToken) {
        if let Some(group) = self.places.at(token.owner().wrapping_sub(1) as usize) {
            group.released(token);
        }
    }

    /// A rank has made a group, or left one.
    #[cold]
    fn greeted(&mut self, header: &Header) -> Disposition {
        let Some((lineage, greeting)) = Lineage::parse(header) else {
            return Disposition::Refused(Refusal::Malformed);
        };
        if lineage == Lineage::ALL {
            if let Greeting::Left(started) = greeting {
                self.departures.push(Departure { rank: header.src.0, started });
            }
            return Disposition::Consumed;
        }
        if let Some(&id) = self.by_lineage.get(&lineage) {
            if let Some(group) = self.group(id) {
                group.greeted(header.src, greeting);
            }
            return Disposition::Consumed;
        }
        let was_here = self.made.get(&lineage.digest).is_some_and(|made| lineage.number < *made);
        if was_here {
            return Disposition::Consumed;
        }
        let known = |early: &Early| (early.src, early.lineage) == (header.src, lineage);
        let at = match self.early.iter().position(known) {
            Some(at) => at,
            None if self.early.iter().filter(|early| early.src == header.src).count() >= EARLY => {
                return Disposition::Refused(Refusal::NotReady);
            }
            None => {
                self.early.push(Early { src: header.src, lineage, made: None, left: None });
                self.early.len() - 1
            }
        };
        if let Some(early) = self.early.get_mut(at) {
            match greeting {
                Greeting::Made(_) => early.made = Some(greeting),
                Greeting::Left(_) => early.left = Some(greeting),
            }
        }
        Disposition::Consumed
    }

    /// One poll of the groups that have something to do; whether one did something.
    #[inline]
    pub(super) fn poll(&mut self, now: Instant, up: &mut UpChannels) -> bool {
        let (mut busy, mut waits_for_lanes) = (false, false);
        let Self { places, by_lineage, .. } = self;
        places.poll(now, |group| {
            busy |= group.poll(now, up);
            waits_for_lanes |= group.waits_for_lanes();
            let is_closed = group.is_closed(now);
            if is_closed {
                by_lineage.remove(&group.lineage());
                busy = true;
            }
            is_closed
        });
        self.wait_for_lanes = waits_for_lanes;
        busy
    }

    /// Sends the messages of operations that were just started in a group.
    pub(super) fn post(&mut self, id: GroupId, now: Instant, up: &mut UpChannels) {
        if let Some(group) = self.group(id.0) {
            group.poll(now, up);
        }
    }

    /// Whether a group has ended in error, and its members are notified; so has one that is gone.
    #[cfg(feature = "cuda")]
    pub(super) fn is_flooded(&self, id: GroupId) -> bool {
        self.look(id).is_none_or(Subgroup::is_flooded)
    }

    /// A group ends because of this rank.
    #[cfg(feature = "cuda")]
    #[cold]
    pub(super) fn fail(&mut self, id: GroupId, why: shouter_reducer::executor::AbortReason) {
        if let Some(group) = self.group(id.0) {
            group.fail(why);
        }
    }

    /// A rank of the job among these that a message or an access of a group waits for.
    #[cold]
    pub(super) fn awaited(&self, among: impl Fn(Rank) -> bool + Copy) -> Option<Rank> {
        self.places.listed().find_map(|group| group.awaited(among))
    }

    /// Whether nothing is under way in any of them.
    pub(super) fn are_idle(&self) -> bool {
        self.places.are_idle()
    }

    /// When the next poll is needed although nothing may arrive.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.places.next_deadline()
    }

    /// The group of all has ended, the channels refer to no memory any more, and all groups end.
    pub(super) fn end_with_all(&mut self, cause: &AbortCause) {
        self.places.each(|group| {
            group.end_with_all(cause.culprit, cause.reason.clone(), cause.seen.clone());
        });
    }
}

/// The executor of a group, whose members share the lanes of `node` if it has any.
#[allow(unsafe_code)]
fn executor(
    id: u32,
    members: &Members,
    node: Option<&NodeSegment>,
    like: &ExecutorConfig,
) -> Result<Executor, String> {
    let grid = grid_of(members.size(), node.is_some()).map_err(|why| why.to_string())?;
    let config = ExecutorConfig {
        rank: members.own(),
        grid,
        group: id,
        eager_pool_bytes: EAGER_POOL,
        lazy_slots: true,
        max_operations: OPERATIONS,
        // A peer's NIC may write to a landing after the group has ended; the channel is not fenced then.
        one_sided: false,
        ..*like
    };
    // SAFETY: it belongs to an engine, which drops its channels first; it has no accelerator, and the group keeps the node's memory for as
    // long as it takes polls.
    let mut executor = unsafe { Executor::new(config) }.map_err(|why| why.to_string())?;
    node.map_or(Ok(()), |node| executor.attach_node(node)).map_err(|why| why.to_string())?;
    Ok(executor)
}

/// The grid of a group of so many ranks: one host where they share lanes, else each rank is a host of its own.
pub(crate) fn grid_of(size: u32, has_lanes: bool) -> Result<Grid, GridError> {
    Grid::new(size, if has_lanes { size } else { 1 })
}

/// Operations of any group of this process: without a [`GroupId`] those of the group of all.
impl Engine {
    /// Makes a group of members of another one, which has the lanes of `node`, if there is one. They make those of the same members in the same
    /// order.
    pub(crate) fn make_group(
        &mut self,
        parent: &Lineage,
        members: Arc<Members>,
        node: Option<Arc<NodeSegment>>,
    ) -> Result<(GroupId, Lineage), MakeError> {
        match self.executor.aborted() {
            Some(cause) => Err(MakeError::Ended(cause.clone())),
            None => {
                let (id, lineage) = self.groups.make(parent, members, node, self.executor.config())?;
                if let Some(group) = self.groups.group(id.0) {
                    self.watch.timeline().into_iter().for_each(|timeline| group.draw(timeline.clone()));
                    self.departures.ranks().for_each(|rank| group.departed(rank));
                }
                Ok((id, lineage))
            }
        }
    }

    /// As [`start`](Self::start).
    #[inline]
    pub(crate) fn start_in(
        &mut self,
        group: Option<GroupId>,
        now: Instant,
        request: Request,
    ) -> Result<OpId, StartError> {
        let Some(GroupId(id)) = group else { return self.start(now, request) };
        self.times.posted(false);
        match self.groups.group(id) {
            Some(group) => group.start(now, request),
            None => Err(StartError::Busy { what: "groups" }),
        }
    }

    /// The queue of a group's operations that are started without waiting; `None` for a group that is gone.
    pub(crate) fn submissions_in(&mut self, group: Option<GroupId>) -> Option<Arc<Submissions>> {
        match group {
            None => Some(self.submissions()),
            Some(GroupId(id)) => Some(self.groups.group(id)?.submissions()),
        }
    }

    /// As [`take_finished`](Self::take_finished).
    #[inline]
    pub(crate) fn take_finished_in(&mut self, group: Option<GroupId>, op: OpId) -> Option<Completed> {
        let Some(GroupId(id)) = group else { return self.take_finished(op) };
        self.groups.group(id)?.take_finished(op)
    }

    /// As [`aborted`](Self::aborted).
    pub(crate) fn aborted_in(&self, group: Option<GroupId>) -> Option<&AbortCause> {
        match group {
            None => self.aborted(),
            Some(id) => self.groups.look(id)?.executor().aborted().map(|cause| &**cause),
        }
    }

    /// As [`is_idle`](Self::is_idle).
    pub(crate) fn is_idle_in(&self, group: Option<GroupId>) -> bool {
        match group {
            None => self.is_idle(),
            Some(id) => self.groups.look(id).is_none_or(Subgroup::is_idle) && !self.has_tasks(group),
        }
    }

    /// Messages and windows of a group; `None` for a group that is gone.
    #[inline]
    pub(super) fn pairwise_in(&mut self, group: Option<GroupId>) -> Option<&mut Pairwise> {
        match group {
            None => Some(&mut self.pairwise),
            Some(GroupId(id)) => self.groups.group(id).map(Subgroup::pairwise),
        }
    }

    /// Whether a group's outcomes are held back.
    #[inline]
    pub(super) fn is_settling_in(&self, group: Option<GroupId>) -> bool {
        match group {
            None => self.ending.is_settling(),
            Some(id) => self.groups.look(id).is_some_and(Subgroup::is_settling),
        }
    }

    /// This rank leaves a group; the members are notified.
    pub(crate) fn leave_group(&mut self, id: GroupId, now: Instant) {
        let is_busy = self.has_tasks(Some(id));
        if let Some(group) = self.groups.group(id.0) {
            group.leave(now, is_busy);
        }
    }

    /// Whether nothing refers to the memory of a group's operations.
    pub(crate) fn is_group_at_rest(&self, id: GroupId) -> bool {
        self.groups.look(id).is_none_or(Subgroup::is_quiesced) && !self.has_tasks(Some(id))
    }

    /// How often polls have visited a group.
    #[cfg(test)]
    pub(crate) fn visits_of_group(&self, GroupId(id): GroupId) -> u64 {
        self.groups.places.visits(Groups::index(id))
    }

    /// When the next poll is needed for a group.
    #[cfg(test)]
    pub(crate) fn next_deadline_of_groups(&self) -> Option<Instant> {
        self.groups.next_deadline()
    }

    /// Whether the next poll visits none.
    #[cfg(test)]
    pub(crate) fn visits_no_group(&self) -> bool {
        !self.groups.have_work()
    }
}

#[cfg(test)]
mod tests;
