//! Registered tensors and cached schedules.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::{Collective, Identity, Shape, View};
use shouter_reducer::plan::Plan;
use shouter_reducer::schedule::{Access, Problem, Schedule};
pub use shouter_reducer::table::TensorSpec;
use shouter_reducer::table::{self, TableError, TensorTable};

use super::schedules::Schedules;
use super::stats::lock;
use crate::error::Error;
use crate::group::rendezvous::ExchangeError;
use crate::group::watch::Control;

/// A registered tensor: an index over all generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorId(pub u32);

/// What is needed to push a tensor.
pub(super) struct Entry {
    generation: u32,
    pub(super) tensor: u32,
    uses: AtomicU32,
    pub(super) shape: Shape,
    pub(super) schedule: Arc<Schedule>,
    pub(super) name: Arc<str>,
}

impl Entry {
    /// The identity of the tensor's next operation.
    pub(super) fn next_use(&self) -> Identity {
        let instance = self.uses.fetch_add(1, Ordering::Relaxed);
        Identity::Registered { generation: self.generation, tensor: self.tensor, instance }
    }
}

#[derive(Default)]
struct Registered {
    table: TensorTable,
    entries: Vec<Arc<Entry>>,
}

/// The tables of a rank.
pub(super) struct Tables {
    rank: Rank,
    grid: Grid,
    plan: Plan,
    /// Who registers holds it throughout; the table stays free for those who push.
    registering: Mutex<()>,
    registered: Mutex<Registered>,
    /// By shape, and what may touch the tensor.
    schedules: Mutex<Schedules>,
}

impl Tables {
    /// Empty tables.
    pub(super) fn new(rank: Rank, grid: Grid, plan: Plan) -> Self {
        Self {
            rank,
            grid,
            plan,
            registering: Mutex::default(),
            registered: Mutex::default(),
            schedules: Mutex::default(),
        }
    }

    /// This rank's schedule for an operation, built once.
    pub(super) fn schedule(&self, shape: &Shape) -> Result<Arc<Schedule>, Error> {
        self.schedule_for(shape, Access::Host)
    }

    /// The same, for a tensor that the CPU may touch or may not.
    pub(super) fn schedule_for(&self, shape: &Shape, access: Access) -> Result<Arc<Schedule>, Error> {
        let mut schedules = lock(&self.schedules);
        if let Some(schedule) = schedules.get(&(*shape, access)) {
            return Ok(schedule);
        }
        let problem = Problem::new(self.grid, self.rank, shape, Rank(0));
        let problem = Problem { access, ..problem };
        let built = self.plan.schedule_for(&problem);
        let built = Arc::new(built.map_err(|why| Error::Argument(why.to_string()))?);
        schedules.insert((*shape, access), built.clone());
        Ok(built)
    }

    /// Whether messages of an operation of so many bytes wait until they are asked for.
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

    /// What is known of a tensor.
    pub(super) fn entry(&self, tensor: TensorId) -> Result<Arc<Entry>, Error> {
        let registered = lock(&self.registered);
        registered.entries.get(tensor.0 as usize).cloned().ok_or_else(|| {
            Error::Argument(format!(
                "tensor {} is not registered; there are {}; register it first",
                tensor.0,
                registered.entries.len()
            ))
        })
    }

    /// A view of an operation, with its tensor's name where the table has that.
    pub(super) fn describe(&self, view: &View) -> String {
        let Identity::Registered { generation, tensor, .. } = view.identity else { return view.to_string() };
        let registered = lock(&self.registered);
        let known = |entry: &&Arc<Entry>| (entry.generation, entry.tensor) == (generation, tensor);
        match registered.entries.iter().find(known) {
            Some(entry) => format!("{} of \"{}\" ({})", view.shape, entry.name, view.identity),
            None => view.to_string(),
        }
    }

    /// Appends a generation that all ranks agree on; `control` reaches the others, where there are any.
    pub(super) fn register(
        &self,
        specs: &[TensorSpec],
        control: Option<&Control>,
        deadline: Duration,
    ) -> Result<Vec<TensorId>, Error> {
        let _turn = lock(&self.registering);
        let mut grown = lock(&self.registered).table.clone();
        let generation = grown.append(specs.to_vec()).map_err(argument)?;
        if let Some(control) = control {
            agree(&grown, generation, self.rank, control, deadline)?;
        }
        let mut entries = Vec::with_capacity(specs.len());
        for (tensor, spec) in (0u32..).zip(specs) {
            let shape = Shape {
                collective: Collective::AllReduce,
                dtype: spec.dtype,
                op: spec.op,
                count: spec.count,
            };
            entries.push(Arc::new(Entry {
                generation,
                tensor,
                uses: AtomicU32::new(0),
                shape,
                schedule: self.schedule(&shape)?,
                name: Arc::from(spec.name.as_str()),
            }));
        }
        let mut registered = lock(&self.registered);
        let first = registered.entries.len() as u32;
        registered.table = grown;
        registered.entries.extend(entries);
        Ok((first..registered.entries.len() as u32).map(TensorId).collect())
    }
}

fn argument(why: TableError) -> Error {
    Error::Argument(why.to_string())
}

/// Makes sure that all ranks have the same generation. Where not, digests of prefixes, halved again and again, lead to the first
/// tensor that is not the same everywhere, and the error shows this rank's view of it beside that of the first that differs.
fn agree(
    table: &TensorTable,
    generation: u32,
    rank: Rank,
    control: &Control,
    deadline: Duration,
) -> Result<(), Error> {
    let gather = |what: &str, bytes: &[u8]| {
        control.all_gather(&format!("{what} {generation}"), bytes, deadline).map_err(|why| match why {
            ExchangeError::Ended { why, .. } => Error::PeerFailed(format!(
                "generation {generation} of the tensor table was not agreed on: {why}"
            )),
            why => Error::Join(format!("agreeing on generation {generation} of the table: {why}")),
        })
    };
    let same = |all: &[Vec<u8>]| all.windows(2).all(|pair| pair[0] == pair[1]);
    let digest = table.digest(generation).map_err(argument)?;
    if same(&gather("table", &digest)?) {
        return Ok(());
    }
    // Beyond the end of a table its prefixes stay the same, so all ranks can begin with the longest that may be.
    let (mut alike, mut differing) = (0, table::MAX_TENSORS);
    while differing - alike > 1 {
        let len = alike + (differing - alike) / 2;
        let digest = table.prefix_digest(generation, len).map_err(argument)?;
        let which = if same(&gather("a part of table", &digest)?) { &mut alike } else { &mut differing };
        *which = len;
    }
    let all = gather("a tensor of table", &table.to_bytes(generation, alike).map_err(argument)?)?;
    for (other, bytes) in (0u32..).zip(&all).filter(|(other, _)| *other != rank.0) {
        let theirs = table::from_bytes(bytes)
            .map_err(|why| Error::Mismatch(format!("the table of rank {other}: {why}")))?;
        table
            .compare(generation, alike, Rank(other), theirs)
            .map_err(|why| Error::Mismatch(why.to_string()))?;
    }
    Err(Error::Internal(format!("tables differ in generation {generation}, and none of their tensors does")))
}
