//! Registered tensors and cached schedules.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crossbeam::queue::ArrayQueue;
use shouter_reducer::counts::Counts;
use shouter_reducer::fusion::{self, Bucket, Member};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::{Identity, Shape, View};
use shouter_reducer::memory::Owned;
use shouter_reducer::plan::{Choices, Plan};
use shouter_reducer::schedule::{Placement, Problem, Schedule};
use shouter_reducer::table::{self, TableError, TensorTable};
pub use shouter_reducer::table::{BlockCounts, TensorSpec};

use super::schedules::{Known, ScheduleKey, Schedules};
use crate::error::{Call, Error, NamedTensor, Operation, Reason, TensorId, Views};
use crate::group::error::{Ending, ExchangeError};
use crate::group::watch::Control;
use crate::runtime::lock;

/// The state needed to push a tensor.
pub(super) struct Entry {
    generation: u32,
    pub(super) tensor: u32,
    uses: AtomicU32,
    /// This rank's part, in place, where it can be.
    pub(super) problem: Problem,
    /// Its schedules in place and apart, once they were needed.
    schedules: [OnceLock<Arc<Schedule>>; 2],
    /// Those of its parts, if it is reduced by several shards.
    parts: [OnceLock<Arc<[Arc<Schedule>]>>; 2],
    pub(super) name: Arc<str>,
    /// Staging areas of operations that have ended.
    staging: OnceLock<ArrayQueue<Owned>>,
    /// Its place in a bucket, if it is fused.
    pub(super) member: Option<Member>,
}

/// Staging areas that a tensor keeps.
const KEPT: usize = 2;

