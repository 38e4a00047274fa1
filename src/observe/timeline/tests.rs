use serde_json::Value;

use super::*;
use crate::observe::{Part, merge};

/// A folder for one test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("shouter-timeline-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

fn parse(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn timed(trace: &Value) -> Vec<&Value> {
    trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X").collect()
}

fn names<'a>(trace: &'a Value, kind: &str) -> Vec<&'a str> {
    let all = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["name"] == kind);
    all.map(|event| event["args"]["name"].as_str().unwrap()).collect()
}

#[test]
fn the_newest_events_stay_and_the_lost_are_counted() {
    let mut lane = Lane::new("shard 0", 4);
    for n in 0..11 {
        lane.record(Event { start: at(n), ..Event::default() });
    }
    let kept: Vec<u64> = lane.events().map(|event| event.start.as_nanos()).collect();
    assert_eq!(kept, [7, 8, 9, 10]);
    assert_eq!(lane.overwritten(), 7);
}

#[test]
fn a_lane_without_room_records_nothing() {
    let mut lane = Lane::new("off", 0);
    lane.record(Event::default());
    assert!(!lane.is_on());
    assert_eq!((lane.events().count(), lane.overwritten()), (0, 0));
}

#[test]
fn the_trace_is_json_in_order_of_time_with_names() {
    let folder = Folder::new("trace");
    let timeline = Timeline::new(3, "b", 16);
    timeline.name_tensor(7, "layer1.\"weight\"\n");
    timeline.record("barrier", at(9_000), at(9_500), 2, 0);
    timeline.record_event(Event {
        name: "allreduce",
        start: at(1_234),
        duration_ns: 2_001,
        tensor: Some(7),
        step: 1,
        bytes: 4096,
        ..Event::default()
    });
    let mut shard = Lane::new("shard 0", 16);
    shard.record(Event { name: "resend", category: Category::Network, start: at(5_000), ..Event::default() });
    let path = folder.file("t.json");
    timeline.write_with(&path, &[&shard]).unwrap();
    let trace = parse(&path);
    assert_eq!(names(&trace, "process_name"), ["rank 3 (host b)"]);
    assert_eq!(names(&trace, "thread_name"), ["calls", "shard 0"]);
    let events = timed(&trace);
    assert_eq!(events.len(), 3);
    assert_eq!(events[0]["ts"], 1.234);
    assert_eq!(events[0]["dur"], 2.001);
    assert_eq!(events[0]["cat"], "operation");
    assert_eq!(events[0]["args"]["tensor"], "layer1.\"weight\"\n");
    assert_eq!(events[0]["args"]["bytes"], 4096);
    assert_eq!(events[1]["name"], "barrier");
    assert_eq!(events[2]["cat"], "network");
    assert_ne!(events[2]["tid"], events[0]["tid"]);
    assert!(events.iter().all(|event| event["pid"] == 3));
}

#[test]
fn operations_that_overlap_get_rows_of_their_own() {
    let timeline = Timeline::new(0, "a", 16);
    for (begin, end) in [(0, 100), (50, 150), (100, 200), (120, 130)] {
        timeline.record("allreduce", at(begin), at(end), 0, 0);
    }
    let trace: Value = serde_json::from_str(&timeline.to_json(&[])).unwrap();
    let rows: Vec<u64> = timed(&trace).iter().map(|event| event["tid"].as_u64().unwrap()).collect();
    assert_eq!(rows, [0, 1, 0, 2]);
}

#[test]
fn threads_record_into_one_timeline() {
    let timeline = Timeline::new(0, "a", 1_000);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..500).for_each(|n| timeline.record("allreduce", at(n), at(n + 1), n, 0)));
        }
    });
    assert_eq!(timeline.overwritten(), 1_000);
}

#[test]
fn merging_shifts_clocks_orders_events_and_refuses_a_rank_twice() {
    let folder = Folder::new("merge");
    let parts: Vec<Part> = [(0, 0), (1, -1_000_000)]
        .into_iter()
        .map(|(rank, offset_ns)| {
            let timeline = Timeline::new(rank, "h", 2);
            let shift = u64::from(rank) * 1_000_000;
            for n in [10_u64, 30, 50] {
                let begin = at(shift + n * 1_000 + u64::from(rank));
                timeline.record("allreduce", begin, begin, 0, 0);
            }
            let path = folder.file(&format!("{rank}.json"));
            timeline.write(&path).unwrap();
            Part { path, offset_ns }
        })
        .collect();
    let out = folder.file("all.json");
    let merged = merge(&parts, &out).unwrap();
    assert_eq!((merged.ranks, merged.events, merged.overwritten), (2, 4, 2));
    let trace = parse(&out);
    let order: Vec<(u64, f64)> = timed(&trace)
        .iter()
        .map(|event| (event["pid"].as_u64().unwrap(), event["ts"].as_f64().unwrap()))
        .collect();
    assert_eq!(order, [(0, 30.0), (1, 30.001), (0, 50.0), (1, 50.001)]);
    assert_eq!(names(&trace, "process_name"), ["rank 0 (host h)", "rank 1 (host h)"]);

    let twice = [parts[0].clone(), parts[0].clone()];
    assert!(matches!(merge(&twice, &out), Err(TimelineError::SameRank { rank: 0, .. })));
}

#[test]
fn files_that_are_no_timelines_are_refused_by_name() {
    let folder = Folder::new("bad");
    let out = folder.file("out.json");
    let part = |path: PathBuf| [Part { path, offset_ns: 0 }];
    let missing = merge(&part(folder.file("missing")), &out).unwrap_err();
    assert!(matches!(missing, TimelineError::Io { .. }), "{missing}");
    for (n, text) in
        ["", "[]", "{}", "{\"otherData\":{\"rank\":1}}", "{\"otherData\":{\"rank\":1},\"traceEvents\":[1]}"]
            .into_iter()
            .enumerate()
    {
        let path = folder.file(&format!("{n}.json"));
        std::fs::write(&path, text).unwrap();
        let error = merge(&part(path.clone()), &out).unwrap_err();
        assert!(matches!(error, TimelineError::NotATimeline { .. }), "{text}: {error}");
        assert!(error.to_string().contains(path.to_str().unwrap()));
    }
    let timeline = Timeline::new(0, "a", 1);
    assert!(timeline.write(&folder.file("no/such/folder/t.json")).is_err());
}
