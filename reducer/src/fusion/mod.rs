//! Fusion: small tensors of the table that are reduced as one.
//!
//! Which tensors share a [`Bucket`] follows from the table and the plan alone ([`layouts`]): all-reduces of the same type and reduction,
//! each smaller than `fuse_below`, in the order of the table, up to `fuse_bytes` in all; other tensors may lie between them. The
//! [`FusionQueue`] decides when a bucket starts, from the order of operations alone: with the last of its members that is pushed. The earlier
//! ones are held until then. A flush of the queue starts each held member by itself, in the order of the pushes. So ranks that do the same in
//! the same order start the same operations in the same order, whatever the times at which they do it.
//!
//! An element is folded in the order of ranks whatever the tensor around it (see [`plan`](crate::plan)), so a fused sum has the bits of one
//! that is not. Where the plan names an algorithm that keeps another order, nothing is fused.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::header::{Collective, Identity, Shape};
use crate::memory::Pool;
use crate::plan::Plan;
use crate::schedule::Schedule;
use crate::table::{MAX_TENSORS, TensorSpec};

mod queue;

pub use queue::{BucketUse, Ends, FusionQueue, Ready};

/// Members that a bucket's name lists from its beginning, where it does not list all.
const LISTED: usize = 8;

/// Where the members of a bucket lie in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketLayout {
    /// The type and the reduction, and the elements of all members.
    pub shape: Shape,
    /// Indices in their generation of the table, in its order.
    pub tensors: Vec<u32>,
    /// Where each begins, in bytes; then the end of the last.
    starts: Vec<usize>,
}

impl BucketLayout {
    fn new(index: u32, shape: Shape) -> Self {
        Self { shape, tensors: vec![index], starts: vec![0, bytes(&shape) as usize] }
    }

    fn add(&mut self, index: u32, shape: &Shape) {
        self.tensors.push(index);
        self.starts.push(self.bytes() + bytes(shape) as usize);
        self.shape.count += shape.count;
    }

    /// Bytes of all members.
    pub fn bytes(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Where a member begins, and its bytes.
    fn place(&self, member: usize) -> Option<(usize, usize)> {
        let (start, end) = (*self.starts.get(member)?, *self.starts.get(member + 1)?);
        Some((start, end - start))
    }
}

fn bytes(shape: &Shape) -> u64 {
    shape.count.saturating_mul(shape.dtype.size() as u64)
}

/// The buckets of a generation of the table: the same on every rank, for table and plan are. A tensor that finds no other is in none.
pub fn layouts(plan: &Plan, specs: &[TensorSpec]) -> Vec<BucketLayout> {
    let named = plan.overrides.of(Collective::AllReduce);
    // A bucket has a number behind those of the tensors.
    if named.is_some_and(|algorithm| !algorithm.keeps_order()) || specs.len() > MAX_TENSORS / 2 {
        return vec![];
    }
    let (mut open, mut all): (Vec<BucketLayout>, Vec<BucketLayout>) = (vec![], vec![]);
    for (index, spec) in (0u32..).zip(specs) {
        let &TensorSpec { collective, dtype, op, count, .. } = spec;
        let shape = Shape { collective, dtype, op, count };
        let bytes = bytes(&shape);
        if collective != Collective::AllReduce || count == 0 || bytes >= plan.fuse_below {
            continue;
        }
        let alike = |layout: &&mut BucketLayout| (layout.shape.dtype, layout.shape.op) == (dtype, op);
        match open.iter_mut().find(alike) {
            Some(layout) if layout.bytes() as u64 + bytes <= plan.fuse_bytes => layout.add(index, &shape),
            Some(layout) => all.push(std::mem::replace(layout, BucketLayout::new(index, shape))),
            None => open.push(BucketLayout::new(index, shape)),
        }
    }
    all.append(&mut open);
    all.retain(|layout| layout.tensors.len() > 1);
    all.sort_by_key(|layout| layout.tensors[0]);
    all
}

/// Tensors of the table that are reduced as one.
#[derive(Debug)]
pub struct Bucket {
    layout: BucketLayout,
    generation: u32,
    /// Its number: those of the generation's tensors come before.
    number: u32,
    /// How often it was started as one.
    uses: AtomicU32,
    schedule: Arc<Schedule>,
    names: Vec<Box<str>>,
    name: Arc<str>,
    /// The memory of its first use, taken with that: where there is none the table is refused, rather than a rank left that cannot fuse.
    staging: Mutex<Option<Pool>>,
}

/// A tensor of a bucket.
#[derive(Clone, Debug)]
pub struct Member {
    /// The bucket.
    pub bucket: Arc<Bucket>,
    /// Which of its members it is.
    pub index: usize,
}

impl Bucket {
    /// The bucket of this layout among `specs`, with the schedule that reduces it in place; `None` if there is no memory for it.
    pub fn new(
        layout: BucketLayout,
        generation: u32,
        number: u32,
        specs: &[TensorSpec],
        schedule: Arc<Schedule>,
    ) -> Option<Self> {
        let names = layout.tensors.iter().filter_map(|index| Some(specs.get(*index as usize)?.name.as_str()));
        let names: Vec<Box<str>> = names.map(Box::from).collect();
        let (uses, name) = (AtomicU32::new(0), list(&names).into());
        let staging = Mutex::new(Some(Pool::new(layout.bytes())?));
        Some(Self { layout, generation, number, uses, schedule, names, name, staging })
    }

    /// Where the members lie.
    pub fn layout(&self) -> &BucketLayout {
        &self.layout
    }

    /// The members' names.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The most urgent member's index in the table, which is the priority of all.
    pub fn priority(&self) -> u32 {
        self.layout.tensors.first().copied().unwrap_or(0)
    }

    fn take_staging(&self) -> Option<Pool> {
        self.staging.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The identity of its next operation.
    fn next_use(&self) -> Identity {
        let instance = self.uses.fetch_add(1, Ordering::Relaxed);
        Identity::Registered { generation: self.generation, tensor: self.number, instance }
    }
}

/// Names in one line; of many, the first and the last.
fn list(names: &[impl std::borrow::Borrow<str>]) -> String {
    let names: Vec<&str> = names.iter().map(std::borrow::Borrow::borrow).collect();
    match &names[..] {
        [first @ .., last] if first.len() > 2 * LISTED => {
            let more = first.len() - LISTED;
            format!("{} + {more} more + {last}", first[..LISTED].join(" + "))
        }
        all => all.join(" + "),
    }
}

#[cfg(test)]
mod tests;
