//! Pushed operations: members of buckets are held until their bucket is complete, or until a flush starts them by themselves.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::{Bucket, Member, list};
use crate::executor::Request;
use crate::memory::{self, Pool, TensorRegion};

/// An operation to be started, and the reports of its end.
#[derive(Debug)]
pub struct Ready<D> {
    /// The operation.
    pub request: Request,
    /// The reports of its end.
    pub ends: Ends<D>,
    /// How many were pushed before; only where it goes by itself.
    number: u64,
}

/// The reports of an operation's end.
#[derive(Debug)]
pub enum Ends<D> {
    /// The report of one tensor.
    One(D),
    /// The reports of a bucket's members.
    All(BucketUse<D>),
}

impl<D> Ends<D> {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &D> {
        let (one, all) = match self {
            Self::One(report) => (Some(report), None),
            Self::All(bucket_use) => (None, Some(bucket_use.held.iter().flatten().map(|held| &held.report))),
        };
        one.into_iter().chain(all.into_iter().flatten())
    }
}

/// A member that was pushed.
#[derive(Debug)]
struct Held<D> {
    /// How many were pushed before.
    number: u64,
    request: Request,
    report: D,
}

/// One use of a bucket: the members that were pushed, and the memory in which they are reduced.
#[derive(Debug)]
pub struct BucketUse<D> {
    bucket: Arc<Bucket>,
    held: Vec<Option<Held<D>>>,
    /// Room for all members: the bucket's, or for a second use under way at once made when first needed.
    staging: Option<Pool>,
    /// The members were copied there.
    is_copied: bool,
    /// It was started, and has not ended well.
    is_under_way: bool,
}

impl<D> BucketUse<D> {
    fn new(bucket: &Arc<Bucket>) -> Self {
        let held = bucket.layout.tensors.iter().map(|_| None).collect();
        let staging = bucket.take_staging();
        Self { bucket: bucket.clone(), held, staging, is_copied: false, is_under_way: false }
    }

    fn is_complete(&self) -> bool {
        self.held.iter().all(Option::is_some)
    }

    /// The names of those that were not pushed.
    fn missing(&self) -> Arc<str> {
        let members = self.bucket.names.iter().zip(&self.held);
        let missing: Vec<&str> =
            members.filter(|(_, held)| held.is_none()).map(|(name, _)| &**name).collect();
        list(&missing).into()
    }

    fn is_late(&self, now: Duration) -> bool {
        self.held.iter().flatten().any(|held| held.request.deadline <= now)
    }

    /// The members' memory as one, where they lie behind each other in memory that the host's ranks share.
    fn joined(&self) -> Option<TensorRegion> {
        let mut requests = self.held.iter().flatten().map(|held| &held.request);
        let first = requests.next().filter(|request| request.input.is_empty())?.data;
        requests.try_fold(first, |joined, next| joined.joined(&next.data).filter(|_| next.input.is_empty()))
    }

    /// Copies the members into the staging memory; `None` if there is none, or one has not the length that it was registered with.
    fn gather(&mut self) -> Option<TensorRegion> {
        let bytes = self.bucket.layout.bytes();
        if self.staging.is_none() {
            self.staging = Pool::new(bytes);
        }
        let into = self.staging.as_ref()?.whole().sub(0, bytes)?;
        for (at, held) in self.held.iter().enumerate() {
            let (start, len) = self.bucket.layout.place(at)?;
            let given = held.as_ref()?.request.given();
            (given.len() == len).then_some(())?;
            memory::copy((into, start), (given, 0), len)?;
        }
        Some(into)
    }

    /// Copies the results to the members.
    fn scatter(&self) {
        let Some(from) = self.staging.as_ref().map(Pool::whole).filter(|_| self.is_copied) else { return };
        for (at, held) in self.held.iter().enumerate() {
            if let (Some((start, len)), Some(held)) = (self.bucket.layout.place(at), held) {
                // Input and output of an all-reduce are of one length, which `gather` has compared.
                let _ = memory::copy((held.request.data, 0), (from, start), len);
            }
        }
    }

    /// The operation of all members; `None` if their memory cannot be one.
    fn request(&mut self) -> Option<Request> {
        let joined = self.joined().filter(|joined| joined.len() == self.bucket.layout.bytes());
        self.is_copied = joined.is_none();
        let data = joined.or_else(|| self.gather())?;
        self.is_under_way = true;
        let bucket = &self.bucket;
        let requests = || self.held.iter().flatten().map(|held| &held.request);
        Some(Request {
            identity: bucket.next_use(),
            shape: bucket.layout.shape,
            data,
            input: TensorRegion::empty(),
            schedule: bucket.schedule.clone(),
            priority: bucket.priority(),
            deadline: requests().map(|request| request.deadline).min()?,
            name: bucket.name.clone(),
            step: requests().map(|request| request.step).max()?,
            pushed: requests().map(|request| request.pushed).min()?,
            device: None,
        })
    }
}

impl<D> Drop for BucketUse<D> {
    fn drop(&mut self) {
        // Something may still refer to the memory in which it runs: that stays for ever.
        if let Some(staging) = self.staging.as_mut().filter(|_| self.is_under_way) {
            staging.leak();
        }
    }
}

