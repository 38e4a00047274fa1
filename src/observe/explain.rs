//! Compares the dumps of a job's ranks: which rank was late or at fault, and in which operation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;
use shouter_reducer::recorder::RecordKind;

use super::perfetto::TRACKS;
use super::read::{self, Trace};
use super::{TimelineError, read::DumpAbout};

/// The findings of [`explain`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The job's name.
    pub job: String,
    /// Ranks of the job.
    pub size: u64,
    /// The ranks of which there is a dump, in order.
    pub ranks: Vec<RankState>,
    /// The ranks of which there is none.
    pub silent: Vec<u64>,
    /// The ranks at fault, or late; none where the dumps do not show any.
    pub culprits: Vec<u64>,
    /// The sentence for people.
    pub verdict: String,
}

/// Where one rank was when it wrote its dump.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RankState {
    /// The rank.
    pub rank: u64,
    /// Its host.
    pub host: String,
    /// Why it wrote the dump.
    pub cause: String,
    /// The number of the last operation that it finished.
    pub finished: Option<u64>,
    /// The number of the last small operation within its host that it finished.
    pub finished_small: Option<u64>,
    /// The first operation that it had started and not finished.
    pub open: Option<OpenOperation>,
    /// The rank that it blames.
    pub blames: Option<u64>,
}

/// An operation that was under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpenOperation {
    /// Its number. Small operations within a host are numbered apart from the others.
    pub seq: u64,
    /// Whether it was a small operation within a host.
    pub is_small: bool,
    /// Its tensor, where that is registered.
    pub tensor: Option<String>,
    /// The trainer's step.
    pub step: u64,
    /// Bytes of the tensor.
    pub bytes: u64,
    /// From its start until the dump was written, in nanoseconds; until the last event, where the dump does not say when it was written.
    pub open_ns: u64,
}

/// Reads the dumps of a job's ranks, one of each, and finds the ranks that were at fault or late, and where.
///
/// A rank that others name as the cause of the group's end is at fault. Where none is named, as in dumps of a job that
/// hangs, the late ranks are those that had not started the first operation that another had started and not finished.
///
/// # Errors
///
/// If a file cannot be read, is not a dump, repeats a rank, or is of another job than the first.
pub fn explain(files: &[PathBuf]) -> Result<Explanation, TimelineError> {
    let traces = read::all(files)?;
    let mut ranks = Vec::with_capacity(traces.len());
    let mut about: Option<(String, u64)> = None;
    for (trace, path) in traces.iter().map(|trace| (trace, &trace.path)) {
        let wrong = |why: String| TimelineError::NotATimeline { path: path.clone(), why };
        let Some(dump) = &trace.dump else {
            return Err(wrong("it has no cause, so it is not a rank's last events".into()));
        };
        let (job, size) = about.get_or_insert_with(|| (dump.job.clone(), dump.size));
        if *job != dump.job || *size != dump.size {
            return Err(wrong(format!(
                "it is of the job \"{}\" of {} ranks, and others are of \"{job}\" of {size}",
                dump.job, dump.size
            )));
        }
        ranks.push(DumpSummary::by(trace, dump));
    }
    let (job, size) = about.unwrap_or_default();
    let present: BTreeSet<u64> = ranks.iter().map(|told| told.rank).collect();
    let silent = (0..size).filter(|rank| !present.contains(rank)).collect();
    let (culprits, verdict) = Evidence { ranks: &ranks, silent: &silent }.verdict();
    let ranks = ranks.into_iter().map(DumpSummary::state).collect();
    Ok(Explanation { job, size, ranks, silent, culprits, verdict })
}

