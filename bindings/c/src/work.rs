//! Started operations: a descriptor starts any of them, and its handle may be queried from any thread.
//!
//! C's promise about a `shouter_work_t *`: several threads may use it at once, and none is in a call when `shouter_work_free` is called.
//! One that is NULL, that came from elsewhere, or that has been freed is refused.
#![allow(unsafe_code, reason = "pointers from C, checked for NULL; the rest is the caller's promise")]

pub mod started;

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::time::Duration;

use shouter::config::LONGEST_WAIT;
use shouter::{CollectiveCall, Error, Staging, TensorId};

use crate::error::{SHOUTER_OK, Status, guard, not_null, null, remember};
use crate::handle::{Shouter, group};
use crate::live::Table;
use crate::types::{self, Dtype, Layout, Op};
use started::Counted;

/// Memory of this host, page-locked memory included.
pub const SHOUTER_MEMORY_HOST: i32 = 0;
/// Memory of an NVIDIA GPU, or managed memory: see shouter_allreduce_cuda. All operations and all groups take it, input and output alike; layouts do
/// not.
pub const SHOUTER_MEMORY_CUDA: i32 = 1;

/// A message to one rank and another from one, as one operation: see shouter_start.
pub const SHOUTER_OPERATION_SENDRECV: i32 = 32;

/// In the place of a collective: the next operation of a registered tensor.
pub const SHOUTER_OPERATION_OF_TENSOR: i32 = 0;

/// An operation to be started. Set all of it to zero first: later versions may add fields at the end, and zero is their default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// sizeof(shouter_operation_t).
    pub size: usize,
    /// A collective: one of SHOUTER_OPERATION_ALLREDUCE, BROADCAST, BARRIER, REDUCE, ALLGATHER, REDUCE_SCATTER, GATHER, SCATTER,
    /// ALLTOALL, SCAN and EXSCAN, or with a count for each rank: ALLGATHERV, GATHERV, SCATTERV, REDUCE_SCATTERV, ALLTOALLV. Or a message:
    /// SHOUTER_OPERATION_SEND, RECV or SENDRECV. Or SHOUTER_OPERATION_OF_TENSOR: that of a registered tensor.
    pub kind: i32,
    /// The number that shouter_register gave, for SHOUTER_OPERATION_OF_TENSOR; counts, dtype, op and root are as it was registered then,
    /// and the fields are not looked at.
    pub tensor: u32,
    /// SHOUTER_F32 and its like.
    pub dtype: Dtype,
    /// SHOUTER_SUM and its like, where elements are reduced.
    pub op: Op,
    /// The root, where there is one.
    pub root: u32,
    /// The input, as the blocking function of this kind has it; may be the output. Not looked at where this rank has none.
    pub input: *const c_void,
    /// The output; a broadcast has its elements here on the root, too.
    pub output: *mut c_void,
    /// Elements of the tensor, or of one rank's block; of a message that is sent, or that SHOUTER_OPERATION_RECV has room for. Where there is a
    /// count for each rank: this rank's, of a GATHERV's input or a SCATTERV's output; else not looked at.
    pub count: usize,
    /// Where input and output lie: SHOUTER_MEMORY_HOST or SHOUTER_MEMORY_CUDA. A registered tensor on a GPU whose `input` is NULL is in
    /// place: its input is in the output, in this rank's block of it where there are several, or the other way round.
    pub memory: i32,
    /// For memory of a GPU: the stream on which the elements are produced. What it holds at the call comes before the input is read and the
    /// output is written.
    pub stream: *mut c_void,
    /// NULL, or a number by which each element of this rank's input is multiplied first, in a copy: for SHOUTER_SUM of floats and complex
    /// numbers. Ranks may have different ones. It is rounded to the type that sums are accumulated in, and the
    /// product to the element's type. Read during the call.
    pub factor: *const f64,
    /// NULL, or how the elements of the input lie, those of all blocks in one; host memory only. They are copied during the call.
    pub input_layout: *const Layout,
    /// NULL, or how those of the output lie; a broadcast's root has its elements there, too. They are written when the operation has ended
    /// well; where it fails they stay as they were. The layout itself is read during the call.
    pub output_layout: *const Layout,
    /// Elements for each rank in the input of a REDUCE_SCATTERV, an ALLTOALLV, or a SCATTERV's root: as many as the group has ranks. Read
    /// during the call; not looked at for other kinds.
    pub input_counts: *const usize,
    /// Elements of each rank in the output of an ALLGATHERV, an ALLTOALLV, or a GATHERV's root; likewise.
    pub output_counts: *const usize,
    /// The rank that a SEND or SENDRECV goes to.
    pub to: u32,
    /// The rank that a RECV or SENDRECV receives from, or SHOUTER_ANY_RANK.
    pub from: i64,
    /// The message's tag; of a RECV it may be SHOUTER_ANY_TAG.
    pub tag: i64,
    /// Elements that a SENDRECV's output has room for.
    pub room: usize,
}