/// The operations of one rank in one group that were pushed, and not taken to be started. A report `D` belongs to each.
#[derive(Debug)]
pub struct FusionQueue<D> {
    /// Uses of buckets that lack members.
    pending: Vec<BucketUse<D>>,
    /// Uses that have ended, for the next.
    spare: Vec<BucketUse<D>>,
    ready: VecDeque<Ready<D>>,
    pushed: u64,
    held: usize,
    /// When the first of what is held misses its deadline.
    until: Duration,
    /// Nothing is held any more.
    is_closed: bool,
}

impl<D> Default for FusionQueue<D> {
    fn default() -> Self {
        Self {
            pending: vec![],
            spare: vec![],
            ready: VecDeque::new(),
            pushed: 0,
            held: 0,
            until: Duration::MAX,
            is_closed: false,
        }
    }
}

impl<D> FusionQueue<D> {
    /// A member of a bucket was pushed. If its bucket holds an earlier push of it, the queue is flushed first.
    pub fn push(&mut self, Member { bucket, index }: &Member, request: Request, report: D) {
        let is_in = |bucket_use: &BucketUse<D>| Arc::ptr_eq(&bucket_use.bucket, bucket);
        let is_there = |bucket_use: &BucketUse<D>| bucket_use.held.get(*index).is_none_or(Option::is_some);
        if self.is_closed || self.pending.iter().find(|bucket_use| is_in(bucket_use)).is_some_and(is_there) {
            self.flush();
        }
        if self.is_closed {
            return self.ready.push_back(Ready { request, ends: Ends::One(report), number: self.pushed });
        }
        let at = self.pending.iter().position(is_in).unwrap_or_else(|| {
            let bucket_use = match self.spare.iter().position(is_in) {
                Some(at) => self.spare.swap_remove(at),
                None => {
                    // Those of earlier tables, which may not be used any more, make room.
                    self.spare.retain(|spare| spare.bucket.generation >= bucket.generation);
                    BucketUse::new(bucket)
                }
            };
            self.pending.push(bucket_use);
            self.pending.len() - 1
        });
        self.until = self.until.min(request.deadline);
        self.pushed += 1;
        self.held += 1;
        let bucket_use = &mut self.pending[at];
        match bucket_use.held.get_mut(*index) {
            Some(place) => *place = Some(Held { number: self.pushed, request, report }),
            None => return,
        }
        if bucket_use.is_complete() {
            let mut bucket_use = self.pending.swap_remove(at);
            self.held -= bucket_use.held.len();
            match bucket_use.request() {
                Some(request) => {
                    self.ready.push_back(Ready { request, ends: Ends::All(bucket_use), number: self.pushed })
                }
                None => self.separate(bucket_use),
            }
            self.look_at_deadlines();
        }
    }

    /// Starts the members that are held, each by itself, in the order of the pushes.
    pub fn flush(&mut self) {
        let behind = self.ready.len();
        while let Some(bucket_use) = self.pending.pop() {
            self.separate(bucket_use);
        }
        self.ready.make_contiguous()[behind..].sort_unstable_by_key(|ready| ready.number);
        self.held = 0;
        self.until = Duration::MAX;
    }

    /// Starts the members that are held, each by itself; from now on none is held.
    pub fn close(&mut self) {
        self.flush();
        self.is_closed = true;
    }

    /// Takes the operation that starts next.
    pub fn take(&mut self) -> Option<Ready<D>> {
        self.ready.pop_front()
    }

    /// How many operations can be taken.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// How many members are held for others.
    pub fn held(&self) -> usize {
        self.held
    }

    /// The reports of what is held.
    pub fn reports(&self) -> impl Iterator<Item = &D> {
        self.pending.iter().flat_map(|bucket_use| bucket_use.held.iter().flatten()).map(|held| &held.report)
    }

    /// When the first of what is held misses its deadline.
    pub fn until(&self) -> Duration {
        self.until
    }

    /// Gives up the members of each bucket in which the deadline of one has passed: `tell` gets their reports, and the names of the tensors that
    /// were not pushed. None of them starts.
    pub fn give_up(&mut self, now: Duration, mut tell: impl FnMut(&mut dyn Iterator<Item = D>, Arc<str>)) {
        while let Some(at) = self.pending.iter().position(|bucket_use| bucket_use.is_late(now)) {
            let mut bucket_use = self.pending.swap_remove(at);
            let missing = bucket_use.missing();
            self.held -= bucket_use.held.iter().flatten().count();
            tell(&mut bucket_use.held.iter_mut().filter_map(Option::take).map(|held| held.report), missing);
            self.spare.push(bucket_use);
        }
        self.look_at_deadlines();
    }

    /// A bucket's operation has ended. Where it has brought its results they are copied to the members; then each of these is told.
    pub fn complete(&mut self, mut bucket_use: BucketUse<D>, is_well: bool, mut tell: impl FnMut(D)) {
        if is_well {
            bucket_use.scatter();
            bucket_use.is_under_way = false;
        }
        bucket_use.held.iter_mut().filter_map(Option::take).for_each(|held| tell(held.report));
        if is_well {
            self.spare.push(bucket_use);
        }
    }

    /// Starts a bucket's members by themselves.
    fn separate(&mut self, mut bucket_use: BucketUse<D>) {
        for Held { number, request, report } in bucket_use.held.iter_mut().filter_map(Option::take) {
            self.ready.push_back(Ready { request, ends: Ends::One(report), number });
        }
        self.spare.push(bucket_use);
    }

    fn look_at_deadlines(&mut self) {
        let held = self.pending.iter().flat_map(|bucket_use| bucket_use.held.iter().flatten());
        self.until = held.map(|held| held.request.deadline).min().unwrap_or(Duration::MAX);
    }
}
