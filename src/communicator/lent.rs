//! Tensors that are lent to the group: overlap in safe Rust.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use shouter_reducer::dtype::ReduceOp;
use shouter_reducer::header::Collective;
use shouter_reducer::schedule::Problem;

use super::staging::Staging;
use super::table::Entry;
use super::{CollectiveCall, Element, Group, Tensor, Work};
use crate::error::Error;
use crate::error::TensorId;

mod sealed {
    use crate::Element;

    pub trait Sealed {}

    /// An owned buffer whose elements stay where they are when it is moved.
    pub trait Owned {
        type Element: Element;

        fn elements(&mut self) -> &mut [Self::Element];
    }
}

pub(super) use sealed::Owned;

/// Memory that can be [lent](Group::lend) to a group: an owned buffer (a `Vec`, a `Box` or a [`Tensor`]) that holds
/// input and output in one, or a pair of them, input and output. A buffer's elements stay where they are when it is
/// moved.
pub trait Lend: sealed::Sealed {
    /// The type of its elements.
    type Element: Element;

    /// The input, where it is a buffer of its own, and the other buffer.
    fn buffers(&mut self) -> (Option<&[Self::Element]>, &mut [Self::Element]);
}

macro_rules! owned {
    ($($buffer:ty),*) => { $(
        impl<T: Element> Owned for $buffer {
            type Element = T;

            fn elements(&mut self) -> &mut [T] {
                self
            }
        }

        impl<T: Element> sealed::Sealed for $buffer {}
        impl<T: Element> Lend for $buffer {
            type Element = T;

            fn buffers(&mut self) -> (Option<&[T]>, &mut [T]) {
                (None, self)
            }
        }
    )* };
}

owned!(Vec<T>, Box<[T]>, Tensor<T>);

impl<I: Owned, O: Owned<Element = I::Element>> sealed::Sealed for (I, O) {}
impl<I: Owned, O: Owned<Element = I::Element>> Lend for (I, O) {
    type Element = I::Element;

    fn buffers(&mut self) -> (Option<&[I::Element]>, &mut [I::Element]) {
        (Some(self.0.elements()), self.1.elements())
    }
}

/// The operation that buffers are [lent](Group::lend) for: that of a registered tensor ([`TensorId`]), or any
/// collective ([`Collective`], with [`op`](Self::op) and [`root`](Self::root) where it has them).
#[derive(Clone, Copy, Debug)]
pub struct Lending(LendingKind);

#[derive(Clone, Copy, Debug)]
enum LendingKind {
    Tensor(TensorId),
    Collective { collective: Collective, op: ReduceOp, root: u32 },
}

impl Lending {
    /// The same with this reduction; the sum unless set. A registered tensor keeps its own.
    pub fn op(self, reduction: ReduceOp) -> Self {
        match self.0 {
            LendingKind::Collective { collective, root, .. } => {
                Self(LendingKind::Collective { collective, op: reduction, root })
            }
            LendingKind::Tensor(_) => self,
        }
    }

    /// The same with this root; rank 0 unless set. A registered tensor keeps its own.
    pub fn root(self, rank: u32) -> Self {
        match self.0 {
            LendingKind::Collective { collective, op, .. } => {
                Self(LendingKind::Collective { collective, op, root: rank })
            }
            LendingKind::Tensor(_) => self,
        }
    }
}

impl From<TensorId> for Lending {
    fn from(tensor: TensorId) -> Self {
        Self(LendingKind::Tensor(tensor))
    }
}

impl From<Collective> for Lending {
    fn from(collective: Collective) -> Self {
        Self(LendingKind::Collective { collective, op: ReduceOp::Sum, root: 0 })
    }
}

impl std::fmt::Display for Lending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            LendingKind::Tensor(tensor) => write!(f, "tensor {}", tensor.0),
            LendingKind::Collective { collective, .. } => collective.fmt(f),
        }
    }
}