/// An operation is known by the track of the recorder that it is on, and its number there.
type OperationRef = (Track, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Track {
    Engine,
    Small,
}

/// An operation, as its start was recorded.
#[derive(Clone, Debug)]
struct Start {
    at_ns: i64,
    tensor: Option<String>,
    step: u64,
    bytes: u64,
}

#[derive(Debug)]
struct DumpSummary {
    rank: u64,
    host: String,
    cause: String,
    /// Operations that were started and not finished, also those that failed.
    open: BTreeMap<OperationRef, Start>,
    /// The last operation that was started, and the last that was finished.
    started: BTreeMap<Track, u64>,
    finished: BTreeMap<Track, u64>,
    /// Whom the rank blames, and why.
    blames: Option<(u64, Option<String>)>,
    /// Messages by operation and peer.
    sent: BTreeSet<(OperationRef, u64)>,
    received: BTreeSet<(OperationRef, u64)>,
    written_ns: i64,
}

impl DumpSummary {
    fn by(trace: &Trace, dump: &DumpAbout) -> Self {
        let mut told = Self {
            rank: trace.rank,
            host: trace.host.clone(),
            cause: dump.cause.clone(),
            open: BTreeMap::new(),
            started: BTreeMap::new(),
            finished: BTreeMap::new(),
            blames: None,
            sent: BTreeSet::new(),
            received: BTreeSet::new(),
            written_ns: dump.written_ns.unwrap_or(0),
        };
        let mut failed_by = None;
        let mut finished = BTreeSet::new();
        for event in &trace.events {
            let Some(at) = event.get("ts").and_then(Value::as_f64) else { continue };
            let at_ns = (at * 1e3).round() as i64;
            told.written_ns = told.written_ns.max(at_ns);
            let args = event.get("args");
            let number = |key: &str| args.and_then(|args| args.get(key)).and_then(Value::as_u64);
            let text = |key: &str| args.and_then(|args| args.get(key)).and_then(Value::as_str);
            let track = match event.get("tid").and_then(Value::as_u64).unwrap_or(0) / TRACKS {
                0 => Track::Engine,
                1 => Track::Small,
                // Groups of some ranks number their operations apart, and each rank numbers those groups.
                _ => continue,
            };
            let place = number("seq").map(|seq| (track, seq));
            let name = event.get("name").and_then(Value::as_str).unwrap_or_default();
            let is = |kind: RecordKind| kind.name() == name;
            if is(RecordKind::Ended) {
                told.blames = number("culprit").map(|rank| (rank, text("why").map(str::to_owned)));
            }
            let Some(place) = place else { continue };
            if is(RecordKind::Started) {
                let tensor = text("tensor").map(str::to_owned);
                let (step, bytes) = (number("step").unwrap_or(0), number("bytes").unwrap_or(0));
                told.open.insert(place, Start { at_ns, tensor, step, bytes });
                latest(&mut told.started, place);
            } else if is(RecordKind::Done) {
                finished.insert(place);
                latest(&mut told.finished, place);
            } else if is(RecordKind::Failed) {
                failed_by = failed_by.or(number("culprit"));
            } else if let Some(peer) = number("peer") {
                if is(RecordKind::Sent) {
                    told.sent.insert((place, peer));
                } else if is(RecordKind::Received) {
                    told.received.insert((place, peer));
                }
            }
        }
        // A finished operation is drawn from its start on, so its end may come before its start in the file.
        told.open.retain(|place, _| !finished.contains(place));
        if told.blames.is_none() {
            told.blames = failed_by.map(|rank| (rank, None));
        }
        told
    }

    fn has_started(&self, (track, seq): OperationRef) -> bool {
        self.started.get(&track).is_some_and(|last| *last >= seq)
    }

    fn state(self) -> RankState {
        let open = self.open.iter().next().map(|(place, start)| self.open_operation(*place, start));
        RankState {
            finished: self.finished.get(&Track::Engine).copied(),
            finished_small: self.finished.get(&Track::Small).copied(),
            open,
            blames: self.blames.map(|(rank, _)| rank),
            rank: self.rank,
            host: self.host,
            cause: self.cause,
        }
    }

    fn open_operation(&self, (track, seq): OperationRef, start: &Start) -> OpenOperation {
        OpenOperation {
            seq,
            is_small: track == Track::Small,
            tensor: start.tensor.clone(),
            step: start.step,
            bytes: start.bytes,
            open_ns: u64::try_from(self.written_ns - start.at_ns).unwrap_or(0),
        }
    }
}

fn latest(of: &mut BTreeMap<Track, u64>, (track, seq): OperationRef) {
    of.entry(track).and_modify(|last| *last = seq.max(*last)).or_insert(seq);
}

/// All dumps together.
struct Evidence<'a> {
    ranks: &'a [DumpSummary],
    silent: &'a Vec<u64>,
}

