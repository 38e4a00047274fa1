//! `shouter bench incast`: how several ranks that send to one at once share its link.

use std::time::Instant;

use clap::Args;
use shouter::{Config, Exchange, Group, ReduceOp, Work};

use super::{JobArgs, Measured, USUAL_ROUNDS, check_job, refuses, round, rounds};
use crate::bench::kernel::PeerWorkload;
use crate::bench::report::incast::{FEWEST, MOST, Times, WARM_UP};
use crate::bench::report::{Report, ReportLine, Rounds};
use crate::bench::sizes::Sizes;
use crate::bench::{now, pin};
use crate::failure::CommandError;
use crate::stdout;

/// Arguments of `shouter bench incast`.
#[derive(Args, Clone, Debug)]
#[command(mut_arg("ranks", |ranks| ranks.default_value("3")), mut_args(refuses(&["threads"])))]
pub(crate) struct IncastArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Sizes of the messages in bytes, multiples of 4; lists are separated by commas
    #[arg(long, default_value = "64Ki,1Mi")]
    bytes: Sizes,
}

/// The arguments of a rank; started by the bench itself under the launcher.
#[derive(Args, Clone, Debug)]
pub(crate) struct IncastWorkerArgs {
    #[arg(long)]
    bytes: Sizes,
    #[arg(long)]
    seconds: f64,
}

/// Runs the ranks, then the peers, and so on for all rounds.
pub(crate) fn main(args: &IncastArgs) -> Result<(), CommandError> {
    let IncastArgs { job, bytes: Sizes(sizes) } = args;
    check_job(job)?;
    if job.threads || job.ranks < 3 {
        return Err(CommandError::Usage(
            "an incast is measured between processes, of which several send to one; give -n 3 or more, and leave out --threads".into(),
        ));
    }
    if let Some(bytes) = sizes.iter().find(|bytes| **bytes == 0 || **bytes % 4 != 0) {
        return Err(CommandError::Usage(format!(
            "--bytes {bytes} is no multiple of 4 above 0, as the peers' sizes are"
        )));
    }
    let listed: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    let usual = if job.against.is_empty() { 1 } else { USUAL_ROUNDS };
    let what = Measured { name: "incast", worker: &["incast-worker"], kernel: Some(PeerWorkload::Incast) };
    let (mut gathered, mut absent) = (Rounds::default(), vec![]);
    for _ in 0..job.rounds.unwrap_or(usual) {
        round(&what, job, &["--bytes", &listed.join(",")], sizes, (&mut gathered, &mut absent))?;
    }
    let lines = gathered.medians();
    if !job.json {
        return Ok(stdout::print(&table(&lines))?);
    }
    let mut report = Report::new(job.json);
    report.extend(lines)?;
    Ok(report.finish()?)
}

/// The figures of all lines.
fn table(lines: &[ReportLine]) -> String {
    let mut table = format!(
        "{:<28}{:>10}{:>9}{:>9}{:>12}{:>12}{:>9}\n",
        "incast", "bytes", "Gb/s", "of one", "p50 us", "p99 us", "resent"
    );
    for line in lines {
        let resent = line.resent.map_or_else(|| "-".into(), |resent| resent.to_string());
        table += &format!(
            "{:<28}{:>10}{:>9.2}{:>9.2}{:>12.2}{:>12.2}{:>9}\n",
            line.series(),
            line.bytes.unwrap_or(0),
            line.goodput_gbits.unwrap_or(0.0),
            line.share_of_one.unwrap_or(0.0),
            line.p50_us.unwrap_or(0.0),
            line.p99_us.unwrap_or(0.0),
            resent
        );
    }
    table
}

/// The body of one rank.
pub(crate) fn worker(args: &IncastWorkerArgs) -> Result<(), CommandError> {
    let config = Config::from_env().map_err(|why| CommandError::Usage(why.to_string()))?;
    pin(&config);
    let group = shouter::init(config)?;
    for &bytes in &args.bytes.0 {
        let mut incast = Incast::new(&group, bytes as usize)?;
        let mut line = incast.measure(args.seconds)?;
        if group.rank() == 0 {
            line.bytes = Some(bytes);
            line.ranks = Some(group.size());
            line.hosts = Some(group.nodes());
            line.transport = Some(group.transport().channels.clone());
            line.print()?;
        }
    }
    group.finalize()?;
    Ok(())
}