/// Buffers that are the group's until [`wait`](Self::wait) gives them back, from [`Group::lend`].
///
/// Dropping it waits until the operation has ended, which its deadline (the key `deadline`) bounds, and frees the buffers. Buffers
/// that something may still read or write after that are never freed, and the log says so. [Forgetting](std::mem::forget) it
/// leaks the buffers.
///
/// ```compile_fail,E0505
/// # fn leave(group: shouter::Group, id: shouter::TensorId) -> Result<(), shouter::Error> {
/// let lent = group.lend(id, vec![1f32; 1000])?;
/// drop(group); // Lent to it.
/// # lent.wait().map(drop).map_err(Into::into)
/// # }
/// ```
///
/// ```compile_fail,E0382
/// # fn touch(group: &shouter::Group, id: shouter::TensorId) -> Result<(), shouter::Error> {
/// let gradient = vec![1f32; 1000];
/// let lent = group.lend(id, gradient)?;
/// println!("{}", gradient[0]); // The group's.
/// # lent.wait().map(drop).map_err(Into::into)
/// # }
/// ```
#[must_use = "dropping it waits until the operation has ended"]
pub struct Lent<G: Deref<Target = Group>, B: Lend> {
    /// The group lives on: it ends the operations that use the buffers.
    _group: G,
    lending: Lending,
    state: LentState,
    /// There in every state but [`LentState::Taken`]. Its destructor does not run by itself, and moving it claims nothing about what it points to.
    data: MaybeUninit<B>,
}

/// The use of the buffer.
enum LentState {
    /// The operation.
    UnderWay(Work),
    /// The operation has ended, well or not.
    Ended(Result<(), Error>),
    /// It cannot be known any more whether the operation has ended.
    Unknown(Error),
    /// The buffer is elsewhere, or nothing may free it.
    Taken,
}

/// The error of a [lent](Group::lend) buffer without a result, and the buffer.
pub struct LendError<B> {
    /// The error.
    pub error: Error,
    /// The buffer: as it was where nothing was started, with undefined content after an operation that failed. `None` where
    /// something may still read or write it; it is never freed then.
    pub data: Option<B>,
}

impl<B> std::fmt::Display for LendError<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> std::fmt::Debug for LendError<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LendError")
            .field("error", &self.error)
            .field("has_data", &self.data.is_some())
            .finish()
    }
}

impl<B> std::error::Error for LendError<B> {}

impl<B> From<LendError<B>> for Error {
    fn from(why: LendError<B>) -> Self {
        why.error
    }
}

impl Group {
    /// Starts an operation on buffers that are lent to the group until [`Lent::wait`] gives them back; returns at once.
    /// It does the same as [`push`](Self::push) and [`start`](Self::start), without `unsafe`. Any number may be lent at
    /// once.
    ///
    /// One buffer holds input and output: of an all-gather, for instance, a block for each rank, of which the rank's own is its input. A
    /// pair is the input and the output, as [`CollectiveCall`] lists them; one that this rank does not have may be
    /// empty. Buffers of a collective with a count for each rank ([`UnevenCall`](super::UnevenCall)) can be lent once it is registered.
    ///
    /// # Errors
    /// As [`push`](Self::push) and [`start`](Self::start), and [`Error::Argument`] for buffers of another element type than was registered,
    /// or of lengths that do not fit. The buffers come back in the error, except with [`Error::Internal`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use shouter::config::{Builder, Environment};
    /// use shouter::{Collective, DType, Lending, ReduceOp, TensorSpec};
    ///
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// let group = shouter::init(config)?;
    /// let spec = |name: &str| TensorSpec::all_reduce(name, DType::F32, 3, ReduceOp::Avg);
    /// let ids = group.register(&[spec("layer.0"), spec("layer.1")])?;
    /// // The backward pass makes the last layer's gradient first.
    /// let last = group.lend(ids[1], vec![1f32, 2.0, 3.0])?;
    /// // Meanwhile it makes the next one.
    /// let first = group.lend(ids[0], vec![4f32, 5.0, 6.0])?;
    /// // Outside the table: every rank's loss, and the largest.
    /// let losses = vec![0f32; group.size() as usize];
    /// let gathered = group.lend(Collective::AllGather, (vec![0.5f32], losses))?;
    /// let largest = group.lend(Lending::from(Collective::AllReduce).op(ReduceOp::Max), vec![0.5f32])?;
    /// assert_eq!(first.wait()?, [4.0, 5.0, 6.0]);
    /// assert_eq!(last.wait()?, [1.0, 2.0, 3.0]);
    /// let (_, losses) = gathered.wait()?;
    /// assert_eq!(losses[group.rank() as usize], 0.5);
    /// assert_eq!(largest.wait()?, [0.5]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn lend<B: Lend>(
        &self,
        lending: impl Into<Lending>,
        data: B,
    ) -> Result<Lent<&Self, B>, LendError<B>> {
        Lent::new(self, lending, data)
    }
}

/// The start of a loan, checked.
enum Checked {
    Tensor(Arc<Entry>, *const u8, *mut u8),
    Call(CollectiveCall),
}

