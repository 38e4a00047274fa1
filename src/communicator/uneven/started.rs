//! Collectives whose blocks differ, started without waiting for them.
//!
//! Where not every rank has all counts, an operation has parts: the rounds in which ranks exchange them, then the
//! operation itself. The engine starts nothing else of the group between them
//! ([`Report::is_followed`](crate::engine::submitted::Report::is_followed)), so all ranks give the parts the same
//! numbers.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shouter_reducer::executor::Request;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::Shape;
use shouter_reducer::memory::{MemoryKind, TensorRegion};
use shouter_reducer::schedule::{Placement, Problem};

use super::learn::{Learned, Learning, Round, differ};
use super::{UncountedPart, UnevenCall};
use crate::communicator::element::Buffer;
use crate::communicator::small::Starts;
use crate::communicator::staging::{Sides, Staging};
use crate::communicator::table::Tables;
use crate::communicator::{Group, Memory, Work};
use crate::engine::executor_time;
use crate::engine::submitted::Failure;
use crate::error::{Call, Error};
use crate::runtime::Clock;
use crate::runtime::lock;

/// The parts of a started operation: the rounds in which its counts are learnt, then the operation itself.
pub(in crate::communicator) struct Followed {
    learns: AtomicBool,
    state: Mutex<(Learning, Option<Round>)>,
    frame: UncountedPart,
    /// This rank's input and output.
    input: TensorRegion,
    output: TensorRegion,
    tables: Arc<Tables>,
    starts: Starts,
    rank: Rank,
    name: Arc<str>,
    step: u64,
    deadline: Duration,
}

impl Followed {
    /// Whether the counts are not known yet, and nothing else may start.
    pub(in crate::communicator) fn learns(&self) -> bool {
        self.learns.load(Ordering::Acquire)
    }

    /// The operation, without a count.
    pub(in crate::communicator) fn shape(&self) -> Shape {
        self.frame.shape
    }

    /// The part behind the one that has ended well.
    pub(in crate::communicator) fn follow(&self) -> Result<Request, Failure> {
        let mut state = lock(&self.state);
        let (learning, under_way) = &mut *state;
        let Some(round) = under_way.take() else { return Err(Failure::Gone) };
        let learned = learning.heard(round);
        if let Learned::Round(round) = learned {
            let request = self.round(learning, under_way.insert(round)).map_err(Failure::Refused)?;
            self.starts.count(&request.identity);
            return Ok(request);
        }
        drop(state);
        self.learns.store(false, Ordering::Release);
        let collective = self.frame.shape.collective;
        let counts = match learned {
            Learned::Counts(counts) => counts.map_err(|why| Error::Argument(format!("{collective}: {why}"))),
            Learned::Round(_) => Err(Error::Internal("a round of counts comes after the last".into())),
            Learned::Differ(found) => Err(differ(self.rank, collective, self.step, found)),
        };
        let problem = counts.map(|counts| self.frame.problem(&self.tables, counts));
        let request = problem.and_then(|problem| {
            let input = if problem.has_input() { self.input } else { TensorRegion::empty() };
            self.request(&problem, Memory { output: self.output, input })
        });
        let request = request.map_err(Failure::Refused)?;
        self.starts.count(&request.identity);
        Ok(request)
    }

    /// A round of counts, whose memory stays where it is until it has ended.
    fn round(&self, learning: &Learning, round: &mut Round) -> Result<Request, Error> {
        let problem = learning.problem(&self.tables, round);
        let (mine, all) = round.buffers();
        let input = if problem.has_input() { mine } else { Buffer::empty() };
        let [input, output] = [input, all].map(|counts| counts.region(MemoryKind::Host));
        self.request(&problem, Memory { output, input })
    }

    fn request(&self, problem: &Problem, memory: Memory) -> Result<Request, Error> {
        let schedule = self.tables.schedule(problem)?;
        Ok(Request {
            identity: self.starts.identity(problem),
            shape: problem.shape,
            data: memory.output,
            input: memory.input,
            schedule,
            priority: 0,
            deadline: self.deadline,
            name: self.name.clone(),
            step: self.step,
            pushed: executor_time(Clock.now()),
            device: None,
        })
    }
}

