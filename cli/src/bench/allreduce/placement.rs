//! Where a rank's tensor lies while an all-reduce is measured.

use shouter::{Group, ReduceOp, Tensor};

use super::numbers::Number;
use crate::bench::BenchError;

/// The names of the placements.
pub(super) const BUFFER_PLACEMENTS: [&str; 3] = ["shared", "private", "gpu"];

/// A rank's tensor.
pub(super) enum BufferPlacement<T: Number> {
    /// In memory that the ranks of the host share.
    Shared(Tensor<T>),
    /// In the process's own memory.
    Private(Vec<T>),
    /// On a GPU.
    #[cfg(feature = "cuda")]
    Gpu(super::gpu::OnGpu<T>),
}

impl<T: Number> BufferPlacement<T> {
    /// `count` elements at the place of this word.
    pub(super) fn new(word: &str, group: &Group, count: usize) -> Result<Self, BenchError> {
        match word {
            "private" => Ok(Self::Private(vec![T::default(); count])),
            #[cfg(feature = "cuda")]
            "gpu" => Ok(Self::Gpu(super::gpu::OnGpu::new(group, count)?)),
            #[cfg(not(feature = "cuda"))]
            "gpu" => Err(BenchError::Usage("this build has no CUDA; build it with the feature cuda".into())),
            _ => Ok(Self::Shared(group.alloc::<T>(count)?)),
        }
    }

    /// Sets the elements. On a GPU, `wait` is for the copy to end, which is only ordered before the reduction otherwise.
    pub(super) fn fill(&mut self, value: impl Fn(usize) -> T, wait: bool) -> Result<(), BenchError> {
        let all: &mut [T] = match self {
            Self::Shared(tensor) => tensor,
            Self::Private(vector) => vector,
            #[cfg(feature = "cuda")]
            Self::Gpu(tensor) => return tensor.fill(value, wait),
        };
        let _ = wait;
        all.iter_mut().enumerate().for_each(|(index, element)| *element = value(index));
        Ok(())
    }

    /// Sums them with those of all ranks.
    pub(super) fn reduce(&mut self, group: &Group) -> Result<(), BenchError> {
        let all: &mut [T] = match self {
            Self::Shared(tensor) => tensor,
            Self::Private(vector) => vector,
            #[cfg(feature = "cuda")]
            Self::Gpu(tensor) => return tensor.reduce(group),
        };
        Ok(group.all_reduce(all, ReduceOp::Sum)?)
    }

    /// The elements, for the CPU.
    pub(super) fn elements(&mut self) -> Result<&[T], BenchError> {
        match self {
            Self::Shared(tensor) => Ok(tensor),
            Self::Private(vector) => Ok(vector),
            #[cfg(feature = "cuda")]
            Self::Gpu(tensor) => tensor.elements(),
        }
    }
}
