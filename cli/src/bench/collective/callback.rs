//! `shouter bench callback`: how soon a rank hears of the end of an operation that it has started, while it computes.

use std::hint::spin_loop;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use clap::Args;
use shouter::config::{Builder, ConfigError};
use shouter::{Collective, CollectiveCall, Config, DType, Group, ReduceOp, Work};

use super::{JobArgs, check_job, launcher, refuses, rounds};
use crate::bench::now;
use crate::bench::report::{Report, ReportLine, percentiles_us};
use crate::bench::sizes::Sizes;
use crate::bench::{patience, ranks_output};
use crate::failure::CommandError;

/// Rounds that warm up caches, threads and plans; not measured.
const WARM_UP: u64 = 20;
/// Fewest rounds of a series.
const FEWEST: u64 = 21;
/// Most rounds of a series.
const MOST: u64 = 50_000;
/// The tag of the message that rank 0 is ready.
const READY: u32 = 1;
/// Who drives the network.
const MODES: [&str; 2] = ["caller", "dedicated"];
/// How a rank hears of the end.
const WAYS: [&str; 4] = ["callback", "future", "thread", "wait"];

/// Arguments of `shouter bench callback`.
#[derive(Args, Clone, Debug)]
#[command(mut_args(refuses(&["ranks", "threads", "against", "rounds"])))]
pub(crate) struct CallbackArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Sizes in bytes, multiples of 8; lists are separated by commas
    #[arg(long, default_value = "8")]
    bytes: Sizes,
    /// Who drives the network of rank 0 (the key mode): the thread that waits, or one of its own; each of a list is measured
    #[arg(long, default_value = "caller,dedicated", value_delimiter = ',', value_parser = MODES)]
    mode: Vec<String>,
    /// How rank 0 hears of the end: a callback is called, a future is woken (a thread polls it), another thread waits, or it waits itself
    /// and does not compute; each of a list is measured
    #[arg(long, default_value = "callback,future,thread,wait", value_delimiter = ',', value_parser = WAYS)]
    by: Vec<String>,
    /// Who drives that of rank 1, which waits: a thread of its own takes a core that the others may need
    #[arg(long, default_value = "caller", value_parser = MODES)]
    peer_mode: String,
    /// How long rank 1 sleeps before it starts the operation, in microseconds
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    late_us: u64,
}

/// The arguments of a rank; started by the bench itself under the launcher.
#[derive(Args, Clone, Debug)]
pub(crate) struct CallbackWorkerArgs {
    #[arg(long)]
    bytes: Sizes,
    #[arg(long)]
    mode: String,
    #[arg(long)]
    peer_mode: String,
    #[arg(long, value_delimiter = ',')]
    by: Vec<String>,
    #[arg(long)]
    late_us: u64,
    #[arg(long)]
    seconds: f64,
}

/// Runs the two ranks in each mode.
pub(crate) fn main(args: &CallbackArgs) -> Result<(), CommandError> {
    let CallbackArgs { job, bytes: Sizes(sizes), mode, by, peer_mode, late_us } = args;
    check_job(job)?;
    if job.ranks != 2 || job.threads || !job.against.is_empty() || job.rounds.is_some() {
        return Err(CommandError::Usage(
            "callbacks are measured between two processes, of shouter alone, and once; leave out -n, --threads, --against and --rounds".into(),
        ));
    }
    if let Some(bytes) = sizes.iter().find(|bytes| **bytes == 0 || *bytes % 8 != 0) {
        return Err(CommandError::Usage(format!("--bytes {bytes} is no multiple of 8, as elements are")));
    }
    let listed: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    let mut report = Report::new(job.json);
    let mut table = format!(
        "{:<24}{:>10}{:>22}{:>12}{:>18}{:>12}\n",
        "us", "bytes", "since last start: p50", "p99", "since end: p50", "p99"
    );
    for mode in mode {
        let mut command = launcher(job)?;
        command.args(["bench", "callback-worker", "--mode", mode, "--peer-mode", peer_mode]);
        command.args(["--bytes", &listed.join(","), "--by", &by.join(",")]);
        command.args(["--late-us", &late_us.to_string(), "--seconds", &job.seconds.to_string()]);
        let limit = patience(sizes.len() * by.len(), job.seconds);
        for line in ranks_output(command.stdin(Stdio::null()), limit)? {
            let us = |figure: Option<f64>| format!("{:.2}", figure.unwrap_or(0.0));
            table += &format!(
                "{:<24}{:>10}{:>22}{:>12}{:>18}{:>12}\n",
                line.series(),
                line.bytes.unwrap_or(0),
                us(line.p50_us),
                us(line.p99_us),
                us(line.since_end_p50_us),
                us(line.since_end_p99_us)
            );
            report.push(line)?;
        }
    }
    if !job.json {
        print!("{table}");
    }
    Ok(())
}