impl Group {
    /// Starts a collective whose blocks differ, on memory that is given by address; returns at once. [`run_uneven`](Self::run_uneven) does the
    /// same and waits.
    ///
    /// The rules of [`start`](Self::start) hold here, too. Where not every rank has all counts (gather-v, scatter-v,
    /// all-to-all-v), ranks exchange them first, and operations that this rank starts meanwhile wait until they have:
    /// so such an operation holds up those behind it until all ranks have started it. The counts themselves are read
    /// during the call only.
    ///
    /// # Errors
    /// As [`run_uneven`](Self::run_uneven) before it waits, and [`Error::WouldBlock`] as for [`start`](Self::start). Counts that differ are the
    /// outcome of the [`Work`]: the group goes on, as after [`run_uneven`](Self::run_uneven).
    ///
    /// # Safety
    /// As for [`start`](Self::start), with as many elements as `given` and `taken` add up to.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// # let group = shouter::init(config)?;
    /// use shouter::{Collective, DType, ReduceOp, UnevenCall};
    ///
    /// // Rank r sends r + 1 tokens to each rank.
    /// let given = vec![group.rank() as usize + 1; group.size() as usize];
    /// let taken: Vec<usize> = (1..=given.len()).collect();
    /// let tokens = vec![1f32; given.iter().sum()];
    /// let mut received = vec![0f32; taken.iter().sum()];
    /// let call = UnevenCall {
    ///     collective: Collective::AllToAllV,
    ///     input: tokens.as_ptr().cast(),
    ///     output: received.as_mut_ptr().cast(),
    ///     given: &given,
    ///     taken: &taken,
    ///     dtype: DType::F32,
    ///     op: ReduceOp::Sum,
    ///     root: 0,
    /// };
    /// // SAFETY: as many elements as the counts say, which nothing else touches before the wait.
    /// let work = unsafe { group.start_uneven(&call) }?;
    /// work.wait(None)?;
    /// assert!(received.iter().all(|token| *token == 1.0));
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn start_uneven(&self, call: &UnevenCall<'_>) -> Result<Work, Error> {
        // SAFETY: passed on to the caller.
        unsafe { self.start_uneven_staged(call, &Staging::default()) }
    }

    /// As [`start_uneven`](Self::start_uneven), with a factor or layouts, or in the memory of a GPU.
    ///
    /// # Errors
    /// As [`start_uneven`](Self::start_uneven) and [`start_staged`](Self::start_staged).
    ///
    /// # Safety
    /// As for [`start_uneven`](Self::start_uneven), and for [`start_cuda`](Self::start_cuda) of memory of a GPU.
    pub unsafe fn start_uneven_staged(
        &self,
        call: &UnevenCall<'_>,
        staging: &Staging,
    ) -> Result<Work, Error> {
        call.check(staging)?;
        let begin = Clock.now();
        let (collective, dtype, blocks) = (call.collective, call.dtype, call.blocks());
        // SAFETY: the caller's promise.
        let (input, output, mut staged) = unsafe { call.memory(staging) }?;
        let mut buffers = (input, output);
        let mut frame = self.frame(&blocks, buffers)?;
        if let Some(counts) = blocks.known() {
            let problem = frame.problem(&self.tables, counts?);
            if staging.cuda_stream.is_some() {
                let at = (call.input, call.output);
                // SAFETY: the caller's promise, of as many elements as the counts say.
                return unsafe { self.start_problem_staged(begin, problem, at, staging) };
            }
            let memory = self.memory(&problem, input, output);
            return self.start_memory(begin, problem, memory, None, staged);
        }
        if let Some(stream) = staging.cuda_stream {
            let elements = |buffer: Buffer| buffer.len() / dtype.size();
            let (input, output) = ((call.input, elements(input)), (call.output, elements(output)));
            let sides = Sides { input, output, dtype, is_one: false };
            let step = self.annotations.step();
            let call = Call { operation: collective.into(), tensor: None, step };
            // SAFETY: the caller's promise.
            let made = unsafe { self.stage_sides(sides, (staging, stream), (call, collective.to_string())) }?;
            (buffers, staged) = ((made.0, made.1), made.2);
            frame.placement = Placement::Separate;
        }
        let (learning, round) = Learning::new(&blocks, self.rank, &self.grid, frame.root)
            .map_err(|why| blocks.argument(why.to_string()))?;
        let followed = Arc::new(Followed {
            learns: AtomicBool::new(true),
            state: Mutex::new((learning, None)),
            frame,
            input: self.region(buffers.0),
            output: self.region(buffers.1),
            tables: self.tables.clone(),
            starts: self.starts(),
            rank: self.rank,
            name: self.annotations.label(),
            step: self.annotations.step(),
            deadline: executor_time(begin + self.deadline),
        });
        let request = {
            let mut state = lock(&followed.state);
            let (learning, under_way) = &mut *state;
            followed.round(learning, under_way.insert(round))?
        };
        let bytes = buffers.0.len().max(buffers.1.len());
        self.start_followed(begin, request, bytes, followed, staged)
    }
}
