use std::fs;
use std::time::Duration;

use serde_json::Value;
use shouter_reducer::grid::Rank;
use shouter_reducer::recorder::{EVENTS, Recorder};

use super::*;
use crate::error::TensorId;
use crate::observe::{Merged, merge};

/// A folder for one test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("shouter-flight-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn flight(&self, rank: u32, tracks: Vec<(&'static str, Records)>) -> Flight {
        let target =
            DumpTarget { folder: self.0.clone(), job: "a:b".into(), rank, size: 4, host: "1".into() };
        Flight::new(target, tracks)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn parse(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn events(trace: &Value) -> Vec<&Value> {
    trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] != "M").collect()
}

fn at(micros: u64, what: RecordKind) -> Record {
    Record { at: Duration::from_micros(micros), seq: 5, ..Record::of(what) }
}

#[test]
fn operations_outside_the_table_have_the_labels_that_the_program_gave_them() {
    let folder = Folder::new("labels");
    let (mut shard, mut small) = (Recorder::new(), Recorder::new());
    let flight = folder.flight(0, vec![(ENGINE, shard.records()), ("small operations", small.records())]);
    // Of those that went before, the last ones are kept.
    (0..=LABELS as u64).for_each(|seq| flight.labels().keep((0, seq), format!("bucket {seq}").into()));
    let started = |seq| Record { seq, ..at(10, RecordKind::Started) };
    [7, 0, 1 << 40].into_iter().for_each(|seq| shard.record(started(seq)));
    small.record(started(8));
    let trace = parse(&flight.dump("asked for").unwrap());
    let named: Vec<_> = events(&trace).iter().map(|event| event["args"]["tensor"].clone()).collect();
    assert_eq!(named, ["bucket 7".into(), Value::Null, Value::Null, Value::Null]);
}

#[test]
fn operations_of_groups_have_their_labels_and_no_name_of_another_groups_tensor() {
    let folder = Folder::new("groups");
    let all = Recorder::new();
    let flight = folder.flight(0, vec![(GROUPS, all.records())]);
    flight.name_tensors(Box::new(|_| Some(Arc::new(NamedTensor { id: TensorId(8), name: "others".into() }))));
    let ranks: Arc<[Rank]> = [0, 1].map(Rank).into();
    let groups = [1, 2].map(|group| all.of_group(group, ranks.clone()));
    let tensor = Some(RegisteredTensor { generation: 1, tensor: 3 });
    for (mut group, number) in groups.into_iter().zip(1..) {
        flight.group_labels().keep((number, 5), format!("expert {number}").into());
        group.record(Record { tensor, ..at(10, RecordKind::Started) });
    }
    let mut first = all.of_group(1, ranks);
    first.record(at(12, RecordKind::Done));
    let trace = parse(&flight.dump("asked for").unwrap());
    let named: Vec<_> = events(&trace)
        .iter()
        .map(|event| (event["name"].as_str().unwrap(), &event["args"]["tensor"], &event["args"]["group"]))
        .collect();
    let expert = |number: u16| Value::from(format!("expert {number}"));
    let due = [
        ("started", &expert(1), &1.into()),
        ("operation", &expert(1), &1.into()),
        ("started", &expert(2), &2.into()),
    ];
    assert_eq!(named.len(), 3);
    assert!(due.iter().all(|event| named.contains(event)), "{named:?}");
}