/// The body of one rank. Its thread is not pinned: a thread that drives for it, or calls back, would inherit the core on which it computes.
pub(crate) fn worker(args: &CallbackWorkerArgs) -> Result<(), CommandError> {
    let group = shouter::init(config(args).map_err(|why| CommandError::Usage(why.to_string()))?)?;
    for &bytes in &args.bytes.0 {
        for by in &args.by {
            let mut series = Series {
                group: &group,
                listener: Listener::of(by)?,
                late: Duration::from_micros(args.late_us),
                data: vec![0; bytes as usize / 8],
                since_start: vec![],
                since_end: vec![],
            };
            series.measure(args.seconds)?;
            if group.rank() == 0 {
                series.line(&args.mode, by).print()?;
            }
        }
    }
    group.finalize()?;
    Ok(())
}

/// The configuration of this rank, with its mode.
fn config(args: &CallbackWorkerArgs) -> Result<Config, ConfigError> {
    let rank = Config::from_env()?.rank;
    let mode = if rank == 0 { &args.mode } else { &args.peer_mode };
    Builder::from_process()?.set("mode", mode)?.build()
}

/// One size and one way to hear of the end, on this rank.
struct Series<'a> {
    group: &'a Group,
    listener: Listener,
    late: Duration,
    data: Vec<u64>,
    /// Nanoseconds from the start of the last rank until rank 0 has heard of the end.
    since_start: Vec<u64>,
    /// The same from the end of the operation on rank 0.
    since_end: Vec<u64>,
}

