use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use shouter_reducer::executor::AbortReason;
use shouter_reducer::grid::Rank;
use shouter_reducer::recorder::{Record, RecordKind, Recorder, RegisteredTensor};

use super::*;
use crate::error::{NamedTensor, TensorId};
use crate::observe::flight::{DumpTarget, Flight};

/// The dumps of a job of four ranks on two hosts, in a folder that is removed at the end.
struct Job {
    folder: PathBuf,
    dumps: Vec<PathBuf>,
}

impl Job {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("shouter-explain-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self { folder, dumps: vec![] }
    }

    /// The dump of a rank with these events, one a millisecond.
    fn rank(&mut self, rank: u32, cause: &str, events: &[Record]) -> &mut Self {
        self.rank_of("job", rank, cause, events)
    }

    fn rank_of(&mut self, job: &str, rank: u32, cause: &str, events: &[Record]) -> &mut Self {
        let (mut shard, small) = (Recorder::new(), Recorder::new());
        let tracks = vec![("engine", shard.records()), ("small operations", small.records())];
        let host = (rank / 2).to_string();
        let target = DumpTarget { folder: self.folder.clone(), job: job.into(), rank, size: 4, host };
        let flight = Flight::new(target, tracks);
        flight.name_tensors(Box::new(|RegisteredTensor { generation, tensor }| {
            let name = format!("layer{generation}.{tensor}");
            Some(Arc::new(NamedTensor { id: TensorId(tensor), name }))
        }));
        for (at, record) in (1..).zip(events) {
            shard.record(Record { at: Duration::from_millis(at), ..*record });
        }
        self.dumps.push(flight.dump(cause).unwrap());
        self
    }

    fn explain(&self) -> Explanation {
        explain(&self.dumps).unwrap()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn started(seq: u64) -> Record {
    let tensor = Some(RegisteredTensor { generation: 1, tensor: 7 });
    Record { seq, tensor, value: 5, bytes: 4096, ..Record::of(RecordKind::Started) }
}

fn finished(seq: u64) -> Record {
    Record { seq, ..Record::of(RecordKind::Done) }
}

fn message(what: RecordKind, seq: u64, peer: u32) -> Record {
    Record { seq, rank: Some(Rank(peer)), bytes: 1024, ..Record::of(what) }
}

fn ended(culprit: u32) -> Record {
    let value = AbortReason::Failed.code().into();
    Record { rank: Some(Rank(culprit)), value, ..Record::of(RecordKind::Ended) }
}

#[test]
fn a_rank_that_the_others_name_is_at_fault_and_the_operation_is_told() {
    let mut job = Job::new("named");
    for rank in [0, 1, 3] {
        let events = [started(1), finished(1), started(2), ended(2), message(RecordKind::Failed, 2, 2)];
        job.rank(rank, "rank 2 died", &events);
    }
    let found = job.explain();
    assert_eq!((&found.culprits[..], &found.silent[..]), (&[2][..], &[2][..]));
    for part in [
        "rank 2 ended the job (",
        "3 of 3 dumps",
        "operation 2 (tensor \"layer1.7\", step 5, 4096 bytes)",
        "left no dump",
    ] {
        assert!(found.verdict.contains(part), "{part}: {}", found.verdict);
    }
    let state = &found.ranks[2];
    assert_eq!((state.rank, &*state.host, &*state.cause), (3, "1", "rank 2 died"));
    assert_eq!((state.finished, state.finished_small, state.blames), (Some(1), None, Some(2)));
    let open = state.open.as_ref().unwrap();
    assert_eq!((open.seq, open.is_small, open.step, open.bytes), (2, false, 5, 4096));
}

#[test]
fn the_rank_that_most_others_name_is_taken_and_its_own_words_are_shown() {
    let mut job = Job::new("most");
    job.rank(0, "rank 1 died", &[started(1), ended(1)]);
    job.rank(1, "this rank was stopped", &[ended(2)]);
    job.rank(2, "rank 1 died", &[started(1), ended(1)]);
    let found = job.explain();
    assert_eq!(found.culprits, [1]);
    assert!(found.verdict.contains("2 of 3 dumps"), "{}", found.verdict);
    assert!(found.verdict.contains("had not started it: this rank was stopped"), "{}", found.verdict);
}

#[test]
fn a_rank_that_had_not_started_what_others_wait_in_is_late() {
    let mut job = Job::new("late");
    for rank in [0, 2, 3] {
        job.rank(rank, "a signal", &[started(1), finished(1), started(2), started(3)]);
    }
    job.rank(1, "a signal", &[started(1), finished(1)]);
    let found = job.explain();
    assert_eq!(found.culprits, [1]);
    assert!(
        found.verdict.starts_with("rank 1 had not started operation 2 (tensor \"layer1.7\""),
        "{}",
        found.verdict
    );
    assert!(found.verdict.contains("in which ranks 0, 2 and 3 waited for "), "{}", found.verdict);
}

#[test]
fn a_rank_without_a_dump_is_named_where_all_others_have_come_as_far() {
    let mut job = Job::new("silent");
    for rank in [0, 1, 3] {
        job.rank(rank, "a signal", &[started(1)]);
    }
    let found = job.explain();
    assert_eq!(found.culprits, [2]);
    assert!(
        found.verdict.starts_with("rank 2 left no dump; ranks 0, 1 and 3 waited in"),
        "{}",
        found.verdict
    );
}

#[test]
fn a_message_that_has_not_come_shows_the_path() {
    let mut job = Job::new("path");
    job.rank(0, "a signal", &[started(1), message(RecordKind::Sent, 1, 2)]);
    job.rank(1, "a signal", &[started(1)]);
    job.rank(2, "a signal", &[started(1), message(RecordKind::Sent, 1, 0)]);
    job.rank(3, "a signal", &[started(1)]);
    let found = job.explain();
    assert!(found.culprits.is_empty());
    assert!(found.verdict.contains("what rank 0 sent to rank 2 has not come"), "{}", found.verdict);
}

#[test]
fn a_job_with_nothing_under_way_blames_nobody() {
    let mut job = Job::new("idle");
    for rank in 0..4 {
        job.rank(rank, "asked for", &[started(1), finished(1)]);
    }
    let found = job.explain();
    assert!(found.culprits.is_empty() && found.ranks.iter().all(|rank| rank.open.is_none()));
    assert!(found.verdict.starts_with("no operation was under way"), "{}", found.verdict);
}

#[test]
fn files_that_do_not_belong_together_are_refused_by_name() {
    let refused = |files: &[PathBuf]| explain(files).unwrap_err().to_string();
    let mut job = Job::new("other");
    job.rank(0, "x", &[]).rank_of("another", 1, "x", &[]);
    assert!(refused(&job.dumps).contains("\"another\""), "{}", refused(&job.dumps));
    let twice = [job.dumps[0].clone(), job.dumps[0].clone()];
    assert!(refused(&twice).contains("both of rank 0"), "{}", refused(&twice));
    let path = job.folder.join("timeline.json");
    fs::write(&path, r#"{"otherData":{"rank":0},"traceEvents":[]}"#).unwrap();
    assert!(refused(std::slice::from_ref(&path)).contains("no cause"));
    fs::write(&path, "{").unwrap();
    assert!(refused(std::slice::from_ref(&path)).contains("timeline.json"));
    assert!(refused(&[Path::new("/nonexistent").to_owned()]).contains("/nonexistent"));
}