static WORKS: Table<Work> = Table::new(
    0xDA,
    "the shouter_work_t is none that shouter_start gave, or shouter_work_free has been called with it",
);

/// A handle of an operation that was started.
pub struct Work(shouter::Work);

/// What shouter_on_done calls: with its `context`, and the operation's status. shouter_last_error and shouter_last_error_info say more
/// within the call.
pub type DoneCallback = Option<unsafe extern "C" fn(context: *mut c_void, status: Status)>;

/// A pointer from C that its callback gets back.
struct Context(*mut c_void);

// SAFETY: the caller promises that the callback may be called, with it, by another thread.
unsafe impl Send for Context {}

impl Context {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// The handle behind a pointer from C.
///
/// # Safety
/// No other thread frees `work` during `'a`.
unsafe fn live<'a>(work: *const Work) -> Result<&'a shouter::Work, Error> {
    not_null(work, "the shouter_work_t")?;
    // SAFETY: the caller's promise.
    unsafe { WORKS.get(work) }.map(|work| &work.0)
}

/// A time limit in milliseconds; `None` for the default.
fn timeout(milliseconds: i64) -> Result<Option<Duration>, Error> {
    match milliseconds {
        types::SHOUTER_DEFAULT_TIMEOUT => Ok(None),
        0.. => Ok(Some(Duration::from_millis(milliseconds.unsigned_abs()).min(LONGEST_WAIT))),
        _ => Err(Error::Argument(format!(
            "timeout_ms is {milliseconds}; use SHOUTER_DEFAULT_TIMEOUT, or 0 or more"
        ))),
    }
}

/// Starts an operation and returns at once; `*work` is its handle, which shouter_work_free frees.
///
/// Every rank makes its calls in the same order, blocking ones among them; where all ranks are on one host, small operations that one rank
/// starts all must start (with a rank that calls the blocking function instead, all get SHOUTER_ERROR_MISMATCH). Until the operation
/// has ended, as shouter_test, shouter_wait, shouter_wait_any or a callback says, or shouter_finalize has returned, its memory
/// must stay where it is, nobody may touch the output, and nobody may write the input.
///
/// Where fuse_below is set, a registered tensor below it is held until the others of its bucket were pushed or what is held is flushed. It is
/// flushed by the first shouter_wait or shouter_wait_any for a tensor that is held, a second start of one, shouter_barrier and
/// shouter_finalize. All that is held goes by itself then. So ranks wait for such tensors in the same order among their starts.
///
/// Collectives with a count for each rank are as shouter_allgatherv and the functions behind it. Those whose counts not every rank knows (GATHERV,
/// SCATTERV, ALLTOALLV) hold up what this rank starts behind them until all ranks have started them; counts that differ are the operation's
/// status.
///
/// Messages are as shouter_send, shouter_recv and shouter_exchange. They are outside the order of the collectives, and however ranks order theirs they
/// cannot wait for each other for ever. shouter_work_message says what has come.
///
/// SHOUTER_ERROR_ARGUMENT: see the blocking functions. SHOUTER_ERROR_WOULD_BLOCK: as many operations are under way as can be (1,000 at least), and none
/// has ended within a second. Nothing was started then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_start(
    shouter: *const Shouter,
    operation: *const Operation,
    work: *mut *mut Work,
) -> Status {
    guard(|| {
        // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
        let group = unsafe { group(shouter) }?;
        if operation.is_null() || work.is_null() {
            return Err(null("operation or work"));
        }
        // SAFETY: not NULL; the rest is the caller's promise.
        let operation = unsafe { read(operation) }?;
        let vacancy = WORKS.vacancy()?;
        // SAFETY: the caller's promise about the memory.
        let started = unsafe { start(group, &operation) }?;
        // SAFETY: not NULL; the caller promises room for a pointer.
        unsafe { work.write(vacancy.fill(Work(started))) };
        Ok(())
    })
}