impl Series<'_> {
    fn measure(&mut self, seconds: f64) -> Result<(), CommandError> {
        let begun = Instant::now();
        for round in 0..WARM_UP {
            self.once(round)?;
        }
        let wanted = rounds(self.group, (begun, WARM_UP), seconds, FEWEST..=MOST)?;
        self.since_start.clear();
        self.since_end.clear();
        for round in 0..wanted {
            self.once(WARM_UP + round)?;
        }
        Ok(())
    }

    /// One all-reduce of maxima, whose first element is the time of the start: that of the last rank is the result. Rank 0 starts it, and
    /// sends a message when all is ready to hear of the end; rank 1 receives that, sleeps, starts the operation, and waits for it.
    #[allow(unsafe_code)]
    fn once(&mut self, round: u64) -> Result<(), CommandError> {
        let Self { group, listener, late, data, .. } = self;
        let is_first = group.rank() == 0;
        (0..).zip(&mut *data).for_each(|(index, element)| *element = round + index);
        if !is_first {
            group.receive(&mut [0u64], 0, READY)?;
            thread::sleep(*late);
        }
        let before = if is_first { group.stats().time_in_allreduce_ns } else { 0 };
        let (start, address) = (now(), data.as_mut_ptr());
        data[0] = start;
        let call = CollectiveCall {
            collective: Collective::AllReduce,
            input: address.cast_const().cast(),
            output: address.cast(),
            count: data.len(),
            dtype: DType::U64,
            op: ReduceOp::Max,
            root: 0,
        };
        // SAFETY: elements of `data`, which are left alone until the wait below.
        let work = unsafe { group.start(&call) }?;
        let heard = if is_first { listener.hear(&work, group, round) } else { Ok(0) };
        work.wait(None)?;
        let (heard, last) = (heard?, data[0]);
        let rest = (0..).zip(&*data).skip(1);
        if (last > start) != is_first || rest.into_iter().any(|(index, element)| *element != round + index) {
            return Err(CommandError::Failed(format!("round {round} of {} elements is wrong", data.len())));
        }
        if is_first {
            // The engine counts from within the call that starts the operation, so this end is no later than the true one.
            let end = start + (group.stats().time_in_allreduce_ns - before);
            self.since_start.push(heard.saturating_sub(last));
            self.since_end.push(heard.saturating_sub(end));
        }
        Ok(())
    }

    /// The figures of rank 0.
    fn line(&mut self, mode: &str, by: &str) -> ReportLine {
        let Self { group, data, since_start, since_end, .. } = self;
        let (p50, p99) = percentiles_us(since_start);
        let (end_p50, end_p99) = percentiles_us(since_end);
        ReportLine {
            ranks: Some(group.size()),
            hosts: Some(group.nodes()),
            transport: Some(group.transport().channels.clone()),
            bytes: Some(data.len() as u64 * 8),
            iterations: Some(since_start.len() as u64),
            mode: Some(mode.into()),
            heard_by: Some(by.into()),
            p50_us: Some(p50),
            p99_us: Some(p99),
            since_end_p50_us: Some(end_p50),
            since_end_p99_us: Some(end_p99),
            ..ReportLine::of("callback", "shouter")
        }
    }
}

/// A way to hear of the end of an operation.
enum Listener {
    /// A callback of the operation.
    Callback,
    /// A thread that is handed the operation, and waits for it or polls it as a future.
    Thread(mpsc::Sender<(Work, Arc<AtomicU64>)>),
    /// The calling thread waits.
    Wait,
}

impl Listener {
    fn of(by: &str) -> Result<Self, CommandError> {
        let listen: fn(Work) = match by {
            "callback" => return Ok(Self::Callback),
            "wait" => return Ok(Self::Wait),
            "future" => block_on,
            // Its outcome is read by the thread that started it.
            _ => |work| drop(work.wait(None)),
        };
        let (works, handed_over) = mpsc::channel::<(Work, Arc<AtomicU64>)>();
        thread::Builder::new().name("listener".into()).spawn(move || {
            for (work, heard) in handed_over {
                listen(work);
                heard.store(now(), Ordering::Release);
            }
        })?;
        Ok(Self::Thread(works))
    }

    /// Gets ready to hear of the end, tells rank 1, and computes until the rank has heard, unless it waits; the time at which it has.
    fn hear(&self, work: &Work, group: &Group, round: u64) -> Result<u64, CommandError> {
        let heard = Arc::new(AtomicU64::new(0));
        let told = heard.clone();
        match self {
            Self::Callback => work.on_done(move |_| told.store(now(), Ordering::Release))?,
            Self::Thread(works) => works
                .send((work.clone(), told))
                .map_err(|_| CommandError::Failed("the thread that waits has ended".into()))?,
            Self::Wait => {}
        }
        group.send(&[round], 1, READY)?;
        if let Self::Wait = self {
            work.wait(None)?;
            return Ok(now());
        }
        loop {
            match heard.load(Ordering::Acquire) {
                0 => spin_loop(),
                time => return Ok(time),
            }
        }
    }
}

/// Wakes a thread that polls a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls an operation as a future until it has ended.
fn block_on(mut work: Work) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    while Pin::new(&mut work).poll(&mut context).is_pending() {
        thread::park();
    }
}