impl Evidence<'_> {
    fn verdict(&self) -> (Vec<u64>, String) {
        self.blamed().or_else(|| self.late()).unwrap_or_else(|| {
            let silent = match self.silent[..] {
                [] => String::new(),
                _ => format!("; of {} there is no dump", ranks(self.silent)),
            };
            (vec![], format!("no operation was under way on the ranks that left a dump{silent}"))
        })
    }

    /// The rank that most others name.
    fn blamed(&self) -> Option<(Vec<u64>, String)> {
        let mut votes: BTreeMap<u64, (usize, Option<&str>)> = BTreeMap::new();
        for told in self.ranks {
            if let Some((rank, why)) = &told.blames {
                let vote = votes.entry(*rank).or_default();
                vote.0 += 1;
                vote.1 = vote.1.or(why.as_deref());
            }
        }
        // Of equals the lowest.
        let (culprit, (count, why)) = votes.iter().rev().max_by_key(|(_, (count, _))| *count)?;
        let dumps = self.ranks.len();
        let because = why.map(|why| format!(" ({why})")).unwrap_or_default();
        let mut text = format!("rank {culprit} ended the job{because}: {count} of {dumps} dumps name it");
        let open = self.first_open();
        if let Some((place, start)) = &open {
            text += &format!(". The first operation that was not finished is {}", operation(*place, start));
        }
        let own = self.ranks.iter().find(|told| told.rank == *culprit);
        match (own, &open) {
            (None, _) => {
                text += &format!(
                    ". Rank {culprit} left no dump: it was killed, or it hangs (set dump_signal and send it that signal)"
                );
            }
            (Some(own), Some((place, _))) if !own.has_started(*place) => {
                text += &format!(". Rank {culprit} had not started it: {}", own.cause);
            }
            (Some(own), _) => text += &format!(". Rank {culprit} says: {}", own.cause),
        }
        Some((vec![*culprit], text))
    }

    /// The ranks that had not started the first operation in which others were waiting.
    fn late(&self) -> Option<(Vec<u64>, String)> {
        let (place, start) = self.first_open()?;
        let what = operation(place, &start);
        let late: Vec<u64> =
            self.ranks.iter().filter(|told| !told.has_started(place)).map(|told| told.rank).collect();
        let waiting = self.ranks.iter().filter_map(|told| told.open.get(&place).map(|start| (told, start)));
        let longest = waiting.clone().map(|(told, start)| told.written_ns - start.at_ns).max().unwrap_or(0);
        let waiting: Vec<u64> = waiting.map(|(told, _)| told.rank).collect();
        let since = format!("{:.3} s", longest as f64 / 1e9);
        if !late.is_empty() {
            let text = format!(
                "{} had not started {what}, in which {} waited for {since}",
                ranks(&late),
                ranks(&waiting)
            );
            return Some((late, text));
        }
        if !self.silent.is_empty() {
            let text = format!(
                "{} left no dump; {} waited in {what} for {since}, which every rank with a dump had started",
                ranks(self.silent),
                ranks(&waiting)
            );
            return Some((self.silent.clone(), text));
        }
        let on_the_way = self.ranks.iter().find_map(|from| {
            let (_, peer) = from.sent.iter().find(|(of, peer)| {
                let to = self.ranks.iter().find(|told| told.rank == *peer);
                *of == place && to.is_some_and(|to| !to.received.contains(&(place, from.rank)))
            })?;
            Some(format!(
                "what rank {} sent to rank {peer} has not come: look at the path between their hosts",
                from.rank
            ))
        });
        let why = on_the_way.unwrap_or_else(|| "no message is missing between the dumps".into());
        Some((
            vec![],
            format!("every rank had started {what}, and {} waited in it for {since}; {why}", ranks(&waiting)),
        ))
    }

    /// The first operation that some rank had started and not finished.
    fn first_open(&self) -> Option<(OperationRef, Start)> {
        let open = self.ranks.iter().filter_map(|told| told.open.iter().next());
        open.min_by_key(|(place, _)| **place).map(|(place, start)| (*place, start.clone()))
    }
}

/// `rank 3`, `ranks 0, 2 and 5`.
fn ranks(ranks: &[u64]) -> String {
    match ranks {
        [] => "no rank".into(),
        [one] => format!("rank {one}"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(u64::to_string).collect();
            format!("ranks {} and {last}", first.join(", "))
        }
    }
}

fn operation((track, seq): OperationRef, start: &Start) -> String {
    let Start { tensor, step, bytes, .. } = start;
    let small = if track == Track::Small { "small " } else { "" };
    let tensor = tensor.as_ref().map(|name| format!("tensor \"{name}\", ")).unwrap_or_default();
    format!("{small}operation {seq} ({tensor}step {step}, {bytes} bytes)")
}

#[cfg(test)]
mod tests;
