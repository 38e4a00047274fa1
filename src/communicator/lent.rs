//! Tensors that are lent to the group: overlap in safe Rust.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ops::Deref;
use std::time::Duration;

use super::{Element, Group, Pending, Tensor, WaitError};
use crate::error::Error;
use crate::error::TensorId;

mod sealed {
    pub trait Sealed {}
}

/// An owned buffer that can be [lent](Group::lend) to a group: a `Vec`, a `Box` or a [`Tensor`]. Its elements stay where they are
/// when the buffer itself is moved.
pub trait Lend: sealed::Sealed {
    /// The type of its elements.
    type Element: Element;

    /// Its elements.
    fn elements(&mut self) -> &mut [Self::Element];
}

macro_rules! owned {
    ($($buffer:ty),*) => { $(
        impl<T: Element> sealed::Sealed for $buffer {}
        impl<T: Element> Lend for $buffer {
            type Element = T;

            fn elements(&mut self) -> &mut [T] {
                self
            }
        }
    )* };
}

owned!(Vec<T>, Box<[T]>, Tensor<T>);

/// A buffer that is the group's until [`wait`](Self::wait) gives it back, from [`Group::lend`].
///
/// Dropping it waits until the operation has ended, which its deadline (the key `deadline`) bounds, and frees the buffer. A buffer
/// that something may still read or write after that is never freed, and the log says so. [Forgetting](std::mem::forget) it
/// leaks the buffer.
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
    group: G,
    tensor: TensorId,
    state: LentState,
    /// There in every state but [`LentState::Taken`]. Its destructor does not run by itself, and moving it claims nothing about what it points to.
    data: MaybeUninit<B>,
}

/// What the buffer is used for.
enum LentState {
    /// The operation.
    UnderWay(Pending),
    /// The operation has ended, well or not.
    Ended(Result<(), Error>),
    /// Nothing tells any more whether the operation has ended.
    Unknown(Error),
    /// The buffer is elsewhere, or nothing may free it.
    Taken,
}

/// Why a [lent](Group::lend) buffer has no result.
pub struct LendError<B> {
    /// What went wrong.
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
    /// Starts to reduce a registered tensor, whose elements are in `data`, in place; returns at once. The buffer is the group's until
    /// [`Lent::wait`] gives it back: what [`push`](Self::push) and [`wait`](Self::wait) do, without `unsafe`. Any number
    /// of tensors may be lent at once.
    ///
    /// # Errors
    /// As [`push`](Self::push), and [`Error::Argument`] for a buffer of another element type or length than was registered. The
    /// buffer comes back in the error, except with [`Error::Internal`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use shouter::config::{Builder, Environment};
    /// use shouter::{DType, ReduceOp, TensorSpec};
    ///
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// let group = shouter::init(config)?;
    /// let spec = |name: &str| TensorSpec { name: name.into(), dtype: DType::F32, count: 3, op: ReduceOp::Avg };
    /// let ids = group.register(&[spec("layer.0"), spec("layer.1")])?;
    /// // The backward pass makes the last layer's gradient first.
    /// let last = group.lend(ids[1], vec![1f32, 2.0, 3.0])?;
    /// // Meanwhile it makes the next one.
    /// let first = group.lend(ids[0], vec![4f32, 5.0, 6.0])?;
    /// assert_eq!(first.wait()?, [4.0, 5.0, 6.0]);
    /// assert_eq!(last.wait()?, [1.0, 2.0, 3.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn lend<B: Lend>(&self, tensor: TensorId, data: B) -> Result<Lent<&Self, B>, LendError<B>> {
        Lent::new(self, tensor, data)
    }
}

impl<G: Deref<Target = Group>, B: Lend> Lent<G, B> {
    /// As [`Group::lend`], for a group that is not held by reference: with an `Arc<Group>` the result can be
    /// kept in a struct beside the group.
    ///
    /// # Errors
    /// As [`Group::lend`].
    pub fn new(group: G, tensor: TensorId, mut data: B) -> Result<Self, LendError<B>> {
        if let Err(error) = group.check_lent(tensor, &mut data) {
            return Err(LendError { error, data: Some(data) });
        }
        let mut data = MaybeUninit::new(data);
        // SAFETY: initialised above.
        let elements = unsafe { data.assume_init_mut() }.elements().as_mut_ptr();
        // SAFETY: as many elements as were registered, of that type, in a buffer that nobody else refers to. It is not touched before
        // `take`, nor freed if this value is forgotten.
        match unsafe { group.push(tensor, elements.cast()) } {
            Ok(pending) => Ok(Self { group, tensor, state: LentState::UnderWay(pending), data }),
            // After a panic of the engine the operation may have begun.
            Err(error @ Error::Internal(_)) => Err(LendError { error, data: None }),
            // SAFETY: initialised above, and nothing was started.
            Err(error) => Err(LendError { error, data: Some(unsafe { data.assume_init() }) }),
        }
    }

    /// Waits until the buffer holds the result, and gives it back.
    ///
    /// # Errors
    /// [`LendError`]: as [`Group::wait`], but for time-outs, with the buffer.
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
    /// # let tensor = TensorSpec { name: "layer.0".into(), dtype: DType::F32, count: 2, op: ReduceOp::Sum };
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
            LentState::UnderWay(pending) => {
                self.state = match self.group.wait(pending, timeout) {
                    Ok(()) => LentState::Ended(Ok(())),
                    Err(WaitError { error, pending: None }) => LentState::Ended(Err(error)),
                    Err(WaitError { error: Error::Timeout { .. }, pending: Some(pending) }) => {
                        LentState::UnderWay(pending)
                    }
                    Err(WaitError { error, pending: Some(_) }) => LentState::Unknown(error),
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
                tensor = self.tensor.0,
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
            tracing::warn!(tensor = self.tensor.0, %error, "the operation of a lent tensor that was dropped has failed");
        }
    }
}

impl<G: Deref<Target = Group>, B: Lend> std::fmt::Debug for Lent<G, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lent").field("tensor", &self.tensor).finish_non_exhaustive()
    }
}

impl Group {
    /// Refuses a buffer that is not as the tensor was registered.
    fn check_lent<B: Lend>(&self, tensor: TensorId, data: &mut B) -> Result<(), Error> {
        self.drive.check_process()?;
        let entry = self.tables.entry(tensor)?;
        let (count, dtype) = (data.elements().len() as u64, B::Element::DTYPE);
        if (count, dtype) != (entry.shape.count, entry.shape.dtype) {
            return Err(Error::Argument(format!(
                "the buffer has {count} x {dtype}, and tensor \"{}\" was registered with {} x {}; lend what was registered",
                entry.name, entry.shape.count, entry.shape.dtype
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