impl<G: Deref<Target = Group>, B: Lend> Lent<G, B> {
    /// As [`Group::lend`], for a group that is not held by reference: with an `Arc<Group>` the result can be
    /// kept in a struct beside the group.
    ///
    /// # Errors
    /// As [`Group::lend`].
    pub fn new(group: G, lending: impl Into<Lending>, data: B) -> Result<Self, LendError<B>> {
        let lending = lending.into();
        let mut data = MaybeUninit::new(data);
        // SAFETY: initialised above.
        let started =
            group.check_lent(&lending, unsafe { data.assume_init_mut() }).and_then(|checked| match checked {
                // SAFETY: as many elements as the operation takes, of that type, in buffers that nobody else refers to. They are not touched
                // before `take`, nor freed if this value is forgotten.
                Checked::Tensor(entry, input, output) => unsafe {
                    group.push_entry(entry, input, output, &Staging::default())
                },
                // SAFETY: as above.
                Checked::Call(call) => unsafe { group.start(&call) },
            });
        match started {
            Ok(work) => Ok(Self { _group: group, lending, state: LentState::UnderWay(work), data }),
            // After a panic of the engine the operation may have begun.
            Err(error @ Error::Internal(_)) => Err(LendError { error, data: None }),
            // SAFETY: initialised above, and nothing was started.
            Err(error) => Err(LendError { error, data: Some(unsafe { data.assume_init() }) }),
        }
    }

    /// Waits until the result is there, and gives the buffers back.
    ///
    /// # Errors
    /// [`LendError`]: as [`Work::wait`], but for time-outs, with the buffers.
    pub fn wait(mut self) -> Result<B, LendError<B>> {
        while !self.poll(None) {}
        match self.take() {
            (Ok(()), Some(data)) => Ok(data),
            (Ok(()), None) => {
                Err(LendError { error: Error::Internal("a buffer was taken twice".into()), data: None })
            }
            (Err(error), data) => Err(LendError { error, data }),
        }
    }

    /// Waits until the operation has ended, well or not, for `timeout` at most. True if it has: then [`wait`](Self::wait) returns
    /// at once.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// # use shouter::{DType, ReduceOp, TensorSpec};
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// # let group = shouter::init(config)?;
    /// # let tensor = TensorSpec::all_reduce("layer.0", DType::F32, 2, ReduceOp::Sum);
    /// # let ids = group.register(&[tensor])?;
    /// let mut lent = group.lend(ids[0], vec![1f32, 2.0])?;
    /// while !lent.wait_for(std::time::Duration::from_millis(100)) {
    ///     println!("still waiting for the network");
    /// }
    /// assert_eq!(lent.wait()?, [1.0, 2.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_for(&mut self, timeout: Duration) -> bool {
        self.poll(Some(timeout))
    }

    /// Waits for the operation; whether there is nothing more to wait for.
    fn poll(&mut self, timeout: Option<Duration>) -> bool {
        // A panic in the wait leaves the buffer as it is for ever.
        match std::mem::replace(&mut self.state, LentState::Taken) {
            LentState::UnderWay(work) => {
                let waited = work.wait(timeout);
                self.state = match waited {
                    result if work.has_ended() => LentState::Ended(result),
                    Err(Error::Timeout { .. }) => LentState::UnderWay(work),
                    Err(error) => LentState::Unknown(error),
                    Ok(()) => LentState::Ended(Ok(())),
                };
            }
            other => self.state = other,
        }
        !matches!(self.state, LentState::UnderWay(_))
    }

    /// How the operation ended, and the buffer, unless something may still use it.
    fn take(&mut self) -> (Result<(), Error>, Option<B>) {
        let (result, is_free) = match std::mem::replace(&mut self.state, LentState::Taken) {
            LentState::Ended(result) => {
                let is_free = result.as_ref().err().is_none_or(|error| error.in_use_by().is_none());
                (result, is_free)
            }
            LentState::Unknown(error) => (Err(error), false),
            LentState::UnderWay(_) | LentState::Taken => (Ok(()), false),
        };
        // SAFETY: initialised in `new`, the operation has ended, and it is read once: the state is `Taken` from now on.
        let data = is_free.then(|| unsafe { self.data.assume_init_read() });
        if data.is_none() {
            tracing::error!(
                lending = %self.lending,
                "a lent tensor may still be read or written; its memory is never freed"
            );
        }
        (result, data)
    }
}