impl Entry {
    /// The identity of the tensor's next operation.
    pub(super) fn next_use(&self) -> Identity {
        self.identity(self.uses.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes the last use back, which was not started.
    pub(super) fn unused(&self) {
        self.uses.fetch_sub(1, Ordering::Relaxed);
    }

    /// This rank's schedules for its parts, where its memory lies so; made with the first use.
    pub(super) fn parts(
        &self,
        placement: Placement,
        make: impl FnOnce() -> Result<Arc<[Arc<Schedule>]>, Error>,
    ) -> Result<Arc<[Arc<Schedule>]>, Error> {
        let kept = &self.parts[usize::from(placement == Placement::Separate)];
        if let Some(parts) = kept.get() {
            return Ok(parts.clone());
        }
        let made = make()?;
        Ok(kept.get_or_init(|| made).clone())
    }

    /// A staging area of so many bytes, where one is kept.
    pub(super) fn kept(&self, bytes: usize) -> Option<Owned> {
        self.staging.get()?.pop().filter(|kept| kept.bytes() >= bytes)
    }

    /// Keeps a staging area for the next operation.
    pub(super) fn keep(&self, memory: Owned) {
        // Where as many are kept already it is freed.
        drop(self.staging.get_or_init(|| ArrayQueue::new(KEPT)).push(memory));
    }

    /// The identity of one of the tensor's operations.
    pub(super) fn identity(&self, instance: u32) -> Identity {
        Identity::Registered { generation: self.generation, tensor: self.tensor, instance }
    }
}

/// The entries of a generation. A list of them only grows, so it is read without a lock.
struct Generation {
    /// The number of the first.
    first: usize,
    entries: Vec<Arc<Entry>>,
    /// The buckets of those that are fused; their numbers follow.
    buckets: Vec<Arc<Bucket>>,
    next: OnceLock<Box<Generation>>,
}

/// The way in which the ranks of a group exchange their tables.
pub(super) enum TableExchange<'a> {
    /// The group of all: beside its operations.
    Control(&'a Control),
    /// A group of some ranks: by an operation of it, which gives every rank the bytes of each.
    Members(&'a Gather<'a>),
}

/// Gives every rank the bytes of each.
pub(super) type Gather<'a> = dyn Fn(&[u8]) -> Result<Vec<Vec<u8>>, Error> + 'a;

/// Finds out the counts of a tensor of which every rank has its own, together with the others.
pub(super) type Learn<'a> = dyn Fn(&TensorSpec, TensorId) -> Result<Counts, Error> + 'a;

/// The tables of a rank.
pub(super) struct Tables {
    rank: Rank,
    grid: Grid,
    plan: Plan,
    /// The registering thread holds it throughout; the entries stay free for pushes.
    registering: Mutex<TensorTable>,
    registered: OnceLock<Box<Generation>>,
    /// By shape, and access to the tensor.
    schedules: Mutex<Schedules>,
    /// Those of all groups of the process.
    known: Known,
    choices: Mutex<Choices>,
}

impl Tables {
    /// Empty tables; `known` is that of all groups with this plan.
    pub(super) fn new(rank: Rank, grid: Grid, plan: Plan, known: Known) -> Self {
        Self {
            rank,
            grid,
            plan,
            registering: Mutex::default(),
            registered: OnceLock::new(),
            schedules: Mutex::default(),
            known,
            choices: Mutex::default(),
        }
    }

    /// This rank's schedule, built once.
    pub(super) fn schedule(&self, problem: &Problem) -> Result<Arc<Schedule>, Error> {
        let Problem { shape, root, access, placement, .. } = *problem;
        let (grid, rank, counts) = (self.grid, self.rank, problem.counts.clone());
        let key = ScheduleKey { grid, rank, shape, root, access, placement, counts };
        let mut schedules = lock(&self.schedules);
        if let Some(schedule) = schedules.get(&key) {
            return Ok(schedule);
        }
        let known = lock(&self.known).get(&key);
        let schedule = match known {
            Some(known) => known,
            None => {
                let built = self.build(problem)?;
                lock(&self.known).insert(key.clone(), built.clone());
                built
            }
        };
        schedules.insert(key, schedule.clone());
        Ok(schedule)
    }

    fn build(&self, problem: &Problem) -> Result<Arc<Schedule>, Error> {
        let algorithm = lock(&self.choices).algorithm(&self.plan, &self.grid, &problem.shape);
        let built = self.plan.build(algorithm, problem);
        built.map(Arc::new).map_err(|why| Error::Argument(why.to_string()))
    }

    /// The schedules that all groups of the process have built.
    pub(super) fn known(&self) -> &Known {
        &self.known
    }

    /// This rank's part of an operation, with input and output in place.
    pub(super) fn problem(&self, shape: &Shape, root: Rank) -> Problem {
        Problem::new(self.grid, self.rank, shape, root)
    }

    /// The plan of all schedules.
    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Whether messages of an operation of so many bytes wait for credit.
    #[cfg(feature = "cuda")]
    pub(super) fn is_credited(&self, bytes: u64) -> bool {
        bytes > self.plan.eager_bytes
    }

    /// Lanes of this rank's node, and their bytes.
    #[cfg(feature = "cuda")]
    pub(super) fn lanes(&self) -> (u32, usize) {
        let params = self.plan.params();
        (params.lanes, params.chunk_bytes_on(&self.grid))
    }

    /// This rank's schedule for a registered tensor whose memory lies so; without a lock, from its second use on.
    pub(super) fn schedule_of(&self, entry: &Entry, placement: Placement) -> Result<Arc<Schedule>, Error> {
        let kept = &entry.schedules[usize::from(placement == Placement::Separate)];
        if let Some(schedule) = kept.get() {
            return Ok(schedule.clone());
        }
        let schedule = self.schedule(&Problem { placement, ..entry.problem.clone() })?;
        Ok(kept.get_or_init(|| schedule).clone())
    }

    fn generations(&self) -> impl Iterator<Item = &Generation> {
        std::iter::successors(self.registered.get(), |generation| generation.next.get())
            .map(|generation| &**generation)
    }

    /// Whether tensors are fused.
    pub(super) fn have_buckets(&self) -> bool {
        self.generations().any(|generation| !generation.buckets.is_empty())
    }

    /// Tensors of all generations.
    fn registered(&self) -> usize {
        self.generations().last().map_or(0, |last| last.first + last.entries.len())
    }

    /// The entry of a tensor.
    pub(super) fn entry(&self, tensor: TensorId) -> Result<Arc<Entry>, Error> {
        let at = tensor.0 as usize;
        let found = self
            .generations()
            .find_map(|generation| generation.entries.get(at.checked_sub(generation.first)?));
        found.cloned().ok_or_else(|| {
            Error::Argument(format!(
                "tensor {} is not registered; there are {}; register it first",
                tensor.0,
                self.registered()
            ))
        })
    }

    /// A view of an operation, with its tensor's name where the table has that.
    pub(super) fn describe(&self, view: &View) -> String {
        match self.named(&view.identity) {
            Some(tensor) => format!("{} of \"{}\" ({})", view.shape, tensor.name, view.identity),
            None => view.to_string(),
        }
    }

    /// The tensor of an operation, if it is in the table.
    pub(super) fn named(&self, identity: &Identity) -> Option<Arc<NamedTensor>> {
        let Identity::Registered { generation, tensor, .. } = *identity else { return None };
        let generation = self.generations().nth(generation as usize)?;
        let (tensor, name) = match (tensor as usize).checked_sub(generation.entries.len()) {
            None => (tensor, &generation.entries.get(tensor as usize)?.name),
            Some(number) => {
                generation.buckets.get(number).map(|bucket| (bucket.priority(), bucket.name()))?
            }
        };
        let name = name.as_ref().to_owned();
        Some(Arc::new(NamedTensor { id: TensorId(generation.first as u32 + tensor), name }))
    }

    /// The buckets of a generation.
    fn buckets(&self, generation: u32, specs: &[TensorSpec]) -> Result<Vec<Arc<Bucket>>, Error> {
        let layouts = (specs.len() as u32..).zip(fusion::layouts(&self.plan, specs));
        let buckets = layouts.map(|(number, layout)| {
            let schedule = self.schedule(&self.problem(&layout.shape, Rank(0)))?;
            let bytes = layout.bytes();
            let bucket = Bucket::new(layout, generation, number, specs, schedule);
            let none = || Error::Argument(format!("there is no memory to fuse tensors of {bytes} bytes in"));
            bucket.map(Arc::new).ok_or_else(none)
        });
        buckets.collect()
    }

    /// The entry of a tensor, with its schedule.
    fn new_entry(
        &self,
        spec: &TensorSpec,
        (generation, tensor): (u32, u32),
        counts: Option<Counts>,
        member: Option<Member>,
    ) -> Result<Arc<Entry>, Error> {
        let TensorSpec { collective, dtype, op, count, .. } = *spec;
        let problem = self.problem(&Shape { collective, dtype, op, count }, Rank(spec.root));
        let problem = match counts {
            Some(counts) => problem.with_counts(Arc::new(counts)),
            None => problem,
        };
        let placement = if problem.fits_in_place() { Placement::InPlace } else { Placement::Separate };
        let entry = Entry {
            generation,
            tensor,
            uses: AtomicU32::new(0),
            problem,
            schedules: Default::default(),
            parts: Default::default(),
            name: Arc::from(spec.name.as_str()),
            staging: OnceLock::new(),
            member,
        };
        self.schedule_of(&entry, placement)?;
        Ok(Arc::new(entry))
    }

    /// Appends a generation that all ranks agree on; `exchange` reaches the others, where there are any, and `learn` finds out the counts that
    /// are not the same on all.
    pub(super) fn register(
        &self,
        specs: &[TensorSpec],
        exchange: Option<TableExchange<'_>>,
        learn: &Learn<'_>,
        deadline: Duration,
        step: u64,
    ) -> Result<Vec<TensorId>, Error> {
        let mut table = lock(&self.registering);
        let (mut grown, first) = (table.clone(), self.registered() as u32);
        let generation = grown.append(specs.to_vec()).map_err(argument)?;
        // What can fail on this rank alone comes before the agreement: the others miss this rank there, and register nothing either.
        let buckets = self.buckets(generation, specs)?;
        let mut members = vec![None; specs.len()];
        for bucket in &buckets {
            for (index, tensor) in bucket.layout().tensors.iter().enumerate() {
                members[*tensor as usize] = Some(Member { bucket: bucket.clone(), index });
            }
        }
        let mut entry = |tensor: u32, counts: Option<Counts>| {
            let (spec, member) = (&specs[tensor as usize], members[tensor as usize].take());
            self.new_entry(spec, (generation, tensor), counts, member)
        };
        let known = (0u32..).zip(specs).map(|(tensor, spec)| match &spec.counts {
            BlockCounts::None => entry(tensor, None).map(Some),
            BlockCounts::OfRanks(counts) => {
                let refused = |why| Error::Argument(format!("tensor \"{}\": {why}", spec.name));
                entry(tensor, Some(Counts::of_blocks(counts.clone()).map_err(refused)?)).map(Some)
            }
            BlockCounts::OfPairs { .. } => Ok(None),
        });
        let known = known.collect::<Result<Vec<_>, _>>()?;
        if let Some(exchange) = exchange {
            Agreement { table: &grown, specs, generation, first, rank: self.rank, exchange, deadline, step }
                .reach()?;
        }
        let unknown = (0u32..).zip(&known).filter(|(_, known)| known.is_none());
        let unknown = unknown.map(|(tensor, _)| learn(&specs[tensor as usize], TensorId(first + tensor)));
        let mut learnt = unknown.collect::<Result<Vec<_>, _>>()?.into_iter();
        let entries = (0u32..).zip(known).map(|(tensor, known)| match known {
            Some(entry) => Ok(entry),
            None => entry(tensor, learnt.next()),
        });
        let entries = entries.collect::<Result<Vec<_>, Error>>()?;
        let grown_by = entries.len() as u32;
        let new = Box::new(Generation { first: first as usize, entries, buckets, next: OnceLock::new() });
        let end = self.generations().last().map_or(&self.registered, |last| &last.next);
        if end.set(new).is_err() {
            return Err(Error::Internal(
                "two generations of the tensor table were registered at once".into(),
            ));
        }
        *table = grown;
        Ok((first..first + grown_by).map(TensorId).collect())
    }
}

fn argument(why: TableError) -> Error {
    Error::Argument(why.to_string())
}

/// A new generation of this rank's table, on which all ranks have to agree.
struct Agreement<'a> {
    table: &'a TensorTable,
    specs: &'a [TensorSpec],
    generation: u32,
    /// The number that its first tensor gets.
    first: u32,
    rank: Rank,
    exchange: TableExchange<'a>,
    deadline: Duration,
    step: u64,
}

impl Agreement<'_> {
    /// Makes sure that all ranks have the same generation. Where not, digests of prefixes, halved again and again, lead to the
    /// first tensor that is not the same everywhere, and the error shows this rank's view of it beside that of the first that
    /// differs.
    fn reach(&self) -> Result<(), Error> {
        let Self { table, generation, rank, .. } = *self;
        let same = |all: &[Vec<u8>]| all.windows(2).all(|pair| pair[0] == pair[1]);
        let digest = table.digest(generation).map_err(argument)?;
        if same(&self.gather("table", &digest)?) {
            return Ok(());
        }
        // Beyond the end of a table its prefixes stay the same, so all ranks can begin with the longest that may be.
        let (mut alike, mut differing) = (0, table::MAX_TENSORS);
        while differing - alike > 1 {
            let len = alike + (differing - alike) / 2;
            let digest = table.prefix_digest(generation, len).map_err(argument)?;
            let which =
                if same(&self.gather("a part of table", &digest)?) { &mut alike } else { &mut differing };
            *which = len;
        }
        let all = self.gather("a tensor of table", &table.to_bytes(generation, alike).map_err(argument)?)?;
        for (other, bytes) in (0u32..).zip(&all).filter(|(other, _)| *other != rank.0) {
            let theirs = table::from_bytes(bytes).map_err(|why| {
                let text = format!("the table of rank {other}: {why}");
                Error::mismatch(self.call(None), Some(other), Views::default(), text)
            })?;
            table.compare(generation, alike, Rank(other), theirs).map_err(|why| self.differs(&why))?;
        }
        Err(Error::Internal(format!(
            "tables differ in generation {generation}, and none of their tensors does"
        )))
    }