/// Runs an operation and waits for it: what the blocking function of its kind does, and ranks may use either; with a factor
/// and layouts, where the descriptor has them. Not for SHOUTER_OPERATION_OF_TENSOR.
///
/// SHOUTER_ERROR_ARGUMENT: see the blocking functions; a factor of what is no sum, or of a type without factors; a layout with
/// blocks of nothing, with blocks that overlap, that does not fit in memory, or that has another number of elements than the operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_run(shouter: *const Shouter, operation: *const Operation) -> Status {
    guard(|| {
        // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
        let group = unsafe { group(shouter) }?;
        not_null(operation, "operation")?;
        // SAFETY: not NULL; the rest is the caller's promise.
        let operation = unsafe { read(operation) }?;
        if operation.kind == SHOUTER_OPERATION_OF_TENSOR {
            let why = "shouter_run takes collectives; start those of registered tensors by shouter_start";
            return Err(Error::Argument(why.into()));
        }
        if started::is_message(operation.kind) {
            let why =
                "shouter_run takes collectives; shouter_send, shouter_recv and shouter_exchange run messages";
            return Err(Error::Argument(why.into()));
        }
        let call = call(&operation)?;
        // SAFETY: the caller's promise about the memory.
        unsafe {
            let staging = staging(&operation)?;
            match call.collective.has_counts() {
                true => Counted::of(&operation, &call).run(group, &staging),
                false => group.run_staged(&call, &staging),
            }
        }
    })
}

/// # Safety
/// `operation` is not NULL, and as many bytes may be read there as its first field says.
unsafe fn read(operation: *const Operation) -> Result<Operation, Error> {
    // SAFETY: the caller's promise.
    let size = unsafe { operation.cast::<usize>().read() };
    if size != size_of::<Operation>() {
        return Err(Error::Argument(format!(
            "the size field of shouter_operation_t is {size}; this library knows {} bytes, so set it to \
             sizeof(shouter_operation_t), and compile with the header of this library",
            size_of::<Operation>()
        )));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { operation.read() })
}

fn on_gpu(operation: &Operation) -> Result<bool, Error> {
    match operation.memory {
        SHOUTER_MEMORY_HOST => Ok(false),
        SHOUTER_MEMORY_CUDA => Ok(true),
        other => {
            let why = format!("memory is {other}; use SHOUTER_MEMORY_HOST or SHOUTER_MEMORY_CUDA");
            Err(Error::Argument(why))
        }
    }
}

/// The collective of a descriptor.
fn call(operation: &Operation) -> Result<CollectiveCall, Error> {
    let Operation { kind, root, count, .. } = *operation;
    let (input, output) = (operation.input.cast::<u8>(), operation.output.cast::<u8>());
    let collective = types::collective(kind)?;
    let (dtype, op) = match collective {
        shouter::Collective::Barrier => (shouter::DType::U8, shouter::ReduceOp::Sum),
        collective => {
            let op = if collective.reduces() { types::op(operation.op)? } else { shouter::ReduceOp::Sum };
            (types::dtype(operation.dtype)?, op)
        }
    };
    Ok(CollectiveCall { collective, input, output, count, dtype, op, root })
}

/// The factor and the layouts of a descriptor, and the stream of memory of a GPU.
///
/// # Safety
/// Each is NULL, or may be read.
unsafe fn staging(operation: &Operation) -> Result<Staging, Error> {
    let Operation { factor, input_layout, output_layout, .. } = *operation;
    if !factor.is_aligned() {
        return Err(Error::Argument("the factor's address is not aligned to a double".into()));
    }
    // SAFETY: NULL, or aligned and the caller's promise.
    unsafe {
        Ok(Staging {
            factor: factor.as_ref().copied(),
            input: types::layout(input_layout)?,
            output: types::layout(output_layout)?,
            cuda_stream: on_gpu(operation)?.then_some(operation.stream.addr() as u64),
        })
    }
}

/// # Safety
/// As [`shouter::Group::start_staged`] demands.
unsafe fn start(group: &shouter::Group, operation: &Operation) -> Result<shouter::Work, Error> {
    let Operation { tensor, kind, input, .. } = *operation;
    // SAFETY: passed on to the caller.
    let staging = unsafe { staging(operation) }?;
    if kind == SHOUTER_OPERATION_OF_TENSOR {
        let (id, output) = (TensorId(tensor), operation.output.cast::<u8>());
        // SAFETY: passed on to the caller.
        return unsafe {
            match staging.cuda_stream {
                Some(stream) if input.is_null() => push_cuda(group, id, output, stream),
                _ => group.push_staged(id, input.cast(), output, &staging),
            }
        };
    }
    if started::is_message(kind) {
        // SAFETY: passed on to the caller.
        return unsafe { started::start_message(group, operation, staging.cuda_stream) };
    }
    let call = call(operation)?;
    // SAFETY: passed on to the caller.
    unsafe {
        match call.collective.has_counts() {
            true => Counted::of(operation, &call).start(group, &staging),
            false => group.start_staged(&call, &staging),
        }
    }
}