impl<G: Deref<Target = Group>, B: Lend> Drop for Lent<G, B> {
    fn drop(&mut self) {
        if matches!(self.state, LentState::Taken) {
            return;
        }
        while !self.poll(None) {}
        if let (Err(error), _) = self.take() {
            tracing::warn!(lending = %self.lending, %error, "the operation of a lent tensor that was dropped has failed");
        }
    }
}

impl<G: Deref<Target = Group>, B: Lend> std::fmt::Debug for Lent<G, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lent").field("lending", &self.lending).finish_non_exhaustive()
    }
}

impl Group {
    /// Refuses buffers that do not fit the operation.
    fn check_lent<B: Lend>(&self, lending: &Lending, data: &mut B) -> Result<Checked, Error> {
        self.drive.check_process()?;
        let dtype = B::Element::DTYPE;
        let (input, output) = data.buffers();
        let lengths = (input.map(<[_]>::len), output.len());
        let output = output.as_mut_ptr().cast::<u8>();
        let at = |problem: &Problem| {
            let (input_at, output_at) = problem.in_place();
            match input {
                Some(input) => (input.as_ptr().cast(), output),
                None => (
                    output.cast_const().wrapping_add(input_at as usize),
                    output.wrapping_add(output_at as usize),
                ),
            }
        };
        match lending.0 {
            LendingKind::Tensor(tensor) => {
                let entry = self.tables.entry(tensor)?;
                let problem = &entry.problem;
                if problem.shape.dtype != dtype || !fit(problem, lengths) {
                    let (count, shape) = (lengths.0.unwrap_or(lengths.1), &problem.shape);
                    let elements = |bytes: u64| bytes / problem.elem() as u64;
                    let registered = match &problem.counts {
                        None => format!("{} x {}", shape.count, shape.dtype),
                        Some(_) => format!(
                            "{} x {} to give and {} to take",
                            elements(problem.input_bytes()),
                            shape.dtype,
                            elements(problem.output_bytes())
                        ),
                    };
                    return Err(Error::Argument(format!(
                        "the buffer has {count} x {dtype}, and tensor \"{}\" was registered with {registered}, for {} of {} \
                         rank(s); lend what was registered",
                        entry.name,
                        shape.collective,
                        self.size()
                    )));
                }
                let (input, output) = at(problem);
                Ok(Checked::Tensor(entry.clone(), input, output))
            }
            LendingKind::Collective { collective, op, root } => {
                let count = self.lent_count(collective, root, lengths);
                let shape = self.even_shape(collective, count, dtype, op)?;
                let problem = self.tables.problem(&shape, self.root(collective, root)?);
                if !fit(&problem, lengths) {
                    return Err(Error::Argument(format!(
                        "buffers of {} and {} elements do not fit {collective} over {} rank(s); see CollectiveCall for what each has",
                        lengths.0.map_or("no".to_owned(), |count| count.to_string()),
                        lengths.1,
                        self.size()
                    )));
                }
                let (input, output) = at(&problem);
                Ok(Checked::Call(CollectiveCall { collective, input, output, count, dtype, op, root }))
            }
        }
    }

    /// Elements of the tensor, or of a block, where an input of its own and the other buffer have these lengths.
    fn lent_count(&self, collective: Collective, root: u32, lengths: (Option<usize>, usize)) -> usize {
        use Collective::*;
        let (ranks, is_root) = (self.size() as usize, root == self.rank());
        match (collective, lengths) {
            (Barrier, _) => 0,
            (AllReduce | Reduce | AllGather | Gather | Scan | ExScan, (Some(input), _)) => input,
            (AllToAll, (Some(input), _)) => input / ranks,
            (AllGather | ReduceScatter | AllToAll, (None, all)) => all / ranks,
            (Gather | Scatter, (None, all)) if is_root => all / ranks,
            (_, (_, output)) => output,
        }
    }
}

/// Whether an input of its own and the other buffer, or one for both, have as many elements as a rank's part takes.
fn fit(problem: &Problem, (input, output): (Option<usize>, usize)) -> bool {
    let elements = |bytes: u64| (bytes / problem.elem() as u64) as usize;
    let (takes, gives) = (elements(problem.input_bytes()), elements(problem.output_bytes()));
    match input {
        // A broadcast's root has its elements in the output.
        Some(_) if problem.shape.collective == Collective::Broadcast => false,
        Some(input) => (takes == 0 || input == takes) && (gives == 0 || output == gives),
        None => {
            let (input_at, output_at) = problem.in_place();
            output == (elements(input_at) + takes).max(elements(output_at) + gives)
        }
    }
}

#[cfg(test)]
mod tests;
