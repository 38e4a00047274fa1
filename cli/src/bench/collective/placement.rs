//! Placement of a rank's elements while a collective is measured.

use shouter::{Collective, Group, ReduceOp, Tensor};

use super::numbers::Number;
use crate::bench::workload::Part;
use crate::failure::CommandError;

/// The names of the placements.
pub(super) const BUFFER_PLACEMENTS: [&str; 3] = ["shared", "private", "gpu"];
/// Those that the CPU reaches.
pub(super) const HOST_PLACEMENTS: [&str; 2] = ["shared", "private"];

/// A rank's input or output.
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
    /// Allocates `count` elements in the named placement.
    pub(super) fn new(word: &str, group: &Group, count: usize) -> Result<Self, CommandError> {
        match word {
            _ if count == 0 => Ok(Self::Private(vec![])),
            "private" => Ok(Self::Private(vec![T::default(); count])),
            #[cfg(feature = "cuda")]
            "gpu" => Ok(Self::Gpu(super::gpu::OnGpu::new(group, count)?)),
            #[cfg(not(feature = "cuda"))]
            "gpu" => {
                Err(CommandError::Usage("this build has no CUDA; build it with the feature cuda".into()))
            }
            _ => Ok(Self::Shared(group.alloc::<T>(count)?)),
        }
    }

    /// Sets the elements. On a GPU, `wait` waits for the copy to end; else the copy is only ordered before the reduction.
    pub(super) fn fill(&mut self, value: impl Fn(usize) -> T, wait: bool) -> Result<(), CommandError> {
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

    /// The elements, for the CPU.
    pub(super) fn elements(&mut self) -> Result<&[T], CommandError> {
        match self {
            Self::Shared(tensor) => Ok(tensor),
            Self::Private(vector) => Ok(vector),
            #[cfg(feature = "cuda")]
            Self::Gpu(tensor) => tensor.elements(),
        }
    }

    /// The elements in host memory; on a GPU, only all-reduce finds them.
    pub(super) fn host(&mut self) -> Result<&mut [T], CommandError> {
        match self {
            Self::Shared(tensor) => Ok(tensor),
            Self::Private(vector) => Ok(vector),
            #[cfg(feature = "cuda")]
            Self::Gpu(_) => Err(CommandError::Usage("--memory gpu goes with allreduce only".into())),
        }
    }
}

/// A rank's memory for one collective.
pub(super) struct Buffers<T: Number> {
    /// None where the output is also the input.
    pub(super) input: Option<BufferPlacement<T>>,
    pub(super) output: BufferPlacement<T>,
    /// Elements of each block of the input.
    pub(super) given: Vec<usize>,
    /// Elements of each block of the output.
    pub(super) taken: Vec<usize>,
}

impl<T: Number> Buffers<T> {
    /// Allocates in the named placement what this part of a collective needs.
    pub(super) fn new(word: &str, group: &Group, part: Part) -> Result<Self, CommandError> {
        let (given, taken) = (part.given(), part.taken());
        let place = |blocks: &[usize]| BufferPlacement::new(word, group, blocks.iter().sum());
        let input = (!given.is_empty()).then(|| place(&given)).transpose()?;
        Ok(Self { input, output: place(&taken)?, given, taken })
    }

    /// Runs the collective with all ranks; the caller times it.
    pub(super) fn run(
        &mut self,
        group: &Group,
        collective: Collective,
        root: u32,
    ) -> Result<(), CommandError> {
        #[cfg(feature = "cuda")]
        if let (Collective::AllReduce, BufferPlacement::Gpu(tensor)) = (collective, &mut self.output) {
            return tensor.reduce(group);
        }
        let output = self.output.host()?;
        let input: &[T] = match &mut self.input {
            Some(input) => input.host()?,
            None => &[],
        };
        let (given, taken) = (&self.given[..], &self.taken[..]);
        match collective {
            Collective::AllReduce => group.all_reduce(output, ReduceOp::Sum),
            Collective::Reduce => group.reduce(output, ReduceOp::Sum, root),
            Collective::Broadcast => group.broadcast(output, root),
            Collective::AllGather => group.all_gather(input, output),
            Collective::Gather => group.gather(input, output, root),
            Collective::Scatter => group.scatter(input, output, root),
            Collective::ReduceScatter => group.reduce_scatter(input, output, ReduceOp::Sum),
            Collective::AllToAll => group.all_to_all(input, output),
            Collective::AllGatherV => group.all_gather_v(input, output, taken),
            Collective::GatherV => group.gather_v(input, output, taken, root),
            Collective::ScatterV => group.scatter_v(input, given, output, root),
            Collective::ReduceScatterV => group.reduce_scatter_v(input, output, given, ReduceOp::Sum),
            Collective::AllToAllV => group.all_to_all_v(input, given, output, taken),
            Collective::Scan => group.scan(input, output, ReduceOp::Sum),
            Collective::ExScan => group.exscan(input, output, ReduceOp::Sum),
            Collective::Barrier => group.barrier(),
        }?;
        Ok(())
    }
}
