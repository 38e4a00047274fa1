//! Collectives with input and output in GPU memory.

use shouter_reducer::header::Collective;
use shouter_reducer::memory::{MemoryKind, TensorRegion};
use shouter_reducer::schedule::{Access, Problem};
use shouter_reducer::transport::DeviceTensor;

use crate::communicator::element::Buffer;
use crate::communicator::{CollectiveCall, Group, Memory, Staging, Work};
use crate::error::Error;
use crate::runtime::Clock;

impl Group {
    /// As [`run_collective`](Self::run_collective), for elements in GPU memory, which the CPU does not touch. They are
    /// read after the work that `stream` holds at the call; when it returns, the results are there for any stream.
    /// Ranks with elements in host memory may take part by [`run_collective`](Self::run_collective).
    ///
    /// Input and output are device addresses, or ones of managed memory, of one device; `stream` is a `cudaStream_t` of it, 0 for
    /// the default stream. An all-reduce in place is [`all_reduce_cuda`](Self::all_reduce_cuda), where GPUs and NICs may access the tensor
    /// where it lies; everything else is staged in host memory.
    ///
    /// ```no_run
    /// # fn example(group: &shouter::Group, shard: *const u8, whole: *mut u8, count: usize, stream: u64) -> Result<(), shouter::Error> {
    /// use shouter::{Collective, CollectiveCall, DType, ReduceOp};
    ///
    /// // All ranks' shards of a parameter, before a forward pass.
    /// let (collective, dtype, op) = (Collective::AllGather, DType::Bf16, ReduceOp::Sum);
    /// let call = CollectiveCall { collective, input: shard, output: whole, count, dtype, op, root: 0 };
    /// // SAFETY: addresses of the GPU's memory, which nothing else writes meanwhile.
    /// unsafe { group.run_collective_cuda(&call, stream) }
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`run_collective`](Self::run_collective) and [`all_reduce_cuda`](Self::all_reduce_cuda).
    ///
    /// # Safety
    /// Nobody else writes the input, or touches the output, from what `stream` held on until the call returns. The stream is not
    /// destroyed during the call. The context lives until the group is dropped.
    pub unsafe fn run_collective_cuda(&self, call: &CollectiveCall, stream: u64) -> Result<(), Error> {
        if call.collective == Collective::AllReduce && call.input == call.output.cast_const() {
            let data = call.output.addr() as u64;
            // SAFETY: passed on to the caller.
            return unsafe { self.all_reduce_cuda(data, call.count, call.dtype, call.op, stream) };
        }
        self.drive.check_process()?;
        if self.subset.is_some() {
            // SAFETY: passed on to the caller.
            return unsafe { self.run_staged(call, &Staging::on_cuda(stream)) };
        }
        // SAFETY: passed on to the caller.
        let (problem, input, output, device) = unsafe { self.part_on_gpu(call, stream) }?;
        match device {
            // A rank without input and output needs no GPU.
            None => self.run_part(&problem, input, output),
            Some(_) => {
                let memory = (input.region(MemoryKind::Device), output.region(MemoryKind::Device));
                self.run_on_gpu(&problem, memory, device, None)
            }
        }
    }

    /// As [`start`](Self::start), for elements in GPU memory; see [`run_collective_cuda`](Self::run_collective_cuda).
    ///
    /// # Errors
    /// As [`start`](Self::start) and [`run_collective_cuda`](Self::run_collective_cuda).
    ///
    /// # Safety
    /// Nobody else writes the input, or touches the output, from what `stream` held on until the operation has ended, or the group has
    /// been dropped; else as for [`run_collective_cuda`](Self::run_collective_cuda).
    pub unsafe fn start_collective_cuda(&self, call: &CollectiveCall, stream: u64) -> Result<Work, Error> {
        if call.collective == Collective::AllReduce && call.input == call.output.cast_const() {
            let data = call.output.addr() as u64;
            // SAFETY: passed on to the caller.
            return unsafe { self.start_cuda(data, call.count, call.dtype, call.op, stream) };
        }
        self.drive.check_process()?;
        if self.subset.is_some() {
            // SAFETY: passed on to the caller.
            return unsafe { self.start_staged(call, &Staging::on_cuda(stream)) };
        }
        // SAFETY: passed on to the caller.
        let (problem, input, output, device) = unsafe { self.part_on_gpu(call, stream) }?;
        let memory = match device {
            None => self.memory(&problem, input, output),
            Some(_) => Memory {
                output: output.region(MemoryKind::Device),
                input: if problem.has_input() {
                    input.region(MemoryKind::Device)
                } else {
                    TensorRegion::empty()
                },
            },
        };
        self.start_memory(Clock.now(), problem, memory, device, None)
    }

    /// This rank's part of a collective, when its memory is ready; `None` without any.
    ///
    /// # Safety
    /// As for [`run_collective_cuda`](Self::run_collective_cuda), where the memory is accessed.
    unsafe fn part_on_gpu(
        &self,
        call: &CollectiveCall,
        stream: u64,
    ) -> Result<(Problem, Buffer, Buffer, Option<DeviceTensor>), Error> {
        // SAFETY: passed on to the caller; addresses are not accessed here.
        let (problem, input, output) = unsafe { self.part(call) }?;
        // SAFETY: the caller's promise.
        let Some(device) = unsafe { self.ready_after([input, output], stream) }? else {
            return Ok((problem, input, output, None));
        };
        Ok((Problem { access: Access::Copies, ..problem }, input, output, Some(device)))
    }
}