    fn gather(&self, what: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let Self { generation, deadline, .. } = *self;
        let control = match &self.exchange {
            TableExchange::Control(control) => control,
            TableExchange::Members(gather) => {
                let registers = |error: Error| error.part_of(Operation::Register, &self.subject());
                return gather(bytes).map_err(registers);
            }
        };
        control.all_gather(&format!("{what} {generation}"), bytes, deadline).map_err(|why| match why {
            ExchangeError::Ended { ending, .. } => {
                let text = format!("{} was given up: {ending}", self.subject());
                match ending {
                    Ending::Group(end) => Error::peer_failed(self.call(None), end.rank, end.reason, text),
                    _ => Error::closed(text),
                }
            }
            why @ ExchangeError::Left { rank, .. } => {
                let text = format!("{} was given up: {why}", self.subject());
                Error::peer_failed(self.call(None), rank, Reason::Aborted, text)
            }
            // The others have said so before it came.
            ExchangeError::Missing { missing, .. } if missing.ranks.contains(&self.rank.0) => {
                let text = format!("{}: {} comes after the others' deadline", self.subject(), self.rank);
                Error::peer_failed(self.call(None), self.rank.0, Reason::Late, text)
            }
            ExchangeError::Missing { missing, waited, .. } => {
                let text = format!(
                    "{} waited {waited:?} for {missing}; check that they are alive and register the same tensors, at the same place among \
                     their operations, or allow more time",
                    self.subject()
                );
                Error::deadline(self.call(None), missing.ranks, deadline, text)
            }
            why => {
                let text = format!("agreeing on generation {generation} of the table: {why}");
                Error::Join { rank: why.rank(), missing: why.missing(), text: text.into() }
            }
        })
    }

    /// The call, for people.
    fn subject(&self) -> String {
        let Self { generation, step, .. } = *self;
        let tensors = match self.specs {
            [] => "no tensor".to_owned(),
            [one] => format!("\"{}\"", one.name),
            [first, others @ ..] => format!("\"{}\" and {} more", first.name, others.len()),
        };
        format!("register of {tensors} (generation {generation} of the table; step {step})")
    }

    fn differs(&self, why: &table::Mismatch) -> Error {
        let id = TensorId(self.first + why.index as u32);
        let tensor = Arc::new(NamedTensor { id, name: why.tensor.clone() });
        let [ours, theirs] = why.views().map(|view| view.map(Into::into));
        let views = Views { ours, theirs };
        Error::mismatch(self.call(Some(tensor)), Some(why.rank.0), views, why.to_string())
    }

    fn call(&self, tensor: Option<Arc<NamedTensor>>) -> Call {
        Call { operation: Operation::Register, tensor, step: self.step }
    }
}