#[test]
fn a_dump_tells_what_was_under_way_and_who_is_to_blame() {
    let folder = Folder::new("tells");
    let (mut shard, small) = (Recorder::new(), Recorder::new());
    let flight = folder.flight(2, vec![("engine", shard.records()), ("small operations", small.records())]);
    let rank = Some(Rank(3));
    flight.name_tensors(Box::new(|RegisteredTensor { generation, tensor }| {
        Some(Arc::new(NamedTensor { id: TensorId(8), name: format!("w{generation}.{tensor}") }))
    }));
    let tensor = Some(RegisteredTensor { generation: 1, tensor: 3 });
    shard.record(Record { tensor, value: 70, bytes: 4096, ..at(10, RecordKind::Started) });
    shard.record(Record { rank, bytes: 1024, ..at(11, RecordKind::CreditWait) });
    shard.record(Record { rank, value: AbortReason::Failed.code().into(), ..at(12, RecordKind::Ended) });
    shard.record(Record { rank, ..at(13, RecordKind::Failed) });
    flight.joined(Instant::from_nanos(1));
    let path = flight.dump("rank 3: gone").unwrap();
    let name = format!("shouter-a:b-rank2-{}.json", std::process::id());
    assert_eq!(path, folder.0.join(name));
    let trace = parse(&path);
    let about = &trace["otherData"];
    assert_eq!(
        (&about["cause"], &about["rank"], &about["joined_ns"]),
        (&"rank 3: gone".into(), &2.into(), &1.into())
    );
    assert!(about["clock_zero_unix_ns"].as_u64().unwrap() > 1_600_000_000_000_000_000);
    let events = events(&trace);
    let names: Vec<_> = events.iter().map(|event| event["name"].as_str().unwrap()).collect();
    // The failed operation begins with its start and has a length.
    assert_eq!(names, ["started", "failed", "wait for credit", "group ended"]);
    let failed = events[1];
    assert_eq!((&failed["ts"], &failed["dur"]), (&10.0.into(), &3.0.into()));
    let args = &failed["args"];
    assert_eq!((&args["seq"], &args["step"], &args["bytes"]), (&5.into(), &70.into(), &4096.into()));
    assert_eq!(
        (&args["tensor_id"], &args["tensor"], &args["culprit"]),
        (&8.into(), &"w1.3".into(), &3.into())
    );
    assert_eq!(events[2]["args"]["peer"], 3);
    assert!(events[3]["args"]["why"].as_str().unwrap().contains("dead or unreachable"));
}

#[test]
fn no_dump_overwrites_another_and_the_end_writes_one() {
    let folder = Folder::new("another");
    let flight = folder.flight(0, vec![]);
    let first = flight.dump("one").unwrap();
    let second = flight.dump("two").unwrap();
    assert_ne!(first, second);
    assert_eq!(parse(&first)["otherData"]["cause"], "one");
    let last = flight.ended("three").unwrap().to_owned();
    assert_eq!(flight.ended("four").unwrap(), last);
    assert_eq!(parse(&last)["otherData"]["cause"], "three");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 3);
}

#[test]
fn dumps_of_several_ranks_are_merged_as_timelines_are() {
    let folder = Folder::new("merged");
    let mut files = vec![];
    for rank in 0..2 {
        let mut shard = Recorder::new();
        let flight = folder.flight(rank, vec![("engine", shard.records())]);
        for micros in 0..EVENTS as u64 + 7 {
            shard.record(at(micros * 2 + u64::from(rank), RecordKind::Sent));
        }
        files.push(flight.dump("asked").unwrap());
    }
    let out = folder.0.join("all.json");
    let merged = merge(&files, &out).unwrap();
    assert_eq!(merged, Merged { ranks: 2, events: 2 * EVENTS, overwritten: 14 });
    let trace = parse(&out);
    let times: Vec<_> = events(&trace).iter().map(|event| event["ts"].as_f64().unwrap()).collect();
    assert!(times.is_sorted());
    let labels = |event: &&Value| event["name"] == "process_labels" && event["args"]["labels"] == "asked";
    assert_eq!(trace["traceEvents"].as_array().unwrap().iter().filter(labels).count(), 2);
}

#[test]
fn what_cannot_be_written_leaves_nothing_behind() {
    let folder = Folder::new("nothing");
    let gone = DumpTarget { folder: folder.0.join("none"), ..folder.flight(0, vec![]).target };
    let flight = Flight::new(gone, vec![]);
    let error = flight.dump("x").unwrap_err();
    assert!(error.to_string().contains("none/shouter-a:b-rank0"), "{error}");
    assert_eq!(flight.ended("x"), None);
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
}