/// # Safety
/// As [`shouter::Group::push_cuda`] demands.
#[cfg(feature = "cuda")]
unsafe fn push_cuda(
    group: &shouter::Group,
    tensor: TensorId,
    data: *mut u8,
    stream: u64,
) -> Result<shouter::Work, Error> {
    // SAFETY: passed on to the caller.
    unsafe { group.push_cuda(tensor, data.addr() as u64, stream) }
}

/// # Safety
/// None.
#[cfg(not(feature = "cuda"))]
unsafe fn push_cuda(_: &shouter::Group, _: TensorId, _: *mut u8, _: u64) -> Result<shouter::Work, Error> {
    Err(types::no_cuda())
}

/// Whether an operation has ended: `*ended` is 1 or 0. The status is the operation's where it has ended, SHOUTER_OK where it has not.
/// It flushes nothing (see shouter_start), nor do callbacks: a tensor that only they ask for gets SHOUTER_ERROR_DEADLINE if its bucket is not
/// full by then, and the group goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_test(work: *const Work, ended: *mut c_int) -> Status {
    guard(|| {
        // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
        let work = unsafe { live(work) }?;
        not_null(ended, "ended")?;
        let outcome = work.test();
        // SAFETY: not NULL; the caller promises room for a number.
        unsafe { ended.write(outcome.is_some().into()) };
        outcome.unwrap_or(Ok(()))
    })
}

/// Waits until an operation has ended, and its memory is the caller's again; the status is the operation's, each time.
/// For a tensor that is held for others of its bucket it flushes what is held (see shouter_start).
///
/// `timeout_ms` is SHOUTER_DEFAULT_TIMEOUT, or a time in milliseconds. After SHOUTER_ERROR_TIMEOUT the operation is still under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_wait(work: *const Work, timeout_ms: i64) -> Status {
    // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
    guard(|| unsafe { live(work) }?.wait(timeout(timeout_ms)?))
}

/// Waits until one of `n` operations of one group has ended, well or not; `*index` is the first that has. SHOUTER_ERROR_TIMEOUT if none
/// has within `timeout_ms`. shouter_test says how it has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_wait_any(
    works: *const *mut Work,
    n: usize,
    timeout_ms: i64,
    index: *mut usize,
) -> Status {
    guard(|| {
        if works.is_null() || index.is_null() || n == 0 {
            return Err(Error::Argument("works or index is NULL, or n is 0".into()));
        }
        // SAFETY: not NULL; the caller promises n entries.
        let works = unsafe { std::slice::from_raw_parts(works, n) };
        // SAFETY: as above.
        let works: Result<Vec<_>, _> = works.iter().map(|work| unsafe { live(*work) }.cloned()).collect();
        let first = shouter::Work::wait_any(&works?, timeout(timeout_ms)?)?;
        // SAFETY: not NULL; the caller promises room for a number.
        unsafe { index.write(first) };
        Ok(())
    })
}

/// Has a helper thread of the group call `callback` once the operation has ended; soon, where it has. The callback may start operations
/// and wait for them; others wait until it returns. shouter_finalize runs all that are due, and waits for them, so it must not be
/// called in one. `work` may be freed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_on_done(
    work: *const Work,
    callback: DoneCallback,
    context: *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
        let work = unsafe { live(work) }?;
        let callback = callback.ok_or_else(|| null("callback"))?;
        let context = Context(context);
        work.on_done(move |result| {
            let status = result.as_ref().err().map_or(SHOUTER_OK, Error::code);
            if let Err(error) = result {
                remember(error);
            }
            // SAFETY: the caller promises a function that may be called so, by this thread.
            unsafe { callback(context.get(), status) };
        })
    })
}

/// Frees a handle; NULL is allowed and does nothing. No other call may be under way with it, and each later one gets
/// SHOUTER_ERROR_ARGUMENT. The operation goes on, and its memory is the group's until shouter_finalize has
/// returned, unless another call has said that it has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_work_free(work: *mut Work) -> Status {
    guard(|| {
        if work.is_null() {
            return Ok(());
        }
        WORKS.take(work).map(drop)
    })
}

/// A file descriptor for an event loop: `*fd` becomes readable when an operation ends that was started after the first call of this. Read
/// its 8 bytes then, and ask the handles. It may be readable without news. It is the group's, until shouter_finalize; do not close it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_completion_fd(shouter: *const Shouter, fd: *mut c_int) -> Status {
    guard(|| {
        // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
        let group = unsafe { group(shouter) }?;
        not_null(fd, "fd")?;
        let descriptor = group.completion_fd()?.as_raw_fd();
        // SAFETY: not NULL; the caller promises room for a number.
        unsafe { fd.write(descriptor) };
        Ok(())
    })
}