/// One rank with its memory: what it sends, or what comes from each sender.
struct Incast<'a> {
    group: &'a Group,
    bytes: usize,
    data: Vec<u8>,
}

impl<'a> Incast<'a> {
    fn new(group: &'a Group, bytes: usize) -> Result<Self, CommandError> {
        let senders = if group.rank() == 0 { group.size() as usize - 1 } else { 1 };
        Ok(Self { group, bytes, data: vec![0; bytes * senders] })
    }

    /// Rounds for about `seconds`, in turn with one sender and with all; the figures are those of rank 0.
    fn measure(&mut self, seconds: f64) -> Result<ReportLine, CommandError> {
        let others = self.group.size() - 1;
        let begun = Instant::now();
        for round in 0..WARM_UP {
            self.round(round, 1 + (round % u64::from(others)) as u32..=others)?;
        }
        let wanted = rounds(self.group, (begun, WARM_UP), seconds / 2.0, FEWEST..=MOST)?;
        let resent = self.resent()?;
        let mut times = Times::new(self.bytes);
        for round in 0..wanted {
            let one = 1 + (round % u64::from(others)) as u32;
            times.one(&self.round(round, one..=one)?);
            times.all(self.round(round, 1..=others)?);
        }
        let resent = self.resent()? - resent;
        Ok(ReportLine { resent: Some(resent), ..times.line("shouter") })
    }

    /// Datagrams that all ranks have sent again.
    fn resent(&self) -> Result<u64, CommandError> {
        let mut resent = [self.group.stats().resent];
        self.group.all_reduce(&mut resent, ReduceOp::Sum)?;
        Ok(resent[0])
    }

    /// The ranks `senders` send a message each to rank 0, at once: for each the nanoseconds from the start of the first of them until rank 0
    /// has it, on rank 0. All ranks read one clock.
    #[allow(unsafe_code)]
    fn round(
        &mut self,
        round: u64,
        senders: std::ops::RangeInclusive<u32>,
    ) -> Result<Vec<u64>, CommandError> {
        let Self { group, bytes, data } = self;
        let mark = |rank: u32| (round as u8).wrapping_mul(31) ^ rank as u8 ^ 0x5a;
        if group.rank() != 0 {
            if let Some(first) = data.first_mut() {
                *first = mark(group.rank());
            }
            if let Some(last) = data.last_mut() {
                *last = mark(group.rank());
            }
            group.barrier()?;
            let mut start = [u64::MAX];
            if senders.contains(&group.rank()) {
                start[0] = now();
                group.send(data, 0, 1)?;
            }
            group.all_reduce(&mut start, ReduceOp::Min)?;
            return Ok(vec![]);
        }
        let mut works: Vec<Option<Work>> = vec![];
        let mut outcome = Ok(());
        for (rank, into) in senders.clone().zip(data.chunks_exact_mut(*bytes)) {
            // SAFETY: nothing touches the memory before all receives have ended, as the loop below waits for; they do in a group that fails.
            match unsafe { group.start_message(Exchange::receive(into, rank, 1)) } {
                Ok(work) => works.push(Some(work)),
                Err(why) => outcome = Err(why),
            }
        }
        outcome = outcome.and_then(|()| group.barrier());
        let mut times = vec![0; works.len()];
        while works.iter().any(Option::is_some) {
            for (work, time) in works.iter_mut().zip(&mut times) {
                let Some(ended) = work.as_ref().and_then(Work::test) else { continue };
                *time = now();
                *work = None;
                outcome = outcome.and(ended);
            }
        }
        outcome?;
        let mut start = [u64::MAX];
        group.all_reduce(&mut start, ReduceOp::Min)?;
        times.iter_mut().for_each(|time| *time = time.saturating_sub(start[0]));
        for (rank, came) in senders.zip(data.chunks_exact(*bytes)) {
            if [came.first(), came.last()] != [Some(&mark(rank)); 2] {
                return Err(CommandError::Failed(format!(
                    "round {round} of {bytes} bytes: the message of rank {rank} is wrong"
                )));
            }
        }
        Ok(times)
    }
}
